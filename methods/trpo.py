"""TRPO, Trust Region Policy Optimization: 1502.05477 (Feb 2015), Eq. 14 and App. C.

    maximize L(θ) = E_t r_t A_t   subject to   E_t KL(π_old(·|x, o_<t) ‖ π_θ(·|x, o_<t)) ≤ δ,   r_t = π_θ / π_old
    θ = θ_old + 2^-j √(2δ / sᵀF s) s,   F s = ∇L(θ_old),   F = ∇² E_t KL at θ_old,   the first j = 0, 1, .. that fits

Differs from its parent reinforce.py:
- the step is along the natural gradient, as far as the KL allows. Conjugate gradients find it from products F v;
- it is taken only if the surrogate L rises and the KL is at most δ; otherwise half of it is tried, and so on;
- L and the KL are means over all tokens, as over visited states.
The authors' code (modular_rl) tests only L in the line search; here, as in App. C, both are tested. It differentiates
the KL twice. Fused attention and sharded weights allow that only once, so here F v is a central difference of
gradients, in fp32. App. C takes F from a tenth of the data, OpenAI Baselines from a fifth. With the paper's δ of 0.01
and the authors' damping of 0.001 little is learned here (reports/effects.md). --max-grad-norm has no effect.
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python methods/trpo.py
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from common.batch import Batch, collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems, sample_problems
from common.distributed import sum_over_processes
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps, vocabulary_logps
from common.models import load_model
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, NonNegative, Positive, Rate, Settings
from common.verification import Verifier
from methods.vectors import WeightVector, conjugate_gradient, dot

import torch
from annotated_types import Interval
from torch import Tensor


@dataclass
class Args(Settings):
    # TRPO
    delta: Positive = 1e-3
    """δ: bound of the KL to the policy before the update, a mean over tokens. Paper 0.01."""
    cg_iterations: Count = 10
    """Iterations of conjugate gradients. Paper 10."""
    damping: Positive = 1.0
    """Added to the diagonal of F. Authors' code 1e-3, OpenAI Baselines 0.1."""
    fisher_every: Count = 5
    """Products F v use one in this many rows of a minibatch: 10 gives the paper's tenth, 1 takes all rows."""
    lr: Rate = 1.0
    """Fraction of the step to the bound that is tried first. Paper 1."""
    steps: Count = 40
    """Rollout batches. Each takes several times as long as one of REINFORCE."""
    learner_precision: Literal["fp32"] = "fp32"
    """F v comes from the gradients of two near policies, whose difference is below the rounding of bf16."""
    baseline: Literal["none", "batch", "ema"] = "batch"
    """b: 0, the mean reward of the batch, or an exponential moving average over earlier batches."""
    ema_decay: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    """Fraction of the moving average that each batch leaves in place."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model, subtracted from the reward. Most reasoning recipes 0."""
    tis_cap: NonNegative = 2.0
    """C: cap of the truncated importance weight π_old / π_engine; 0 disables it."""
    num_minibatches: Count = 1
    """Minibatches per rollout batch, with one update each, whose KL is to the policy just before it."""
    update_epochs: Count = 1
    """Passes over each rollout batch."""
    responses_per_prompt: Count = 8
    """G: responses per prompt. TRPO needs no group: 1 is enough."""

    # The same in every script
    prompts_per_step: Count = 32
    """P: different prompts in a rollout batch. Papers: 32 to 512."""
    max_response_tokens: Count | None = None
    """T: length limit of a response; embedded models have a default. Reasoning models need 1,000 to 30,000."""
    temperature: Positive = 1.0
    """Sampling temperature; all log-probs use the same one."""
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


