"""Self-rewarding: the policy judges its own responses. After "Self-Rewarding Language Models", 2401.10020 (Jan 2024).

    GRPO's J(θ) with R_i = 1/K Σ_k [judgement j_ik accepts], j_ik ~ π_old(·|x, what o_i answers, as a question)

Differs from its parent grpo.py:
- the reward is the policy's own verdict on an answer: each of K judgements accepts it or not. The data set's answers
  only measure how far the judge can be trusted (accuracy);
- so a policy can learn where judging is easier than answering. The embedded model, told " right 52+7-11-3", works this
  expression out and writes yes or no; finding which of eight fits takes a search.
The paper trains by DPO, in rounds, on pairs of the highest and the lowest score, and its judge gives up to five points.
A response that is cut off, or without an answer, has reward 0. Real models need a prompt that asks for a verdict, such
as --judge-prompt $'\\nIs the answer {answer} correct? Check it, then write VERDICT: yes or VERDICT: no.' --accepts
"VERDICT: yes". Nothing keeps the policy from answers that only please its judge: watch `judge_agreement`.
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python methods/self_reward.py
"""

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail, pattern
from common.data import add_text, check_prompts, few_shot_examples, load_problems, make_problem, sample_problems
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps
from common.models import load_model
from common.records import Problem
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, GroupSize, Names, NonNegative, Positive, Rate, Settings
from common.verification import Verifier

import torch
from torch import Tensor


@dataclass
class Args(Settings):
    # Self-reward
    judge_prompt: str = " right {answer}"
    """Text after the question that asks for a judgement; {answer} is the response's. The default is for the embedded
    model, which works the answer out."""
    accepts: str = r"^\S+ yes"
    """Regular expression: a judgement in which it is found accepts the answer."""
    judgements: Count = 2
    """K: judgements of each response."""
    model: str = "search"
    """A model on the hub, a local folder, or one of this repository; the default can judge."""
    dataset: Names = "search"
    """A data set on the hub, a local file, or a generated one; by default plus and minus between numbers."""
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


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, args: Args) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    On-policy every ratio is 1, and a group's advantages sum to 0, so the minibatch's loss is 0; its gradient is not.
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


def to_judge(problem: Problem, answer: str, args: Args, *prompt: Any) -> Problem:
    """The problem of judging an answer; `prompt` has the rest that makes a prompt: tokenizer, few-shot examples."""
    question = add_text(problem.messages or problem.question, args.judge_prompt.replace("{answer}", answer))
    return make_problem((question, ""), replace(args, max_prompt_tokens=None), *prompt)


def scores(judgements: list[str], args: Args) -> Tensor:
    """Fraction of the K judgements of each response that accept its answer, (N,) from N·K texts."""
    accepted = [float(re.search(args.accepts, text) is not None) for text in judgements]
    return torch.tensor(accepted).view(-1, args.judgements).mean(1)


def main(args: Args) -> None:
    if args.reward or "{answer}" not in args.judge_prompt:
        fail("the only reward is the verdict on the {answer} in --judge-prompt: put it there, and leave out --reward.")
    pattern(args.accepts, "accepts")
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None
        examples = few_shot_examples(args)  # Self-reward

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out):
            # Sample G responses to each of P prompts, and verify their answers.
            engine.load_weights(model)
            problems = sample_problems(train, P, step, args)
            rollouts = engine.generate(problems, G, step)
            rewards = verifier(problems, rollouts)  # (P, G)
            # Self-reward: the policy judges the answers of its own responses, in the verifier's place.
            texts = tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
            answers = [
                None if cut else verifier.find_answer(t) for t, cut in zip(texts, rollouts.truncated, strict=True)
            ]
            judged = [i for i, answer in enumerate(answers) if answer is not None]
            rewards = torch.zeros_like(rewards)  # (P, G)
            if judged:
                asked = [to_judge(problems[i // G], answers[i], args, tokenizer, examples) for i in judged]
                check_prompts(asked, model, args)
                judgements = engine.generate(asked, args.judgements, step, 1)
                said = tokenizer.batch_decode(judgements.tokens, skip_special_tokens=True)
                rewards.view(-1)[judged] = scores(said, args).to(rewards)
            agree = (rewards.view(-1) > 0.5) == torch.tensor(rollouts.correct, device=rewards.device)
            run.log(judge_agreement=agree.float().mean().item())
            engine.sleep()  # frees its memory for the learner

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, rollouts, model.device)
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            learner_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            old_logp = learner_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            advantages = compute_advantages(rewards, args).view(-1, 1).expand(mask.shape)  # (B, T)
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
