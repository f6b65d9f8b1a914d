"""DPPO, Divergence PPO: "Rethinking the Trust Region in LLM RL", 2602.04879 (Feb 2026), Eq. 12 to 16.

    J(θ) = E_x E_{y ~ μ(·|x)} Σ_t M_t r_t A        r_t = π_θ(y_t | x, y_<t) / μ(y_t | x, y_<t),  A_i = R_i - mean R
    M_t = 0 where D_t > δ and the update would move r_t further from 1 (A > 0, r_t > 1 or A < 0, r_t < 1), else 1

Differs from its parent grpo.py:
- the trust region is on the distribution, not on the ratio: D is how far the policy has moved at
  this position. A ratio of 2 on a token at 0.01 hardly moves it, one of 0.8 on a token at 0.99 does;
- everything is anchored on the sampler μ, not on recomputed log-probs, so there is nothing left for
  TIS to correct;
- no std, and a token sum over the constant length limit, as in dr_grpo.py.
Some write-ups mask wherever D > δ: without the condition on the direction, ways back are closed too.

    python dppo.py
    python dppo.py --divergence topk-kl --delta 0.05
"""

import copy
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.batch import collate, micro_batches, minibatches, score, token_logps, top_logps
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

    # DPPO
    num_minibatches: int = 4
    """Parts of a rollout batch, with one optimizer update each. At 1 nothing is ever clipped: old and new are equal."""
    update_epochs: int = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches. Usual 1 to 4."""
    divergence: Literal["binary-tv", "binary-kl", "topk-tv", "topk-kl"] = "binary-tv"
    """D: over {the token, all others}, or over {the sampler's K likeliest, the token, all others}."""
    delta: float = 0.2
    """δ: size of the trust region. Paper: TV 0.15 to 0.2, KL 0.05."""
    top_k: int = 20
    """K of the top-K divergences. Paper 20."""
    ratio_cap: float = math.inf
    """C: cap of the ratio's weight. Paper: none in the stability study, 5 in the scaling runs, where it hurt."""
    kl_beta: float = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 0."""


def compute_advantages(rewards: Tensor, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: no std (2602.04879, App. C)."""
    return rewards - rewards.mean(1, keepdim=True)


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (B L), the same for every token."""
    return mask / (len(mask) * args.max_response_tokens)


def divergence(mu: Tensor, pi: Tensor, kind: str) -> Tensor:
    """D(μ, π) per token (B, T) between distributions (B, T, N): total variation or KL (2602.04879, Eq. 13 to 16)."""
    if kind.endswith("tv"):
        return (mu - pi).abs().sum(-1) / 2
    return (mu * (torch.log(mu + 1e-8) - torch.log(pi + 1e-8))).sum(-1)


def coarse_distribution(logp: Tensor, top: Tensor | None = None, is_top: Tensor | None = None) -> Tensor:
    """Probabilities (B, T, N) of {the sampled token, all others}, or of {K tokens, the sampled one, all others}.

    `top` (B, T, K) are the log-probs of the sampler's K likeliest tokens; `is_top` (B, T) says where
    the sampled token is one of them, and then it is not counted twice.
    """
    token = logp.exp().unsqueeze(-1)  # (B, T, 1)
    if top is not None:
        token = torch.cat([top.exp(), token * ~is_top.unsqueeze(-1)], dim=-1)  # (B, T, K + 1)
    return torch.cat([token, (1 - token.sum(-1, keepdim=True)).clamp(min=0)], dim=-1)


def policy_loss(
    logp: Tensor,
    old_logp: Tensor,
    rollout_logp: Tensor,
    advantages: Tensor,
    mask: Tensor,
    args: Args,
    top: tuple[Tensor, Tensor, Tensor] | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss (B, T) and per-token metrics, all inputs (B, T); only `logp` carries a gradient.

    For the top-K divergences, `top` holds the log-probs of the sampler's K likeliest tokens under the
    policy and under the sampler, both (B, T, K), and where the sampled token is among them (B, T).
    """
    ratio = torch.exp(logp - rollout_logp)  # (B, T), to the sampler
    policy_top, rollout_top, is_top = top or (None, None, None)
    pi = coarse_distribution(logp.detach(), policy_top, is_top)  # (B, T, N)
    mu = coarse_distribution(rollout_logp, rollout_top, is_top)  # (B, T, N)
    outside = divergence(mu, pi, args.divergence) > args.delta  # (B, T)
    clip_pos = (advantages > 0) & (ratio > 1) & outside  # (B, T)
    clip_neg = (advantages < 0) & (ratio < 1) & outside  # (B, T)
    keep = ~(clip_pos | clip_neg)  # (B, T), M
    # ∇(r A) = r A ∇log π, and in this form the ratio's weight can be capped.
    loss = -(keep * ratio.clamp(max=args.ratio_cap).detach() * advantages * logp)  # (B, T)
    metrics = {"ratio": ratio, "clip_pos": clip_pos.float(), "clip_neg": clip_neg.float()}
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
    if args.divergence.startswith("topk") and args.top_k > len(tokenizer):  # DPPO
        fail(f"--top-k {args.top_k} is more than the model's vocabulary of {len(tokenizer)} tokens.")
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
            # DPPO: the top-K divergences need the sampler's K likeliest tokens at each position.
            K = args.top_k if args.divergence.startswith("topk") else 0
            rollouts = engine.generate(prompts, G, args.max_response_tokens, args.temperature, seed, K)
        with run.clock("verify"):
            right = torch.tensor(verifier(problems, rollouts), device=model.device).float().view(P, G)  # (P, G)
        engine.sleep()  # its memory is the learner's until it gets new weights
        batch = collate(prompts, rollouts, model.device)
        mask, rollout_logp = batch.mask, batch.rollout_logp  # (B, T), (B, T)
        is_top = (batch.top_ids == batch.response.unsqueeze(-1)).any(-1)  # (B, T), DPPO: sampled from those K

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
                    # DPPO: the policy's log-probs of the sampler's K likeliest tokens, beside the sampler's own.
                    top = (top_logps(model, batch, rows, args), batch.top_logp[rows], is_top[rows]) if K else None
                    loss, values = policy_loss(
                        logp, old_logp[rows], rollout_logp[rows], advantages[rows], mask[rows], args, top
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
