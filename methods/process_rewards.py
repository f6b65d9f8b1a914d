"""GRPO with process rewards: "DeepSeekMath", 2402.03300 (Feb 2024), Sec. 4.1.3; labels of Math-Shepherd, 2312.08935.

    GRPO's J(θ) with Â_it = Σ_{j: end(j) >= t} r̃_ij        r̃_ij = (r_ij - mean r) / std r, over all steps of a group
    r_ij = RM(x, o_i up to the end of step j), the chance that a response which begins so will be correct

Differs from its parent grpo.py:
- a reward at the end of each step, here a line of the response, shows which step was wrong; under GRPO all tokens have
  the same advantage. A token's advantage is the sum of the normalized rewards from its own step on;
- the rewards come from a reward model, which needs no human labels: the policy continues responses from the end of each
  step, and the label is the fraction of continuations that are correct (soft estimation; hard: whether any is). The
  last step's label is the verifier's verdict, which is not used as a reward;
- the reward model is trained again every n steps, as the paper's is between iterations, because its labels describe the
  policy that was sampled. With --train-every 0 it is trained once, and the policy may learn to exploit its mistakes.
The reward model starts from the policy's initial weights. Each of its updates uses all labeled steps, equally weighted.
It scores a step at the position before its last token, a line end or EOS. Since an advantage is a sum over steps, a
response with more steps can have a larger one: lengths may drift. On search, the sum of nearly perfect rewards credits
a line more accurately than GRPO does; that of the reward model need not (claims/process_rewards_credit_each_step.py).
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python methods/process_rewards.py
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.data import load_problems, sample_problems
from common.distributed import place
from common.engines import Engine, make_engine
from common.help import parse_args
from common.logprobs import batch_logps, in_micro_batches, token_logps
from common.models import load_model
from common.records import Problem, Rollouts
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, GroupSize, Names, NonNegative, Positive, Rate, Settings
from common.verification import Verifier
from methods.step_rewards import RewardModel, continue_responses, last_tokens, split_steps

import torch
from torch import Tensor


@dataclass
class Args(Settings):
    # Process rewards
    train_every: CountOrZero = 5
    """n: the reward model learns from new labels before step 1 and after every n steps; 0: only before step 1."""
    labeled_problems: Count = 64
    """Problems to which the policy responds once, for the reward model to learn from each time."""
    label_samples: Count = 8
    """N: continuations from the end of each step, which give its label. Math-Shepherd 8."""
    labels: Literal["soft", "hard"] = "soft"
    """soft: fraction of the continuations that are correct. hard: whether any is, as in Math-Shepherd."""
    reward_model_lr: Rate = 3e-4
    """AdamW's learning rate of the reward model. Models of 1B and more: 1e-6 to 1e-5."""
    reward_model_updates: Count = 60
    """Updates of the reward model, each on all labeled steps."""
    step_ends: str = "\n"
    """Characters that end a step, in any token. Without any, the response is one step."""
    model: str = "search"
    """A model on the hub, a local folder, or one of this repository; the default tries line by line."""
    dataset: Names = "search"
    """A data set on the hub, a local file, or a generated one; by default plus and minus between numbers."""
    clip_eps: Positive = 0.2
    """ε: no gradient for ratios above 1 + ε with positive advantages, below 1 - ε with negative ones. Usual 0.2."""
    ddof: Literal[0, 1] = 1
    """The group's std divides by G - ddof: 1 gives the sample std of most code, 0 the population std."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Paper 0.04; most reasoning recipes 0."""
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


def label_steps(
    problems: list[Problem],
    rollouts: Rollouts,
    steps: list[list[int]],
    last: Tensor,
    engine: Engine,
    verifier: Verifier,
    step: int,
    args: Args,
) -> Tensor:
    """(B, T), at the last token of each step: the fraction of N continuations from there that are correct, or whether
    any is (2312.08935, Eq. 4 and 3); at a response's last step, whether it is correct itself."""
    verifier(problems, rollouts)
    labels = last * torch.tensor(rollouts.correct, device=last.device).float()[:, None]  # (B, T)
    begun = [(i, end) for i, ends in enumerate(steps) for end in ends[:-1]]
    if begun:
        tokens = [rollouts.tokens[i][:end] for i, end in begun for _ in range(args.label_samples)]
        asked = [problems[i] for i, _ in begun for _ in range(args.label_samples)]
        ended = continue_responses(engine, asked, tokens, step, 2)
        verifier([problems[i] for i, _ in begun], ended)
        correct = torch.tensor(ended.correct).float().view(-1, args.label_samples)  # (S, N)
        rows, ends = torch.tensor(begun).T  # (S,), (S,)
        labels[rows, ends - 1] = (correct.amax(1) if args.labels == "hard" else correct.mean(1)).to(labels.device)
    return labels


