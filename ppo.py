"""PPO, Proximal Policy Optimization: 1707.06347 (Jul 2017), Eq. 7; advantages: GAE, 1506.02438 (Jun 2015), Eq. 16.

    J(θ) = E_t min(r_t Â_t, clip(r_t, 1 - ε, 1 + ε) Â_t)        r_t = π_θ(o_t | x, o_<t) / π_old(o_t | x, o_<t)
    Â_t = Σ_l (γλ)^l δ_{t+l},  δ_t = ρ_t + γ V(s_{t+1}) - V(s_t),  ρ_t: the score at the last token, -β KL_k1 at each

Differs from its parent grpo.py, which came after it and dropped the critic:
- a critic, a second model, predicts at every token how the response will end; each token has an
  advantage of its own instead of one for the whole response, and no group is needed;
- the KL to the reference is a part of the token rewards;
- token mean: the expectation is over time steps. Some write-ups call it a mean over samples.
Returns are taken before the advantages are whitened: the critic predicts rewards, not z-scores.

    python ppo.py
"""

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from common.batch import Batch, collate, micro_batches, minibatches, response_hidden, score, token_logps
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

    # PPO
    num_minibatches: int = 4
    """Parts of a rollout batch, with one optimizer update each. At 1 nothing is ever clipped: old and new are equal."""
    update_epochs: int = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches. Usual 1 to 4."""
    clip_eps: float = 0.2
    """ε: the ratio's gradient ends at 1 ± ε. Usual 0.1 to 0.3."""
    gamma: float = 1.0
    """γ: discount per token. 1 for language models: a long way to the answer is no worse."""
    gae_lambda: float = 0.95
    """λ: 1 is the reward less the value, unbiased; 0 trusts the critic's next value. Usual 0.95 to 1."""
    critic_lr: float = 3e-4
    """AdamW's peak learning rate of the critic. Usual 3 to 10 times the policy's."""
    value_clip: float = 0.2
    """The critic's gradient ends where its value has moved so far within a step. Usual 0.2 to 0.5."""
    kl_beta: float = 0.0
    """β: weight of the KL to the initial model in the token rewards. Usual 0 to 0.05."""
    tis_cap: float = 2.0
    """C: cap of π_old / π_sampler, the correction for the sampler's other numerics; 0 turns it off."""


class Critic(torch.nn.Module):
    """V(s_t): the body of the language model with a scalar head, which starts at 0."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.base_model = copy.deepcopy(model.base_model)
        self.head = torch.nn.Linear(model.config.get_text_config().hidden_size, 1).to(model.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch, rows: Tensor, args: Args) -> Tensor:
        """Values (b, T): at t, of the prompt and the tokens before t; 0 on padding."""
        hidden, _ = response_hidden(self, batch, rows, args)  # (N, D)
        mask = batch.mask[rows]  # (b, T)
        return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, self.head(hidden.float()).squeeze(-1))


def compute_advantages(rewards: Tensor, values: Tensor, mask: Tensor, args: Args) -> tuple[Tensor, Tensor]:
    """Token rewards, values and mask (B, T) in; advantages and returns (B, T) out (1506.02438, Eq. 16)."""
    advantages, following, later = torch.zeros_like(values), 0.0, 0.0
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + args.gamma * following - values[:, t]  # (B,)
        later = (delta + args.gamma * args.gae_lambda * later) * mask[:, t]  # (B,), 0 after the last token
        following = values[:, t] * mask[:, t]  # (B,), the value after the last token is 0
        advantages[:, t] = later
    return advantages, (advantages + values) * mask


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


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, args: Args) -> Tensor:
    """Per-token loss (B, T) of the critic: the larger of the plain and the clipped squared error."""
    near = old_values + (values - old_values).clamp(-args.value_clip, args.value_clip)  # (B, T)
    return 0.5 * torch.max((values - returns) ** 2, (near - returns) ** 2)


def main(args: Args) -> None:
    run = Run(args, __file__)
    args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
    model, tokenizer = load_model(args)
    train, held_out = load_problems(args, tokenizer, context_length(model))
    verifier = Verifier(tokenizer, train + held_out, args.answer_format)
    engine = make_engine(args, model, tokenizer, train + held_out)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay)
    critic = Critic(model)  # PPO
    critic_optimizer = torch.optim.AdamW(critic.parameters(), lr=args.critic_lr, weight_decay=args.weight_decay)  # PPO
    reference = copy.deepcopy(model) if args.kl_beta > 0 else None
    first = run.restore(model, tokenizer, optimizer) + 1
    # PPO: the critic is a part of the state.
    critic.load_state_dict(run.saved("critic", critic.state_dict()))
    critic_optimizer.load_state_dict(run.saved("critic_optimizer", critic_optimizer.state_dict()))
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
            ref_logp = score(reference, batch, args)[0] if reference else old_logp  # (B, T)
            # PPO: the critic's values at every token.
            old_values = torch.zeros_like(old_logp)  # (B, T)
            with torch.no_grad():
                for rows in micro_batches(torch.arange(P * G), batch, args.micro_batch_tokens):
                    old_values[rows] = critic(batch, rows, args)
        rewards = right  # (P, G)
        # PPO: rewards at every token. The KL is a part of them: k1 there has the gradient of the KL itself.
        kl = (old_logp - ref_logp) * mask  # (B, T)
        token_rewards = -args.kl_beta * kl  # (B, T)
        token_rewards[torch.arange(P * G), mask.sum(1) - 1] += rewards.flatten()
        advantages, returns = compute_advantages(token_rewards, old_values, mask, args)  # (B, T), (B, T)
        explained = 1 - (returns - old_values)[mask].var() / returns[mask].var().clamp(min=1e-8)
        advantages = whiten(advantages, mask)  # (B, T)
        run.require_finite(step, sampler_logp=rollout_logp, learner_logp=old_logp, advantage=advantages)

        metrics = StepMetrics()
        metrics.add({"entropy": entropy}, token_weights(mask, args), mask)
        metrics.add({"kl": kl}, token_weights(mask, args), mask)  # PPO
        for group in optimizer.param_groups:
            group["lr"] = args.lr * min(1.0, step / max(1, args.warmup_steps))
        for group in critic_optimizer.param_groups:  # PPO
            group["lr"] = args.critic_lr * min(1.0, step / max(1, args.warmup_steps))
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
                    # PPO: the critic has no parameter in common with the policy, so its loss needs no coefficient.
                    values["value_loss"] = value_loss(critic(batch, rows, args), old_values[rows], returns[rows], args)
                    (weights[rows] * values["value_loss"]).sum().backward()
                    metrics.add(values, weights[rows], mask[rows])
                    loss = (weights[rows] * loss).sum()
                    loss.backward()
                    minibatch_loss += loss.item()
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                critic_norm = torch.nn.utils.clip_grad_norm_(critic.parameters(), args.max_grad_norm)  # PPO
                run.require_finite(step, loss=minibatch_loss, gradient=grad_norm, critic_gradient=critic_norm)
                optimizer.step()
                optimizer.zero_grad()
                critic_optimizer.step()  # PPO
                critic_optimizer.zero_grad()
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
            | metrics.result()
            | {"explained_variance": explained.item()},  # PPO
            evaluation,
        )
        if run.due(step, args.save_every):
            # PPO
            state = {"critic": critic.state_dict(), "critic_optimizer": critic_optimizer.state_dict()}
            run.save(step, **state)
        if run.interrupted:
            break
    engine.close()
    verifier.close()
    run.finish()


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
