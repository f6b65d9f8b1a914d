"""Entropy control: Clip-Cov and KL-Cov, 2505.22617 (May 2025), Eq. 10 to 14, and others (see below), all of 2025.

    J(θ) = E_x E_{o_1..o_G ~ π_old(·|x)} 1/N Σ_it min(r_it A_i, clip(r_it, 1 - ε, 1 + ε) A_i), over all N tokens
    bonus         J + α 1/N Σ_it H_it
    adaptive      the same with α = c where H ≤ H*, and 0 elsewhere; then c rises or falls by Δ (2505.22312, Eq. 3.2)
    top-entropy   sum and N only of the tokens with H_it ≥ τ, a share ρ of all (80/20, 2506.01939, Eq. 6)
    clip-cov      r_it A_i, but 0 for a few tokens drawn from those with ω_low ≤ Cov_it ≤ ω_high
    kl-cov        r_it A_i, less β KL(π_old ‖ π_θ) for the few tokens with the largest Cov_it
    Cov_it = (log π_old(o_it) - mean of log π_old) (A_i - mean of A)        H_it: entropy at token t

Differs from its parent grpo.py, because entropy falls by about η Cov(log π, A), as likely tokens with a high advantage
become likelier still, and with it falls what can be found by sampling:
- a bonus pays for entropy; the others act on the tokens that decide over it: those that cost most of it, or
  those at which it is high, where responses fork;
- all tokens count the same, as in all these papers.
Shares and statistics are of a rollout batch at its own weights; the authors' codes have those of micro-batches, at the
weights of each update. KL-Cov's KL is k3 here and |log r| there. Clip-Cov's code ends the ratio at 2 besides, its
paper does not. c has no floor in the paper; here, as in its code, 0.

    python -m methods.entropy
"""

import math
from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems, sample_problems
from common.engines import WeightHistory, make_engine, prompt_seeds
from common.logprobs import batch_logps, token_logps
from common.metrics import StepMetrics, mismatch_metrics, rollout_metrics
from common.models import load_model
from common.run import Run, seed_step
from common.schedule import learning_rate
from common.settings import Count, CountOrZero, GroupSize, NonNegative, Positive, Rate, Settings, Share
from common.verification.verifier import Verifier

import torch
import tyro
from torch import Tensor


@dataclass
class Args(Settings):
    # Entropy control
    control: Literal["none", "bonus", "adaptive", "top-entropy", "clip-cov", "kl-cov"] = "kl-cov"
    """What keeps the entropy up."""
    entropy_coef: NonNegative = 0.005
    """α of the bonus, and Δ by which the adaptive one moves. Papers: 0.005 for both; a bonus of 0.01 explodes."""
    target_entropy: NonNegative = 0.2
    """H* of the adaptive bonus, in nats per token. Paper 0.2."""
    top_share: Share = 0.2
    """ρ of top-entropy: share of the tokens that are learned from. Paper 0.2; 0.1 to 0.5 do alike."""
    cov_share: Share = 2e-3
    """Share of the tokens that clip-cov (paper 2e-4) or kl-cov (2e-3 for 7B, 2e-4 for 32B) acts on, at least one."""
    cov_low: NonNegative = 1.0
    """ω_low of clip-cov: covariances below it are left alone. Paper 1."""
    cov_high: Positive = 5.0
    """ω_high of clip-cov: covariances above it are left alone. Paper 5."""
    kl_cov_coef: NonNegative = 1.0
    """β of kl-cov. Paper 1."""
    clip_eps: Positive = 0.2
    """ε: the ratio's gradient ends at 1 ± ε. Usual 0.2. Clip-cov and kl-cov stand in its place and have none."""
    ddof: Literal[0, 1] = 1
    """Std of the group divides by G - ddof: 1 is the sample std of most code, 0 the population's."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Papers 0."""
    ratio_anchor: Literal["learner", "sampler"] = "learner"
    """Denominator of the ratio: π_old as the learner computes it, or as the engine reported it (then --tis-cap 0)."""
    tis_cap: NonNegative = 2.0
    """C: cap of π_old / π_sampler, the correction for the sampler's other numerics; 0 turns it off."""
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
    """(P, G) rewards in, (P, G) advantages out: z-scores within each group (2402.03300, Sec. 4.1.2)."""
    mean = rewards.mean(1, keepdim=True)  # (P, 1)
    std = rewards.std(1, correction=args.ddof, keepdim=True)  # (P, 1)
    # The paper has no ε; 1e-6 only keeps a group without signal at 0 instead of 0 / 0.
    return (rewards - mean) / (std + 1e-6)


