"""PipelineRL, asynchronous generation with weights that change in flight: 2509.19128 (Sep 2025), Algorithm 2 and Eq. 5.

    J(θ) = E_x E_{o_1..o_G ~ μ(·|x)} 1/G Σ_i 1/|o_i| Σ_t
               w_it min(r_it A_i, clip(r_it, 1 - ε, 1 + ε) A_i) - β KL_k3(π_θ ‖ π_ref)
    μ(o_it | x, o_i<t): the policy of max(k - ⌊t/n⌋, 0) rollout batches ago
    ρ_it = π_old(o_it | x, o_i<t) / μ(o_it | x, o_i<t)        ρ_i = Π_t ρ_it        1[...] is 1 where it holds, else 0
    w_it:  token-tis       min(ρ_it, C)        icepop         1[α ≤ ρ_it ≤ C] ρ_it
           sequence-tis    min(ρ_i, C)         sequence-mask  1[ρ_i ≤ C] ρ_i
           geometric-mask  1[low ≤ ρ_i^(1/|o_i|) ≤ high]
           deepseek        1[A_i ≥ 0 or 1/|o_i| Σ_t log(μ/π_θ) ≤ δ]

A generator that never waits has weights older than the learner's, and gets new ones in the middle of a response. Here
that is a schedule instead of a race, so a run can be repeated and resumed to the bit. Without the four tricks it is
grpo.py without TIS, to the bit; with --correction token-tis and the same cap it is grpo.py.

| trick | from | without it |
|---|---|---|
| a generator behind the learner | 2410.18252, AReaL (2505.24298) | --staleness 0 --in-flight-every 0 |
| new weights within a response | PipelineRL, AReaL | --in-flight-every 0 |
| keys and values of the old weights are kept | PipelineRL | --kv recompute |
| a correction for what is off-policy | PipelineRL, Eq. 5 | --correction none |

Differs from its parent grpo.py:
- a response begins with the weights of k rollout batches ago and gets newer ones every n tokens, up to the learner's:
  so does a generator that never stops, where a rollout batch is trained on in the time of n tokens;
- each log-prob is that of the weights that sampled its token, so ρ is right whatever their mixture; also where keys and
  values are kept, though what was sampled from is then no single policy's. AReaL computes them again;
- the corrections: token-tis is PipelineRL's, and with --tis-cap 1e6 AReaL's decoupled PPO (Eq. 5), which has no cap;
  icepop is Ring-1T's (2510.18855, Eq. 2); sequence-tis, sequence-mask and geometric-mask are those of "When Speed Kills
  Stability" (2025); deepseek is DeepSeek-V3.2's (2512.02556, Eq. 9), found anew in each update. The KL is never masked.
PipelineRL makes one update per batch (--num-minibatches 1, and r is 1) and has R - mean R as the advantage.

--overlap generates in a process of its own beside training, on a second GPU or on half of the cores. It takes the same
weights for the same tokens, and waits for them. So on CPUs nothing differs from run to run, and from a run without it
no more than rounding, where the number of threads has a part in that; on GPUs rounding may differ in every run. In the
log, seconds/overlap is what it gained, with a minus: seconds of generating for which the learner did not wait.

    python -m recipes.pipeline_rl
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail, flag
from common.data import load_problems, sample_problems
from common.engines import Engine, InFlight, WeightHistory, Weights, make_engine, prompt_seeds
from common.logprobs import batch_logps, token_logps
from common.metrics import StepMetrics, mismatch_metrics, rollout_metrics
from common.models import load_model
from recipes.overlap import Generator
from common.records import Problem, Rollouts
from common.run import Run, seed_step
from common.schedule import learning_rate
from common.settings import Count, CountOrZero, GroupSize, NonNegative, Positive, Rate, Settings, Share
from common.verification.verifier import Verifier

import torch
import tyro
from annotated_types import Interval
from torch import Tensor


@dataclass
class Args(Settings):
    # PipelineRL
    staleness: CountOrZero = 2
    """k: responses begin with the weights of k rollout batches ago. 2 are 8 updates, as in ScaleRL's PipelineRL-8."""
    in_flight_every: CountOrZero = 16
    """n: tokens after which a response gets the weights of one rollout batch later; 0: it keeps its first ones."""
    kv: Literal["keep", "recompute"] = "keep"
    """With new weights, go on from the keys and values of the old ones, or read prompt and response again."""
    overlap: bool = False
    """Generate in a process of its own while the learner trains, on a second GPU or on half of the CPU's cores."""
    correction: Literal[
        "none", "token-tis", "sequence-tis", "icepop", "sequence-mask", "geometric-mask", "deepseek"
    ] = "token-tis"
    """What weights or masks tokens and responses that the learner at π_old would have sampled less or more often."""
    icepop_low: Share = 0.5
    """α: icepop leaves out tokens with a smaller ρ, and with a larger one than --tis-cap. Ring-1T 0.5 and 5."""
    geometric_low: Share = 0.9
    """geometric-mask leaves out responses with a smaller ρ per token. Where k is 0, verl's example is 0.999."""
    geometric_high: Annotated[float, Interval(ge=1, le=1e6)] = 1.1
    """geometric-mask leaves out responses with a larger ρ per token. Where k is 0, verl's example is 1.001."""
    deepseek_delta: NonNegative = 0.5
    """δ: deepseek leaves out wrong responses farther from π_θ, in nats per token. The paper gives none, TRL 0.5."""
    clip_eps: Positive = 0.2
    """ε: the ratio's gradient ends at 1 ± ε. Usual 0.2."""
    ddof: Literal[0, 1] = 1
    """Std of the group divides by G - ddof: 1 is the sample std of most code, 0 the population's."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 0.04; most reasoning recipes 0."""
    ratio_anchor: Literal["learner", "sampler"] = "learner"
    """Denominator of the ratio: π_old as the learner computes it, or as the engine reported it (then --tis-cap 0)."""
    tis_cap: NonNegative = 5.0
    """C: the most that ρ = π_old / π_sampler may be, of a token or response. 0: none; geometric-mask has no C."""
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


