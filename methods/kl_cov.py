"""KL-Cov: "The Entropy Mechanism of RL for Reasoning Language Models", 2505.22617 (May 2025), Eq. 10, 13 and 14.

    J(θ) = E_x E_{o_1..o_G ~ π_old(·|x)} 1/Σ_i|o_i| Σ_i Σ_t r_it A_i - β 1[it in I] KL(π_old ‖ π_θ)
    I: the few tokens with the largest Cov_it
    Cov_it = (log π_old(o_it) - mean of log π_old) (A_i - mean of A)

Differs from its parent grpo.py:
- a KL penalty for the few tokens with the largest covariance: entropy falls by about η Cov(log π, A) per
  update, as likely tokens with a high advantage become likelier still;
- no ratio clip, and the token mean.
Statistics are computed per rollout batch at its own weights; in the authors' code, per micro-batch at the
current weights. The KL is k3 here and |log r| there.
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python methods/kl_cov.py
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.data import load_problems, sample_problems
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps
from common.models import load_model
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, GroupSize, NonNegative, Positive, Rate, Settings
from common.verification import Verifier

import torch
from torch import Tensor


@dataclass
class Args(Settings):
    # KL-Cov
    cov_fraction: Fraction = 2e-3
    """Fraction of tokens under the KL penalty, at least one; only positive covariances. Paper 2e-3 (7B), 2e-4 (32B);
    on search, 0.02 shows a small effect (reports/effects.md)."""
    kl_cov_coef: NonNegative = 1.0
    """β of KL-Cov: weight of the KL on those tokens. Paper 1."""
    ddof: Literal[0, 1] = 1
    """The group's std divides by G - ddof: 1 gives the sample std of most code, 0 the population std."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 0."""
    ratio_anchor: Literal["learner", "engine"] = "learner"
    """π_old in the ratio: log-probs recomputed by the learner, or reported by the engine (requires --tis-cap 0)."""
    tis_cap: NonNegative = 2.0
    """C: cap of the truncated importance weight π_old / π_engine; 0 disables it."""
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


def compute_advantages(rewards: Tensor, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: z-scores within each group (2402.03300, Sec. 4.1.2)."""
    mean = rewards.mean(1, keepdim=True)  # (P, 1)
    std = rewards.std(1, correction=args.ddof, keepdim=True)  # (P, 1)
    # The paper has no ε; 1e-6 makes a group of equal rewards give 0 instead of 0 / 0.
    return (rewards - mean) / (std + 1e-6)


def covariance(old_logp: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """Each token's part of the covariance of log-prob and advantage; all (B, T) (2505.22617, Eq. 10)."""
    return (old_logp - old_logp[mask].mean()) * (advantages - advantages[mask].mean())


def choose_tokens(cov: Tensor, mask: Tensor, args: Args) -> Tensor:
    """The tokens under the KL penalty, as a mask; all (B, T). Where the covariance is negative, no entropy is lost."""
    threshold = cov[mask].topk(max(1, int(args.cov_fraction * mask.sum()))).values[-1]
    return mask & (cov > 0) & (cov >= threshold)


def token_weights(mask: Tensor) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / Σ_i |o_i|, every token has the same weight."""
    return mask / mask.sum().clamp(min=1)


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    On-policy, every ratio is 1 and the loss is -Σ_i |o_i| A_i / Σ_i |o_i|: its value only reflects response lengths.
    """
    ratio = torch.exp(logp - old_logp)  # (m, T)
    loss = -ratio * advantages  # (m, T)
    return loss, {"ratio": ratio}


def tis_weight(old_logp: Tensor, rollout_logp: Tensor, args: Args) -> Tensor:
    """(B, T) weights of truncated importance sampling: min(π_old / π_engine, C) per token (Yao et al., 2025)."""
    weight = torch.exp(old_logp - rollout_logp).clamp(max=args.tis_cap)  # (B, T)
    return weight if args.tis_cap > 0 else torch.ones_like(weight)


def kl_penalty(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Per-token k3 estimate (m, T) of KL(π_θ ‖ π_ref) (2402.03300, Eq. 4).

    On tokens from π_θ its value is unbiased and never negative. As a loss, its gradient is that of KL(π_ref ‖ π_θ).
    """
    return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1


def main(args: Args) -> None:
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
            rollouts = engine.generate(problems, G, step)
            rewards = verifier(problems, rollouts)  # (P, G)
            engine.sleep()  # frees its memory for the learner

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, rollouts, model.device)
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            learner_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            old_logp = learner_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            advantages = compute_advantages(rewards, args).view(-1, 1).expand(mask.shape)  # (B, T)
            tis = tis_weight(learner_logp, rollout_logp, args)  # (B, T)
            run.log_rollouts(problems, rollouts, rewards, advantages, learner_logp, rollout_logp, mask)
            # KL-Cov
            chosen = choose_tokens(covariance(learner_logp, advantages, mask), mask, args)  # (B, T)
            run.log_tokens({"entropy": entropy, "tis_weight": tis, "chosen": chosen}, token_weights(mask), mask)

            for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                weights = token_weights(mask[minibatch])  # (b, T)
                for rows, w in micro_batches(minibatch, weights, batch, args):  # (m,), (m, T)
                    logp = token_logps(model, batch, rows, args)  # (m, T)
                    loss, metrics = policy_loss(logp, old_logp[rows], advantages[rows])  # (m, T)
                    loss = tis[rows] * loss
                    # KL-Cov: KL(π_old ‖ π_θ) of the chosen tokens
                    loss = loss + args.kl_cov_coef * chosen[rows] * kl_penalty(old_logp[rows], logp)  # (m, T)
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
