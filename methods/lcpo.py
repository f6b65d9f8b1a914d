"""L1, reasoning of a length that is asked for (LCPO): 2503.04697 (Mar 2025), Eq. 1 and 2.

    GRPO's J(θ), with the length |o_i| and the budget n of the prompt in the reward; c_i = 1 if o_i is right, else 0
    exact:   R_i = c_i - α |n - |o_i||              max:     R_i = c_i clip(α (n - |o_i|) + δ, 0, 1)
    kimi:    R_i = c_i + w λ_i if o_i is right, c_i + w min(0, λ_i) if not;  λ_i = 1/2 - (|o_i| - min) / (max - min)
    cosine:  R_i = 1 + h if o_i is right, -10 h if not, -10 at T;  h = (1 + cos(π |o_i| / T)) / 2

Differs from its parent grpo.py:
- each question has a budget, drawn once, which stands in its prompt: the reward alone teaches what it means;
- exact pays wrong answers for their length too, so that the budget holds for them as well; max pays right
  ones alone, and less the closer they come to the budget, so that it is a limit and no target;
- without budgets: Kimi k1.5 (2501.12599, Sec. 2.3.3) compares lengths within the group, and the cosine
  (2502.03373, App. C.1) wants right answers short, wrong ones long, and none cut off.
max has the paper's slope α; the authors' code has α/2, (clip(α (n - |o|), -1, 1) + 1) / 2. Kimi's w is not published.

    python -m methods.lcpo
"""

import math
import random
from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems, sample_problems
from common.engines import WeightHistory, make_engine, prompt_seeds
from common.logprobs import batch_logps, token_logps
from common.metrics import StepMetrics, mismatch_metrics, rollout_metrics
from common.models import load_model
from common.verification.rewards import require_binary
from common.run import Run, seed_step
from common.schedule import learning_rate
from common.settings import Count, CountOrZero, GroupSize, NonNegative, Positive, Rate, Settings, Share
from common.verification.verifier import Verifier

import torch
import tyro
from torch import Tensor


@dataclass
class Args(Settings):
    # LCPO
    length_reward: Literal["exact", "max", "kimi", "cosine"] = "kimi"
    """exact and max need a model that reads the budget in its prompt: the embedded one reads nothing but sums."""
    budget_prompt: str = " Think for {n} tokens."
    """For exact and max: what is added to a question, with the budget for {n}. The default is the paper's."""
    min_budget: Share = 0.025
    """Budgets are drawn evenly between this share of the length limit and the limit. Paper: 100 to 4,000 tokens."""
    alpha: NonNegative = 3e-4
    """α, for exact and max: reward for one token of length. Paper 3e-4, with lengths up to 4,000."""
    delta: Share = 0.5
    """δ, for max: what is left of a right answer's reward at the budget itself. Paper 0.5."""
    length_weight: NonNegative = 1.0
    """w, for kimi: weight of the length beside the right answer's 1. Not published."""
    clip_eps: Positive = 0.2
    """ε: the ratio's gradient ends at 1 ± ε. Usual 0.2."""
    ddof: Literal[0, 1] = 1
    """Std of the group divides by G - ddof: 1 is the sample std of most code, 0 the population's."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 0.04; most reasoning recipes 0."""
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


def budget(question: str | list[dict[str, str]], args: Args) -> int:
    """n: tokens that the response to a question should have; always the same for the same question and seed."""
    T = args.max_response_tokens
    return random.Random(f"{args.seed} {question}").randint(round(args.min_budget * T), T)


def budget_text(question: str | list[dict[str, str]], args: Args) -> str:
    """What is added to a question, to tell its budget where the reward has one."""
    if args.length_reward in ("kimi", "cosine"):
        return ""
    return args.budget_prompt.replace("{n}", str(budget(question, args)))