def compute_advantages(rewards: Tensor, args: Args) -> Tensor:
    """(P, G) rewards in, (P, G) advantages out: z-scores within each group (2402.03300, Sec. 4.1.2)."""
    mean = rewards.mean(1, keepdim=True)  # (P, 1)
    std = rewards.std(1, correction=args.ddof, keepdim=True)  # (P, 1)
    # The paper has no ε; 1e-6 only keeps a group without signal at 0 instead of 0 / 0.
    return (rewards - mean) / (std + 1e-6)


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (B |o_i|), each response counts the same."""
    return mask / (len(mask) * mask.sum(1, keepdim=True))


def policy_loss(
    logp: Tensor, old_logp: Tensor, rollout_logp: Tensor, advantages: Tensor, mask: Tensor, args: Args
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss (B, T) and per-token metrics, all inputs (B, T); only `logp` carries a gradient.

    On-policy every ratio is 1, and the loss 0 as the advantages of each group are; its gradient is not.
    """
    ratio = torch.exp(logp - old_logp)  # (B, T)
    clipped_ratio = ratio.clamp(1 - args.clip_eps, 1 + args.clip_eps)  # (B, T)
    # The minimum makes the clip one-sided: a ratio that moved the wrong way always has its gradient.
    loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (B, T)
    # DeepSeek-V3.2, Eq. 9: wrong responses that the policy has moved away from, seen from the policy that sampled them.
    distance = ((rollout_logp - logp.detach()) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True)  # (B, 1)
    left_out = (advantages < 0) & (distance > args.deepseek_delta) & (args.correction == "deepseek")  # (B, T)
    return loss.masked_fill(left_out, 0.0), {
        "ratio": ratio,
        "deepseek_masked": left_out.float(),
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
    if args.correction in ("none", "deepseek") or args.tis_cap == 0:
        return torch.ones_like(rho)
    if args.correction.endswith("tis"):
        return rho.clamp(max=args.tis_cap)
    low = args.icepop_low if args.correction == "icepop" else 0.0
    return rho.where((low <= rho) & (rho <= args.tis_cap), 0.0)


def effective_sample_size(old_logp: Tensor, rollout_logp: Tensor, mask: Tensor) -> float:
    """The share of the tokens that on-policy ones would need to tell as much: (Σ ρ)² / (N Σ ρ²) (PipelineRL, Eq. 6)."""
    rho = torch.exp(old_logp - rollout_logp)[mask]  # (N,)
    return (rho.sum() ** 2 / (len(rho) * (rho**2).sum())).item()


def kl_penalty(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Per-token k3 estimate (B, T) of KL(π_θ ‖ π_ref) (2402.03300, Eq. 4).

    As a value it is unbiased and never negative; as a loss its gradient is that of KL(π_ref ‖ π_θ).
    """
    return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1


def sample(
    engine: Engine, train: list[Problem], versions: Sequence[Weights], step: int, args: Args
) -> tuple[list[Problem], Rollouts]:
    """The schedule: G responses to each of the P problems of a step, with `versions` of k batches ago to the newest."""
    P, G = args.prompts_per_step, args.responses_per_prompt
    problems = sample_problems(train, args.seed, (step - 1) * P, P)
    prompts, seeds = [p.prompt_ids for p in problems], prompt_seeds(P, args.seed, step)
    in_flight = InFlight(args.in_flight_every, versions, args.kv == "keep") if args.in_flight_every else None
    engine.load_weights(versions[0])
    return problems, engine.generate(prompts, G, args.max_response_tokens, args.temperature, seeds, in_flight=in_flight)


def main(args: Args) -> None:
    for name in ("in_flight_every", "overlap"):
        if getattr(args, name) and args.staleness == 0:
            fail(f"{flag(name)} needs --staleness 1 or more: with 0 each batch waits for the newest weights there are.")
    if args.overlap:
        Generator.check()
    with Run(args, __file__) as run:
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(tokenizer, train + held_out, args.answer_format, args.tolerance, args.reward))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        generator = run.closing(Generator(run, sample, model, train)) if args.overlap else None  # PipelineRL
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None
        history = WeightHistory(model, args.staleness)
        done = run.restore(model, tokenizer, optimizer, history=history)
        run.evaluate(done, engine, verifier, held_out)

        for step in range(done + 1, args.steps + 1):
            seed_step(args.seed, step)
            with run.clock("sync"):
                versions = history.versions()  # PipelineRL: of k batches ago to the newest
                if generator:
                    generator.publish(step, versions)

            # Generate G responses to each of P prompts, and verify their answers.
            with run.clock("generate"):
                if generator:  # PipelineRL
                    problems, rollouts = generator.receive(step)
                else:
                    problems, rollouts = sample(engine, train, versions, step, args)
                prompts = [p.prompt_ids for p in problems]
            history.record()  # PipelineRL
            with run.clock("verify"):
                correct = torch.tensor(verifier(problems, rollouts), device=model.device).float().view(P, G)  # (P, G)
            engine.sleep()  # its memory is the learner's until it gets new weights
            batch = collate(prompts, rollouts, model.device)
            mask, rollout_logp = batch.sampled, batch.rollout_logp  # (B, T), (B, T)

            # The learner's own log-probs at the rollout weights; the engine's differ in their numerics.
            with run.clock("logps"):
                old_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
                ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            rewards = batch.rewards.view(P, G)  # (P, G)
            advantages = compute_advantages(rewards, args).view(-1, 1).expand(mask.shape)  # (B, T)
            anchor_logp = old_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            run.require_finite(step, sampler_logp=rollout_logp, learner_logp=old_logp, advantage=advantages)

            metrics = StepMetrics()
            tis = tis_weight(old_logp, rollout_logp, mask, args)  # (B, T)
            of_tis = {"tis_weight": tis, "tis_truncated": tis == args.tis_cap}  # (B, T), (B, T)
            of_tis |= {"tis_truncated": (tis == args.tis_cap) & (tis > 0), "tis_masked": tis == 0}  # PipelineRL
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
            rollout["ess"] = effective_sample_size(old_logp, rollout_logp, mask)  # PipelineRL
            run.log(step, rollout | mismatch_metrics(old_logp, rollout_logp, mask) | metrics.result())
            if run.due(step, args.save_every):
                run.save(step)
            if run.interrupted:
                break
            run.evaluate(step, engine, verifier, held_out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