def choose(old_logp: Tensor, entropy: Tensor, advantages: Tensor, mask: Tensor, args: Args) -> Tensor:
    """The tokens of a rollout batch that the control acts on, as a mask; all (B, T)."""
    if args.control in ("none", "bonus", "adaptive"):
        return torch.zeros_like(mask)
    candidates, score, share = mask, entropy, args.top_share  # (B, T), (B, T)
    if args.control in ("clip-cov", "kl-cov"):
        score = (old_logp - old_logp[mask].mean()) * (advantages - advantages[mask].mean())  # (B, T)
        share, candidates = args.cov_share, mask & (score > 0)  # where it is 0, no entropy is lost
    if args.control == "clip-cov":
        candidates = mask & (score >= args.cov_low) & (score <= args.cov_high)  # (B, T)
        score = torch.rand(mask.shape).to(mask.device).masked_fill(~candidates, -1)  # (B, T)
    threshold = score[mask].topk(max(1, int(share * mask.sum()))).values[-1]
    return candidates & (score >= threshold)


def adapt(coef: float, entropy: float, args: Args) -> tuple[float, float]:
    """c and the mean entropy of a rollout batch in, its α and the next c out."""
    if entropy <= args.target_entropy:
        return coef, coef + args.entropy_coef
    return 0.0, max(0.0, coef - args.entropy_coef)


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (Σ |o_i|), each token counts the same."""
    return mask / mask.sum().clamp(min=1)  # there are none where top-entropy leaves a minibatch out


def policy_loss(
    logp: Tensor, old_logp: Tensor, rollout_logp: Tensor, advantages: Tensor, mask: Tensor, args: Args
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss (B, T) and per-token metrics, all inputs (B, T); only `logp` carries a gradient.

    On-policy every ratio is 1, and the loss -Σ_i |o_i| A_i / Σ_i |o_i|: it says which answers are longer, nothing else.
    """
    ratio = torch.exp(logp - old_logp)  # (B, T)
    eps = math.inf if args.control in ("clip-cov", "kl-cov") else args.clip_eps
    clipped_ratio = ratio.clamp(1 - eps, 1 + eps)  # (B, T)
    # The minimum makes the clip one-sided: a ratio that moved the wrong way always has its gradient.
    loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (B, T)
    return loss, {
        "ratio": ratio,
        "clip_pos": ((advantages > 0) & (ratio > 1 + eps)).float(),
        "clip_neg": ((advantages < 0) & (ratio < 1 - eps)).float(),
    }


def tis_weight(old_logp: Tensor, rollout_logp: Tensor, mask: Tensor, args: Args) -> Tensor:
    """(B, T) weights of truncated importance sampling: min(π_old / π_sampler, C), token by token (Yao et al., 2025)."""
    weight = torch.exp(old_logp - rollout_logp).clamp(max=args.tis_cap)  # (B, T)
    return weight if args.tis_cap > 0 else torch.ones_like(weight)


