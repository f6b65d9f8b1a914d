"""Curriculum of prompts neither too easy nor too hard, with Beta posteriors as in MoPPS, 2507.04632 (Jul 2025).

    GRPO's J(θ), where prompts x are drawn with weights E[p_x^2τ (1 - p_x)^(2 - 2τ)],
    p_x ~ Beta(a, b), the pass rate; c correct responses: a ← 1 + λ (a - 1) + c, w incorrect ones: b ← 1 + λ (b - 1) + w

Differs from its parent grpo.py:
- with τ = 1/2 the weight is the variance of the rewards, p (1 - p). Groups that are all correct or all incorrect have
  no signal, so prompts whose groups were mixed come back more often. Untried prompts have a larger weight than
  prompts that always failed. Another τ, which no paper has in this form, favors harder or easier prompts;
- the policy changes, so earlier results count less with every visit (λ).
MoPPS takes the prompts whose sampled p_x are nearest to 0.5, from candidates; its code shrinks with λ too, 0.5 on
countdown. Others draw by 1 - p (Kimi k1.5, 2501.12599), choose among categories by their mean |A| (SEC, 2505.14970),
take the prompts nearest to a level of difficulty that follows the reward (AdaRFT, 2504.05520), or learn to predict
p (1 - p) (Goldilocks, 2602.14868). None of these is here. docs/tasks.md filters by the base model's pass rate.
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python methods/curriculum.py
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems, sample_problems
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps
from common.models import load_model
from common.records import Problem
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, GroupSize, Names, NonNegative, Positive, Rate, Settings
from common.verification import Verifier

import numpy as np
import torch
from scipy.special import betaln
from torch import Tensor


@dataclass
class Args(Settings):
    # Curriculum
    pool: Count = 256
    """Training problems to draw from, a random part of the data set: few, so that they come back, such as
    32 with 8 prompts per step. At least P."""
    memory: Fraction = 0.5
    """λ: how much of an estimate remains at the next visit. 1 forgets nothing, 0 keeps the last visit only."""
    target: Fraction = 0.5
    """τ: prompts with this pass rate are drawn most often. 0.5 gives p (1 - p); AdaRFT's target is 0.5 too."""
    uniform: bool = False
    """Draw all problems of the pool with equal probability, as a control."""
    model: str = "search"
    """A model on the hub, a local folder, or one of this repository."""
    dataset: Names = "search-hard"
    """A data set on the hub, a local file, or a generated one; by default one that is mostly too hard."""
    clip_eps: Positive = 0.2
    """ε: no gradient for ratios above 1 + ε with positive advantages, below 1 - ε with negative ones. Usual 0.2."""
    ddof: Literal[0, 1] = 1
    """The group's std divides by G - ddof: 1 gives the sample std of most code, 0 the population std."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. GRPO's paper 0.04; most reasoning recipes 0."""
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


def draw_problems(pool: list[Problem], posteriors: dict[str, list[float]], step: int, args: Args) -> list[Problem]:
    """P different problems. The draw depends only on the seed, the step and the posteriors."""
    a, b = np.array([posteriors.get(problem.prompt, [1.0, 1.0]) for problem in pool]).T  # (N,), (N,)
    up, down = 2 * args.target, 2 - 2 * args.target
    signal = np.exp(betaln(a + up, b + down) - betaln(a, b))  # (N,), E[p^up (1 - p)^down]
    weights = np.ones_like(signal) if args.uniform else signal  # (N,)
    rng = np.random.default_rng((args.seed, step))
    rows = rng.choice(len(pool), args.prompts_per_step, replace=False, p=weights / weights.sum())  # (P,)
    return [pool[row] for row in rows]


def update_posteriors(posteriors: dict[str, list[float]], prompts: list[str], correct: Tensor, args: Args) -> float:
    """Add (P, G) verdicts to the posteriors of their prompts; returns the mean pass rate that these had predicted."""
    expected = 0.0
    for prompt, hits in zip(prompts, correct.sum(1).tolist(), strict=True):
        a, b = posteriors.get(prompt, [1.0, 1.0])
        expected += a / (a + b) / len(prompts)
        misses = correct.shape[1] - hits
        posteriors[prompt] = [1 + args.memory * (a - 1) + hits, 1 + args.memory * (b - 1) + misses]
    return expected


def compute_advantages(rewards: Tensor, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: z-scores within each group (2402.03300, Sec. 4.1.2)."""
    mean = rewards.mean(1, keepdim=True)  # (P, 1)
    std = rewards.std(1, correction=args.ddof, keepdim=True)  # (P, 1)
    # The paper has no ε; 1e-6 makes a group of equal rewards give 0 instead of 0 / 0.
    return (rewards - mean) / (std + 1e-6)


def token_weights(mask: Tensor) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (B |o_i|), every response has the same weight."""
    return mask / (len(mask) * mask.sum(1, keepdim=True))


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, args: Args) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    On-policy every ratio is 1, and a group's advantages sum to 0, so the minibatch's loss is 0; its gradient is not.
    """
    ratio = torch.exp(logp - old_logp)  # (m, T)
    clipped_ratio = ratio.clamp(1 - args.clip_eps, 1 + args.clip_eps)  # (m, T)
    # The minimum makes the clip one-sided: a ratio that moved against its advantage keeps its gradient.
    loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (m, T)
    return loss, {
        "ratio": ratio,
        "clip_pos": ((advantages > 0) & (ratio > 1 + args.clip_eps)).float(),
        "clip_neg": ((advantages < 0) & (ratio < 1 - args.clip_eps)).float(),
    }


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
    if args.pool < args.prompts_per_step:
        fail(f"--pool {args.pool} is smaller than --prompts-per-step {args.prompts_per_step}: raise it.")
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None
        # Curriculum: the problems to draw from, and a and b of each prompt's pass rate.
        pool = [*{p.prompt: p for p in sample_problems(train, min(args.pool, len(train)), 1, args)}.values()]
        run.state["posteriors"] = {}
        if len(pool) < P:
            fail(f"--prompts-per-step {P}: only {len(pool)} training problems are different.")

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out):
            # Sample G responses to each of P prompts, and verify their answers.
            engine.load_weights(model)
            problems = draw_problems(pool, run.state["posteriors"], step, args)  # Curriculum
            rollouts = engine.generate(problems, G, step)
            rewards = verifier(problems, rollouts)  # (P, G)
            # Curriculum: update the posteriors of these prompts' pass rates.
            correct, prompts = torch.tensor(rollouts.correct).view(P, G), [problem.prompt for problem in problems]
            run.log(expected_accuracy=update_posteriors(run.state["posteriors"], prompts, correct, args))
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
            run.log_tokens({"entropy": entropy, "tis_weight": tis}, token_weights(mask), mask)

            for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                weights = token_weights(mask[minibatch])  # (b, T)
                for rows, w in micro_batches(minibatch, weights, batch, args):  # (m,), (m, T)
                    logp = token_logps(model, batch, rows, args)  # (m, T)
                    loss, metrics = policy_loss(logp, old_logp[rows], advantages[rows], args)  # (m, T)
                    loss = tis[rows] * loss
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
