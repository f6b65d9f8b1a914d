"""REINFORCE: Williams, "Simple Statistical Gradient-Following Algorithms", Machine Learning 8 (1992), Theorem 1.

    ∇J(θ) = E_x E_{o ~ π_θ(·|x)} (R - b) Σ_t ∇ log π_θ(o_t | x, o_<t)

The root of the family: every other script here changes some lines of this one.
- Supervised learning on the model's own responses, each weighted by how much better it was than a
  baseline b. Any b that does not depend on the response leaves the expectation as it is and only
  changes the variance; the batch mean depends on it a little, which scales the gradient by 1 - 1/B.
- The log-prob of a response is the sum over its tokens. Many write-ups divide by its length: that is
  another objective, which prefers short correct answers and long wrong ones.
- One update per rollout batch: the expectation is over the current policy.

    python reinforce.py
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from common.batch import collate, micro_batches, minibatches
from common.data import load_problems, sample_problems
from common.engines import WeightHistory, make_engine, prompt_seeds
from common.logprobs import batch_logps, token_logps
from common.metrics import StepMetrics, mismatch_metrics, rollout_metrics
from common.models import load_model
from common.run import Run, seed_step
from common.schedule import learning_rate
from common.settings import Count, CountOrZero, NonNegative, Positive, Rate, Settings, Share
from common.verification.verifier import Verifier

import torch
import tyro
from annotated_types import Interval
from torch import Tensor


@dataclass
class Args(Settings):
    # REINFORCE
    baseline: Literal["none", "batch", "ema"] = "batch"
    """b: 0, the mean reward of the batch, or an exponential moving average over the batches before."""
    ema_decay: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    """Share of the moving average that each batch leaves in place."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model, taken from the reward. Most reasoning recipes 0."""
    tis_cap: NonNegative = 2.0
    """C: cap of π_old / π_sampler, the correction for the sampler's other numerics; 0 turns it off."""
    num_minibatches: Count = 1
    """Parts of a rollout batch, with one optimizer update each. Beyond 1, updates are off-policy and uncorrected."""
    update_epochs: Count = 1
    """Passes over each rollout batch. Beyond 1, updates are off-policy and uncorrected."""
    responses_per_prompt: Count = 8
    """G: responses to each prompt. REINFORCE needs no group: 1 will do."""

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


def compute_advantages(rewards: Tensor, ema: float, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: the reward less a baseline (Williams 1992, Sec. 4)."""
    baseline = {"none": 0.0, "batch": rewards.mean(), "ema": ema}[args.baseline]
    return rewards - baseline


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / B, the sum over the tokens of each response."""
    return mask / len(mask)


def policy_loss(
    logp: Tensor, old_logp: Tensor, rollout_logp: Tensor, advantages: Tensor, mask: Tensor, args: Args
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss (B, T) and per-token metrics, all inputs (B, T); only `logp` carries a gradient.

    This is weighted supervised learning: the value means nothing, its gradient is the policy gradient.
    """
    loss = -advantages * logp  # (B, T)
    return loss, {"ratio": torch.exp(logp - old_logp)}  # not in the loss: it stays 1 with one update per rollout


def tis_weight(old_logp: Tensor, rollout_logp: Tensor, mask: Tensor, args: Args) -> Tensor:
    """(B, T) weights of truncated importance sampling: min(π_old / π_sampler, C), token by token (Yao et al., 2025)."""
    weight = torch.exp(old_logp - rollout_logp).clamp(max=args.tis_cap)  # (B, T)
    return weight if args.tis_cap > 0 else torch.ones_like(weight)


def main(args: Args) -> None:
    if args.num_minibatches * args.update_epochs > 1:
        print("note: only the first update of each rollout batch is on-policy, and no ratio corrects the others")
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
        ema = run.saved("ema", 0.0)  # REINFORCE
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
                ref_logp = batch_logps(reference, batch, args)[0] if reference else old_logp  # (B, T)
            # REINFORCE has the KL in the reward: k1 there has the gradient of the KL itself.
            kl = (old_logp - ref_logp) * mask  # (B, T)
            rewards = batch.rewards.view(P, G) - args.kl_beta * kl.sum(1).view(P, G)  # (P, G)
            advantages = compute_advantages(rewards, ema, args).view(-1, 1).expand(mask.shape)  # (B, T)
            ema = args.ema_decay * ema + (1 - args.ema_decay) * rewards.mean().item()  # REINFORCE
            run.require_finite(step, sampler_logp=rollout_logp, learner_logp=old_logp, advantage=advantages)

            metrics = StepMetrics()
            tis = tis_weight(old_logp, rollout_logp, mask, args)  # (B, T)
            of_tis = {"tis_weight": tis, "tis_truncated": tis == args.tis_cap}  # (B, T), (B, T)
            metrics.add({"entropy": entropy, "kl": kl} | of_tis, token_weights(mask, args), mask)  # REINFORCE
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args)
            with run.clock("train"):
                for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                    weights = torch.zeros_like(old_logp)  # (B, T)
                    weights[minibatch] = token_weights(mask[minibatch], args)
                    for rows in micro_batches(minibatch, batch, args.micro_batch_tokens):
                        logp, _ = token_logps(model, batch, rows, args)  # (b, T)
                        loss, values = policy_loss(
                            logp, old_logp[rows], rollout_logp[rows], advantages[rows], mask[rows], args
                        )
                        loss = tis[rows] * loss
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
                run.save(step, ema=ema)  # REINFORCE
            if run.interrupted:
                break
            run.evaluate(step, engine, verifier, held_out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
