"""ScaleRL: "The Art of Scaling Reinforcement Learning Compute for LLMs", 2510.13786 (Oct 2025), Sec. 4.

    J(θ) = E_x E_{o_1..o_G ~ μ(·|x)} 1/Σ_i|o_i| Σ_i Σ_t sg(min(ρ_it, C)) A_i log π_θ(o_it | x, o_i<t)
    ρ_it = π_θ(o_it | x, o_i<t) / μ(o_it | x, o_i<t), μ the sampler's policy
    A_i  = (R_i - mean R) / std of all R_i - mean R in the batch, for prompts with 0 < mean R < 1

A recipe is a sum of tricks. Without these eight it is cispo.py with --tis-cap 0 and --num-minibatches 1, to the bit.

| trick | from | without it |
|---|---|---|
| a sampler that is behind the learner | PipelineRL | --staleness 0 |
| ratio to the sampler's policy | PipelineRL | --ratio-anchor learner |
| interruptions | Qwen3 | --interrupt-from 1 |
| FP32 head | MiniMax-M1 | --no-fp32-lm-head |
| each prompt counts the same | DAPO | --average token |
| std of the batch | REINFORCE++ | --std group |
| groups without signal are left out | DAPO | --no-filter-groups |
| no positive resampling | Polaris | --no-resampling-pass-rate 1.01 |

Differs from its parent cispo.py:
- a response that still thinks after a random number of tokens is told to answer; what it is told has no loss;
- groups without signal are left out of loss, mean and std, and nothing takes their place (DAPO samples anew);
- a prompt that nearly all responses got right is never drawn again.
The paper has rewards of ±1: divided by their std they are the same as 0 and 1. Its generators get new weights within a
response; here a whole batch is sampled k steps behind. On the embedded default two tricks change nothing: in fp32 the
head is in fp32 anyway, and of its 20,000 sums none comes again before step 626.
`python -m recipes.scaling_fit` fits the paper's curve to the runs.

    python -m recipes.scalerl
"""

import random
from dataclasses import dataclass
from typing import Any, Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems, sample_problems
from common.engines import Engine, WeightHistory, continue_responses, make_engine, prompt_seeds
from common.logprobs import batch_logps, token_logps
from common.metrics import StepMetrics, mismatch_metrics, rollout_metrics
from common.models import load_model
from common.records import Problem, Rollouts
from common.run import Run, seed_step
from common.schedule import learning_rate
from common.settings import Cap, Count, CountOrZero, GroupSize, NonNegative, Positive, Rate, Settings, Share
from common.verification.verifier import Verifier

import torch
import tyro
from torch import Tensor


@dataclass
class Args(Settings):
    # ScaleRL
    ratio_cap: Cap = 5.0
    """C: the ratio's weight is capped at this very value. The paper found 4, 5 and 8 alike."""
    staleness: CountOrZero = 8
    """k: the engine samples with the weights of k rollout batches ago, as asynchronous training does. Paper 8."""
    interrupt_from: Share = 0.5
    """Share of the length limit before which no response is told to answer; 1 is never. Paper 0.70 (10,000 tokens)."""
    interrupt_to: Share = 0.65
    """Share by which one that still thinks is told; the place is drawn between both. Paper 0.84 (12,000 of 14,336)."""
    interrupt_text: str = "\n\\boxed{"
    """What it is told. Paper: "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"."""
    thinking_end: str = "\\boxed{"
    """A response that holds this has stopped thinking and is not told. For models with thinking tags: "</think>"."""
    fp32_lm_head: bool = True
    """Run the output layer in fp32 on both sides: less mismatch between sampler and learner under bf16."""
    average: Literal["prompt", "token", "response"] = "prompt"
    """What counts the same in the mean: each prompt, each token, or each response. The paper tried all three."""
    std: Literal["batch", "group"] = "batch"
    """What advantages are divided by: the std over all responses with signal, or that of their group."""
    ddof: Literal[0, 1] = 1
    """Std over N rewards divides by N - ddof: 1 is the sample std of most code, 0 the population's. Paper: not said."""
    filter_groups: bool = True
    """Leave groups whose rewards are all the same out of the loss, its mean and the std."""
    no_resampling_pass_rate: Positive = 0.9
    """A prompt with a pass rate of at least this is not drawn again. Paper 0.9; above 1 all are."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 0."""
    ratio_anchor: Literal["learner", "sampler"] = "sampler"
    """Denominator of the ratio: π_old as the learner computes it, or as the engine reported it (then --tis-cap 0)."""
    tis_cap: NonNegative = 0.0
    """C: cap of π_old / π_sampler, the correction for the sampler's other numerics; 0 turns it off."""
    num_minibatches: Count = 1
    """Parts of a rollout batch, with one optimizer update each. Paper 1."""
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


