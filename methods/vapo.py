"""VAPO, Value-model-based Augmented PPO: 2504.05118 (Apr 2025), Eq. 4, 5 and 7 to 10.

    J(θ) = 1/Σ_i |o_i| Σ_i Σ_t min(r_it Â_it, clip(r_it, 1 - ε_low, 1 + ε_high) Â_it)
           + μ 1/Σ_{i right} |o_i| Σ_{i right} Σ_t log π_θ(o_it | x, o_i<t)
    Â: GAE with λ_i = 1 - 1 / (α |o_i|);  the critic's targets: λ = 1, Σ_{s≥t} γ^(s-t) ρ_s of the token rewards ρ

Differs from its parent ppo.py:
- the critic learns alone at first, from a policy that stays as it is: one that starts at random misleads;
- its targets are the returns themselves, without its own values in them, which would carry its bias on;
- λ grows with the response, so that the reward reaches back over α |o_i| tokens at any length;
- clip-higher as in DAPO, and the likelihood of right responses as a second objective.
The paper starts the critic from a reward model; here it is the policy's body with a new head. For responses
of less than 1/α tokens λ would be negative: it is 0 there. No code was published.

    python -m methods.vapo
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import Batch, collate, micro_batches, minibatches
from common.data import load_problems, sample_problems
from common.distributed import place
from common.engines import WeightHistory, make_engine, prompt_seeds
from common.logprobs import batch_logps, in_micro_batches, response_hidden, token_logps
from common.metrics import StepMetrics, mismatch_metrics, rollout_metrics
from common.models import load_model
from common.run import Run, seed_step
from common.schedule import learning_rate
from common.settings import Count, CountOrZero, NonNegative, Positive, Rate, Settings, Share
from common.verification.verifier import Verifier

import torch
import tyro
from torch import Tensor


@dataclass
class Args(Settings):
    # VAPO
    clip_eps_low: Positive = 0.2
    """ε_low: for negative advantages the gradient ends at a ratio of 1 - ε_low. Paper 0.2."""
    clip_eps_high: Positive = 0.28
    """ε_high: for positive advantages the gradient ends at a ratio of 1 + ε_high. Paper 0.28."""
    value_pretraining: Share = 0.1
    """Share of steps, at the start, in which the critic alone learns and warms up. Paper: 50 of some 5,000 steps."""
    nll_weight: NonNegative = 0.1
    """μ: weight of the likelihood of right responses. Paper 0.1."""
    gamma: Rate = 1.0
    """γ: discount per token. 1 for language models: an answer after many tokens is worth as much."""
    gae_alpha: Positive = 0.5
    """α: the reach of a reward, as a share of the response: λ = 1 - 1 / (α |o|). Paper 0.05, of thousands of tokens."""
    critic_lr: Rate = 3e-4
    """AdamW's peak learning rate of the critic. Usual 2 to 10 times the policy's."""
    value_clip: Positive = 0.2
    """The critic's gradient ends where its value has moved so far within a step. Usual 0.2 to 0.5."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the token rewards. Usual 0 to 0.05."""
    ratio_anchor: Literal["learner", "sampler"] = "learner"
    """Denominator of the ratio: π_old as the learner computes it, or as the engine reported it (then --tis-cap 0)."""
    tis_cap: NonNegative = 2.0
    """C: cap of π_old / π_sampler, the correction for the sampler's other numerics; 0 turns it off."""
    num_minibatches: Count = 4
    """Parts of a rollout batch, with one optimizer update each."""
    update_epochs: Count = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches. Papers: 1 or 2."""
    responses_per_prompt: Count = 8
    """G: responses to each prompt. Paper 16, of 512 prompts; a critic needs no group: 1 will do."""

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
        hidden, mask = response_hidden(self, batch, rows, args), batch.mask[rows]  # (N, D), (b, T)
        return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, self.head(hidden.float()).squeeze(-1))


def compute_advantages(rewards: Tensor, values: Tensor, mask: Tensor, args: Args) -> tuple[Tensor, Tensor]:
    """Token rewards, values and mask (B, T) in; advantages and returns (B, T) out (2504.05118, Eq. 4 and 5)."""
    lam = (1 - 1 / (args.gae_alpha * mask.sum(1))).clamp(min=0)  # (B,)
    advantages, returns = torch.zeros_like(values), torch.zeros_like(values)  # (B, T), (B, T)
    next_value, gae, target = 0.0, 0.0, 0.0
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + args.gamma * next_value - values[:, t]  # (B,)
        gae = (delta + args.gamma * lam * gae) * mask[:, t]  # (B,), 0 after the last token
        next_value = values[:, t] * mask[:, t]  # (B,), the value after the last token is 0
        target = (rewards[:, t] + args.gamma * target) * mask[:, t]  # (B,), what λ = 1 gives
        advantages[:, t], returns[:, t] = gae, target
    return advantages, returns


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
    clipped_ratio = ratio.clamp(1 - args.clip_eps_low, 1 + args.clip_eps_high)  # (B, T)
    # The minimum makes the clip one-sided: a ratio that moved the wrong way always has its gradient.
    loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (B, T)
    return loss, {
        "ratio": ratio,
        "clip_pos": ((advantages > 0) & (ratio > 1 + args.clip_eps_high)).float(),
        "clip_neg": ((advantages < 0) & (ratio < 1 - args.clip_eps_low)).float(),
    }


def tis_weight(old_logp: Tensor, rollout_logp: Tensor, mask: Tensor, args: Args) -> Tensor:
    """(B, T) weights of truncated importance sampling: min(π_old / π_sampler, C), token by token (Yao et al., 2025)."""
    weight = torch.exp(old_logp - rollout_logp).clamp(max=args.tis_cap)  # (B, T)
    return weight if args.tis_cap > 0 else torch.ones_like(weight)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, args: Args) -> Tensor:
    """Per-token loss (B, T) of the critic: the larger of the plain and the clipped squared error."""
    near = old_values + (values - old_values).clamp(-args.value_clip, args.value_clip)  # (B, T)
    return 0.5 * torch.max((values - returns) ** 2, (near - returns) ** 2)


def main(args: Args) -> None:
    with Run(args, __file__) as run:
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(tokenizer, train + held_out, args.answer_format, args.tolerance, args.reward))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        critic = place(Critic(load_model(args, placed=False)[0]))  # PPO
        critic_optimizer = torch.optim.AdamW(
            critic.parameters(), lr=args.critic_lr, weight_decay=args.weight_decay, fused=True
        )
        reference = load_model(args)[0] if args.kl_beta > 0 else None
        history = WeightHistory(model, args.staleness)
        state = {"history": history, "critic": critic, "critic_optimizer": critic_optimizer}  # PPO
        done = run.restore(model, tokenizer, optimizer, **state)
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
                ref_logp = batch_logps(reference, batch, args)[0] if reference else old_logp  # (B, T)
                # PPO: the critic's values at every token.
                old_values = in_micro_batches(critic, batch, args)  # (B, T)
            rewards = batch.rewards.view(P, G)  # (P, G)
            # PPO: rewards at every token. The KL is a part of them: k1 there has the gradient of the KL itself.
            kl = (old_logp - ref_logp) * mask  # (B, T)
            token_rewards = -args.kl_beta * kl  # (B, T)
            token_rewards[torch.arange(P * G), batch.mask.sum(1) - 1] += rewards.flatten()
            advantages, returns = compute_advantages(token_rewards, old_values, batch.mask, args)  # (B, T), (B, T)
            explained = 1 - (returns - old_values)[mask].var() / returns[mask].var().clamp(min=1e-8)
            advantages = whiten(advantages, mask)  # (B, T)
            anchor_logp = old_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            run.require_finite(step, sampler_logp=rollout_logp, learner_logp=old_logp, advantage=advantages)

            metrics = StepMetrics()
            tis = tis_weight(old_logp, rollout_logp, mask, args)  # (B, T)
            of_tis = {"tis_weight": tis, "tis_truncated": tis == args.tis_cap}  # (B, T), (B, T)
            metrics.add({"entropy": entropy, "kl": kl} | of_tis, token_weights(mask, args), mask)  # PPO
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args)
            for group in critic_optimizer.param_groups:  # PPO
                group["lr"] = learning_rate(step, args) * args.critic_lr / args.lr
            with run.clock("train"):
                for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                    weights = torch.zeros_like(old_logp)  # (B, T)
                    weights[minibatch] = token_weights(mask[minibatch], args)
                    right = torch.zeros_like(old_logp)  # (B, T), VAPO
                    right[minibatch] = token_weights((mask & (correct.view(-1, 1) > 0))[minibatch], args)
                    for rows in micro_batches(minibatch, batch, args.micro_batch_tokens):
                        logp, _ = token_logps(model, batch, rows, args)  # (b, T)
                        loss, values = policy_loss(
                            logp, anchor_logp[rows], rollout_logp[rows], advantages[rows], mask[rows], args
                        )
                        loss = tis[rows] * loss
                        # PPO: the critic has no parameter in common with the policy, so its loss needs no coefficient.
                        values["value_loss"] = value_loss(
                            critic(batch, rows, args), old_values[rows], returns[rows], args
                        )
                        (weights[rows] * values["value_loss"]).sum().backward()
                        metrics.add(values, weights[rows], mask[rows])
                        loss = (weights[rows] * loss).sum()
                        # VAPO: the mean log-prob of the tokens of right responses, whatever their ratios.
                        loss = loss - args.nll_weight * (right[rows] * logp).sum()
                        loss.backward()
                        metrics.add_loss(loss)
                    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                    critic_norm = torch.nn.utils.clip_grad_norm_(critic.parameters(), args.max_grad_norm)  # PPO
                    run.require_finite(step, loss=metrics.loss, gradient=grad_norm, critic_gradient=critic_norm)
                    if step > args.value_pretraining * args.steps:  # VAPO
                        optimizer.step()
                    optimizer.zero_grad()
                    critic_optimizer.step()  # PPO
                    critic_optimizer.zero_grad()
                    metrics.add_update(grad_norm=grad_norm, critic_grad_norm=critic_norm)

            rollout = rollout_metrics(rewards, correct, rollouts, verifier.take_failures())
            rollout |= {"explained_variance": explained.item()}  # PPO
            run.log(step, rollout | mismatch_metrics(old_logp, rollout_logp, mask) | metrics.result())
            if run.due(step, args.save_every):
                run.save(step)
            if run.interrupted:
                break
            run.evaluate(step, engine, verifier, held_out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
