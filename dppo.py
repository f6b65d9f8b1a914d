"""DPPO, Divergence PPO: "Rethinking the Trust Region in LLM RL", 2602.04879 (Feb 2026), Eq. 12 to 16.

    J(θ) = E_x E_{o ~ μ(·|x)} Σ_t M_t r_t A        r_t = π_θ(o_t | x, o_<t) / μ(o_t | x, o_<t),  A = R - mean R
    M_t = 0 where D_t > δ and the update would move r_t further from 1 (A > 0, r_t > 1 or A < 0, r_t < 1), else 1

Differs from its parent grpo.py:
- the trust region limits how far the distribution has moved at a position, D, not the ratio. A ratio of 2
  on a token with probability 0.01 barely moves the distribution; a ratio of 0.8 on one with 0.99 does;
- ratio and divergence are relative to the rollout policy μ itself, which leaves nothing for TIS to correct;
- no std, and the sum over tokens is divided by the constant length limit, as in dr_grpo.py.
verl's DPPO takes the ratio to recomputed log-probs unless that is switched off; the paper finds that this collapses.
SkyRL and prime-rl also use a δ of 0.2.

    python dppo.py
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems, sample_problems
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps, top_logps
from common.models import load_model
from common.run import Run
from common.settings import Cap, Count, CountOrZero, Fraction, GroupSize, NonNegative, Positive, Rate, Settings
from common.verification import Verifier

import torch
from torch import Tensor


@dataclass
class Args(Settings):
    # DPPO
    divergence: Literal["binary-tv", "binary-kl", "topk-tv", "topk-kl"] = "binary-tv"
    """D: over {the token, all others}, or over {the engine's K likeliest, the token, all others}."""
    delta: Positive = 0.2
    """δ: size of the trust region. Paper: TV 0.15 to 0.2, KL 0.05."""
    top_k: Count = 20
    """K of the top-K divergences. Paper 20."""
    ratio_cap: Cap = float("inf")
    """C: cap of the ratio's weight. Paper: 5 in the scaling runs; none in the stability study, where 3 hurt."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 0."""
    ratio_anchor: Literal["learner", "engine"] = "engine"
    """Log-probs of μ: reported by the engine, or recomputed by the learner (which collapses in the paper)."""
    num_minibatches: Count = 4
    """Minibatches per rollout batch, with one optimizer update each."""
    update_epochs: Count = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches. Papers: 1 or 2."""
    responses_per_prompt: GroupSize = 8
    """G: responses per prompt, the group. Papers: 8 to 64."""

    # The same in every script
    steps: Count = 100
    """Rollout batches. Large models: 100 to 1000."""
    prompts_per_step: Count = 32
    """P: different prompts in a rollout batch. Papers: 32 to 512."""
    max_response_tokens: Count | None = None
    """T: length limit of a response; embedded models have a default. Reasoning models need 1,000 to 30,000."""
    temperature: Positive = 1.0
    """Sampling temperature; all log-probs use the same one."""
    lr: Rate = 1e-4
    """AdamW's peak learning rate. Models of 1B and more: 5e-7 to 3e-6."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up, the learning rate stays constant or falls to 0 by the end of the run."""
    warmup_steps: CountOrZero = 5
    """Steps (rollout batches) over which the learning rate rises from 0."""
    weight_decay: Fraction = 0.0
    """AdamW's weight decay; 0 to 0.1."""
    max_grad_norm: Positive = 1.0
    """Gradients are scaled down to this norm."""
    staleness: CountOrZero = 0
    """k: the engine samples with the weights of k rollout batches ago, as in asynchronous training."""


def compute_advantages(rewards: Tensor) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: no std (2602.04879, App. C)."""
    return rewards - rewards.mean(1, keepdim=True)


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (B L), the same for every token."""
    return mask / (len(mask) * args.max_response_tokens)


def divergence(mu: Tensor, pi: Tensor, kind: str) -> Tensor:
    """D(μ, π) per token (m, T) between distributions (m, T, N): total variation or KL (2602.04879, Eq. 13 to 16)."""
    if kind.endswith("tv"):
        return (mu - pi).abs().sum(-1) / 2
    return (mu * (torch.log(mu + 1e-8) - torch.log(pi + 1e-8))).sum(-1)


def coarse_distribution(logp: Tensor, top: Tensor | None = None, is_top: Tensor | None = None) -> Tensor:
    """Probabilities (m, T, N) of {the sampled token, all others}, or of {K tokens, the sampled one, all others}.

    `top` (m, T, K): log-probs of the engine's K likeliest tokens; `is_top` (m, T): the sampled one is among them.
    """
    token = logp.exp().unsqueeze(-1)  # (m, T, 1)
    if top is not None:
        token = torch.cat([top.exp(), token * ~is_top.unsqueeze(-1)], dim=-1)  # (m, T, K + 1)
    return torch.cat([token, (1 - token.sum(-1, keepdim=True)).clamp(min=0)], dim=-1)


def policy_loss(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, args: Args, top: tuple = ()
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    `old_logp` is log μ. `top`: log-probs of the engine's K likeliest tokens, the policy's and the engine's (m, T, K),
    and `is_top` (m, T).
    """
    ratio = torch.exp(logp - old_logp)  # (m, T)
    policy_top, rollout_top, is_top = top or (None, None, None)
    pi = coarse_distribution(logp.detach(), policy_top, is_top)  # (m, T, N)
    mu = coarse_distribution(old_logp, rollout_top, is_top)  # (m, T, N)
    outside = divergence(mu, pi, args.divergence) > args.delta  # (m, T)
    clip_pos = (advantages > 0) & (ratio > 1) & outside  # (m, T)
    clip_neg = (advantages < 0) & (ratio < 1) & outside  # (m, T)
    keep = ~(clip_pos | clip_neg)  # (m, T), M
    # ∇(r A) = r A ∇log π, and in this form the ratio's weight can be capped.
    loss = -(keep * ratio.clamp(max=args.ratio_cap).detach() * advantages * logp)  # (m, T)
    return loss, {"ratio": ratio, "clip_pos": clip_pos.float(), "clip_neg": clip_neg.float()}


def kl_penalty(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Per-token k3 estimate (m, T) of KL(π_θ ‖ π_ref) (2402.03300, Eq. 4).

    On tokens from π_θ its value is unbiased and never negative. As a loss, its gradient is that of KL(π_ref ‖ π_θ).
    """
    return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1


def main(args: Args) -> None:
    if args.divergence.startswith("topk") and args.ratio_anchor == "learner":
        fail("--ratio-anchor learner needs a binary divergence: the K likeliest tokens are the engine's.")
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out):
            # Sample G responses to each of P prompts, and verify their answers.
            engine.load_weights(model)
            problems = sample_problems(train, P, step, args)
            # DPPO: the top-K divergences need the engine's K likeliest tokens at each position.
            K = min(args.top_k, model.config.vocab_size) if args.divergence.startswith("topk") else 0
            rollouts = engine.generate(problems, G, step, top_k=K)
            rewards = verifier(problems, rollouts)  # (P, G)
            engine.sleep()  # frees its memory for the learner

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, rollouts, model.device)
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            is_top = (batch.top_ids == batch.response.unsqueeze(-1)).any(-1)  # (B, T), DPPO: sampled from those K
            learner_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            old_logp = learner_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            advantages = compute_advantages(rewards).view(-1, 1).expand(mask.shape)  # (B, T), DPPO: no TIS
            run.log_rollouts(problems, rollouts, rewards, advantages, learner_logp, rollout_logp, mask)
            run.log_tokens({"entropy": entropy}, token_weights(mask, args), mask)  # DPPO

            for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                weights = token_weights(mask[minibatch], args)  # (b, T)
                for rows, w in micro_batches(minibatch, weights, batch, args):  # (m,), (m, T)
                    logp = token_logps(model, batch, rows, args)  # (m, T)
                    # DPPO: the policy's log-probs of the engine's K likeliest tokens, and the engine's own.
                    top = (top_logps(model, batch, rows, args), batch.top_logp[rows], is_top[rows]) if K else ()
                    loss, metrics = policy_loss(logp, old_logp[rows], advantages[rows], args, top)  # (m, T), DPPO
                    if reference:  # GRPO: the KL to the reference, in the loss
                        metrics["kl"] = kl_penalty(logp, ref_logp[rows])  # (m, T)
                        loss = loss + args.kl_beta * metrics["kl"]
                    loss = (w * loss).sum()
                    loss.backward()
                    run.log_loss(loss, metrics, w, mask, rows)
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                run.check_update(grad_norm=grad_norm)  # ends the run if it is not finite
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