def compute_advantages(rewards: Tensor, ema: float, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: the reward minus a baseline (Williams 1992, Sec. 4)."""
    baseline = {"none": 0.0, "batch": rewards.mean(), "ema": ema}[args.baseline]
    return rewards - baseline


def token_weights(mask: Tensor) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / Σ|o_i|, every token has the same weight."""
    return mask / mask.sum()


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    The value is minus the surrogate L, whose gradient at π_old is the policy gradient.
    """
    ratio = torch.exp(logp - old_logp)  # (m, T)
    loss = -ratio * advantages  # (m, T)
    return loss, {"ratio": ratio}


def tis_weight(old_logp: Tensor, rollout_logp: Tensor, args: Args) -> Tensor:
    """(B, T) weights of truncated importance sampling: min(π_old / π_engine, C) per token (Yao et al., 2025)."""
    weight = torch.exp(old_logp - rollout_logp).clamp(max=args.tis_cap)  # (B, T)
    return weight if args.tis_cap > 0 else torch.ones_like(weight)


def natural_step(
    gradient: Tensor, product: Callable[[Tensor], Tensor], look: Callable[[Tensor], Tensor], rate: float, args: Args
) -> tuple[Tensor, dict[str, float]]:
    """App. C's step (n,), 0 if no halving fits, and numbers for the log; `look` gives the loss and KL after a step."""
    s, nothing = conjugate_gradient(product, -gradient, args.cg_iterations), torch.zeros_like(gradient)  # (n,), (n,)
    if dot(s, s) > 0:
        to_bound, (before, _) = (2 * args.delta / dot(s, product(s))).sqrt() * s, look(nothing)  # (n,), ()
        for fraction in (rate * 0.5**j for j in range(10)):
            loss, kl = look(fraction * to_bound)
            if loss < before and kl <= args.delta:
                return fraction * to_bound, {"step_kl": kl.item(), "step_fraction": fraction}
    return nothing, {"step_kl": 0.0, "step_fraction": 0.0}


class TrustRegion(WeightVector):
    """Policies near the one before an update, measured on a minibatch (b,) and, for F, on some of its rows."""

    def __init__(self, model: Any, batch: Batch, minibatch: Tensor, mask: Tensor, V: int, args: Args) -> None:
        super().__init__(model)
        self.batch, self.args, self.logps = batch, args, partial(vocabulary_logps, model, batch, V=V, args=args)
        self.every, self.some = (self.parts(rows, mask) for rows in (minibatch, minibatch[:: args.fisher_every]))

    @torch.no_grad()
    def parts(self, rows: Tensor, mask: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
        """For each micro-batch: rows (m,), weights (m, T), and the log-probs (N, V) before the update."""
        parts = micro_batches(rows, token_weights(mask[rows]), self.batch, self.args)
        return [(part, w, self.logps(part)) for part, w in parts]

    def kl(self, part: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """A micro-batch's part of the mean KL(π_old ‖ π_θ), over the vocabulary."""
        rows, w, old = part
        return (w[self.batch.token_mask[rows]] * (old.exp() * (old - self.logps(rows))).sum(-1)).sum()

    def product(self, v: Tensor) -> Tensor:
        """F v (n,), damped."""
        return self.hessian_product(v, partial(map, self.kl, self.some)) + self.args.damping * v

    @torch.no_grad()
    def look(self, old_logp: Tensor, advantages: Tensor, tis: Tensor, change: Tensor) -> Tensor:
        """The loss of the minibatch and the mean KL (2,) after a change (n,) of the weights."""
        self.move(change)
        found = change.new_zeros(2)
        for rows, w, old in self.every:
            logp = token_logps(self.model, self.batch, rows, self.args)  # (m, T)
            loss = tis[rows] * policy_loss(logp, old_logp[rows], advantages[rows])[0]  # (m, T)
            found += torch.stack([(w * loss).sum(), self.kl((rows, w, old))])
        return sum_over_processes(found)


def main(args: Args) -> None:
    if args.weight_decay > 0:
        fail("--weight-decay: TRPO's step has none, leave it at 0.")
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)  # TRPO
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        run.state["ema"] = 0.0  # REINFORCE: the state is saved in every checkpoint

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out):
            # Sample G responses to each of P prompts, and verify their answers.
            engine.load_weights(model)
            problems = sample_problems(train, P, step, args)
            rollouts = engine.generate(problems, G, step)
            rewards = verifier(problems, rollouts)  # (P, G)
            engine.sleep()  # frees its memory for the learner

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, rollouts, model.device)
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            old_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else old_logp  # (B, T)
            # REINFORCE subtracts the KL from the reward: there, k1 estimates the KL's gradient without bias.
            kl = (old_logp - ref_logp) * mask  # (B, T)
            rewards = rewards - args.kl_beta * kl.sum(1).view(P, G)  # (P, G)
            ema = run.state["ema"]  # REINFORCE
            advantages = compute_advantages(rewards, ema, args).view(-1, 1).expand(mask.shape)  # (B, T)
            run.state["ema"] = args.ema_decay * ema + (1 - args.ema_decay) * rewards.mean().item()  # REINFORCE
            tis = tis_weight(old_logp, rollout_logp, args)  # (B, T)
            run.log_rollouts(problems, rollouts, rewards, advantages, old_logp, rollout_logp, mask)
            run.log_tokens({"entropy": entropy, "tis_weight": tis, "kl": kl}, token_weights(mask), mask)

            for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                weights = token_weights(mask[minibatch])  # (b, T)
                for rows, w in micro_batches(minibatch, weights, batch, args):  # (m,), (m, T)
                    logp = token_logps(model, batch, rows, args)  # (m, T)
                    loss, metrics = policy_loss(logp, old_logp[rows], advantages[rows])  # (m, T)
                    loss = tis[rows] * loss
                    loss = (w * loss).sum()
                    loss.backward()
                    run.log_loss(loss, metrics, w, mask, rows)
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                # TRPO: the gradient becomes minus the step, in units of the learning rate, for the optimizer.
                region = TrustRegion(model, batch, minibatch, mask, len(tokenizer), args)
                rate = optimizer.param_groups[0]["lr"]
                look = partial(region.look, old_logp, advantages, tis)
                change, numbers = natural_step(region.take_gradient(), region.product, look, rate, args)  # (n,)
                region.leave(-change / rate)
                run.check_update(grad_norm=grad_norm, **numbers)  # TRPO; ends the run if it is not finite
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
