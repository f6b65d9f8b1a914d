"""DPO, Direct Preference Optimization: 2305.18290 (May 2023), Eq. 7; here on pairs of the policy's own responses.

    L(θ) = -E_(x, w, l) log σ(m),   m = β (log π_θ(w|x) / π_ref(w|x) - log π_θ(l|x) / π_ref(l|x))
    ∇L(θ) = -E_(x, w, l) β σ(-m) (∇ log π_θ(w|x) - ∇ log π_θ(l|x))

Differs from its parent reinforce.py:
- a pair of a right and a wrong response to the same prompt takes the place of reward and baseline: both have
  the advantage β σ(-m), once up and once down, which fades as the policy tells them apart;
- the KL to the reference needs no term of its own: the loss is the likelihood of the preferences under the
  policy that is optimal for them and for this KL (Eq. 4 and 5);
- pairs may come from anywhere, so that updates need neither a ratio to the sampler nor TIS.
The log-prob of a response is a sum over its tokens. All pairs of a group count; the mean is over the pairs of a
minibatch. At the reference m = 0, and the gradient within a group is GRPO's with token sums, up to a factor.

With --spin it is SPIN, self-play fine-tuning: 2401.01335 (Jan 2024), Eq. 4.7, and rewards count no more:
- w is the data set's solution, l the policy's own response, right or wrong: all of them, as G - 1 pairs with it;
- π_ref is the policy before the batch, the opponent in the game, which sampled l where --staleness is 0: one iteration
  of SPIN is one rollout batch here (paper: two passes over 50,000 prompts). When the policy writes as the data set
  does, no pair teaches anything.

    python -m methods.dpo
    python -m methods.dpo --spin
"""

import random
from dataclasses import dataclass
from typing import Any, Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems, read_dataset, sample_problems
from common.engines import WeightHistory, make_engine, prompt_seeds
from common.logprobs import batch_logps, token_logps
from common.metrics import StepMetrics, mismatch_metrics, rollout_metrics
from common.models import context_length, load_model
from common.records import Problem, Rollouts
from common.verification.rewards import require_binary
from common.run import Run, seed_step
from common.schedule import learning_rate
from common.settings import Count, CountOrZero, GroupSize, Positive, Rate, Settings, Share, is_generated
from common.verification.verifier import Verifier
from worlds.pretrain import solution

import torch
import torch.nn.functional as F
import tyro
from torch import Tensor


@dataclass
class Args(Settings):
    # DPO
    kl_beta: Positive = 0.1
    """β: weight of the KL to the initial model (SPIN: the opponent) in the loss. Paper 0.1, for summaries 0.5."""
    spin: bool = False
    """SPIN: prefer the data set's solutions, all of the text in the answer column, to the policy's own responses."""
    num_minibatches: Count = 4
    """Parts of a rollout batch, with one optimizer update each."""
    update_epochs: Count = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches."""
    responses_per_prompt: GroupSize = 8
    """G: responses to each prompt; each right one makes a pair with each wrong one. Online DPO and SPIN: usually 2."""

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


def compute_advantages(scores: Tensor, rewards: Tensor, args: Args) -> tuple[Tensor, Tensor]:
    """Log-ratios of the responses to the reference and rewards, (P, G) each, in; (P, G) advantages and the loss out.

    An advantage is minus the slope of the loss in the log-prob of its response (2305.18290, Eq. 7 and Sec. 4).
    """
    is_pair = rewards[:, :, None] > rewards[:, None, :]  # (P, G, G), of the better and the worse response
    margin = args.kl_beta * (scores[:, :, None] - scores[:, None, :])  # (P, G, G)
    pairs = is_pair.sum().clamp(min=1)
    pull = args.kl_beta * torch.sigmoid(-margin) * is_pair / pairs  # (P, G, G)
    return pull.sum(2) - pull.sum(1), -(F.logsigmoid(margin) * is_pair).sum() / pairs


def token_weights(mask: Tensor, args: Args) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1, the mean over pairs is in the advantages."""
    return mask * 1.0


def policy_loss(
    logp: Tensor, old_logp: Tensor, rollout_logp: Tensor, advantages: Tensor, mask: Tensor, args: Args
) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss (B, T) and per-token metrics, all inputs (B, T); only `logp` carries a gradient.

    Its gradient is that of DPO's loss; its value is not, and the log has that as dpo_loss.
    """
    loss = -advantages * logp  # (B, T)
    return loss, {"ratio": torch.exp(logp - old_logp)}  # not in the loss


def reference_solutions(train: list[Problem], model: Any, tokenizer: Any, args: Args) -> dict[str, list[int]]:
    """Token ids, EOS included, of the data set's solution to every training question (for the sums, all steps)."""
    if args.dataset == "sums":
        texts = {p.question: solution(random.Random(0), p.question, textbook=True) for p in train}
    else:
        if not isinstance(args.dataset, str) or is_generated(args.dataset):
            fail("--spin needs one data set with solutions, or the sums: name another --dataset.")
        rows = read_dataset(args.dataset, args.dataset_config, args.train_split).flatten()
        texts = {str(q): str(a) for q, a in zip(rows[args.question_column], rows[args.answer_column], strict=True)}
    ids = tokenizer([texts[p.question] for p in train], add_special_tokens=False)["input_ids"]
    for problem, tokens in zip(train, ids, strict=True):
        if len(problem.prompt_ids) + len(tokens) >= context_length(model):
            fail(f"--spin: a solution of {len(tokens)} tokens exceeds the model's context: {problem.prompt[:80]!r}")
    return {problem.question: [*tokens, tokenizer.eos_token_id] for problem, tokens in zip(train, ids, strict=True)}


