"""VinePPO: 2410.01679 (Oct 2024), Sec. 4; settings and details from the authors' code.

    J(θ) = E_t min(r_t Â_t, clip(r_t, 1 - ε, 1 + ε) Â_t)        r_t = π_θ(o_t | x, o_<t) / π_old(o_t | x, o_<t)
    Â_t = V(s_{j+1}) - V(s_j) for the tokens of step j, then whitened;  V(end) = R
    V(s_j) = 1/K Σ_k R(continuation k of s_j), the text up to step j, by π_old

Differs from its parent grpo.py:
- a step, here a line of the response, is credited with its change in the chance of a correct answer; under
  GRPO all tokens of a response share one advantage;
- that chance is measured by sampling; PPO has a critic, whose values the paper finds close to random;
- advantages are whitened over the tokens of the batch, and all tokens have the same weight, as in PPO.
These values are the labels of process reward models: --aggregate turns them into one reward per response.
Equal states are valued once. The last of --max-steps steps has the rest of the response, so that the
advantages of its steps always add up to R - V(x).
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python methods/vineppo.py
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.data import load_problems, sample_problems
from common.engines import Engine, make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps
from common.models import load_model
from common.records import Problem, Rollouts
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, NonNegative, Positive, Rate, Settings
from common.verification import Verifier
from methods.step_rewards import continue_responses

import torch
from torch import Tensor


@dataclass
class Args(Settings):
    # VinePPO
    value_samples: Count = 3
    """K: continuations from the start of each step. Paper 9; it also tried 1 and 3."""
    step_ends: str = "\n"
    """Characters that end a step, in any token. Without any, the response is one step."""
    max_steps: Count = 20
    """Maximum number of steps of a response; the last one has the rest. Authors' code 20."""
    aggregate: Literal["none", "last", "min", "mean"] = "none"
    """none: an advantage for each step. Else one per response: its step values combined, minus V(x)."""
    clip_eps: Positive = 0.2
    """ε: no gradient for ratios above 1 + ε with positive advantages, below 1 - ε with negative ones. Usual 0.2."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 1e-4; most reasoning recipes 0."""
    ratio_anchor: Literal["learner", "engine"] = "learner"
    """π_old in the ratio: log-probs recomputed by the learner, or reported by the engine (requires --tis-cap 0)."""
    tis_cap: NonNegative = 2.0
    """C: cap of the truncated importance weight π_old / π_engine; 0 disables it."""
    num_minibatches: Count = 4
    """Minibatches per rollout batch, with one optimizer update each."""
    update_epochs: Count = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches. Papers: 1 or 2."""
    responses_per_prompt: Count = 8
    """G: responses per prompt. VinePPO needs no group: 1 is enough. Paper 8."""

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


def split_steps(tokens: list[int], ends: set[int], args: Args) -> list[int]:
    """Where each step of a response ends: after a token in `ends`; the last one at the end, EOS included."""
    found = [t + 1 for t, token in enumerate(tokens[:-2]) if token in ends]
    return [*found[: args.max_steps - 1], len(tokens)]


def estimate_values(
    problems: list[Problem],
    rollouts: Rollouts,
    steps: list[list[int]],
    engine: Engine,
    verifier: Verifier,
    step: int,
    args: Args,
) -> tuple[list[list[float]], int]:
    """V at the start of each step of each response, the mean reward of K continuations; and their number."""
    G, K = args.responses_per_prompt, args.value_samples
    starts = [
        [(i // G, *tokens[:t]) for t in [0, *ends[:-1]]]
        for i, (tokens, ends) in enumerate(zip(rollouts.tokens, steps, strict=True))
    ]
    states = list(dict.fromkeys(state for row in starts for state in row))  # each once: (problem, tokens so far)
    begun = [list(tokens) for _, *tokens in states for _ in range(K)]
    ended = continue_responses(engine, [problems[i] for i, *_ in states for _ in range(K)], begun, step, 1)
    rewards = verifier([problems[i] for i, *_ in states], ended)  # (states, K)
    value = dict(zip(states, rewards.mean(1).tolist(), strict=True))
    return [[value[state] for state in row] for row in starts], len(ended.tokens)


def compute_advantages(rewards: Tensor, values: list[list[float]], steps: list[list[int]], args: Args) -> Tensor:
    """(P, G) rewards, values at the start and ends of all steps in, (B, T) advantages out, before whitening."""
    advantages = torch.zeros(len(steps), max(ends[-1] for ends in steps))  # (B, T)
    for i, (reward, before, ends) in enumerate(zip(rewards.flatten().tolist(), values, steps, strict=True)):
        after = [*before[1:], reward]
        # One value for the whole response. "sum" is left out: the gains of the steps add up to "last" again.
        whole = {"last": reward, "min": min(after), "mean": sum(after) / len(after)}
        for start, end, v, then in zip([0, *ends[:-1]], ends, before, after, strict=True):
            advantages[i, start:end] = then - v if args.aggregate == "none" else whole[args.aggregate] - before[0]
    return advantages


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """Scale the (B, T) advantages of a rollout batch to mean 0 and sample variance 1 over its tokens."""
    tokens = advantages[mask]  # (N,)
    return (advantages - tokens.mean()) * torch.rsqrt(tokens.var(correction=1) + 1e-8) * mask


def token_weights(mask: Tensor) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / Σ_i |o_i|, every token has the same weight."""
    return mask / mask.sum().clamp(min=1)


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, args: Args) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    On-policy, every ratio is 1. Whitened advantages have mean 0 over the rollout batch, so the losses of its
    minibatches are 0 on average, but their gradients are not.
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
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        # VinePPO: the tokens that end a step.
        ends = {i for i in range(len(tokenizer)) if set(tokenizer.decode([i])) & set(args.step_ends)}

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out):
            # Sample G responses to each of P prompts, and verify their answers.
            engine.load_weights(model)
            problems = sample_problems(train, P, step, args)
            rollouts = engine.generate(problems, G, step)
            rewards = verifier(problems, rollouts)  # (P, G)
            # VinePPO: values by the weights that sampled the responses.
            steps = [split_steps(tokens, ends, args) for tokens in rollouts.tokens]
            state_values, count = estimate_values(problems, rollouts, steps, engine, verifier, step, args)
            run.log(response_steps=sum(map(len, steps)) / len(steps), continuations=count)
            engine.sleep()  # frees its memory for the learner

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, rollouts, model.device)
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            learner_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            old_logp = learner_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            advantages = compute_advantages(rewards, state_values, steps, args).to(mask.device)  # (B, T), VinePPO
            advantages = whiten(advantages, mask)  # (B, T)
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