def train_reward_model(
    reward_model: RewardModel,
    problems: list[Problem],
    ends: set[int],
    engine: Engine,
    verifier: Verifier,
    step: int,
    args: Args,
) -> None:
    """Train on new responses of the policy, with a label for each step, by cross-entropy."""
    rollouts = engine.generate(problems, 1, step, 1)
    steps = [split_steps(tokens, ends) for tokens in rollouts.tokens]
    batch = collate(problems, rollouts, reward_model.head.weight.device)
    last = last_tokens(steps, batch.token_mask)  # (B, T)
    labels = label_steps(problems, rollouts, steps, last, engine, verifier, step, args)  # (B, T)
    reward_model.fit(batch, labels, last, args.reward_model_updates, args.reward_model_lr, args)


def compute_advantages(step_rewards: Tensor, last: Tensor, args: Args) -> Tensor:
    """Rewards (B, T) at the last token of each step, and their mask, in; (B, T) advantages out (Sec. 4.1.3)."""
    rewards, ends = (x.view(-1, args.responses_per_prompt * x.shape[1]) for x in (step_rewards, last))  # (P, G T)
    count = ends.sum(1, keepdim=True)  # (P, 1) steps of a group
    mean = (rewards * ends).sum(1, keepdim=True) / count  # (P, 1)
    std = (((rewards - mean) ** 2 * ends).sum(1, keepdim=True) / (count - args.ddof)).sqrt() + 1e-6  # (P, 1)
    normalized = ((rewards - mean) / std * ends).view(last.shape)  # (B, T)
    return normalized.flip(1).cumsum(1).flip(1)  # from each token on


def token_weights(mask: Tensor) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (B |o_i|), every response has the same weight."""
    return mask / (len(mask) * mask.sum(1, keepdim=True))


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor, args: Args) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    On-policy, every ratio is 1 and the loss is minus the mean advantage by `token_weights`; its gradient is not 0.
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
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        # Process rewards: a second model, and the tokens that end a step.
        reward_model = place(RewardModel(load_model(args, placed=False)[0]))
        ends = {i for i in range(len(tokenizer)) if set(tokenizer.decode([i])) & set(args.step_ends)}

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out, reward_model=reward_model):
            # Sample G responses to each of P prompts, and verify their answers.
            engine.load_weights(model)
            # Process rewards: the reward model learns from labels of the current policy.
            if step == 1 or (args.train_every and (step - 1) % args.train_every == 0):
                labeled = sample_problems(train, args.labeled_problems, step, args)
                train_reward_model(reward_model, labeled, ends, engine, verifier, step, args)
            problems = sample_problems(train, P, step, args)
            rollouts = engine.generate(problems, G, step)
            rewards = verifier(problems, rollouts)  # (P, G)
            engine.sleep()  # frees its memory for the learner

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, rollouts, model.device)
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            learner_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            old_logp = learner_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            # Process rewards of the responses' steps; the verifier's only show how often the reward model is correct.
            steps = [split_steps(tokens, ends) for tokens in rollouts.tokens]
            last = last_tokens(steps, mask)  # (B, T)
            chances = in_micro_batches(reward_model, batch, args).sigmoid() * last  # (B, T)
            advantages = compute_advantages(chances, last, args)  # (B, T)
            at_end = chances[torch.arange(P * G), batch.token_mask.sum(1) - 1]  # (B,)
            agree = (at_end > 0.5) == torch.tensor(rollouts.correct, device=at_end.device)  # (B,)
            run.log(reward_model_accuracy=agree.float().mean().item(), response_steps=last.sum().item() / len(steps))
            run.log(process_reward=(chances.sum() / last.sum()).item())
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
