"""Reinforce-Rej, RAFT and RAFT++: "A Minimalist Approach to LLM Reasoning", 2504.11343 (Apr 2025), Eq. 1, 5 and 6.

    J(θ) = E_x E_{o_1..o_G ~ π_old(·|x)} 1/G Σ_i 1/|o_i| Σ_t min(r_it A_i, clip(r_it, 1 - ε, 1 + ε) A_i)
    Reinforce-Rej: A_i = R_i = ±1, or 0 where all responses of the group are right or all are wrong
    RAFT++: A_i = 1 for right responses, 0 for wrong ones        RAFT: the same with log π_θ in place of the ratio

Differs from its parent grpo.py, to find what of it is needed:
- the reward itself is the advantage, neither centered nor in units of the group's std;
- Reinforce-Rej leaves out the groups without signal, of which GRPO's centering makes zeros: the paper finds
  that most of GRPO's gain comes from there;
- RAFT is supervised learning on the model's own right answers: fast at first, until their entropy is gone.
As in the authors' code, what is left out still counts in the mean over responses. Their code averages over all tokens,
not Eq. 5's 1/|o|, and has a dual clip of 3. In Eq. 6 RAFT++ keeps a group's best, in the code right ones, as here.

    python -m methods.reinforce_rej
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems, sample_problems
from common.engines import WeightHistory, make_engine, prompt_seeds
from common.logprobs import batch_logps, token_logps
from common.metrics import StepMetrics, mismatch_metrics, rollout_metrics
from common.models import load_model
from common.verification.rewards import require_binary
from common.run import Run, seed_step
from common.schedule import learning_rate
from common.settings import Count, CountOrZero, GroupSize, NonNegative, Positive, Rate, Settings, Share
from common.verification.verifier import Verifier

import torch
import tyro
from torch import Tensor


@dataclass
class Args(Settings):
    # Reinforce-Rej
    keep: Literal["mixed", "right", "all"] = "mixed"
    """Learn from groups with right and wrong answers, from right answers alone (RAFT), or from all (REINFORCE)."""
    loss: Literal["clip", "log-prob"] = "clip"
    """What the advantage multiplies: the clipped ratio, or log π_θ as in RAFT, which corrects for no earlier update."""
    clip_eps: Positive = 0.2
    """ε: the ratio's gradient ends at 1 ± ε. Usual 0.2."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. The authors' code 0.001."""
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


def compute_advantages(rewards: Tensor, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: the reward itself where the response is kept."""
    mixed = (rewards != rewards[:, :1]).any(1, keepdim=True)  # (P, 1)
    return rewards * {"mixed": mixed, "right": rewards > 0, "all": 1}[args.keep]


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (B |o_i|), each response counts the same."""
    return mask / (len(mask) * mask.sum(1, keepdim=True))


def policy_loss(
    logp: Tensor, old_logp: Tensor, rollout_logp: Tensor, advantages: Tensor, mask: Tensor, args: Args
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss (B, T) and per-token metrics, all inputs (B, T); only `logp` carries a gradient.

    On-policy every ratio is 1, and the loss the share of wrong answers less that of right ones, among those kept.
    """
    ratio = torch.exp(logp - old_logp)  # (B, T)
    clipped_ratio = ratio.clamp(1 - args.clip_eps, 1 + args.clip_eps)  # (B, T)
    # The minimum makes the clip one-sided: a ratio that moved the wrong way always has its gradient.
    loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (B, T)
    if args.loss == "log-prob":
        loss = -advantages * logp  # (B, T)
        return loss, {"ratio": ratio}
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
    if args.loss == "log-prob" and args.ratio_anchor == "sampler":
        fail("--loss log-prob has no ratio: leave out --ratio-anchor sampler.")
    with Run(args, __file__) as run:
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(tokenizer, train + held_out, args.answer_format, args.tolerance, args.reward))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
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
            require_binary(batch.rewards, "right answers are sorted from wrong ones")  # Reinforce-Rej
            rewards = 2 * batch.rewards.view(P, G) - 1  # (P, G), Reinforce-Rej
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
            run.log(step, rollout | mismatch_metrics(old_logp, rollout_logp, mask) | metrics.result())
            if run.due(step, args.save_every):
                run.save(step)
            if run.interrupted:
                break
            run.evaluate(step, engine, verifier, held_out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
