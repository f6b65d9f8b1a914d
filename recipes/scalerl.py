"""ScaleRL: "The Art of Scaling Reinforcement Learning Compute for LLMs", 2510.13786 (Oct 2025), Sec. 4.

    J(θ) = E_x E_{o_1..o_G ~ μ(·|x)} 1/Σ_i|o_i| Σ_i Σ_t sg(min(ρ_it, C)) A_i log π_θ(o_it | x, o_i<t)
    ρ_it = π_θ(o_it | x, o_i<t) / μ(o_it | x, o_i<t), μ the rollout policy
    A_i  = (R_i - mean R) / std of all R_i - mean R in the batch, for prompts with 0 < mean R < 1

A recipe combines components. Without these eight it is cispo.py --tis-cap 0 --num-minibatches 1, to the bit.

| component | from | without it |
|---|---|---|
| a generator behind the learner | PipelineRL | --staleness 0 |
| ratio to the rollout policy | PipelineRL | --ratio-anchor learner |
| interruptions | Qwen3 | --interrupt-from 1 |
| FP32 head | MiniMax-M1 | --no-fp32-lm-head |
| each prompt has the same weight | DAPO | --average token |
| std of the batch | REINFORCE++ | --std group |
| groups without signal are left out | DAPO | --no-filter-groups |
| no positive resampling | Polaris | --no-resampling-pass-rate 1.01 |

Differs from its parent cispo.py:
- a response that is still thinking after a random number of tokens is told to answer; that text has no loss;
- groups without signal are left out of loss, mean and std, and nothing replaces them (DAPO samples new ones);
- a prompt that almost all responses solved is never sampled again.
The paper's rewards of ±1 give the same A_i as 0 and 1: the std cancels the scale. Its PipelineRL-8 is
`pipeline_rl.py` with an η of 8. With the embedded default, two components change nothing: in fp32 the head is in fp32
anyway, and none of its 20,000 sums is repeated before step 600.
`python -m recipes.scaling_fit` fits the paper's curve to the runs.
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python recipes/scalerl.py
"""

import random
from dataclasses import dataclass
from typing import Any, Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps
from common.models import load_model
from common.records import Rollouts
from common.run import Run
from common.settings import Cap, Count, CountOrZero, Fraction, GroupSize, NonNegative, Positive, Rate, Settings
from common.verification import Verifier
from recipes.asynchronous import Cuts, Generator

import torch
from torch import Tensor


@dataclass
class Args(Settings):
    # ScaleRL
    ratio_cap: Cap = 5.0
    """C: the cap of the ratio itself (not 1 + C). The paper found 4, 5 and 8 equally good."""
    staleness: CountOrZero = 8
    """η: maximum age of a group, in rollout batches; older groups are dropped. AReaL 4 and 8, ScaleRL 8."""
    in_flight_prompts: Count = 32
    """Prompts whose responses are sampled at the same time; others wait until there is room."""
    in_flight_updates: bool = True
    """Take new weights at any token; otherwise once the responses under way have ended, with none begun until then."""
    kv: Literal["keep", "recompute"] = "keep"
    """With new weights, keep the keys and values of the old ones, or read prompts and responses again."""
    training_tokens: CountOrZero = 16
    """Tokens of each response that are sampled while the learner trains on a batch: drawn from 0 to twice this."""
    overlap: bool = False
    """Sample in another process instead, on a second GPU or on half of the CPU's cores; it cannot be reproduced."""
    interrupt_from: Fraction = 0.5
    """No response is told to answer before this fraction of the length limit; 1: never. Paper 0.70 (10,000 tokens)."""
    interrupt_to: Fraction = 0.65
    """Each response is told to answer at a random fraction up to this one. Paper 0.84 (12,000 of 14,336 tokens)."""
    interrupt_text: str = "\n\\boxed{"
    """The text. Paper: "Okay, time is up. Let me stop thinking and formulate a final answer now. </think>"."""
    thinking_end: str = "\\boxed{"
    """A response that contains this has stopped thinking and is not cut. For models with thinking tags: "</think>"."""
    fp32_lm_head: bool = True
    """Run the output layer in fp32 on both sides: less mismatch between engine and learner under bf16."""
    average: Literal["prompt", "token", "response"] = "prompt"
    """What gets equal weight in the mean: each prompt, token, or response. The paper tried all three."""
    std: Literal["batch", "group"] = "batch"
    """What advantages are divided by: the std over all responses with signal, or that of their group."""
    ddof: Literal[0, 1] = 1
    """The std of N rewards divides by N - ddof: 1 gives the sample std, 0 the population std. Paper: not said."""
    filter_groups: bool = True
    """Leave groups with equal rewards out of the loss, its mean and the std."""
    no_resampling_pass_rate: Positive = 0.9
    """Prompts with at least this pass rate are not sampled again. Paper 0.9; a value above 1 keeps them all."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 0."""
    ratio_anchor: Literal["learner", "engine"] = "engine"
    """π_old in the ratio: log-probs recomputed by the learner, or reported by the engine (requires --tis-cap 0)."""
    tis_cap: NonNegative = 0.0
    """C: cap of the truncated importance weight π_old / π_engine; 0 disables it."""
    num_minibatches: Count = 1
    """Minibatches per rollout batch, with one optimizer update each. Paper 1."""
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


