"""MaxRL, Maximum Likelihood Reinforcement Learning: 2602.02710 (Feb 2026), Algorithm 1.

    J_T(θ) = E_x -Σ_{k≤T} (1 - p)^k / k        p = chance of a right response;  T = 1: RL,  T → ∞: log p
    ∇J_T(θ) = E_x (1 - (1 - p)^T) / p ∇p        A_i = (R_i - mean R) / mean R, and 0 where no response is right

Differs from its parent grpo.py:
- the advantage is divided by the group's success rate, not its std: hard prompts count the more,
  as they do in maximum likelihood, where ∇ log p = ∇p / p;
- token sum, as the theorem needs it (the authors' code takes the token mean).
With G responses and groups without a right one dropped, the estimate is unbiased for T = G - 1:
the paper's T = G holds for the form that keeps subtracting the mean score there. At G = 2 this is
plain RL. On-policy (--num-minibatches 1) the ratio is 1 and this is the paper's estimator; further
updates keep GRPO's ratio and clip, as the authors' code does.

    python maxrl.py
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.batch import collate, micro_batches, minibatches, score, token_logps
from common.cli import fail
from common.data import draw, load_problems
from common.engines import make_engine
from common.evaluate import evaluate
from common.metrics import StepMetrics, mismatch_metrics, rollout_metrics
from common.models import context_length, load_model
from common.run import Run, seed_step
from common.verify import Verifier

import torch
import tyro
from torch import Tensor


@dataclass
class Args:
    model: str = "arithmetic"
    """A model on the hub, a local folder, or "arithmetic": the small one in this repository."""
    dataset: str = "arithmetic"
    """A data set on the hub, a local .jsonl, .json, .parquet or .csv file, or "arithmetic": generated sums."""
    dataset_config: str | None = None
    """Configuration of a data set on the hub, for example "main" for openai/gsm8k."""
    question_column: str = "question"
    """Column with the question, as text or as chat messages; a dot reaches into a nested column."""
    answer_column: str = "answer"
    """Column with the right answer; GSM8K's `#### 42` and MATH's boxed solutions are understood."""
    train_split: str = "train"
    """Split to train on."""
    eval_split: str | None = None
    """Split to evaluate on; without it, rows of the training split are held out."""
    eval_dataset: str | None = None
    """Data set to evaluate on, if it is another one."""
    prompt: str | None = None
    """Template with {question} in it; by default a chat model is also asked to reason and to box its answer."""
    answer_format: Literal["boxed", "last-number"] = "boxed"
    """Where the answer stands: in the last \\boxed{}, or the last number, for models too weak to write a box."""
    engine: Literal["auto", "vllm", "transformers"] = "auto"
    """What generates the responses; auto takes vLLM where it is installed."""
    gpu_memory_utilization: float = 0.4
    """Share of a GPU's memory that vLLM holds while it generates, beside the learner's weights and moments."""
    rollout_precision: Literal["auto", "fp32", "bf16", "fp8"] = "auto"
    """What the engine computes in: auto is bf16 on a GPU and fp32 elsewhere; fp8 is bf16 with 8-bit weights."""
    learner_precision: Literal["auto", "fp32", "bf16"] = "auto"
    """What the learner computes in, over weights in fp32: auto is bf16 on a GPU and fp32 elsewhere."""
    steps: int = 100
    """Rollout batches. Real models: 100 to 1000."""
    prompts_per_step: int = 32
    """P: different prompts in a rollout batch. Papers: 32 to 512."""
    responses_per_prompt: int = 8
    """G: responses to each prompt, the group. Papers: 8 to 64."""
    micro_batch_tokens: int = 4096
    """Padded tokens in one forward and backward pass: a matter of memory and speed, not of the result. GPU: 8192."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: much less memory, about a third more time in training."""
    max_response_tokens: int = 96
    """T: length limit of a response. Reasoning models need 1,000 to 30,000."""
    temperature: float = 1.0
    """Sampling temperature; every log-prob is taken at the same one."""
    lr: float = 1e-4
    """AdamW's peak learning rate. Models of 1B and more: 1e-6 to 3e-6."""
    warmup_steps: int = 5
    """Steps over which the learning rate rises from 0, in rollout batches."""
    weight_decay: float = 0.0
    """AdamW's weight decay; 0 to 0.1."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    fp32_lm_head: bool = False
    """Run the output layer in fp32 on both sides: less mismatch between sampler and learner under bf16."""
    eval_every: int = 20
    """Steps between evaluations on held-out problems; 0 for only before and after."""
    eval_problems: int = 256
    """Held-out problems."""
    eval_samples: int = 16
    """n of avg@n and pass@k before and after; a quarter as many during the run."""
    save_every: int = 50
    """Steps between checkpoints; 0 for only the last."""
    seed: int = 1
    """Seed of everything random. On a CPU the same seed gives the same run, to the bit."""
    run_dir: Path | None = None
    """Folder for logs and checkpoints; by default a new one under runs/."""
    resume: Path | None = None
    """Run folder to go on with after an interruption."""
    track: Literal["none", "wandb", "tensorboard"] = "none"
    """Also send the metrics to Weights & Biases or TensorBoard."""

    # MaxRL
    num_minibatches: int = 4
    """Parts of a rollout batch, with one optimizer update each. At 1 nothing is ever clipped: old and new are equal."""
    update_epochs: int = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches. Usual 1 to 4."""
    clip_eps: float = 0.2
    """ε: the ratio's gradient ends at 1 ± ε. Usual 0.1 to 0.3."""
    kl_beta: float = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 0."""
    tis_cap: float = 2.0
    """C: cap of π_old / π_sampler, the correction for the sampler's other numerics; 0 turns it off."""


