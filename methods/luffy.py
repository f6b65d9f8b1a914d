"""LUFFY, Learning to reason Under oFF-policY guidance: 2504.14945 (Apr 2025), Eq. 6 and 7.

    GRPO's J(θ), where o_1 of the G responses is the data set's solution; for its tokens, and without a clip,
    f(π_θ(o_1t | x, o_1<t)) A_1        f(π) = π / (π + γ)        replaces min(r A, clip(r) A)

Differs from its parent grpo.py:
- a solution joins the group as a response. Where the policy's own responses are all incorrect it has the only positive
  advantage, and the policy imitates it; where they are correct too, its advantage is near 0;
- the solution's behavior policy is assumed to have probability 1, so the ratio to it is π_θ. Its gradient π_θ ∇ log π_θ
  nearly vanishes for the unlikely tokens that are to be learned; policy shaping by f has the factor γ π / (π + γ)²
  instead, largest at π = γ.
The paper and its code drop the std and the mean per response, as Dr. GRPO does, and the code has no clip at all
(`loss_remove_clip`); here the rest of GRPO stays. They also filter the solutions
by the verifier; here an incorrect one has a reward of 0 like any other response.
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python methods/luffy.py
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
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, GroupSize, Names, NonNegative, Positive, Rate, Settings
from common.verification import Verifier
from methods.solutions import as_responses, before_groups, load_demonstrations

import torch
from torch import Tensor


@dataclass
class Args(Settings):
    # LUFFY
    demonstrations: Literal[0, 1] = 1
    """The data set's solutions in each group of G; 0 is GRPO. Paper 1 of 8."""
    gamma: Positive = 0.1
    """γ of the policy shaping: the gradient of a solution's token is largest at π = γ. Paper 0.1."""
    solution_column: str = "solution"
    """Column with solutions; not needed for gsm8k, whose answers are solutions, or for sums and search."""
    model: str = "search"
    """A model on the hub, a local folder, or one of this repository."""
    dataset: Names = "search-hard"
    """A data set on the hub, a local file, or a generated one; by default one that is too hard for GRPO."""
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


def compute_advantages(rewards: Tensor, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: z-scores within each group (2402.03300, Sec. 4.1.2)."""
    mean = rewards.mean(1, keepdim=True)  # (P, 1)
    std = rewards.std(1, correction=args.ddof, keepdim=True)  # (P, 1)
    # The paper has no ε; 1e-6 makes a group of equal rewards give 0 instead of 0 / 0.
    return (rewards - mean) / (std + 1e-6)


def token_weights(mask: Tensor) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (B |o_i|), every response has the same weight."""
    return mask / (len(mask) * mask.sum(1, keepdim=True))


def policy_loss(
    logp: Tensor, old_logp: Tensor, advantages: Tensor, mask: Tensor, args: Args
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    `mask` is True on tokens that the policy has sampled; the others are a solution's. On-policy every ratio is 1, and
    without a solution a group's advantages sum to 0, so the minibatch's loss is 0; its gradient is not.
    """
    ratio = torch.exp(logp - old_logp)  # (m, T)
    clipped_ratio = ratio.clamp(1 - args.clip_eps, 1 + args.clip_eps)  # (m, T)
    # The minimum makes the clip one-sided: a ratio that moved against its advantage keeps its gradient.
    loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (m, T)
    prob = torch.exp(logp)  # (m, T), the ratio to a policy that is certain
    loss = torch.where(mask, loss, -prob / (prob + args.gamma) * advantages)  # (m, T)
    return loss, {
        "ratio": ratio,
        "clip_pos": (mask & (advantages > 0) & (ratio > 1 + args.clip_eps)).float(),
        "clip_neg": (mask & (advantages < 0) & (ratio < 1 - args.clip_eps)).float(),
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
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        if args.replay_routing:  # LUFFY
            fail("LUFFY trains on solutions, whose experts no engine reports: leave out --replay-routing.")
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None
        # LUFFY: the solution to each training question, as a response.
        solutions = load_demonstrations(train, model, tokenizer, args) if args.demonstrations else {}

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out):
            # Sample G responses to each of P prompts, and verify their answers.
            engine.load_weights(model)
            problems = sample_problems(train, P, step, args)
            rollouts = engine.generate(problems, G - args.demonstrations, step)  # LUFFY: one place is the solution's
            rewards = verifier(problems, rollouts)  # (P, G - demonstrations), LUFFY
            # LUFFY: solutions come before the policy's own responses, and are verified like them.
            groups, of_groups = rollouts, rewards
            if solutions:
                first = as_responses(problems, solutions)
                groups, of_groups = before_groups(first, rollouts), torch.cat([verifier(problems, first), rewards], 1)
            engine.sleep()  # frees its memory for the learner

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, groups, model.device)  # LUFFY
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            learner_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            old_logp = learner_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            # LUFFY: advantages in the whole group; the solution's tokens have a loss too, and no TIS.
            advantages = compute_advantages(of_groups, args).view(-1, 1).expand(mask.shape)  # (B, T)
            run.log_rollouts(problems, rollouts, rewards, advantages, learner_logp, rollout_logp, mask)
            given = (torch.arange(P * G, device=mask.device) % G < args.demonstrations)[:, None]  # (B, 1)
            sampled, mask = mask, mask | (batch.token_mask & given)  # (B, T), (B, T)
            tis = tis_weight(learner_logp, rollout_logp, args).masked_fill(given, 1.0)  # (B, T)
            run.log_tokens({"entropy": entropy, "tis_weight": tis}, token_weights(mask), mask)

            for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                weights = token_weights(mask[minibatch])  # (b, T)
                for rows, w in micro_batches(minibatch, weights, batch, args):  # (m,), (m, T)
                    logp = token_logps(model, batch, rows, args)  # (m, T)
                    loss, metrics = policy_loss(logp, old_logp[rows], advantages[rows], sampled[rows], args)  # (m, T)
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
