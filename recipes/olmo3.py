"""OlmoRL, the reinforcement learning of Olmo 3: 2512.13961 (Dec 2025), Sec. 4.4.1, Eq. 1 and 2.

    J(θ) = E_x E_{o_1..o_G ~ μ(·|x)} 1/Σ_i|o_i| Σ_i Σ_t
               min(ρ_it, C) min(r_it A_i, clip(r_it, 1 - ε_low, 1 + ε_high) A_i)        A_i = R_i - mean R
    r_it = π_θ(o_it | x, o_i<t) / π_old(o_it | x, o_i<t)        ρ_it = π_old(...) / μ(...), μ the rollout policy

A recipe combines components: these are the seven changes to GRPO. With all seven switched off it is grpo.py with
--kl-beta 0.04 --tis-cap 0, to the bit.

| component | from | without it |
|---|---|---|
| groups without signal are left out | DAPO | --no-filter-groups |
| active sampling | Olmo 3 | --max-rounds 1 |
| token-level loss | DAPO | --average response |
| no KL | DAPO, Dr. GRPO | --kl-beta 0.04 |
| clip-higher | DAPO | --clip-eps-high 0.2 |
| truncated importance sampling | Yao et al. (2025) | --tis-cap 0 |
| advantages without std | Dr. GRPO | --std group |

Differs from its parent dapo.py:
- no group with signal is discarded: those beyond a full batch wait for the next step. By then the learner has
  changed; π_old is the learner's at that step, and ρ corrects for the weight changes since they were sampled;
- once the rounds run out, groups without signal fill the batch but do not count in the mean;
- no std, and rewards of 0 and 1 (the authors' code: 10) without a length penalty.
The paper's formula divides by the tokens of a group, its text and code by the batch's; here it is the minibatch's.
The Think models use the whole batch as one minibatch (--num-minibatches 1): every r is 1, and only ρ matters.

    python recipes/olmo3.py
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.data import load_problems, sample_problems
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps
from common.models import load_model
from common.records import Rollouts
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, GroupSize, NonNegative, Positive, Rate, Settings
from common.verification import Verifier

import torch
from torch import Tensor


@dataclass
class Args(Settings):
    # OlmoRL
    clip_eps_low: Positive = 0.2
    """ε_low: clipping zeroes the gradient of a negative advantage below a ratio of 1 - ε_low. Paper 0.2."""
    clip_eps_high: Positive = 0.272
    """ε_high: clipping zeroes the gradient of a positive advantage above a ratio of 1 + ε_high. Paper 0.272."""
    max_rounds: Count = 10
    """Maximum rounds of P new prompts; then groups without signal fill in. 1: no active sampling. Paper: no limit."""
    filter_groups: bool = True
    """Leave groups whose responses are all correct or all incorrect out of the loss and out of its mean."""
    average: Literal["token", "response"] = "token"
    """What gets equal weight in the mean: each token or, as in GRPO, each response."""
    std: Literal["none", "group"] = "none"
    """What advantages are divided by: nothing or, as in GRPO, the group's std."""
    ddof: Literal[0, 1] = 1
    """With --std group, the std divides by G - ddof: 1 gives the sample std of most code, 0 the population std."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 0."""
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
    """(P, G) rewards in, (P, G) advantages out: each reward minus the mean of its group (Eq. 2)."""
    mean = rewards.mean(1, keepdim=True)  # (P, 1)
    if args.std == "none":
        return rewards - mean
    std = rewards.std(1, correction=args.ddof, keepdim=True)  # (P, 1)
    # The paper has no ε; 1e-6 makes a group of equal rewards give 0 instead of 0 / 0.
    return (rewards - mean) / (std + 1e-6)


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / Σ_i |o_i|, or 1 / (responses |o_i|)."""
    if args.average == "response":  # of those that are kept
        return mask / (mask.any(1).sum() * mask.sum(1, keepdim=True)).clamp(min=1)
    return mask / mask.sum().clamp(min=1)


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, args: Args) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    On-policy, every ratio is 1 and the loss is -Σ_i |o_i| A_i / Σ_i |o_i|: its value only reflects response lengths.
    """
    ratio = torch.exp(logp - old_logp)  # (m, T)
    clipped_ratio = ratio.clamp(1 - args.clip_eps_low, 1 + args.clip_eps_high)  # (m, T)
    # The minimum makes the clip one-sided: a ratio that moved against its advantage keeps its gradient.
    loss = -torch.min(ratio * advantages, clipped_ratio * advantages)  # (m, T)
    return loss, {
        "ratio": ratio,
        "clip_pos": ((advantages > 0) & (ratio > 1 + args.clip_eps_high)).float(),
        "clip_neg": ((advantages < 0) & (ratio < 1 - args.clip_eps_low)).float(),
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


def main(args: Args) -> None:
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        # OlmoRL: groups with signal that wait to be trained on: (prompt, G rollouts, (G,) rewards).
        run.state["kept"], by_prompt = [], {problem.prompt: problem for problem in train}

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out):
            # OlmoRL: active sampling. Sample groups until P of them are neither all correct nor all incorrect,
            # including those that have waited since the last step.
            engine.load_weights(model)
            waiting = run.state["kept"]
            kept = [(by_prompt[prompt], Rollouts(**group), row.to(model.device)) for prompt, group, row in waiting]
            spare, rounds = [], 0  # like `kept`, but without signal
            while len(kept) < P and rounds < args.max_rounds:
                number = (step - 1) * args.max_rounds + rounds + 1  # OlmoRL: number of this round within the run
                problems = sample_problems(train, P, number, args)
                rollouts = engine.generate(problems, G, number)
                rewards = verifier(problems, rollouts)  # (P, G)
                for problem, group, row in zip(problems, rollouts.split(G), rewards, strict=True):
                    has_signal = 0 < sum(group.correct) < G or not args.filter_groups
                    (kept if has_signal else spare).append((problem, group, row))
                rounds += 1
            engine.sleep()  # frees its memory for the learner
            if len(kept) < P:
                run.write_line(f"step {step}: only {len(kept)} of {P} groups have signal")
            run.state["kept"] = [(problem.prompt, vars(group), row) for problem, group, row in kept[P:]]
            problems, groups, rewards = zip(*(kept + spare)[:P], strict=True)
            rollouts, rewards = Rollouts.join(groups), torch.stack(rewards)  # rewards (P, G)
            run.log(sampled_prompts=rounds * P, kept_groups=min(len(kept), P))

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, rollouts, model.device)
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            learner_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            old_logp = learner_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            if args.filter_groups:  # OlmoRL: groups that fill a batch once the rounds ran out do not count in its mean
                correct = torch.tensor(rollouts.correct, device=mask.device).view(P, G)  # (P, G)
                mixed = (correct != correct[:, :1]).any(1, keepdim=True)  # (P, 1)
                mask = mask & mixed.expand(P, G).reshape(-1, 1)  # (B, T)
            advantages = compute_advantages(rewards, args).view(-1, 1).expand(mask.shape)  # (B, T)
            tis = tis_weight(learner_logp, rollout_logp, args)  # (B, T)
            run.log_rollouts(problems, rollouts, rewards, advantages, learner_logp, rollout_logp, mask)
            run.log_tokens({"entropy": entropy, "tis_weight": tis}, token_weights(mask, args), mask)

            for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                weights = token_weights(mask[minibatch], args)  # (b, T)
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