def tokens_to_insert(tokenizer: Any, args: Args) -> list[int]:
    """The tokens of --interrupt-text; ends the program if they leave no room for an answer."""
    inserted = tokenizer(args.interrupt_text, add_special_tokens=False)["input_ids"]
    T, latest = args.max_response_tokens, int(args.interrupt_to * args.max_response_tokens)
    if args.interrupt_from < 1 and latest + len(inserted) >= T:
        fail(
            f"--interrupt-to {args.interrupt_to} leaves no room for an answer: {latest} tokens and the {len(inserted)} "
            f"of --interrupt-text use up --max-response-tokens {T}. Lower it, or set --interrupt-from 1."
        )
    return inserted


def cut_long_thinking(rollouts: Rollouts, seed: int, tokenizer: Any, args: Args) -> Cuts:
    """Where the responses of a group that think too long are cut, and the tokens that tell them to answer."""
    if args.interrupt_from == 1:
        return {}
    first, last = (int(fraction * args.max_response_tokens) for fraction in (args.interrupt_from, args.interrupt_to))
    rng, inserted = random.Random(seed), tokens_to_insert(tokenizer, args)
    budgets = [rng.randint(first, last) for _ in rollouts.tokens]
    return {
        row: (budget, inserted)
        for row, (tokens, budget) in enumerate(zip(rollouts.tokens, budgets, strict=True))
        if len(tokens) > budget and args.thinking_end not in tokenizer.decode(tokens[:budget])
    }


def compute_advantages(rewards: Tensor, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: each reward minus its group's mean, over the batch's std."""
    centered = rewards - rewards.mean(1, keepdim=True)  # (P, G)
    std = rewards.std(1, correction=args.ddof, keepdim=True)  # (P, 1)
    if args.std == "batch":
        has_signal = (rewards != rewards[:, :1]).any(1)  # (P,)
        counted = centered[has_signal] if args.filter_groups else centered  # (p, G)
        std = counted.std(correction=args.ddof) if len(counted) else 0.0  # ()
    # The paper has no ε; 1e-6 makes a group of equal rewards give 0 instead of 0 / 0.
    return centered / (std + 1e-6)


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (P Σ_i |o_i|) for the G responses to each prompt."""
    if args.average == "token":
        return mask / mask.sum().clamp(min=1)
    rows = args.responses_per_prompt if args.average == "prompt" else 1
    tokens = mask.reshape(-1, rows * mask.shape[1]).sum(1)  # (P,) or (B,), 0 where a group was left out
    return mask / ((tokens > 0).sum() * tokens).clamp(min=1).repeat_interleave(rows)[:, None]


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, args: Args) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    A weighted log-likelihood: its value means nothing, its gradient is the policy gradient, biased where the cap binds.
    """
    ratio = torch.exp(logp - old_logp)  # (m, T)
    weight = ratio.clamp(max=args.ratio_cap).detach()  # (m, T)
    loss = -weight * advantages * logp  # (m, T)
    return loss, {
        "ratio": ratio,
        "clip_pos": ((advantages > 0) & (ratio > args.ratio_cap)).float(),
        "clip_neg": ((advantages < 0) & (ratio > args.ratio_cap)).float(),
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
    if args.interrupt_to < args.interrupt_from < 1:
        fail("--interrupt-to must not be less than --interrupt-from: they are the ends of an interval.")
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        # ScaleRL: the generator interrupts long thinking; solved prompts are not submitted again.
        tokens_to_insert(tokenizer, args)  # ends the program if they do not fit
        generator = run.closing(Generator(run, engine, model, tokenizer, train, cut_long_thinking))
        run.state["solved"] = []

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out, generator=generator):
            # ScaleRL: G responses to each of P prompts, from the queue. Verify their answers.
            solved = set(run.state["solved"])
            if all(problem.prompt in solved for problem in train):
                fail(f"all {len(train)} problems have reached --no-resampling-pass-rate: none is left.", code=1)
            problems, rollouts = generator.batch(step, excluded=solved)
            rewards = verifier(problems, rollouts)  # (P, G)
            engine.sleep()  # frees its memory for the learner

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, rollouts, model.device)
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            learner_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            old_logp = learner_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            if args.filter_groups:  # ScaleRL: they leave the batch, and nothing replaces them
                mixed = (rewards != rewards[:, :1]).any(1, keepdim=True)  # (P, 1)
                mask = mask & mixed.expand(P, G).reshape(-1, 1)  # (B, T)
            pass_rates = torch.tensor(rollouts.correct).float().view(P, G).mean(1)  # (P,), ScaleRL
            passed = (pass_rates >= args.no_resampling_pass_rate).tolist()
            solved |= {problem.prompt for problem, is_solved in zip(problems, passed, strict=True) if is_solved}
            run.state["solved"] = sorted(solved)
            run.must_save = all(problem.prompt in solved for problem in train)  # the next step would have none left
            interrupted = sum(not all(row) for row in rollouts.sampled) / (P * G)
            run.log(interrupted=interrupted, solved_prompts=len(solved))  # ScaleRL
            advantages = compute_advantages(rewards, args).view(-1, 1).expand(mask.shape)  # (B, T)
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
