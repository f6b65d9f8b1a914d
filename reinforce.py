"""REINFORCE: Williams, "Simple Statistical Gradient-Following Algorithms", Machine Learning 8 (1992), Theorem 1.

    ∇J(θ) = E_x E_{o ~ π_θ(·|x)} (R - b) Σ_t ∇ log π_θ(o_t | x, o_<t)

The root of the family: every other script here changes some lines of this one.
- It is supervised learning on the model's own responses, each weighted by how much better it was than a
  baseline b. A b that does not depend on the response changes the variance, not the expectation. The batch
  mean depends on it a little, which scales the gradient by 1 - 1/B.
- The log-prob of a response is the sum over its tokens. Many write-ups divide by its length: that is
  another objective, which prefers short correct answers and long incorrect ones.
- One update per rollout batch: the expectation is over the current policy.
By default, verl's REINFORCE loss also sums over the tokens of a response.
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python reinforce.py
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from common.batch import collate, micro_batches, minibatches
from common.data import load_problems, sample_problems
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps
from common.models import load_model
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, NonNegative, Positive, Rate, Settings
from common.verification import Verifier

import torch
from annotated_types import Interval
from torch import Tensor


@dataclass
class Args(Settings):
    # REINFORCE
    baseline: Literal["none", "batch", "ema"] = "batch"
    """b: 0, the mean reward of the batch, or an exponential moving average over earlier batches."""
    ema_decay: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    """Fraction of the moving average that each batch leaves in place."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model, subtracted from the reward. Most reasoning recipes 0."""
    tis_cap: NonNegative = 2.0
    """C: cap of the truncated importance weight π_old / π_engine; 0 disables it."""
    num_minibatches: Count = 1
    """Minibatches per rollout batch, with one update each. Beyond 1, updates are off-policy and uncorrected."""
    update_epochs: Count = 1
    """Passes over each rollout batch. Beyond 1, updates are off-policy and uncorrected."""
    responses_per_prompt: Count = 8
    """G: responses per prompt. REINFORCE needs no group: 1 is enough."""

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


def compute_advantages(rewards: Tensor, ema: float, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: the reward minus a baseline (Williams 1992, Sec. 4)."""
    baseline = {"none": 0.0, "batch": rewards.mean(), "ema": ema}[args.baseline]
    return rewards - baseline


def token_weights(mask: Tensor) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / B, the sum over the tokens of each response."""
    return mask / len(mask)


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    This is weighted supervised learning: the value means nothing, its gradient is the policy gradient.
    """
    loss = -advantages * logp  # (m, T)
    return loss, {"ratio": torch.exp(logp - old_logp)}  # only logged: it stays 1 with one update per rollout batch


def tis_weight(old_logp: Tensor, rollout_logp: Tensor, args: Args) -> Tensor:
    """(B, T) weights of truncated importance sampling: min(π_old / π_engine, C) per token (Yao et al., 2025)."""
    weight = torch.exp(old_logp - rollout_logp).clamp(max=args.tis_cap)  # (B, T)
    return weight if args.tis_cap > 0 else torch.ones_like(weight)


def main(args: Args) -> None:
    if args.num_minibatches * args.update_epochs > 1:
        print("note: only the first update of each rollout batch is on-policy, and no ratio corrects the others")
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        run.state["ema"] = 0.0  # REINFORCE: the state is saved in every checkpoint

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
            old_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else old_logp  # (B, T)
            # REINFORCE subtracts the KL from the reward: there, k1 estimates the KL's gradient without bias.
            kl = (old_logp - ref_logp) * mask  # (B, T)
            rewards = rewards - args.kl_beta * kl.sum(1).view(P, G)  # (P, G)
            ema = run.state["ema"]  # REINFORCE
            advantages = compute_advantages(rewards, ema, args).view(-1, 1).expand(mask.shape)  # (B, T)
            run.state["ema"] = args.ema_decay * ema + (1 - args.ema_decay) * rewards.mean().item()  # REINFORCE
            tis = tis_weight(old_logp, rollout_logp, args)  # (B, T)
            run.log_rollouts(problems, rollouts, rewards, advantages, old_logp, rollout_logp, mask)
            run.log_tokens({"entropy": entropy, "tis_weight": tis, "kl": kl}, token_weights(mask), mask)

            for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                weights = token_weights(mask[minibatch])  # (b, T)
                for rows, w in micro_batches(minibatch, weights, batch, args):  # (m,), (m, T)
                    logp = token_logps(model, batch, rows, args)  # (m, T)
                    loss, metrics = policy_loss(logp, old_logp[rows], advantages[rows])  # (m, T)
                    loss = tis[rows] * loss
                    loss = (w * loss).sum()
                    loss.backward()
                    run.log_loss(loss, metrics, w, mask, rows)
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                run.check_update(grad_norm=grad_norm)  # ends the run if it is not finite
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