def kl_penalty(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Per-token k3 estimate (B, T) of KL(π_θ ‖ π_ref) (2402.03300, Eq. 4).

    As a value it is unbiased and never negative; as a loss its gradient is that of KL(π_ref ‖ π_θ).
    """
    return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1


def control(
    loss: Tensor, logp: Tensor, old_logp: Tensor, entropy: Tensor, chosen: Tensor, bonus: float, args: Args
) -> Tensor:
    """Per-token losses in, the same under control out; all (B, T)."""
    if args.control == "clip-cov":
        return loss * ~chosen  # what is left out still counts in the mean
    if args.control == "kl-cov":
        return loss + args.kl_cov_coef * chosen * kl_penalty(old_logp, logp)  # of KL(π_old ‖ π_θ)
    return loss - bonus * entropy if bonus else loss


def main(args: Args) -> None:
    if args.cov_low > args.cov_high:
        fail("--cov-low is above --cov-high: no covariance lies between them.")
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
        coef = run.saved("coef", 0.0)  # Entropy control: c of the adaptive bonus
        run.evaluate(done, engine, verifier, held_out)

        for step in range(done + 1, args.steps + 1):
            seed_step(args.seed, step)
            with run.clock("sync"):
                engine.load_weights(history.oldest())

            # Generate G responses to each of P prompts, and verify their answers.
            with run.clock("generate"):
                problems = sample_problems(train, args.seed, (step - 1) * P, P)
                prompts, seeds = [p.prompt_ids for p in problems], prompt_seeds(P, args.seed, step)
                rollouts = engine.generate(prompts, G, args.max_response_tokens, args.temperature, seeds)
            with run.clock("verify"):
                correct = torch.tensor(verifier(problems, rollouts), device=model.device).float().view(P, G)  # (P, G)
            engine.sleep()  # its memory is the learner's until it gets new weights
            batch = collate(prompts, rollouts, model.device)
            mask, rollout_logp = batch.sampled, batch.rollout_logp  # (B, T), (B, T)

            # The learner's own log-probs at the rollout weights; the engine's differ in their numerics.
            with run.clock("logps"):
                old_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
                ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            rewards = batch.rewards.view(P, G)  # (P, G)
            advantages = compute_advantages(rewards, args).view(-1, 1).expand(mask.shape)  # (B, T)
            anchor_logp = old_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            run.require_finite(step, sampler_logp=rollout_logp, learner_logp=old_logp, advantage=advantages)

            # Entropy control
            chosen = choose(old_logp, entropy, advantages, mask, args)  # (B, T)
            kept = chosen if args.control == "top-entropy" else mask  # (B, T)
            adapted, coef = adapt(coef, entropy[mask].mean().item(), args)
            bonus = {"bonus": args.entropy_coef, "adaptive": adapted}.get(args.control, 0.0)

            metrics = StepMetrics()
            tis = tis_weight(old_logp, rollout_logp, mask, args)  # (B, T)
            of_tis = {"tis_weight": tis, "tis_truncated": tis == args.tis_cap}  # (B, T), (B, T)
            metrics.add({"entropy": entropy} | of_tis, token_weights(mask, args), mask)
            metrics.add({"chosen": chosen}, token_weights(mask, args), mask)  # Entropy control
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args)
            with run.clock("train"):
                for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                    weights = torch.zeros_like(old_logp)  # (B, T)
                    weights[minibatch] = token_weights(kept[minibatch], args)  # Entropy control
                    for rows in micro_batches(minibatch, batch, args.micro_batch_tokens):
                        # Entropy control: the entropies of the policy now, with a gradient where there is a bonus
                        logp, now = token_logps(model, batch, rows, args, bonus > 0)  # (b, T), (b, T)
                        loss, values = policy_loss(
                            logp, anchor_logp[rows], rollout_logp[rows], advantages[rows], mask[rows], args
                        )
                        loss = tis[rows] * loss
                        # Entropy control of the policy's own loss, not of a KL to the initial model
                        loss = control(loss, logp, anchor_logp[rows], now, chosen[rows], bonus, args)
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
                    metrics.add_update(grad_norm=grad_norm, bonus=bonus)  # Entropy control

            rollout = rollout_metrics(rewards, correct, rollouts, verifier.take_failures())
            run.log(step, rollout | mismatch_metrics(old_logp, rollout_logp, mask) | metrics.result())
            if run.due(step, args.save_every):
                run.save(step, coef=coef)  # Entropy control
            if run.interrupted:
                break
            run.evaluate(step, engine, verifier, held_out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
