"""SPIN, Self-Play Fine-Tuning: 2401.01335 (Jan 2024), Eq. 4.7.

    L(θ) = -E_(x, w, l) log σ(m),   m = β (log π_θ(w|x) / π_old(w|x) - log π_θ(l|x) / π_old(l|x))
    w: the data set's solution        l ~ π_old(·|x): the policy's own response, correct or not

Differs from its parent dpo.py:
- no rewards: the data set's solution is preferred to each of the policy's own responses, as G - 1 pairs. Once
  the policy writes as the data set does, the gradients of the pairs cancel on average;
- the reference is the policy before the batch, the opponent, which also sampled l (where --staleness is 0).
One iteration of SPIN is one rollout batch here (paper: two passes over 50,000 prompts). As in methods/dpo.py, the
log-prob of a response is a sum over its tokens, and neither a ratio nor TIS corrects for the rollout policy. On sums
the solutions write all steps.

    python methods/spin.py
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems, sample_problems
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps
from common.models import load_model
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, GroupSize, Positive, Rate, Settings
from common.verification import Verifier
from methods.solutions import as_responses, before_groups, load_demonstrations

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Args(Settings):
    # SPIN
    kl_beta: Positive = 0.1
    """β: weight of the KL to the opponent, the policy before the batch. Paper 0.1; 5 in its last iteration."""
    solution_column: str = "solution"
    """Column with solutions; not needed for gsm8k, whose answers are solutions, or for sums and search."""
    num_minibatches: Count = 4
    """Minibatches per rollout batch, with one optimizer update each."""
    update_epochs: Count = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches."""
    responses_per_prompt: GroupSize = 8
    """G: the data set's solution and G - 1 responses per prompt. Paper 2."""

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


def compute_advantages(scores: Tensor, rewards: Tensor, args: Args) -> tuple[Tensor, Tensor]:
    """(P, G) log-ratios of responses to the reference and (P, G) rewards in, (P, G) advantages and the loss out.

    An advantage is minus the derivative of the loss in its response's log-prob (2305.18290, Eq. 7 and Sec. 4).
    """
    is_pair = rewards[:, :, None] > rewards[:, None, :]  # (P, G, G), over the better and the worse response
    margin = args.kl_beta * (scores[:, :, None] - scores[:, None, :])  # (P, G, G)
    pairs = is_pair.sum().clamp(min=1)
    pull = args.kl_beta * torch.sigmoid(-margin) * is_pair / pairs  # (P, G, G)
    return pull.sum(2) - pull.sum(1), -(F.logsigmoid(margin) * is_pair).sum() / pairs


def token_weights(mask: Tensor) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1; the mean over pairs is in the advantages."""
    return mask * 1.0


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    It has the gradient of SPIN's loss, but not its value. The loss itself is logged as dpo_loss.
    """
    loss = -advantages * logp  # (m, T)
    return loss, {"ratio": torch.exp(logp - old_logp)}  # only logged


def main(args: Args) -> None:
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        if args.replay_routing:  # SPIN
            fail("SPIN trains on solutions, whose experts no engine reports: leave out --replay-routing.")
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        solutions = load_demonstrations(train, model, tokenizer, args)  # SPIN

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out):
            # Sample G responses to each of P prompts, and verify their answers.
            engine.load_weights(model)
            problems = sample_problems(train, P, step, args)
            rollouts = engine.generate(problems, G - 1, step)  # SPIN: the first of G is the data set's solution
            rewards = verifier(problems, rollouts)  # (P, G - 1), only logged
            engine.sleep()  # frees its memory for the learner

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            # SPIN: the solutions come before the policy's own responses.
            groups = before_groups(as_responses(problems, solutions), rollouts)
            batch = collate(problems, groups, model.device)
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            old_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            ref_logp = old_logp  # (B, T), SPIN: the opponent is the policy before the batch
            run.log_rollouts(problems, rollouts, rewards, None, old_logp, rollout_logp, mask)  # SPIN: no advantages yet
            rewards = (torch.arange(P * G, device=mask.device) % G == 0).float()  # (B,), SPIN: of the solutions alone
            mask = mask | (batch.token_mask & (rewards > 0)[:, None])  # (B, T), SPIN: they have a loss too
            run.log_tokens({"entropy": entropy, "kl": old_logp - ref_logp}, token_weights(mask), mask)

            for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                weights = token_weights(mask[minibatch])  # (b, T)
                # SPIN: both responses of a pair under the weights before this update.
                now = batch_logps(model, batch, args, minibatch)[0]  # (B, T), 0 in other rows
                scores = ((now - ref_logp) * mask).sum(1)[minibatch].view(-1, G)  # (p, G)
                pulls, dpo_loss = compute_advantages(scores, rewards.flatten()[minibatch].view(-1, G), args)
                advantages = torch.zeros_like(old_logp)  # (B, T)
                advantages[minibatch] = pulls.view(-1, 1).expand(-1, mask.shape[1])
                for rows, w in micro_batches(minibatch, weights, batch, args):  # (m,), (m, T)
                    logp = token_logps(model, batch, rows, args)  # (m, T)
                    loss, metrics = policy_loss(logp, old_logp[rows], advantages[rows])  # (m, T)
                    # SPIN: no TIS, whichever policy sampled the pairs.
                    loss = (w * loss).sum()
                    loss.backward()
                    run.log_loss(loss, metrics, w, mask, rows)
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                run.check_update(grad_norm=grad_norm, dpo_loss=dpo_loss)  # ends the run if it is not finite
                optimizer.step()
                optimizer.zero_grad()


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
