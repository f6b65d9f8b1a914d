"""VinePPO: 2410.01679 (Oct 2024), Sec. 4; settings and details from the authors' code.

    J(θ) = E_t min(r_t Â_t, clip(r_t, 1 - ε, 1 + ε) Â_t)        r_t = π_θ(o_t | x, o_<t) / π_old(o_t | x, o_<t)
    Â_t = V(s_{j+1}) - V(s_j) for the tokens of step j, then whitened;  V(end) = R
    V(s_j) = 1/K Σ_k R(continuation k of s_j), the text up to step j, by π_old

Differs from its parent grpo.py:
- a step, here a line of the response, is credited with what it changed in the chance of a right answer; under
  GRPO all tokens of a response share its fate;
- that chance is measured by sampling, where PPO has a critic, whose values the paper finds near random;
- advantages are whitened over the tokens of the batch, and all tokens count the same, as in PPO.
These values are the labels of process reward models: --aggregate makes one reward for the response of them.
The same state is valued once; the code does so for each response. After --max-steps lines the code has Â = 0;
here the rest is one step, so that the steps of a response always add up to R - V(x).

    python -m methods.vineppo
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.data import load_problems, sample_problems
from common.engines import Engine, WeightHistory, continue_responses, make_engine, prompt_seeds
from common.logprobs import batch_logps, token_logps
from common.metrics import StepMetrics, mismatch_metrics, rollout_metrics
from common.models import load_model
from common.records import Problem, Rollouts
from common.run import Run, seed_step
from common.schedule import learning_rate
from common.settings import Count, CountOrZero, NonNegative, Positive, Rate, Settings, Share
from common.verification.verifier import Verifier

import torch
import tyro
from torch import Tensor


@dataclass
class Args(Settings):
    # VinePPO
    value_samples: Count = 3
    """K: continuations from the start of each step. Paper 9; 1 and 3 were tried too."""
    step_ends: str = "\n"
    """Characters that end a step, in any token. Without any the response is one step."""
    max_steps: Count = 20
    """Steps of a response at most; the last one has all the rest. Authors' code 20."""
    aggregate: Literal["none", "last", "min", "mean"] = "none"
    """none: an advantage for each step. Else one for the response: the values after its steps in one, less V(x)."""
    clip_eps: Positive = 0.2
    """ε: the ratio's gradient ends at 1 ± ε. Usual 0.2."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 1e-4; most reasoning recipes 0."""
    ratio_anchor: Literal["learner", "sampler"] = "learner"
    """Denominator of the ratio: π_old as the learner computes it, or as the engine reported it (then --tis-cap 0)."""
    tis_cap: NonNegative = 2.0
    """C: cap of π_old / π_sampler, the correction for the sampler's other numerics; 0 turns it off."""
    num_minibatches: Count = 4
    """Parts of a rollout batch, with one optimizer update each."""
    update_epochs: Count = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches. Papers: 1 or 2."""
    responses_per_prompt: Count = 8
    """G: responses to each prompt. VinePPO needs no group: 1 will do. Paper 8."""

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


def split_steps(tokens: list[int], ends: set[int], args: Args) -> list[int]:
    """Where each step of a response ends: after one of the tokens in `ends`; the last at the end, with EOS in it."""
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
    """V at the start of each step of each response, the mean reward of K continuations; and the number of these."""
    G, K = args.responses_per_prompt, args.value_samples
    starts = [
        [(i // G, *tokens[:t]) for t in [0, *ends[:-1]]]
        for i, (tokens, ends) in enumerate(zip(rollouts.tokens, steps, strict=True))
    ]
    states = list(dict.fromkeys(state for row in starts for state in row))  # each once: (problem, tokens so far)
    begun = [list(tokens) for _, *tokens in states for _ in range(K)]
    ended = continue_responses(
        engine,
        [problems[i].prompt_ids for i, *_ in states for _ in range(K)],
        Rollouts(begun, [[0.0] * len(ids) for ids in begun], [], [[True] * len(ids) for ids in begun]),
        args.max_response_tokens,
        args.temperature,
        prompt_seeds(len(begun), args.seed, step, 1),
    )
    verifier([problems[i] for i, *_ in states], ended)
    rewards = torch.tensor(ended.rewards).view(-1, K)  # (states, K)
    value = dict(zip(states, rewards.mean(1).tolist(), strict=True))
    return [[value[state] for state in row] for row in starts], len(begun)


def compute_advantages(rewards: Tensor, values: list[list[float]], steps: list[list[int]], args: Args) -> Tensor:
    """(P, G) rewards, values at the start and ends of all steps in, (B, T) advantages out, before whitening."""
    advantages = torch.zeros(len(steps), max(ends[-1] for ends in steps))  # (B, T)
    for i, (reward, before, ends) in enumerate(zip(rewards.flatten().tolist(), values, steps, strict=True)):
        after = [*before[1:], reward]
        # Of the process rewards; the sum of what each step adds would be `last` again.
        whole = {"last": reward, "min": min(after), "mean": sum(after) / len(after)}
        for start, end, v, then in zip([0, *ends[:-1]], ends, before, after, strict=True):
            advantages[i, start:end] = then - v if args.aggregate == "none" else whole[args.aggregate] - before[0]
    return advantages


def whiten(advantages: Tensor, mask: Tensor) -> Tensor:
    """(B, T) advantages of a whole rollout batch in, with mean 0 and sample variance 1 over its tokens out."""
    tokens = advantages[mask]  # (N,)
    return (advantages - tokens.mean()) * torch.rsqrt(tokens.var(correction=1) + 1e-8) * mask


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / Σ_i |o_i|, each token counts the same."""
    return mask / mask.sum().clamp(min=1)


def policy_loss(
    logp: Tensor, old_logp: Tensor, rollout_logp: Tensor, advantages: Tensor, mask: Tensor, args: Args
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss (B, T) and per-token metrics, all inputs (B, T); only `logp` carries a gradient.

    On-policy every ratio is 1, and the loss 0 as the mean of the whitened advantages is; its gradient is not.
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
    with Run(args, __file__) as run:
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(tokenizer, train + held_out, args.answer_format, args.tolerance, args.reward))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        # VinePPO: the tokens that end a step.
        ends = {i for i in range(len(tokenizer)) if set(tokenizer.decode([i])) & set(args.step_ends)}
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
            with run.clock("value"):  # VinePPO: by the weights that sampled the responses
                steps = [split_steps(tokens, ends, args) for tokens in rollouts.tokens]
                state_values, count = estimate_values(problems, rollouts, steps, engine, verifier, step, args)
            engine.sleep()  # its memory is the learner's until it gets new weights
            batch = collate(prompts, rollouts, model.device)
            mask, rollout_logp = batch.sampled, batch.rollout_logp  # (B, T), (B, T)

            # The learner's own log-probs at the rollout weights; the engine's differ in their numerics.
            with run.clock("logps"):
                old_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
                ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            rewards = batch.rewards.view(P, G)  # (P, G)
            advantages = compute_advantages(rewards, state_values, steps, args).to(mask.device)  # (B, T), VinePPO
            advantages = whiten(advantages, mask)  # (B, T)
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
            rollout |= {"response_steps": sum(map(len, steps)) / len(steps), "continuations": count}  # VinePPO
            run.log(step, rollout | mismatch_metrics(old_logp, rollout_logp, mask) | metrics.result())
            if run.due(step, args.save_every):
                run.save(step)
            if run.interrupted:
                break
            run.evaluate(step, engine, verifier, held_out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
