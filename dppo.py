"""DPPO, Divergence PPO: "Rethinking the Trust Region in LLM RL", 2602.04879 (Feb 2026), Eq. 12 to 16.

    J(θ) = E_x E_{y ~ μ(·|x)} Σ_t M_t r_t A        r_t = π_θ(y_t | x, y_<t) / μ(y_t | x, y_<t),  A_i = R_i - mean R
    M_t = 0 where D_t > δ and the update would move r_t further from 1 (A > 0, r_t > 1 or A < 0, r_t < 1), else 1

Differs from its parent grpo.py:
- the trust region is on the distribution, not on the ratio: D is how far the policy has moved at
  this position. A ratio of 2 on a token at 0.01 hardly moves it, one of 0.8 on a token at 0.99 does;
- ratio and divergence are anchored on the sampler μ itself, which leaves TIS nothing to correct;
- no std, and a token sum over the constant length limit, as in dr_grpo.py.

    python dppo.py
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems, sample_problems
from common.engines import WeightHistory, make_engine, prompt_seeds
from common.logprobs import batch_logps, token_logps, top_logps
from common.metrics import StepMetrics, mismatch_metrics, rollout_metrics
from common.models import load_model
from common.run import Run, seed_step
from common.schedule import learning_rate
from common.settings import Cap, Count, CountOrZero, GroupSize, NonNegative, Positive, Rate, Settings, Share
from common.verification.verifier import Verifier

import torch
import tyro
from torch import Tensor


@dataclass
class Args(Settings):
    # DPPO
    divergence: Literal["binary-tv", "binary-kl", "topk-tv", "topk-kl"] = "binary-tv"
    """D: over {the token, all others}, or over {the sampler's K likeliest, the token, all others}."""
    delta: Positive = 0.2
    """δ: size of the trust region. Paper: TV 0.15 to 0.2, KL 0.05."""
    top_k: Count = 20
    """K of the top-K divergences. Paper 20."""
    ratio_cap: Cap = float("inf")
    """C: cap of the ratio's weight. Paper: 5 in the scaling runs; 3 hurt in the stability study, which has none."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 0."""
    ratio_anchor: Literal["learner", "sampler"] = "sampler"
    """What μ is: the engine's log-probs, or the learner's at the rollout weights, which collapses in the paper."""
    num_minibatches: Count = 4
    """Parts of a rollout batch, with one optimizer update each."""
    update_epochs: Count = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches. Papers: 1 or 2."""
    responses_per_prompt: GroupSize = 8
    """G: responses to each prompt, the group. Papers: 8 to 64."""

    # The same in every script
    steps: Count = 100
    """Rollout batches. Real models: 100 to 1000."""
    prompts_per_step: Count = 32
    """P: different prompts in a rollout batch. Papers: 32 to 512."""
    max_response_tokens: Count = 96
    """T: length limit of a response. Reasoning models need 1,000 to 30,000."""
    temperature: Positive = 1.0
    """Sampling temperature; every log-prob is taken at the same one."""
    lr: Rate = 1e-4
    """AdamW's peak learning rate. Models of 1B and more: 5e-7 to 3e-6."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What the learning rate does after the warm-up: it stays, or falls to 0 at the end of the run."""
    warmup_steps: CountOrZero = 5
    """Steps over which the learning rate rises from 0, in rollout batches."""
    weight_decay: Share = 0.0
    """AdamW's weight decay; 0 to 0.1."""
    max_grad_norm: Positive = 1.0
    """Gradients are scaled down to this norm."""
    staleness: CountOrZero = 0
    """k: the engine samples with the weights of k rollout batches ago, as asynchronous training does."""


def compute_advantages(rewards: Tensor, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: no std (2602.04879, App. C)."""
    return rewards - rewards.mean(1, keepdim=True)


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (B L), the same for every token."""
    return mask / (len(mask) * args.max_response_tokens)


def divergence(mu: Tensor, pi: Tensor, kind: str) -> Tensor:
    """D(μ, π) per token (B, T) between distributions (B, T, N): total variation or KL (2602.04879, Eq. 13 to 16)."""
    if kind.endswith("tv"):
        return (mu - pi).abs().sum(-1) / 2
    return (mu * (torch.log(mu + 1e-8) - torch.log(pi + 1e-8))).sum(-1)


def coarse_distribution(logp: Tensor, top: Tensor | None = None, is_top: Tensor | None = None) -> Tensor:
    """Probabilities (B, T, N) of {the sampled token, all others}, or of {K tokens, the sampled one, all others}.

    `top` (B, T, K): log-probs of the sampler's K likeliest tokens; `is_top` (B, T): the sampled one is among them.
    """
    token = logp.exp().unsqueeze(-1)  # (B, T, 1)
    if top is not None:
        token = torch.cat([top.exp(), token * ~is_top.unsqueeze(-1)], dim=-1)  # (B, T, K + 1)
    return torch.cat([token, (1 - token.sum(-1, keepdim=True)).clamp(min=0)], dim=-1)


def policy_loss(
    logp: Tensor, old_logp: Tensor, rollout_logp: Tensor, advantages: Tensor, mask: Tensor, args: Args, top: tuple = ()
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss (B, T) and per-token metrics, all inputs (B, T); only `logp` carries a gradient.

    `top`: log-probs of the sampler's K likeliest tokens, the policy's and the sampler's (B, T, K), and `is_top` (B, T).
    """
    ratio = torch.exp(logp - rollout_logp)  # (B, T), to the sampler
    policy_top, rollout_top, is_top = top or (None, None, None)
    pi = coarse_distribution(logp.detach(), policy_top, is_top)  # (B, T, N)
    mu = coarse_distribution(rollout_logp, rollout_top, is_top)  # (B, T, N)
    outside = divergence(mu, pi, args.divergence) > args.delta  # (B, T)
    clip_pos = (advantages > 0) & (ratio > 1) & outside  # (B, T)
    clip_neg = (advantages < 0) & (ratio < 1) & outside  # (B, T)
    keep = ~(clip_pos | clip_neg)  # (B, T), M
    # ∇(r A) = r A ∇log π, and in this form the ratio's weight can be capped.
    loss = -(keep * ratio.clamp(max=args.ratio_cap).detach() * advantages * logp)  # (B, T)
    return loss, {"ratio": ratio, "clip_pos": clip_pos.float(), "clip_neg": clip_neg.float()}


def kl_penalty(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Per-token k3 estimate (B, T) of KL(π_θ ‖ π_ref) (2402.03300, Eq. 4).

    As a value it is unbiased and never negative; as a loss its gradient is that of KL(π_ref ‖ π_θ).
    """
    return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1


def main(args: Args) -> None:
    if args.divergence.startswith("topk") and args.ratio_anchor == "learner":
        fail("--ratio-anchor learner goes with the binary divergences: the K likeliest tokens are the sampler's.")
    with Run(args, __file__) as run:
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(tokenizer, train + held_out, args.answer_format, args.tolerance, args.reward))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None
        history = WeightHistory(model, args.staleness)
        done = run.restore(model, tokenizer, optimizer, history=history)
        run.evaluate(done, engine, verifier, held_out)

        for step in range(done + 1, args.steps + 1):
            seed_step(args.seed, step)
            with run.clock("sync"):
                engine.load_weights(history.oldest())

            # Generate G responses to each of P prompts, and verify their answers.
            with run.clock("generate"):
                problems = sample_problems(train, args.seed, (step - 1) * P, P)
                prompts, seeds = [p.prompt_ids for p in problems], prompt_seeds(P, args.seed, step)
                # DPPO: the top-K divergences need the sampler's K likeliest tokens at each position.
                K = min(args.top_k, model.config.vocab_size) if args.divergence.startswith("topk") else 0
                rollouts = engine.generate(prompts, G, args.max_response_tokens, args.temperature, seeds, K)
            with run.clock("verify"):
                correct = torch.tensor(verifier(problems, rollouts), device=model.device).float().view(P, G)  # (P, G)
            engine.sleep()  # its memory is the learner's until it gets new weights
            batch = collate(prompts, rollouts, model.device)
            mask, rollout_logp = batch.sampled, batch.rollout_logp  # (B, T), (B, T)
            is_top = (batch.top_ids == batch.response.unsqueeze(-1)).any(-1)  # (B, T), DPPO: sampled from those K

            # The learner's own log-probs at the rollout weights; the engine's differ in their numerics.
            with run.clock("logps"):
                old_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
                ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            rewards = batch.rewards.view(P, G)  # (P, G)
            advantages = compute_advantages(rewards, args).view(-1, 1).expand(mask.shape)  # (B, T)
            anchor_logp = old_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            run.require_finite(step, sampler_logp=rollout_logp, learner_logp=old_logp, advantage=advantages)

            metrics = StepMetrics()
            metrics.add({"entropy": entropy}, token_weights(mask, args), mask)  # DPPO
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args)
            with run.clock("train"):
                for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                    weights = torch.zeros_like(old_logp)  # (B, T)
                    weights[minibatch] = token_weights(mask[minibatch], args)
                    for rows in micro_batches(minibatch, batch, args.micro_batch_tokens):
                        logp, _ = token_logps(model, batch, rows, args)  # (b, T)
                        # DPPO: the policy's log-probs of the sampler's K likeliest tokens, beside the sampler's own.
                        top = (top_logps(model, batch, rows, args), batch.top_logp[rows], is_top[rows]) if K else ()
                        loss, values = policy_loss(
                            logp, old_logp[rows], anchor_logp[rows], advantages[rows], mask[rows], args, top
                        )  # DPPO
                        if reference:  # GRPO has the KL in the loss
                            values["kl"] = kl_penalty(logp, ref_logp[rows])  # (b, T)
                            loss = loss + args.kl_beta * values["kl"]
                        metrics.add(values, weights[rows], mask[rows])
                        loss = (weights[rows] * loss).sum()
                        loss.backward()
                        metrics.add_loss(loss)
                    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                    run.require_finite(step, loss=metrics.loss, gradient=grad_norm)
                    optimizer.step()
                    optimizer.zero_grad()
                    metrics.add_update(grad_norm=grad_norm)

            rollout = rollout_metrics(rewards, correct, rollouts, verifier.take_failures())
            run.log(step, rollout | mismatch_metrics(old_logp, rollout_logp, mask) | metrics.result())
            if run.due(step, args.save_every):
                run.save(step)
            if run.interrupted:
                break
            run.evaluate(step, engine, verifier, held_out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
