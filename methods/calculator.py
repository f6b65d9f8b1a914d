"""GRPO with a calculator: Search-R1, 2503.09516 (Mar 2025), ToRL, 2503.23383, and ReTool, 2504.11536, put what a
tool answers into the response and leave it out of the loss; `<<3*17>>` is the calculator's mark in GSM8K, 2110.14168.

    J(θ) = GRPO's, where o_i = s_1 c_1 s_2 c_2 ...: parts s_k ~ π_old up to the end of a call, and results c_k
           sums over t run over the tokens of the s_k alone, and |o_i| = Σ_k |s_k|

Differs from its parent grpo.py:
- the engine stops a response at the end of a call, puts in what the calculator answers, and goes on from there;
- results were not sampled from the policy: they have no loss, and what comes after them is conditioned on them;
- they count as tokens of the response, whose length limit holds for all turns together.
The embedded model guesses products, or calls; only the answer's being right is rewarded, so when to call is learned.

    python -m methods.calculator
"""

import re
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any, Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from worlds.countdown.problems import read
from common.data import load_problems, sample_problems
from common.engines import Engine, WeightHistory, continue_responses, make_engine, prompt_seeds
from common.logprobs import batch_logps, token_logps
from common.metrics import StepMetrics, mismatch_metrics, rollout_metrics
from common.models import load_model
from common.records import Rollouts
from common.run import Run, seed_step
from common.schedule import learning_rate
from common.settings import Count, CountOrZero, GroupSize, NonNegative, Positive, Rate, Settings, Share
from common.verification.verifier import Verifier

import torch
import tyro
from torch import Tensor


@dataclass
class Args(Settings):
    # Calculator
    call: str = "<<([^<>]*)>>"
    """What a call looks like: a regular expression whose one group is what is to be computed."""
    max_calls: Count = 8
    """Calls of a response that are answered, C in ToRL; later ones stay without a result."""
    model: str = "products"
    """A model on the hub, a local folder, or one of this repository, of which the default one knows of calls."""
    dataset: str = "products"
    """A data set on the hub, a local file, or a generated one: "products" (sums with products in them)."""
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


def calculate(expression: str) -> str:
    """The exact value of an expression of integers with + - * /, a fraction perhaps, or "error"."""
    value = read(expression)[0] if len(expression) <= 50 else None  # parsed, never executed
    return "error" if value is None else str(value)


def answer_call(tokens: list[int], start: int, tokenizer: Any, args: Args) -> tuple[int, list[int]] | None:
    """Where the first call after token `start` ends, and the tokens of its result; None where nothing is called."""

    def called(end: int) -> re.Match | None:
        return re.search(args.call, tokenizer.decode(tokens[start:end]))

    if not called(len(tokens)):
        return None
    end = bisect_left(range(len(tokens)), True, lo=start, key=lambda end: called(end) is not None)
    return end, tokenizer(calculate(called(end)[1]), add_special_tokens=False)["input_ids"]


class CallingEngine:
    """An engine whose responses are continued behind the result of each call; what it had sampled there is dropped."""

    def __init__(self, engine: Engine, tokenizer: Any, args: Args) -> None:
        self.engine, self.tokenizer, self.args = engine, tokenizer, args
        self.load_weights, self.sleep, self.close = engine.load_weights, engine.sleep, engine.close
        self.calls = 0.0  # per response, of the last batch

    def generate(
        self, prompt_ids: list[list[int]], n: int, max_tokens: int, temperature: float, seeds: list[int]
    ) -> Rollouts:
        rollouts = self.engine.generate(prompt_ids, n, max_tokens, temperature, seeds)
        count, self.calls = len(rollouts.tokens), 0.0
        turns = dict.fromkeys(range(count), 0)  # of each response that may call: where its last turn begins
        for turn in range(1, self.args.max_calls + 1):
            begun, going = Rollouts(), []
            for row, start in turns.items():
                if answer := answer_call(rollouts.tokens[row], start, self.tokenizer, self.args):
                    end, result = answer
                    begun.tokens.append((rollouts.tokens[row][:end] + result)[:max_tokens])
                    put_in = len(begun.tokens[-1]) - end
                    begun.logps.append(rollouts.logps[row][:end] + [0.0] * put_in)
                    begun.sampled.append(rollouts.sampled[row][:end] + [False] * put_in)
                    begun.truncated.append(True)
                    going.append(row)
            self.calls += len(going) / count
            turns = {row: len(tokens) for row, tokens in zip(going, begun.tokens, strict=True)}
            rollouts = replace_rows(rollouts, going, begun)
            open_rows = [row for row in going if turns[row] < max_tokens]  # the others have no room left
            if not open_rows:
                break
            prompts = [prompt_ids[row // n] for row in open_rows]
            # A response's own numbers, which neither the rest of the batch nor other turns change.
            own = [prompt_seeds(1, seeds[row // n], row % n, turn)[0] for row in open_rows]
            ended = continue_responses(self.engine, prompts, rollouts.select(open_rows), max_tokens, temperature, own)
            rollouts, turns = replace_rows(rollouts, open_rows, ended), {row: turns[row] for row in open_rows}
        return rollouts


def replace_rows(rollouts: Rollouts, rows: list[int], others: Rollouts) -> Rollouts:
    """The responses, with others in the place of some rows."""
    place = {row: len(rollouts.tokens) + number for number, row in enumerate(rows)}
    return Rollouts.join([rollouts, others]).select(place.get(row, row) for row in range(len(rollouts.tokens)))


def check_call(args: Args) -> None:
    """End the program where --call is no regular expression with one group."""
    try:
        groups = re.compile(args.call).groups
    except re.error as error:
        fail(f"--call {args.call} is no regular expression: {error}.")
    if groups != 1:
        fail(f"--call {args.call} has {groups} groups in parentheses: it needs one, for what is to be computed.")


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
    with Run(args, __file__) as run:
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        check_call(args)  # Calculator
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(tokenizer, train + held_out, args.answer_format, args.tolerance, args.reward))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        engine = CallingEngine(engine, tokenizer, args)  # Calculator
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
            rollout["calls"] = engine.calls  # Calculator: per response
            run.log(step, rollout | mismatch_metrics(old_logp, rollout_logp, mask) | metrics.result())
            if run.due(step, args.save_every):
                run.save(step)
            if run.interrupted:
                break
            run.evaluate(step, engine, verifier, held_out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
