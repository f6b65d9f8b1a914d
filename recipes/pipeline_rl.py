"""PipelineRL, asynchronous generation with weights that change in flight: 2509.19128 (Sep 2025), Algorithm 2 and Eq. 5.

    J(θ) = E_x E_{o_1..o_G ~ μ(·|x)} 1/G Σ_i 1/|o_i| Σ_t
               [ w_it min(r_it A_i, clip(r_it, 1 - ε, 1 + ε) A_i) - β KL_k3(π_θ ‖ π_ref) ]
    μ(o_it | x, o_i<t): the policy that sampled the token, at most η rollout batches old where o_i began
    ρ_it = π_old(o_it | x, o_i<t) / μ(o_it | x, o_i<t)        ρ_i = Π_t ρ_it        1[...] is 1 where it holds, else 0
    w_it:  token-tis       min(ρ_it, C)        icepop         1[α ≤ ρ_it ≤ C] ρ_it
           sequence-tis    min(ρ_i, C)         sequence-mask  1[ρ_i ≤ C] ρ_i
           geometric-mask  1[low ≤ ρ_i^(1/|o_i|) ≤ high]

Generation waits for no batch: prompts begin as others end, finished groups form a queue, and new weights are taken
between any two tokens. Admission bounds the staleness; groups that are older are dropped. `recipes/asynchronous.py` has
the rules and their sources. In one process the time that training takes is drawn from the seed, in tokens: a run can be
repeated and resumed to the bit. With --overlap another process generates, and no two runs are alike.

| component | from | without it |
|---|---|---|
| a generator behind the learner | AReaL (2505.24298), 2410.18252 | --staleness 0 |
| new weights within a response | PipelineRL, AReaL | --no-in-flight-updates |
| keys and values of the old weights are kept | PipelineRL | --kv recompute |
| a correction for off-policy tokens | PipelineRL, Eq. 5 | --correction none |

Differs from its parent grpo.py (with --staleness 0 --correction none it is grpo.py --tis-cap 0, to the bit):
- a rollout batch is the oldest P groups of the queue, whichever prompts they belong to;
- each log-prob comes from the weights that sampled its token, so ρ is correct for any mixture of weights;
- corrections to choose from: token-tis is PipelineRL's, and with --tis-cap 1e6 AReaL's decoupled PPO (Eq. 5), which has
  no cap; icepop is Ring-1T's (2510.18855, Eq. 2); the others are those of "When Speed Kills Stability" (2025).
PipelineRL makes one update per batch (--num-minibatches 1, so r is 1) and uses R - mean R as the advantage.

    python recipes/pipeline_rl.py
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from common.batch import collate, micro_batches, minibatches
from common.data import load_problems
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps
from common.models import load_model
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, GroupSize, NonNegative, Positive, Rate, Settings
from common.verification import Verifier
from recipes.asynchronous import Generator

import torch
from annotated_types import Interval
from torch import Tensor


@dataclass
class Args(Settings):
    # PipelineRL
    staleness: CountOrZero = 2
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
    correction: Literal["none", "token-tis", "sequence-tis", "icepop", "sequence-mask", "geometric-mask"] = "token-tis"
    """Weights or masks for tokens and responses whose probability under π_old differs from the rollout policy's."""
    icepop_low: Fraction = 0.5
    """α: icepop leaves out tokens with a smaller ρ, and with a larger one than --tis-cap. Ring-1T 0.5 and 5."""
    geometric_low: Fraction = 0.9
    """geometric-mask leaves out responses with a smaller ρ per token. With fresh rollouts, verl's example is 0.999."""
    geometric_high: Annotated[float, Interval(ge=1, le=1e6)] = 1.1
    """geometric-mask leaves out responses with a larger ρ per token. With fresh rollouts, verl's example is 1.001."""
    clip_eps: Positive = 0.2
    """ε: no gradient for ratios above 1 + ε with positive advantages, below 1 - ε with negative ones. Usual 0.2."""
    ddof: Literal[0, 1] = 1
    """The group's std divides by G - ddof: 1 gives the sample std of most code, 0 the population std."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Most reasoning recipes 0."""
    ratio_anchor: Literal["learner", "engine"] = "learner"
    """π_old in the ratio: log-probs recomputed by the learner, or reported by the engine (requires --tis-cap 0)."""
    tis_cap: NonNegative = 5.0
    """C: cap of ρ = π_old / π_engine, of a token or response; 0 disables it. geometric-mask has no C."""
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


def tis_weight(old_logp: Tensor, rollout_logp: Tensor, mask: Tensor, args: Args) -> Tensor:
    """(B, T) weights from ρ = π_old / μ, of each token or of its whole response; 0 where a mask leaves it out."""
    log_rho = (old_logp - rollout_logp) * mask  # (B, T)
    log_whole = log_rho.sum(1, keepdim=True).expand(mask.shape)  # (B, T)
    if args.correction == "geometric-mask":
        mean = torch.exp(log_whole / mask.sum(1, keepdim=True))  # (B, T)
        return ((args.geometric_low <= mean) & (mean <= args.geometric_high)).to(mean.dtype)
    rho = torch.exp(log_whole if args.correction.startswith("sequence") else log_rho)  # (B, T)
    if args.correction == "none" or args.tis_cap == 0:
        return torch.ones_like(rho)
    if args.correction.endswith("tis"):
        return rho.clamp(max=args.tis_cap)
    low = args.icepop_low if args.correction == "icepop" else 0.0
    return rho.where((low <= rho) & (rho <= args.tis_cap), 0.0)


def effective_sample_size(old_logp: Tensor, rollout_logp: Tensor, mask: Tensor) -> float:
    """How many on-policy tokens would be as informative, as a fraction: (Σ ρ)² / (N Σ ρ²) (2509.19128, Eq. 6)."""
    rho = torch.exp(old_logp - rollout_logp)[mask]  # (N,)
    return (rho.sum() ** 2 / (len(rho) * (rho**2).sum())).item()


def kl_penalty(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Per-token k3 estimate (m, T) of KL(π_θ ‖ π_ref) (2402.03300, Eq. 4).

    On tokens from π_θ its value is unbiased and never negative. As a loss, its gradient is that of KL(π_ref ‖ π_θ).
    """
    return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1


def main(args: Args) -> None:
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        generator = run.closing(Generator(run, engine, model, tokenizer, train))  # PipelineRL
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out, generator=generator):
            # PipelineRL: G responses to each of P prompts, from the queue. Verify their answers.
            problems, rollouts = generator.batch(step)
            rewards = verifier(problems, rollouts)  # (P, G)
            engine.sleep()  # frees its memory for the learner

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, rollouts, model.device)
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            learner_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            old_logp = learner_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            advantages = compute_advantages(rewards, args).view(-1, 1).expand(mask.shape)  # (B, T)
            tis = tis_weight(learner_logp, rollout_logp, mask, args)  # (B, T)
            run.log_rollouts(problems, rollouts, rewards, advantages, learner_logp, rollout_logp, mask)
            run.log_tokens({"entropy": entropy, "tis_weight": tis, "tis_masked": tis == 0}, token_weights(mask), mask)
            run.log(ess=effective_sample_size(learner_logp, rollout_logp, mask))  # PipelineRL

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
