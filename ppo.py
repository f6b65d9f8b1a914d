"""PPO, Proximal Policy Optimization: 1707.06347 (Jul 2017), Eq. 7; advantages: GAE, 1506.02438 (Jun 2015), Eq. 16.

    J(θ) = E_t min(r_t Â_t, clip(r_t, 1 - ε, 1 + ε) Â_t)        r_t = π_θ(o_t | x, o_<t) / π_old(o_t | x, o_<t)
    Â_t = Σ_l (γλ)^l δ_{t+l},  δ_t = ρ_t + γ V(s_{t+1}) - V(s_t),  ρ_t: the reward at the last token, -β KL_k1 at each

Differs from its parent grpo.py, which came later and dropped the critic:
- a critic, a second model, predicts at every token the rewards still to come. Each token has an
  advantage of its own instead of one for the whole response, and no group is needed;
- the KL to the reference is part of the token rewards;
- token mean: the expectation is over time steps.
Returns are computed before whitening: the critic predicts rewards, not z-scores. Truncation counts as an end.
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python ppo.py
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import Batch, collate, micro_batches, minibatches
from common.data import load_problems, sample_problems
from common.distributed import place
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, in_micro_batches, response_hidden, token_logps
from common.models import load_model
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, NonNegative, Positive, Rate, Settings
from common.verification import Verifier

import torch
from torch import Tensor


@dataclass
class Args(Settings):
    # PPO
    clip_eps: Positive = 0.2
    """ε: no gradient for ratios above 1 + ε with positive advantages, below 1 - ε with negative ones. Usual 0.2."""
    gamma: Rate = 1.0
    """γ: discount per token. 1 for language models: a late answer is not discounted."""
    gae_lambda: Fraction = 0.95
    """λ: 1 is the reward minus the value, unbiased; 0 trusts the critic's next value. Usual 0.95 to 1."""
    critic_lr: Rate = 3e-4
    """AdamW's peak learning rate of the critic. Usual 2 to 10 times the policy's."""
    value_clip: Positive = 0.2
    """Zeroes the critic's gradient once its value has moved this far toward the return. Usual 0.2 to 0.5."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the token rewards. Usual 0 to 0.05."""
    ratio_anchor: Literal["learner", "engine"] = "learner"
    """π_old in the ratio: log-probs recomputed by the learner, or reported by the engine (requires --tis-cap 0)."""
    tis_cap: NonNegative = 2.0
    """C: cap of the truncated importance weight π_old / π_engine; 0 disables it."""
    num_minibatches: Count = 4
    """Minibatches per rollout batch, with one optimizer update each."""
    update_epochs: Count = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches. Papers: 1 or 2."""
    responses_per_prompt: Count = 8
    """G: responses per prompt. PPO needs no group: 1 is enough."""

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


class Critic(torch.nn.Module):
    """V(s_t): the body of a language model with a scalar head, which starts at 0."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.base_model = model.base_model
        self.head = torch.nn.Linear(model.config.get_text_config().hidden_size, 1).to(model.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch, rows: Tensor, args: Args) -> Tensor:
        """Values (b, T): at t, of the prompt and the tokens before t; 0 on padding."""
        hidden, mask = response_hidden(self, batch, rows, args), batch.token_mask[rows]  # (N, D), (b, T)
        return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, self.head(hidden.float()).squeeze(-1))


def compute_advantages(rewards: Tensor, values: Tensor, mask: Tensor, args: Args) -> tuple[Tensor, Tensor]:
    """Token rewards, values and mask (B, T) in; advantages and returns (B, T) out (1506.02438, Eq. 16)."""
    advantages, next_value, gae = torch.zeros_like(values), 0.0, 0.0
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + args.gamma * next_value - values[:, t]  # (B,)
        gae = (delta + args.gamma * args.gae_lambda * gae) * mask[:, t]  # (B,), 0 after the last token
        next_value = values[:, t] * mask[:, t]  # (B,), the value after the last token is 0
        advantages[:, t] = gae
    return advantages, (advantages + values) * mask


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


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, args: Args) -> Tensor:
    """Per-token loss (m, T) of the critic: the larger of the plain and the clipped squared error."""
    clipped = old_values + (values - old_values).clamp(-args.value_clip, args.value_clip)  # (m, T)
    return 0.5 * torch.max((values - returns) ** 2, (clipped - returns) ** 2)


def main(args: Args) -> None:
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        critic = place(Critic(load_model(args, placed=False)[0]))  # PPO
        critic_optimizer = torch.optim.AdamW(
            critic.parameters(), lr=args.critic_lr, weight_decay=args.weight_decay, fused=True
        )

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(
            model, tokenizer, optimizer, engine, verifier, held_out, critic=critic, critic_optimizer=critic_optimizer
        ):
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
            ref_logp = batch_logps(reference, batch, args)[0] if reference else learner_logp  # (B, T)
            old_values = in_micro_batches(critic, batch, args)  # (B, T), PPO
            # PPO: rewards at every token. The KL is part of them: there, k1 estimates the KL's gradient without bias.
            kl = (learner_logp - ref_logp) * mask  # (B, T)
            token_rewards = -args.kl_beta * kl  # (B, T)
            token_rewards[torch.arange(P * G), batch.token_mask.sum(1) - 1] += rewards.flatten()
            advantages, returns = compute_advantages(token_rewards, old_values, batch.token_mask, args)  # both (B, T)
            explained = 1 - (returns - old_values)[mask].var() / returns[mask].var().clamp(min=1e-8)
            advantages = whiten(advantages, mask)  # (B, T)
            tis = tis_weight(learner_logp, rollout_logp, args)  # (B, T)
            run.log_rollouts(problems, rollouts, rewards, advantages, learner_logp, rollout_logp, mask)
            run.log_tokens({"entropy": entropy, "tis_weight": tis, "kl": kl}, token_weights(mask), mask)  # PPO
            run.log(explained_variance=explained.item())

            for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                weights = token_weights(mask[minibatch])  # (b, T)
                for rows, w in micro_batches(minibatch, weights, batch, args):  # (m,), (m, T)
                    logp = token_logps(model, batch, rows, args)  # (m, T)
                    loss, metrics = policy_loss(logp, old_logp[rows], advantages[rows], args)  # (m, T)
                    loss = tis[rows] * loss
                    # PPO: critic and policy share no parameters, so the critic's loss needs no coefficient.
                    value = critic(batch, rows, args)  # (m, T)
                    metrics["value_loss"] = value_loss(value, old_values[rows], returns[rows], args)  # (m, T)
                    (w * metrics["value_loss"]).sum().backward()
                    loss = (w * loss).sum()
                    loss.backward()
                    run.log_loss(loss, metrics, w, mask, rows)
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                critic_norm = torch.nn.utils.clip_grad_norm_(critic.parameters(), args.max_grad_norm)  # PPO
                run.check_update(grad_norm=grad_norm, critic_grad_norm=critic_norm)  # ends the run if not finite
                optimizer.step()
                optimizer.zero_grad()
                critic_optimizer.step()  # PPO
                critic_optimizer.zero_grad()


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
