"""SDPO, Self-Distillation Policy Optimization: 2601.20802 (Jan 2026).

    J(θ) = -E_x E_{o ~ π_old(·|x)} 1/|o| Σ_t KL(π_θ(·|x, o_<t) ‖ π_T(·|x, f, o_<t))
    or, from the sampled token:  r_t A_t,  A_t = log π_T(o_t|x, f, o_<t) - log π_old(o_t|x, o_<t)
    θ_T: a moving average of θ     f: feedback, such as a correct response of the group     mixed: λ A_GRPO + (1 - λ) A

Differs from its parent opd.py:
- the teacher is the model itself with feedback in its prompt, and scores each token of a response. It reads another
  correct response of the group; if there is none, the feedback of the reward functions, such as an error message
  (docs/rewards.md); without feedback, the response has no such loss;
- only what helps without the feedback can be learned. The embedded model, told " right {answer}", boxes it at once, and
  its student gains less (reports/effects.md). So the default feedback is a longer budget, not a solution as in the
  paper: the teacher searches longer, and so does its student. For the paper's, see the template below;
- on search-hard, where correct responses are rare, the first mistake of a response is its feedback (the second command
  below). In 70 steps pass@16 rises from 0.07 to 0.60, and accuracy from 0.006 to 0.11 (one seed). With a rate of 0.05
  for the teacher accuracy rises too, but falls to 0 within 80 steps: responses grow until they are cut off;
- the teacher's weights are a moving average of the student's (--teacher-rate), as in the authors' code;
- by default the KL is over the whole vocabulary (--kl full), with neither ratio nor TIS weight;
- --grpo-weight λ adds R - mean of the group, which the authors' code does not divide by the std either.
The authors' code (lasgroup/SDPO) has the Jensen-Shannon divergence by default, and the reverse KL, as here, in its runs
with rich feedback. It multiplies the loss by the ratio, up to 2, averages over all tokens of responses with feedback,
and leaves out the thinking of the response that it shows; here the full KL has no ratio, and each response has the same
weight. Not here: a teacher held in a trust region. Their templates, for real models: --feedback
$'\\nCorrect solution:\\n\\n{response}\\n\\nCorrectly solve the original question.' and --reward-feedback $'\\nThe
following is feedback from your unsuccessful earlier attempt:\\n\\n{text}\\n\\nCorrectly solve the original question.'
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python methods/sdpo.py
    python methods/sdpo.py --dataset search-hard --reward correct worlds/search/feedback.py:first_mistake=0 \\
        --teacher-rate 0.01 --feedback " right {answer}"
"""

from dataclasses import dataclass
from typing import Literal

from common.batch import collate, micro_batches, minibatches
from common.cli import fail
from common.data import load_problems, sample_problems
from common.engines import make_engine
from common.help import parse_args
from common.logprobs import batch_logps, token_logps, vocabulary_logps
from common.models import load_model
from common.run import Run
from common.settings import Count, CountOrZero, Fraction, GroupSize, Names, NonNegative, Positive, Rate, Settings
from common.verification import Verifier
from methods.self_teacher import SelfTeacher

import torch
from torch import Tensor


@dataclass
class Args(Settings):
    # SDPO
    model: str = "search"
    """A model on the hub, a local folder, or one of this repository; the default reads feedback."""
    dataset: Names = "search"
    """A data set on the hub, a local file, or a generated one; by default plus and minus between numbers."""
    feedback: str = " within 150 tokens"
    """Text after the question in the teacher's prompt; {answer} and {response} in it are those of a correct response.
    The default makes the embedded model search longer."""
    reward_feedback: str = "{text}"
    """The same for a response without another correct one in its group; {text} is the feedback of the reward functions.
    Without feedback, the response has no teacher."""
    teacher_rate: Fraction = 0.05
    """Rate of the teacher's moving average, once per rollout batch. Authors' code 0.05, with rich feedback 0.01."""
    grpo_weight: Fraction = 0.0
    """λ: weight of GRPO's advantage; self-distillation has 1 - λ."""
    kl: Literal["sampled", "full"] = "full"
    """sampled: the KL from the sampled token; full: over the vocabulary, without a ratio; (tokens, V) memory."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the initial model in the loss. Papers 0."""
    ratio_anchor: Literal["learner", "engine"] = "learner"
    """π_old in the ratio: log-probs recomputed by the learner, or reported by the engine (requires --tis-cap 0)."""
    tis_cap: NonNegative = 2.0
    """C: cap of the truncated importance weight π_old / π_engine; 0 disables it."""
    num_minibatches: Count = 4
    """Minibatches per rollout batch, with one optimizer update each."""
    update_epochs: Count = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches. Papers: 1 or 2."""
    responses_per_prompt: GroupSize = 8
    """G: responses per prompt, the group. Authors' scripts 8."""

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


def compute_advantages(rewards: Tensor, teacher_logp: Tensor, old_logp: Tensor, own: Tensor, args: Args) -> Tensor:
    """(P, G) rewards, (B, T) log-probs of the sampled tokens, (B, 1) teacher weights in, (B, T) advantages out."""
    return args.grpo_weight * (rewards - rewards.mean(1, keepdim=True)).view(-1, 1) + own * (teacher_logp - old_logp)