def draw_problems(problems: list[Problem], solved: set[str], start: int, args: Args) -> tuple[list[Problem], int]:
    """P problems whose prompts are not in `solved`, from number `start` of the stream on, and where it goes on."""
    if all(problem.prompt in solved for problem in problems):
        fail(f"all {len(problems)} problems have reached --no-resampling-pass-rate: none is left to train on.", code=1)
    drawn = []
    while missing := args.prompts_per_step - len(drawn):
        drawn += [p for p in sample_problems(problems, args.seed, start, missing) if p.prompt not in solved]
        start += missing
    return drawn, start


def tokens_to_insert(tokenizer: Any, args: Args) -> list[int]:
    """The tokens of --interrupt-text; the end of the program where they leave no room for an answer."""
    inserted = tokenizer(args.interrupt_text, add_special_tokens=False)["input_ids"]
    T, latest = args.max_response_tokens, int(args.interrupt_to * args.max_response_tokens)
    if args.interrupt_from < 1 and latest + len(inserted) >= T:
        fail(
            f"--interrupt-to {args.interrupt_to} leaves no room for an answer: {latest} tokens and the "
            f"{len(inserted)} of --interrupt-text are all of --max-response-tokens {T}. 1 turns --interrupt-from off."
        )
    return inserted


def interrupt(
    prompts: list[list[int]],
    rollouts: Rollouts,
    inserted: list[int],
    engine: Engine,
    tokenizer: Any,
    step: int,
    args: Args,
) -> Rollouts:
    """B responses to P prompts in; out, those that think too long go on from where they were told to answer."""
    first, last = (int(share * args.max_response_tokens) for share in (args.interrupt_from, args.interrupt_to))
    budgets = [random.randint(first, last) for _ in rollouts.tokens]
    cut = {
        row: budget
        for row, (tokens, budget) in enumerate(zip(rollouts.tokens, budgets, strict=True))
        if len(tokens) > budget and args.thinking_end not in tokenizer.decode(tokens[:budget])
    }
    begun = Rollouts(
        [rollouts.tokens[row][:budget] + inserted for row, budget in cut.items()],
        [rollouts.logps[row][:budget] + [0.0] * len(inserted) for row, budget in cut.items()],
        sampled=[rollouts.sampled[row][:budget] + [False] * len(inserted) for row, budget in cut.items()],
    )
    prompts = [prompts[row // args.responses_per_prompt] for row in cut]
    seeds = prompt_seeds(len(cut), args.seed, step, 1)
    ended = continue_responses(engine, prompts, begun, args.max_response_tokens, args.temperature, seeds)
    place = {row: len(budgets) + number for number, row in enumerate(cut)}  # of what takes a row's place
    return Rollouts.join([rollouts, ended]).select(place.get(row, row) for row in range(len(budgets)))


def compute_advantages(rewards: Tensor, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: how far each is above the mean of its group, over the batch's std."""
    centered = rewards - rewards.mean(1, keepdim=True)  # (P, G)
    std = rewards.std(1, correction=args.ddof, keepdim=True)  # (P, 1)
    if args.std == "batch":
        has_signal = (rewards != rewards[:, :1]).any(1)  # (P,)
        counted = centered[has_signal] if args.filter_groups else centered  # (p, G)
        std = counted.std(correction=args.ddof) if len(counted) else 0.0  # ()
    # The paper has no ε; 1e-6 only keeps a group without signal at 0 instead of 0 / 0.
    return centered / (std + 1e-6)


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (P Σ_i |o_i|) for the G responses to each prompt."""
    if args.average == "token":
        return mask / mask.sum().clamp(min=1)
    rows = args.responses_per_prompt if args.average == "prompt" else 1
    tokens = mask.reshape(-1, rows * mask.shape[1]).sum(1)  # (P,) or (B,), 0 where a group was left out
    return mask / ((tokens > 0).sum() * tokens).clamp(min=1).repeat_interleave(rows)[:, None]


def policy_loss(
    logp: Tensor, old_logp: Tensor, rollout_logp: Tensor, advantages: Tensor, mask: Tensor, args: Args
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss (B, T) and per-token metrics, all inputs (B, T); only `logp` carries a gradient.

    This is weighted supervised learning: the value means nothing, its gradient is the policy gradient.
    """
    ratio = torch.exp(logp - old_logp)  # (B, T)
    weight = ratio.clamp(max=args.ratio_cap).detach()  # (B, T)
    loss = -weight * advantages * logp  # (B, T)
    return loss, {
        "ratio": ratio,
        "clip_pos": ((advantages > 0) & (ratio > args.ratio_cap)).float(),
        "clip_neg": ((advantages < 0) & (ratio > args.ratio_cap)).float(),
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
    if args.interrupt_to < args.interrupt_from < 1:
        fail("--interrupt-to must not be less than --interrupt-from: they are the ends of an interval.")
    with Run(args, __file__) as run:
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        inserted = tokens_to_insert(tokenizer, args)  # ScaleRL
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(tokenizer, train + held_out, args.answer_format, args.tolerance, args.reward))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None
        history = WeightHistory(model, args.staleness)
        done = run.restore(model, tokenizer, optimizer, history=history)
        # ScaleRL: prompts that are not drawn again, and how far the stream of problems has been drawn from.
        solved, drawn = set(run.saved("solved", [])), run.saved("drawn", 0)
        run.evaluate(done, engine, verifier, held_out)

        for step in range(done + 1, args.steps + 1):
            seed_step(args.seed, step)
            with run.clock("sync"):
                engine.load_weights(history.oldest())

            # Generate G responses to each of P prompts, and verify their answers.
            with run.clock("generate"):
                problems, drawn = draw_problems(train, solved, drawn, args)  # ScaleRL
                prompts, seeds = [p.prompt_ids for p in problems], prompt_seeds(P, args.seed, step)
                rollouts = engine.generate(prompts, G, args.max_response_tokens, args.temperature, seeds)
                if args.interrupt_from < 1:  # ScaleRL
                    rollouts = interrupt(prompts, rollouts, inserted, engine, tokenizer, step, args)
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
            if args.filter_groups:  # ScaleRL: they leave the batch, and nothing takes their place
                mixed = (rewards != rewards[:, :1]).any(1, keepdim=True)  # (P, 1)
                mask = mask & mixed.expand(P, G).reshape(-1, 1)  # (B, T)
            passed = (correct.mean(1) >= args.no_resampling_pass_rate).tolist()  # ScaleRL
            solved |= {problem.prompt for problem, well in zip(problems, passed, strict=True) if well}
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
            interrupted = sum(not all(row) for row in rollouts.sampled) / (P * G)
            rollout |= {"interrupted": interrupted, "solved_prompts": len(solved)}  # ScaleRL
            run.log(step, rollout | mismatch_metrics(old_logp, rollout_logp, mask) | metrics.result())
            # ScaleRL: where no problem is left for the next step, this one is the last.
            if run.due(step, args.save_every) or all(problem.prompt in solved for problem in train):
                run.save(step, solved=sorted(solved), drawn=drawn)  # ScaleRL
            if run.interrupted:
                break
            run.evaluate(step, engine, verifier, held_out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
