"""DCPO, Dynamic Clipping Policy Optimization: 2509.02333 (Sep 2025), Sec. 3, Eq. 5 to 8.

    J(θ) = E_x E_{o_1..o_G ~ π_old(·|x)} Σ_i 1/|o_i| Σ_t min(r_it A_i, clip(r_it, low(q_it), high(q_it)) A_i)
    low(q) = ½ + ½ √max(1 - 4 ε_low/q, 0)    high(q) = min(½ + ½ √(1 + 4 ε_high/q), c)    q_it = π_old(o_it | x, o_i<t)
    A = the one nearer 0 of (1 - 1/n) A_new + 1/n A_all and 1/n A_new + (1 - 1/n) A_all, at the n-th visit of prompt x
    A_new = z-score of R among the rewards of the group        A_all = the same among all rewards of x so far

Differs from its parent grpo.py:
- the clip bounds the change of a token's probability, |r - 1| π_θ ≤ ε, instead of |r - 1|: an unlikely token
  may grow to many times its probability, which GRPO's clip would hardly allow;
- rewards of earlier visits count too: a group without signal still has one, if the prompt had one before;
- responses are summed, not averaged. AdamW ignores the gradient's scale, so this only affects gradient clipping.
As in the authors' code, a ratio beyond c has no gradient if the advantage is negative, and A_all pools the
variances of the visits. Their code takes the mean over all tokens of a micro-batch; here the weights are Eq. 8's.
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python methods/dcpo.py
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
from common.settings import Count, CountOrZero, Fraction, GroupSize, NonNegative, Positive, Rate, Settings
from common.verification import Verifier

import torch
from annotated_types import Interval
from torch import Tensor


@dataclass
class Args(Settings):
    # DCPO
    clip_eps_low: Positive = 0.16
    """ε_low: how much probability a token may lose. Paper 0.16, which is a ratio of 0.8 at probability 1."""
    clip_eps_high: Positive = 0.2
    """ε_high: how much probability a token may gain. Paper 0.2, the authors' script 0.28."""
    ratio_cap: Annotated[float, Interval(ge=1, le=1e6)] = 10.0
    """c: a ratio beyond it has no gradient, whatever the sign of the advantage. Paper 10."""
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


def remember(seen: dict, prompts: list[list[int]], rewards: Tensor, args: Args) -> Tensor:
    """Add (P, G) rewards to their prompts' history; (P, 3) out: visits, mean and variance of all rewards."""
    new_vars, new_means = torch.var_mean(rewards, 1, correction=args.ddof)  # (P,), (P,)
    rows = []
    for prompt, new_mean, new_var in zip(map(tuple, prompts), new_means.tolist(), new_vars.tolist(), strict=True):
        n, mean, var = seen.get(prompt, (0, 0.0, 0.0))
        shift = new_mean - mean
        var = (n * var + new_var + n / (n + 1) * shift**2) / (n + 1)  # exact with --ddof 0, nearly so with 1
        seen[prompt] = n + 1, mean + shift / (n + 1), var
        rows.append(seen[prompt])
    return torch.tensor(rows, device=rewards.device, dtype=rewards.dtype)


def compute_advantages(rewards: Tensor, so_far: Tensor, args: Args) -> Tensor:
    """(P, G) rewards and (P, 3) visits, means and variances in, (P, G) advantages out: Eq. 5 to 7."""
    mean = rewards.mean(1, keepdim=True)  # (P, 1)
    std = rewards.std(1, correction=args.ddof, keepdim=True)  # (P, 1)
    visits, mean_of_all, var_of_all = so_far.split(1, dim=1)  # (P, 1) each
    # The paper has no ε; 1e-6 makes equal rewards give 0 instead of 0 / 0.
    new = (rewards - mean) / (std + 1e-6)  # (P, G)
    of_all = (rewards - mean_of_all) / (var_of_all.sqrt() + 1e-6)  # (P, G)
    smooth_new = (1 - 1 / visits) * new + 1 / visits * of_all  # (P, G)
    smooth_all = 1 / visits * new + (1 - 1 / visits) * of_all  # (P, G)
    return torch.where(smooth_new.abs() < smooth_all.abs(), smooth_new, smooth_all)


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: G / (B |o_i|), responses summed, prompts averaged."""
    return mask * args.responses_per_prompt / (len(mask) * mask.sum(1, keepdim=True))


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, args: Args) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    On-policy, every ratio is 1 and the loss is -G times the mean advantage: 0 at the first visits of all prompts.
    """
    ratio = torch.exp(logp - old_logp)  # (m, T)
    low = 0.5 + 0.5 * (1 - 4 * args.clip_eps_low * torch.exp(-old_logp)).clamp(min=0).sqrt()  # (m, T)
    high = 0.5 + 0.5 * (1 + 4 * args.clip_eps_high * torch.exp(-old_logp)).sqrt()  # (m, T)
    high = high.clamp(max=args.ratio_cap)  # (m, T)
    clipped_ratio = ratio.clamp(low, high)  # (m, T)
    # The minimum makes the clip one-sided: a ratio that moved the wrong way keeps its gradient, up to the cap.
    loss = -torch.min(ratio.clamp(max=args.ratio_cap) * advantages, clipped_ratio * advantages)  # (m, T)
    return loss, {
        "ratio": ratio,
        "clip_pos": ((advantages > 0) & (ratio > high)).float(),
        "clip_neg": ((advantages < 0) & ((ratio < low) | (ratio > args.ratio_cap))).float(),
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
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        run.state["seen"] = {}  # DCPO: visits of each prompt, mean and variance of its rewards

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
            so_far = remember(run.state["seen"], [p.prompt_ids for p in problems], rewards, args)  # (P, 3), DCPO
            advantages = compute_advantages(rewards, so_far, args).view(-1, 1).expand(mask.shape)  # (B, T)
            tis = tis_weight(learner_logp, rollout_logp, args)  # (B, T)
            run.log_rollouts(problems, rollouts, rewards, advantages, learner_logp, rollout_logp, mask)
            run.log_tokens({"entropy": entropy, "tis_weight": tis}, token_weights(mask, args), mask)

            for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                weights = token_weights(mask[minibatch], args)  # (b, T)
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
