"""GiGPO: "Group-in-Group Policy Optimization for LLM Agent Training", 2505.10978 (May 2025), Eq. 3 to 8.

    J(θ) = GRPO's over episodes, where the tokens of turn k of episode i have the advantage A_i + ω S_ik
    A_i  = (R_i - mean R) / std R, over the G episodes of a prompt
    S_ik = (γ^(K_i - k) R_i - mean) / std, over all turns of the G episodes that start from the same state as turn k

Differs from its parent agent.py:
- turns taken in the same state of the environment are also compared, by the discounted return that followed them;
- a state with only one turn allows no comparison: S is 0, and the turn has GRPO's advantage.
The discount favors fewer turns, even if all episodes are correct. All episodes of a group share their first
state, so with one turn each the advantage is 1 + ω times GRPO's.
Paper and authors' code (verl-agent) divide both parts by a std, or neither; here both. The code takes mean and std of A
over turns, so that long episodes count more; here, as in Eq. 3, over episodes. In its loss each turn is a response;
here, as in the parent, each episode has the same weight. The environment says which states are equal.
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python methods/gigpo.py
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.data import load_problems, sample_problems
from common.engines import make_engine
from common.environments import EpisodeEngine, load_environment
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
    # GiGPO
    step_weight: NonNegative = 1.0
    """ω: weight of the advantage within a state; 0 is GRPO. Paper 1."""
    discount: Fraction = 0.95
    """γ: discount of the reward for each turn that follows. Paper 0.95."""
    environment: str = "guessing"
    """Environment: guessing, calculator, retrieval, python, ADAPTER:TASK or file.py:NAME."""
    max_turns: Count = 8
    """Maximum turns per episode; the observation after the last one is never read."""
    model: str = "guessing"
    """A model on the hub, a local folder, or one of this repository; the default has played the game."""
    dataset: str = "guessing"
    """Problems that the environment knows: "guessing", "retrieval", "python", or "products" for the calculator."""
    clip_eps: Positive = 0.2
    """ε: no gradient for ratios above 1 + ε with positive advantages, below 1 - ε with negative ones. Usual 0.2."""
    ddof: Literal[0, 1] = 1
    """The group's std divides by G - ddof: 1 gives the sample std of most code, 0 the population std."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Most reasoning recipes 0."""
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
    """(P, G) rewards in, (P, G) advantages out: z-scores within each group (2402.03300, Sec. 4.1.2)."""
    mean = rewards.mean(1, keepdim=True)  # (P, 1)
    std = rewards.std(1, correction=args.ddof, keepdim=True)  # (P, 1)
    # The paper has no ε; 1e-6 makes a group of equal rewards give 0 instead of 0 / 0.
    return (rewards - mean) / (std + 1e-6)


def step_advantages(rewards: Tensor, rollouts: Rollouts, args: Args) -> Tensor:
    """(P, G) rewards in, (B, T) advantages out: each turn's z-score among its group's turns from the same state."""
    G, advantages = rewards.shape[1], torch.zeros(rewards.numel(), max(map(len, rollouts.tokens)))  # (B, T)
    turns = defaultdict(list)  # by group and state: row, first and last token, discounted return
    for row, (episode, reward) in enumerate(zip(rollouts.episodes, rewards.flatten().tolist(), strict=True)):
        ends = [*episode.starts[1:], len(rollouts.tokens[row])]
        for k, (start, end, state) in enumerate(zip(episode.starts, ends, episode.states, strict=True), 1):
            turns[row // G, state].append((row, start, end, args.discount ** (len(ends) - k) * reward))
    for (_, state), same in turns.items():
        if state is not None and len(same) > 1:
            returns = torch.tensor([value for *_, value in same])  # (n,)
            scores = (returns - returns.mean()) / (returns.std(correction=args.ddof) + 1e-6)  # (n,)
            for (row, start, end, _), score in zip(same, scores, strict=True):
                advantages[row, start:end] = score
    return advantages.to(rewards.device)


def token_weights(mask: Tensor) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (B |o_i|), every response has the same weight."""
    return mask / (len(mask) * mask.sum(1, keepdim=True))


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, args: Args) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    On-policy, every ratio is 1 and the loss is near 0: advantages within a response differ. Its gradient is not.
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


def kl_penalty(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Per-token k3 estimate (m, T) of KL(π_θ ‖ π_ref) (2402.03300, Eq. 4).

    On tokens from π_θ its value is unbiased and never negative. As a loss, its gradient is that of KL(π_ref ‖ π_θ).
    """
    return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1


def main(args: Args) -> None:
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        environment = load_environment(run.args.environment)  # Agent
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        engine = EpisodeEngine(engine, environment, tokenizer, args, args.max_turns)  # Agent
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out):
            # Sample G responses to each of P prompts, and verify their answers.
            engine.load_weights(model)
            problems = sample_problems(train, P, step, args)
            rollouts = engine.generate(problems, G, step)
            rewards = verifier(problems, rollouts)  # (P, G)
            run.log(**engine.numbers)  # Agent: turns, and how episodes ended
            engine.sleep()  # frees its memory for the learner

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, rollouts, model.device)
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            learner_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            old_logp = learner_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            advantages = compute_advantages(rewards, args).view(-1, 1).expand(mask.shape)  # (B, T)
            advantages = advantages + args.step_weight * step_advantages(rewards, rollouts, args)  # (B, T), GiGPO
            tis = tis_weight(learner_logp, rollout_logp, args)  # (B, T)
            run.log_rollouts(problems, rollouts, rewards, advantages, learner_logp, rollout_logp, mask)
            run.log_tokens({"entropy": entropy, "tis_weight": tis}, token_weights(mask), mask)

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