def token_weights(mask: Tensor) -> Tensor:
    """(B, T) mask of a whole minibatch in, (B, T) weights out: 1 / (B |o_i|), every response has the same weight."""
    return mask / (len(mask) * mask.sum(1, keepdim=True))


def policy_loss(logp: Tensor, old_logp: Tensor, advantages: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Per-token loss and metrics of m rows; everything is (m, T), and only `logp` carries a gradient.

    On-policy every ratio is 1; with --kl sampled and λ = 0 the mean loss estimates the KL to the teacher. With --kl
    full this has only GRPO's advantage, if λ > 0.
    """
    ratio = torch.exp(logp - old_logp)  # (m, T)
    loss = -ratio * advantages  # (m, T)
    return loss, {"ratio": ratio}


def tis_weight(old_logp: Tensor, rollout_logp: Tensor, args: Args) -> Tensor:
    """(B, T) weights of truncated importance sampling: min(π_old / π_engine, C) per token (Yao et al., 2025)."""
    weight = torch.exp(old_logp - rollout_logp).clamp(max=args.tis_cap)  # (B, T)
    return weight if args.tis_cap > 0 else torch.ones_like(weight)


def kl_penalty(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Per-token k3 estimate (m, T) of KL(π_θ ‖ π_ref) (2402.03300, Eq. 4).

    On tokens from π_θ its value is unbiased and never negative. As a loss, its gradient is that of KL(π_ref ‖ π_θ).
    """
    return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1


def full_kl(logp: Tensor, teacher_logp: Tensor, mask: Tensor) -> Tensor:
    """KL(π_θ ‖ π_T) (2306.13649, Eq. 2), (b, T) and 0 on padding, from log-probs (N, V) at the N tokens of the mask."""
    kl = (logp.exp() * (logp - teacher_logp)).sum(-1)  # (N,)
    return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, kl)


def demonstrations(correct: list[bool], G: int) -> list[int | None]:
    """For each of B responses, the index of the first other correct one of its group, or None if there is none."""
    groups = [range(i // G * G, i // G * G + G) for i in range(len(correct))]
    return [next((j for j in group if correct[j] and j != i), None) for i, group in enumerate(groups)]


def main(args: Args) -> None:
    if "{text}" not in args.reward_feedback:
        fail("--reward-feedback must contain {text}, where the feedback of the reward functions goes.")
    if args.kl == "full" and args.ratio_anchor == "engine":
        fail("--kl full has no ratio: leave out --ratio-anchor engine.")
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        teacher = SelfTeacher(args, model, tokenizer)  # SDPO
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out, teacher=teacher.model):  # SDPO
            # Sample G responses to each of P prompts, and verify their answers.
            engine.load_weights(model)
            problems = sample_problems(train, P, step, args)
            rollouts = engine.generate(problems, G, step)
            rewards = verifier(problems, rollouts)  # (P, G)
            engine.sleep()  # frees its memory for the learner

            # The learner's log-probs before the updates; the engine's differ by rounding and by any staleness.
            batch = collate(problems, rollouts, model.device)
            # SDPO: the same responses after prompts with feedback, and the teacher's weight (B, 1) for each.
            told = teacher.describe(rollouts, demonstrations(rollouts.correct, G), verifier.find_answer)
            longer, own = teacher.batch(problems, rollouts, told), teacher.weights(told)
            run.log(feedback=1 - told.count(None) / len(told))
            mask, rollout_logp = batch.response_mask, batch.rollout_logp  # (B, T), (B, T)
            learner_logp, entropy = batch_logps(model, batch, args)  # (B, T), (B, T)
            old_logp = learner_logp if args.ratio_anchor == "learner" else rollout_logp  # (B, T)
            ref_logp = batch_logps(reference, batch, args)[0] if reference else None  # (B, T)
            # With the full KL no advantage comes from the teacher: the KL is added to the loss below.
            teacher_logp = batch_logps(teacher.model, longer, args)[0] if args.kl == "sampled" else old_logp
            advantages = compute_advantages(rewards, teacher_logp, old_logp, own, args)  # (B, T)
            tis = tis_weight(learner_logp, rollout_logp, args)  # (B, T)
            run.log_rollouts(problems, rollouts, rewards, advantages, learner_logp, rollout_logp, mask)
            run.log_tokens({"entropy": entropy, "tis_weight": tis}, token_weights(mask), mask)

            for minibatch in minibatches(P, G, args):  # (b,) rows of whole groups
                weights = token_weights(mask[minibatch])  # (b, T)
                for rows, w in micro_batches(minibatch, weights, batch, args):  # (m,), (m, T)
                    logp = token_logps(model, batch, rows, args)  # (m, T)
                    loss, metrics = policy_loss(logp, old_logp[rows], advantages[rows])  # (m, T)
                    loss = tis[rows] * loss
                    if args.kl == "full":  # SDPO: without ratio and TIS weight
                        logps = vocabulary_logps(model, batch, rows, len(tokenizer), args)  # (N, V)
                        loss = loss + own[rows] * full_kl(logps, teacher.logps(longer, rows), batch.token_mask[rows])
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
            teacher.follow(model, args.teacher_rate)  # SDPO


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