def shape_rewards(correct: Tensor, lengths: Tensor, budgets: Tensor, args: Args) -> Tensor:
    """Right or wrong (P, G), lengths (P, G), and budgets (P, 1) in, rewards (P, G) out."""
    if args.length_reward == "exact":  # 2503.04697, Eq. 1
        return correct - args.alpha * (budgets - lengths).abs()
    if args.length_reward == "max":  # 2503.04697, Eq. 2
        return correct * (args.alpha * (budgets - lengths) + args.delta).clamp(0, 1)
    if args.length_reward == "kimi":  # 2501.12599, Sec. 2.3.3
        low, high = lengths.amin(1, keepdim=True), lengths.amax(1, keepdim=True)  # (P, 1), (P, 1)
        bonus = torch.where(high > low, 0.5 - (lengths - low) / (high - low), 0.0)  # (P, G)
        return correct + args.length_weight * torch.where(correct > 0, bonus, bonus.clamp(max=0))
    # From 1 at length 0 to 0 at T.
    short = (1 + torch.cos(math.pi * lengths / args.max_response_tokens)) / 2  # (P, G)
    # 2502.03373, Sec. 4.2
    return torch.where(correct > 0, 1 + short, -10 * short).where(lengths < args.max_response_tokens, -10.0)


def compute_advantages(rewards: Tensor, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: z-scores within each group (2402.03300, Sec. 4.1.2)."""
    mean = rewards.mean(1, keepdim=True)  # (P, 1)
    std = rewards.std(1, correction=args.ddof, keepdim=True)  # (P, 1)
    # The paper has no ε; 1e-6 only keeps a group without signal at 0 instead of 0 / 0.
    return (rewards - mean) / (std + 1e-6)


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (B |o_i|), each response counts the same."""
    return mask / (len(mask) * mask.sum(1, keepdim=True))


def policy_loss(
    logp: Tensor, old_logp: Tensor, rollout_logp: Tensor, advantages: Tensor, mask: Tensor, args: Args
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss (B, T) and per-token metrics, all inputs (B, T); only `logp` carries a gradient.

    On-policy every ratio is 1, and the loss 0 as the advantages of each group are; its gradient is not.
    """
    ratio = torch.exp(logp - old_logp)  # (B, T)
    clipped_ratio = ratio.clamp(1 - args.clip_eps, 1 + args.clip_eps)  # (B, T)
    # The minimum makes the clip one-sided: a ratio that moved the wrong way always has its gradient.
    loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (B, T)
    return loss, {
        "ratio": ratio,
        "clip_pos": ((advantages > 0) & (ratio > 1 + args.clip_eps)).float(),
        "clip_neg": ((advantages < 0) & (ratio < 1 - args.clip_eps)).float(),
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


def main(args: Args) -> None:
    if "{n}" not in args.budget_prompt:
        fail("--budget-prompt must contain {n}, where the budget goes.")
    with Run(args, __file__) as run:
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        # LCPO: the budget of a question is a part of its prompt.
        train, held_out = load_problems(args, model, tokenizer, lambda question: budget_text(question, args))
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
            require_binary(rewards, "L1 pays for the length of right answers")  # LCPO
            # LCPO: the reward knows the length that was asked for.
            lengths = batch.mask.sum(1).view(P, G)  # (P, G)
            budgets = torch.tensor([[budget(p.question, args)] for p in problems], device=model.device)  # (P, 1)
            rewards = shape_rewards(rewards, lengths, budgets, args)  # (P, G)
            advantages = compute_advantages(rewards, args).view(-1, 1).expand(mask.shape)  # (B, T)
            anchor_logp = old_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            run.require_finite(step, sampler_logp=rollout_logp, learner_logp=old_logp, advantage=advantages)

            metrics = StepMetrics()
            tis = tis_weight(old_logp, rollout_logp, mask, args)  # (B, T)
            of_tis = {"tis_weight": tis, "tis_truncated": tis == args.tis_cap}  # (B, T), (B, T)
            metrics.add({"entropy": entropy} | of_tis, token_weights(mask, args), mask)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args)
            with run.clock("train"):
                for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                    weights = torch.zeros_like(old_logp)  # (B, T)
                    weights[minibatch] = token_weights(mask[minibatch], args)
                    for rows in micro_batches(minibatch, batch, args.micro_batch_tokens):
                        logp, _ = token_logps(model, batch, rows, args)  # (b, T)
                        loss, values = policy_loss(
                            logp, anchor_logp[rows], rollout_logp[rows], advantages[rows], mask[rows], args
                        )
                        loss = tis[rows] * loss
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
            if args.length_reward in ("exact", "max"):  # LCPO
                rollout["off_budget"] = (lengths - budgets).abs().float().mean().item()
            run.log(step, rollout | mismatch_metrics(old_logp, rollout_logp, mask) | metrics.result())
            if run.due(step, args.save_every):
                run.save(step)
            if run.interrupted:
                break
            run.evaluate(step, engine, verifier, held_out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