def with_solutions(problems: list[Problem], rollouts: Rollouts, solutions: dict[str, list[int]]) -> Rollouts:
    """The same groups, each with the solution in front, whose tokens the engine has not sampled."""
    groups = []
    for problem, own in zip(problems, rollouts.split(len(rollouts.tokens) // len(problems)), strict=True):
        given = solutions[problem.question]
        groups += [Rollouts([given], [[0.0] * len(given)], [False], [[False] * len(given)]), own]
    return Rollouts.join(groups)


def main(args: Args) -> None:
    with Run(args, __file__) as run:
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(tokenizer, train + held_out, args.answer_format, args.tolerance, args.reward))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = None if args.spin else load_model(args)[0]  # DPO
        solutions = reference_solutions(train, model, tokenizer, args) if args.spin else {}  # DPO
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
                own = G - 1 if args.spin else G  # DPO: with --spin the first response is the data set's solution
                rollouts = engine.generate(prompts, own, args.max_response_tokens, args.temperature, seeds)
            with run.clock("verify"):
                correct = torch.tensor(verifier(problems, rollouts), device=model.device).float().view(P, own)
            engine.sleep()  # its memory is the learner's until it gets new weights
            paired = with_solutions(problems, rollouts, solutions) if args.spin else rollouts  # DPO
            batch = collate(prompts, paired, model.device)
            mask, rollout_logp = batch.sampled, batch.rollout_logp  # (B, T), (B, T)

            # The learner's own log-probs at the rollout weights; the engine's differ in their numerics.
            with run.clock("logps"):
                old_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
                ref_logp = batch_logps(reference, batch, args)[0] if reference else old_logp  # (B, T), DPO
            rewards = torch.tensor(rollouts.rewards, device=model.device).view(P, own)  # (P, own), DPO
            preferred = rewards  # (P, G), DPO: what makes a pair
            if args.spin:  # DPO
                is_solution = torch.arange(P * G, device=model.device) % G == 0  # (B,)
                preferred = is_solution.float().view(P, G)  # (P, G)
                mask = mask | (batch.mask & is_solution[:, None])  # (B, T)
            else:
                require_binary(rewards, "a pair of DPO has a right response and a wrong one")
            run.require_finite(step, sampler_logp=rollout_logp, learner_logp=old_logp, reference_logp=ref_logp)

            metrics = StepMetrics()
            kl = old_logp - ref_logp  # (B, T), DPO: for the log
            metrics.add({"entropy": entropy, "kl": kl}, token_weights(mask, args), mask)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, args)
            with run.clock("train"):
                for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                    weights = torch.zeros_like(old_logp)  # (B, T)
                    weights[minibatch] = token_weights(mask[minibatch], args)
                    # DPO: both responses of a pair under the weights before this update.
                    now = batch_logps(model, batch, args, minibatch)[0]  # (B, T), 0 in other rows
                    scores = ((now - ref_logp) * mask).sum(1)[minibatch].view(-1, G)  # (p, G)
                    pulls, dpo_loss = compute_advantages(scores, preferred.flatten()[minibatch].view(-1, G), args)
                    advantages = torch.zeros_like(old_logp)  # (B, T)
                    advantages[minibatch] = pulls.view(-1, 1).expand(-1, mask.shape[1])
                    for rows in micro_batches(minibatch, batch, args.micro_batch_tokens):
                        logp, _ = token_logps(model, batch, rows, args)  # (b, T)
                        loss, values = policy_loss(
                            logp, old_logp[rows], rollout_logp[rows], advantages[rows], mask[rows], args
                        )
                        # DPO: no TIS, whoever sampled the pairs.
                        metrics.add(values, weights[rows], mask[rows])
                        loss = (weights[rows] * loss).sum()
                        loss.backward()
                        metrics.add_loss(loss)
                    grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                    run.require_finite(step, loss=metrics.loss, gradient=grad_norm)
                    optimizer.step()
                    optimizer.zero_grad()
                    metrics.add_update(grad_norm=grad_norm, dpo_loss=dpo_loss)  # DPO

            rollout = rollout_metrics(rewards, correct, rollouts, verifier.take_failures())
            run.log(step, rollout | mismatch_metrics(old_logp, rollout_logp, batch.sampled) | metrics.result())
            if run.due(step, args.save_every):
                run.save(step)  # DPO
            if run.interrupted:
                break
            run.evaluate(step, engine, verifier, held_out)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