def compute_advantages(rewards: Tensor, args: Args) -> Tensor:
    """(P, G) binary rewards in, (P, G) advantages out: divided by the success rate (2602.02710, Algorithm 1)."""
    if not ((rewards == 0) | (rewards == 1)).all():
        raise ValueError("MaxRL is defined for rewards of 0 and 1: with others the success rate has no meaning")
    mean = rewards.mean(1, keepdim=True)  # (P, 1)
    # Where no response is right, R_i - mean R is 0, and stays 0 instead of 0 / 0.
    return (rewards - mean) / mean.clamp(min=1 / rewards.shape[1])


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / B, the sum over the tokens of each response."""
    return mask / len(mask)


def policy_loss(
    logp: Tensor, old_logp: Tensor, rollout_logp: Tensor, advantages: Tensor, mask: Tensor, args: Args
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss (B, T) and per-token metrics, all inputs (B, T); only `logp` carries a gradient.

    On-policy the ratio is 1 and the advantages of a group sum to 0, and so does the loss; its gradient does not.
    """
    ratio = torch.exp(logp - old_logp)  # (B, T)
    clipped_ratio = ratio.clamp(1 - args.clip_eps, 1 + args.clip_eps)  # (B, T)
    # The minimum makes the clip one-sided: a ratio that moved the wrong way always has its gradient.
    loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (B, T)
    metrics = {
        "ratio": ratio,
        "clip_pos": ((advantages > 0) & (ratio > 1 + args.clip_eps)).float(),
        "clip_neg": ((advantages < 0) & (ratio < 1 - args.clip_eps)).float(),
    }
    if args.tis_cap > 0:  # truncated importance sampling: the sampler's numerics are not the learner's
        tis = torch.exp(old_logp - rollout_logp)  # (B, T), no gradient
        tis_weight = tis.clamp(max=args.tis_cap)  # (B, T)
        loss = loss * tis_weight
        metrics |= {"tis": tis, "tis_weight": tis_weight, "tis_truncated": (tis > args.tis_cap).float()}
    return loss, metrics


