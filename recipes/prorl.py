"""ProRL, Prolonged Reinforcement Learning: 2505.24864 (May 2025).

    DAPO's J(θ) - β E_x E_{o ~ π_old(·|x)} KL_k3(π_θ ‖ π_ref), where π_ref ← π_θ every n steps or at a limit of that KL

A recipe combines components: with all four switched off it is dapo.py, to the bit.

| component | from | without it |
|---|---|---|
| KL to a reference | GRPO | --kl-beta 0 |
| the reference is renewed | ProRL | --renew-every 0 |
| a new optimizer with each new reference | ProRL | --no-reset-optimizer |
| clip-higher | DAPO | --clip-eps-high 0.28 |

Differs from its parent dapo.py:
- a KL to a reference, for stability; with a renewed reference it is about the change in n steps, not the total one.
The paper renews reference and optimizer when held-out accuracy stalls or falls; its second version does so every 200
to 500 steps, and keeps the optimizer. Here steps or the KL decide. For its mixture of tasks, pass several data sets.
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python recipes/prorl.py
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems, sample_problems
from common.distributed import local
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps
from common.models import load_model
from common.records import Rollouts
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, GroupSize, NonNegative, Positive, Rate, Settings
from common.verification import Verifier

import torch
from torch import Tensor


@dataclass
class Args(Settings):
    # ProRL
    renew_every: CountOrZero = 10
    """n: steps after which the policy becomes the reference; 0: not by steps. Large models: 200 to 500."""
    renew_at_kl: NonNegative = 0.0
    """The policy becomes the reference when the KL per token, in nats, has reached this; 0: not by the KL."""
    reset_optimizer: bool = True
    """Forget Adam's moments when the reference is renewed."""
    clip_eps_low: Positive = 0.2
    """ε_low: clipping zeroes the gradient of a negative advantage below a ratio of 1 - ε_low. Paper 0.2."""
    clip_eps_high: Positive = 0.4
    """ε_high: clipping zeroes the gradient of a positive advantage above a ratio of 1 + ε_high. DAPO 0.28."""
    max_rounds: Count = 10
    """Maximum rounds of P new prompts; then groups without signal fill in. DAPO's code stops with an error."""
    overlong_cache: CountOrZero = 19
    """L_cache: the penalty falls to -1 over this many last tokens; 0 disables it. DAPO 4096 of 20480, a fifth."""
    overlong_filter: bool = False
    """Leave truncated responses out of the loss; DAPO tries this before the penalty."""
    ddof: Literal[0, 1] = 1
    """The group's std divides by G - ddof: 1 gives the sample std of most code, 0 the population std."""
    kl_beta: NonNegative = 0.04
    """β: weight of the KL to the reference in the loss. GRPO's paper 0.04."""
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
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / Σ_i |o_i|, every token has the same weight."""
    return mask / mask.sum().clamp(min=1)


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, args: Args) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    On-policy, every ratio is 1 and the loss is -Σ_i |o_i| A_i / Σ_i |o_i|: its value only reflects response lengths.
    """
    ratio = torch.exp(logp - old_logp)  # (m, T)
    clipped_ratio = ratio.clamp(1 - args.clip_eps_low, 1 + args.clip_eps_high)  # (m, T)
    # The minimum makes the clip one-sided: a ratio that moved against its advantage keeps its gradient.
    loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (m, T)
    return loss, {
        "ratio": ratio,
        "clip_pos": ((advantages > 0) & (ratio > 1 + args.clip_eps_high)).float(),
        "clip_neg": ((advantages < 0) & (ratio < 1 - args.clip_eps_low)).float(),
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


def overlong_penalty(lengths: Tensor, args: Args) -> Tensor:
    """Added reward by response length: 0 up to L_max - L_cache, then down to -1 at L_max (2503.14476, Eq. 13)."""
    beyond = lengths - (args.max_response_tokens - args.overlong_cache)
    return -(beyond / max(1, args.overlong_cache)).clamp(0, 1) if args.overlong_cache > 0 else torch.zeros_like(lengths)


def main(args: Args) -> None:
    if args.max_response_tokens and args.overlong_cache > args.max_response_tokens:
        fail("--overlong-cache must not exceed --max-response-tokens: it is the last part of a response.")
    if args.renew_at_kl > 0 and args.kl_beta == 0:
        fail("--renew-at-kl needs a reference to measure the KL to: set --kl-beta above 0.")
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        others = {"reference": reference} if reference else {}  # ProRL: saved in every checkpoint
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out, **others):
            # DAPO: dynamic sampling. Keep the groups that are neither all correct nor all incorrect, until there
            # are P of them. Only correctness counts: shaped rewards would keep groups that differ only in length.
            engine.load_weights(model)
            kept, spare, rounds = [], [], 0  # (problem, G rollouts, (G,) rewards), with signal and without
            while len(kept) < P and rounds < args.max_rounds:
                problems = sample_problems(train, P, (step - 1) * args.max_rounds + rounds + 1, args)
                rollouts = engine.generate(problems, G, step, rounds)
                rewards = verifier(problems, rollouts)  # (P, G)
                for problem, group, row in zip(problems, rollouts.split(G), rewards, strict=True):
                    (kept if 0 < sum(group.correct) < G else spare).append((problem, group, row))
                rounds += 1
            engine.sleep()  # frees its memory for the learner
            if len(kept) < P:
                run.write_line(f"step {step}: only {len(kept)} of {rounds * P} groups have signal")
            problems, groups, rewards = zip(*(kept + spare)[:P], strict=True)
            rollouts, rewards = Rollouts.join(groups), torch.stack(rewards)  # rewards (P, G)
            run.log(sampled_prompts=rounds * P, kept_groups=min(len(kept), P))

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, rollouts, model.device)
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            learner_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            old_logp = learner_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            # ProRL: the policy becomes the reference.
            kl = (token_weights(mask) * kl_penalty(learner_logp, ref_logp)).sum().item() if reference else 0.0
            due = args.renew_every and step > 1 and (step - 1) % args.renew_every == 0
            if reference and (due or 0 < args.renew_at_kl <= kl):
                for own, other in zip(reference.parameters(), model.parameters(), strict=True):
                    local(own).detach().copy_(local(other).detach())  # each process copies its shard
                ref_logp = learner_logp
                if args.reset_optimizer:
                    optimizer.state.clear()
            # DAPO: rewards of ±1, minus a penalty near the length limit. Groups without signal, which fill the batch
            # once the rounds run out, get advantages of 0: their lengths must not act as a signal.
            rewards = 2 * rewards - 1 + overlong_penalty(batch.token_mask.sum(1).view(P, G), args)  # (P, G)
            if args.overlong_filter:
                mask = mask & ~torch.tensor(rollouts.truncated, device=mask.device)[:, None]  # (B, T)
            correct = torch.tensor(rollouts.correct, device=mask.device).view(P, G)  # (P, G)
            mixed = (correct != correct[:, :1]).any(1, keepdim=True)  # (P, 1)
            advantages = (compute_advantages(rewards, args) * mixed).view(-1, 1).expand(mask.shape)  # (B, T)
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