def kl_penalty(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Per-token k3 estimate (B, T) of KL(π_θ ‖ π_ref) (2402.03300, Eq. 4): unbiased and never negative."""
    return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1


def main(args: Args) -> None:
    if args.responses_per_prompt < 2:
        fail("--responses-per-prompt must be at least 2: the advantage compares the responses of a group.")
    run = Run(args, __file__)
    args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
    model, tokenizer = load_model(args)
    train, held_out = load_problems(args, tokenizer, context_length(model))
    verifier = Verifier(tokenizer, train + held_out, args.answer_format)
    engine = make_engine(args, model, tokenizer, train + held_out)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    reference = copy.deepcopy(model) if args.kl_beta > 0 else None
    first = run.restore(model, tokenizer, optimizer) + 1
    engine.load_weights(model)
    if first == 1:
        run.log(0, evaluation=evaluate(engine, verifier, held_out, args.eval_samples, args))

    for step in range(first, args.steps + 1):
        seed = seed_step(args.seed, step)

        # Generate G responses to each of P prompts, and verify their answers.
        with run.clock("generate"):
            problems = draw(train, args.seed, (step - 1) * P, P)
            prompts = [p.prompt_ids for p in problems]
            rollouts = engine.generate(prompts, G, args.max_response_tokens, args.temperature, seed)
        with run.clock("verify"):
            right = torch.tensor(verifier(problems, rollouts), device=model.device).float().view(P, G)  # (P, G)
        engine.sleep()  # its memory is the learner's until it gets new weights
        batch = collate(prompts, rollouts, model.device)
        mask, rollout_logp = batch.mask, batch.rollout_logp  # (B, T), (B, T)

        # The learner's own log-probs at the rollout weights: the anchor of the ratio.
        with run.clock("score"):
            old_logp, entropy = score(model, batch, args)  # (B, T), (B, T)
            ref_logp = score(reference, batch, args)[0] if reference else None  # (B, T)
        rewards = right  # (P, G)
        advantages = compute_advantages(rewards, args).view(-1, 1).expand(mask.shape)  # (B, T)
        run.require_finite(step, sampler_logp=rollout_logp, learner_logp=old_logp, advantage=advantages)

        metrics = StepMetrics()
        metrics.add({"entropy": entropy}, token_weights(mask, args), mask)
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, step / max(1, args.warmup_steps))
        with run.clock("train"):
            for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                weights = torch.zeros_like(old_logp)  # (B, T)
                weights[minibatch] = token_weights(mask[minibatch], args)
                minibatch_loss = 0.0
                for rows in micro_batches(minibatch, batch, args.micro_batch_tokens):
                    logp, _ = token_logps(model, batch, rows, args)  # (b, T)
                    loss, values = policy_loss(
                        logp, old_logp[rows], rollout_logp[rows], advantages[rows], mask[rows], args
                    )
                    if reference:  # GRPO has the KL in the loss
                        kl = kl_penalty(logp, ref_logp[rows])  # (b, T)
                        loss, values["kl"] = loss + args.kl_beta * kl, kl
                    metrics.add(values, weights[rows], mask[rows])
                    loss = (weights[rows] * loss).sum()
                    loss.backward()
                    minibatch_loss += loss.item()
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                run.require_finite(step, loss=minibatch_loss, gradient=grad_norm)
                optimizer.step()
                optimizer.zero_grad()
                metrics.add_update(loss=minibatch_loss, grad_norm=grad_norm.item())
        with run.clock("sync"):
            engine.load_weights(model)

        evaluation = None
        if run.due(step, args.eval_every):
            n = args.eval_samples if step == args.steps else max(1, args.eval_samples // 4)
            with run.clock("evaluate"):
                evaluation = evaluate(engine, verifier, held_out, n, args)
        run.log(
            step,
            rollout_metrics(rewards, right, rollouts, verifier.failures)
            | mismatch_metrics(old_logp, rollout_logp, mask)
            | metrics.result(),
            evaluation,
        )
        if run.due(step, args.save_every):
            run.save(step)
        if run.interrupted:
            break
    engine.close()
    verifier.close()
    run.finish()


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
