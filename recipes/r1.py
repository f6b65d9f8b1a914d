"""DeepSeek-R1, R1-Zero and R1-Distill: 2501.12948 (Jan 2025), Sec. 2.2 to 2.4.

    J(θ) = E_x E_{o_1..o_G ~ π_old(·|x)} 1/G Σ_i 1/|o_i| Σ_t
               [ min(r_it A_i, clip(r_it, 1 - ε, 1 + ε) A_i) - β KL_k3(π_θ ‖ π_ref) ]    the RL of every stage, GRPO's
    L(θ) = -1/Σ_i|o_i| Σ_i Σ_t log π_θ(o_it | x_i, o_i<t)        supervised fine-tuning (SFT): questions have no loss

R1-Zero is RL alone, the default. R1 has four stages, and its distillation is a fifth:

| --stages | what it is | starts from |
|---|---|---|
| cold-start | SFT on a few correct solutions in the desired style | the base |
| rl | GRPO for --steps steps | the stage before |
| rejection | SFT on the correct ones of many responses from the stage before | the base again |
| rl | GRPO once more | the stage before |
| distill | SFT of a smaller model on the same correct responses, or on those of the stage before; no RL | the student |

Each of them can be left out, and each writes a run folder with a model for the next one.

Differs from its parent grpo.py:
- stages of SFT and rejection sampling around the loop of RL, which is GRPO's except that the reference is renewed;
- ε = 10, as in R1's first RL: it clips almost nothing. The paper's β is 0.001, here 0 by default;
- with a β, --renew-every 400 makes the policy the reference every 400 steps, as the paper does; else it stays the model
  that the stage starts from.
The paper's other rewards are in docs/rewards/: for R1-Zero's format --reward correct=1
docs/rewards/format.py:thinks_first=0.2 (the reward for the answer already requires the box), for the language in R1's
first RL --reward correct=1 docs/rewards/language.py:same_script=1, and for general questions among those of its last RL
--dataset math.jsonl general.jsonl --reward correct=1 docs/rewards/judge.py:general=1. Rejection keeps no response to a
general question, as none is correct. All stages of a command have the same data sets: a last RL on others is another
command, with --stages rl and the model of the stage before as --model.
Not in the formula: each token's policy loss is multiplied by its TIS weight (`tis_weight`).

    python recipes/r1.py
    python recipes/r1.py --stages cold-start rl rejection rl distill
"""

import json
import math
import random
import shutil
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from common.batch import collate, micro_batches, minibatches
from common.checkpoints import checkpoints
from common.cli import fail
from common.data import few_shot_examples, load_problems, make_prompt, sample_problems, sample_rows
from common.distributed import gather, local, rank
from common.ending import resume_command
from common.engines import make_engine
from common.folders import write_whole
from common.help import parse_args
from common.logprobs import batch_logps, logps_and_entropies, token_logps
from common.metrics import evaluations, read_metrics
from common.models import context_length, load_model
from common.records import Problem, Rollouts
from common.rows import read_dataset
from common.run import Run
from common.settings import SAME_RESULT, Count, CountOrZero, Fraction, GroupSize, NonNegative, Positive, Rate, Settings
from common.verification import Verifier
from worlds import generated_problems
from worlds.sums.writers import solution

import torch
from torch import Tensor


@dataclass
class Args(Settings):
    # R1
    stages: tuple[Literal["cold-start", "rl", "rejection", "distill"], ...] = ("rl",)
    """The stages, in this order. R1-Zero: rl. R1: cold-start rl rejection rl; and distill for a smaller model."""
    cold_start: str | None = None
    """File of solutions for the cold start, with the columns question and solution; the sums have their own."""
    cold_start_solutions: Count = 64
    """Number of cold-start solutions: a file's first rows, or the last sums of the data set. Paper: thousands."""
    rejection_prompts: Count = 2048
    """Training prompts of rejection sampling, with G responses each. Paper: 600,000 correct responses are kept."""
    student: str | None = None
    """Model to distill into, on the hub or in a folder; for the embedded one, itself without every other layer."""
    sft_epochs: Count = 4
    """Passes over the solutions in SFT. Paper 2 or 3; a small student needs more."""
    sft_batch: Count = 32
    """Solutions per update of SFT."""
    sft_lr: Rate = 1e-3
    """AdamW's peak learning rate in SFT, after --warmup-steps updates. Models of 1B and more: 5e-6 to 5e-5."""
    clip_eps: Positive = 10.0
    """ε: no gradient for ratios above 1 + ε with positive advantages, below 1 - ε with negative ones. R1: 10."""
    ddof: Literal[0, 1] = 1
    """The group's std divides by G - ddof: 1 gives the sample std of most code, 0 the population std."""
    kl_beta: NonNegative = 0.0
    """β: weight of the KL to the reference in the loss. Paper 0.001."""
    renew_every: CountOrZero = 0
    """n: steps after which the policy becomes the reference; 0: it is the model a stage starts from. Paper 400."""
    ratio_anchor: Literal["learner", "engine"] = "learner"
    """π_old in the ratio: log-probs recomputed by the learner, or reported by the engine (requires --tis-cap 0)."""
    tis_cap: NonNegative = 2.0
    """C: cap of the truncated importance weight π_old / π_engine; 0 disables it."""
    num_minibatches: Count = 4
    """Minibatches per rollout batch, with one optimizer update each."""
    update_epochs: Count = 1
    """Passes over each rollout batch; updates per batch = update_epochs * num_minibatches. Papers: 1 or 2."""
    responses_per_prompt: GroupSize = 8
    """G: responses per prompt, the group. Paper 16."""

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


def tis_weight(old_logp: Tensor, rollout_logp: Tensor, args: Args) -> Tensor:
    """(B, T) weights of truncated importance sampling: min(π_old / π_engine, C) per token (Yao et al., 2025)."""
    weight = torch.exp(old_logp - rollout_logp).clamp(max=args.tis_cap)  # (B, T)
    return weight if args.tis_cap > 0 else torch.ones_like(weight)


def kl_penalty(logp: Tensor, ref_logp: Tensor) -> Tensor:
    """Per-token k3 estimate (m, T) of KL(π_θ ‖ π_ref) (2402.03300, Eq. 4).

    On tokens from π_θ its value is unbiased and never negative. As a loss, its gradient is that of KL(π_ref ‖ π_θ).
    """
    return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1


def renew(reference: Any, model: Any) -> None:
    """Copy the policy's weights to the reference; each process copies its shard."""
    with torch.no_grad():
        for own, other in zip(reference.parameters(), model.parameters(), strict=True):
            local(own).copy_(local(other))


def sft_weights(mask: Tensor) -> Tensor:
    """(B, T) mask of the solutions of an update in, (B, T) weights out: 1 / Σ_i |o_i|, the same for every token."""
    return mask / mask.sum()


def sft_examples(
    solutions: list[dict[str, str]],
    train: list[Problem],
    held_out: list[Problem],
    model: Any,
    tokenizer: Any,
    args: Args,
) -> list[tuple[Problem, list[int]]]:
    """Problems, and solutions as token ids with EOS, for solutions that fit; none to a held-out question."""
    asked, known = {p.question for p in held_out}, {p.question: p for p in train}
    style = (args.prompt, tokenizer, args.system_prompt, few_shot_examples(args))
    examples = []
    for row in solutions:
        if (question := row["question"]) in asked:
            continue
        problem = known.get(question) or Problem(question, "", *make_prompt(question, *style))
        answer = [*tokenizer(row["solution"], add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        if len(answer) <= args.max_response_tokens and len(problem.prompt_ids) + len(answer) <= context_length(model):
            examples.append((problem, answer))
    if not examples:
        fail(f"none of {len(solutions)} solutions is to a training question and fits --max-response-tokens.")
    return examples


def sft(args: Args, solutions: list[dict[str, str]]) -> None:
    """Supervised fine-tuning of `args.model` on questions and solutions, in a run folder of its own."""
    if args.resume is None:
        args = replace(args, lr=args.sft_lr)
    with Run(args, __file__) as run:
        args = run.args
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        examples = sft_examples(solutions, train, held_out, model, tokenizer, args)
        if run.given.resume is None:
            args.steps = math.ceil(args.sft_epochs * len(examples) / args.sft_batch)

        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out):
            engine.sleep()
            some = sample_rows(examples, args.seed, (step - 1) * args.sft_batch, args.sft_batch)
            problems, answers = zip(*some, strict=True)
            lengths = [len(answer) for answer in answers]
            zeros, sampled = ([[value] * n for n in lengths] for value in (0.0, True))
            given = Rollouts(answers, logps=zeros, truncated=[False] * len(lengths), sampled=sampled)
            batch = collate(problems, given, model.device)
            rows_of_all, weights = torch.arange(len(lengths)), sft_weights(batch.token_mask)  # (B,), (B, T)
            for rows, w in micro_batches(rows_of_all, weights, batch, args):  # (m,), (m, T)
                logp, entropy = logps_and_entropies(model, batch, rows, args)  # (m, T), (m, T)
                loss = -(w * logp).sum()
                loss.backward()
                run.log_loss(loss, {"entropy": entropy}, w, batch.token_mask, rows)
            grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            run.check_update(grad_norm=grad_norm)  # ends the run if it is not finite
            optimizer.step()
            optimizer.zero_grad()
            run.log(length=sum(lengths) / len(lengths), response_tokens=sum(lengths))


def rejection_sample(args: Args, path: Path) -> None:
    """Write `args.model`'s correct responses to training prompts, without repeats, as lines of `path`."""
    model, tokenizer = load_model(args)
    train, held_out = load_problems(args, model, tokenizer)
    problems = sample_problems(train, min(args.rejection_prompts, len(train)), 1, args)
    P, G, solutions = args.prompts_per_step, args.responses_per_prompt, {}
    with (
        closing(Verifier(args, tokenizer, train + held_out)) as verifier,
        closing(make_engine(args, model, tokenizer, train + held_out)) as engine,
    ):
        for start in range(0, len(problems), P):
            some = problems[start : start + P]
            rollouts = engine.generate(some, G, 0, start)
            verifier(some, rollouts)
            texts = tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
            for i, correct in enumerate(rollouts.correct):
                if correct:
                    solutions[some[i // G].question, texts[i]] = None
    if not solutions:
        fail(f"rejection sampling: none of {G} responses to each of {len(problems)} prompts is correct.", code=1)
    if rank() == 0:
        rows = [{"question": question, "solution": text} for question, text in solutions]
        write_whole(path, "".join(json.dumps(row) + "\n" for row in rows))
    gather(None)  # wait until the file is there for all


def cold_start_solutions(args: Args) -> list[dict[str, str]]:
    """Correct solutions: those of a file, or for the sums step-by-step ones (worlds/sums)."""
    if args.cold_start is None:
        if args.dataset != "sums":
            fail("--stages cold-start needs solutions: name a file with --cold-start, or leave the stage out.")
        questions = [question for question, _ in generated_problems("sums", "train")[-args.cold_start_solutions :]]
        return [{"question": q, "solution": solution(random.Random(0), q, textbook=True)} for q in questions]
    rows = read_dataset(args.cold_start, None, "train", "cold_start")
    if absent := {"question", "solution"} - set(rows.column_names):
        fail(f"--cold-start {args.cold_start} has no column '{min(absent)}'.")
    return rows.select_columns(["question", "solution"]).to_list()[: args.cold_start_solutions]


def make_student(args: Args, folder: Path) -> None:
    """Write the embedded model without every other layer: a smaller one, which cannot do anything yet."""
    partial = folder.with_name("student-partial")
    shutil.rmtree(partial, ignore_errors=True)
    model, tokenizer = load_model(replace(args, lora_rank=0), placed=False)
    model.model.layers = model.model.layers[::2]
    model.config.num_hidden_layers = len(model.model.layers)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)


def check_stages(args: Args) -> None:
    """End the program if a later stage could not start, before the first one does."""
    if not args.stages:
        fail("--stages names no stage.")
    if args.sharded_checkpoints:
        fail("--sharded-checkpoints cannot be combined with several --stages, each of which loads another's model.")
    if args.replay_routing and {*args.stages} != {"rl"}:
        fail("--replay-routing is for --stages rl: no engine reports the experts of texts for SFT.")
    load_problems(args, *load_model(args))
    if "cold-start" in args.stages:
        cold_start_solutions(args)
    if "distill" in args.stages:
        if args.student is not None:
            load_problems(args, *load_model(args, setting="student"))
        elif args.model != "sums":
            fail("--stages distill needs a smaller model to train: name it with --student.")


def stage_folders(folder: Path, args: Args) -> list[Path]:
    """The run folders of the stages: 1-cold-start, 2-rl, ..."""
    return [folder / f"{number}-{stage}" for number, stage in enumerate(args.stages, 1)]


def outcome(folder: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The first held-out evaluation of a stage and the one after its last step, None if it is not done."""
    if not (folder / "metrics.jsonl").exists():
        return None
    steps = json.loads((folder / "config.json").read_text())["args"]["steps"]
    found = evaluations(read_metrics(folder))
    return (found[min(found)], found[steps]) if steps in found else None


def progress(folder: Path) -> tuple[bool, bool]:
    """Whether a stage has begun and whether it is done, as the process that writes its folder sees it."""
    return gather(((folder / "config.json").exists(), outcome(folder) is not None))[0]


class Stages(Run):
    """The folder of all stages, which holds a run folder for each."""

    MAY_CHANGE = SAME_RESULT  # each stage began with the result of the one before

    def summarize(self) -> None:
        """Print and write one table of the stages that are done."""
        lines = [
            "| stage | held out before | after | greedy before | after | length of correct answers before | after |"
        ]
        lines.append("|---|---|---|---|---|---|---|")
        folders = stage_folders(self.dir, self.args)
        for folder in folders:
            if found := outcome(folder):
                error = found[1]["eval/standard_error"]
                accuracies, greedy = ([f"{row[f'eval/{key}']:.3f}" for row in found] for key in ("avg", "greedy"))
                lengths = [f"{row['eval/length_correct'] or 0:.1f}" for row in found]
                cells = [folder.name, accuracies[0], f"{accuracies[1]} ± {error:.3f}", *greedy, *lengths]
                lines.append(f"| {' | '.join(cells)} |")
        write_whole(self.dir / "stages.md", "\n".join(lines) + "\n")
        lines += ["", f"stages                    {self.dir}"]
        if not all(map(outcome, folders)):
            lines.append(f"to resume                 {resume_command(self)}")
        self.write_line("\n" + "\n".join(lines))


def run_stages(args: Args) -> None:
    """Every stage in turn: finished ones are skipped, an interrupted one is resumed."""
    # Resuming a stage also runs all that follow it, except for a single stage of RL, which main runs.
    if args.resume is not None and (args.resume.parent / "config.json").exists():
        args = replace(args, resume=args.resume.parent)
    with Stages(args, __file__) as run:
        args, model, solutions = run.args, run.args.model, Path()
        student = args.student or str(run.dir / "student")
        if args.resume is None:
            check_stages(args)
            if rank() == 0:
                run.write_config()
            gather(None)  # it is there for all
        for number, folder in enumerate(stage_folders(run.dir, args)):
            stage = args.stages[number]
            if stage == "distill" and args.student is None and not gather((run.dir / "student").exists())[0]:
                if rank() == 0:
                    make_student(args, run.dir / "student")
                gather(None)  # wait until it is there
            start = {"rl": model, "distill": student}.get(stage, args.model)
            # Each stage has its own seed, so the second RL does not meet its problems in the order of the first.
            settings = {"seed": (args.seed + number) % (1 << 32), "stages": (stage,), "resume": None, "run_dir": folder}
            of_stage = replace(args, model=start, **settings)
            if stage == "rejection" or (stage == "distill" and not solutions.name):
                solutions = folder.with_suffix(".jsonl")
                if not gather(solutions.exists())[0]:
                    rejection_sample(replace(of_stage, model=model), solutions)
            begun, done = progress(folder)
            if begun:
                of_stage = Args(resume=folder, **{name: getattr(args, name) for name in SAME_RESULT})
            if not done:
                if stage == "rl":
                    main(of_stage)
                elif stage == "cold-start":
                    sft(of_stage, cold_start_solutions(args))
                else:
                    sft(of_stage, [json.loads(line) for line in solutions.read_text(encoding="utf-8").splitlines()])
            if any(gather(run.stop_requested > 0)) or not progress(folder)[1]:
                break
            model = str(checkpoints(folder)[-1])


def main(args: Args) -> None:
    # R1: a single stage of RL is the loop below.
    stages = (Run(args, __file__).saved_settings() if args.resume else args).stages
    if stages != ("rl",):
        return run_stages(args)
    with Run(args, __file__) as run:  # the run's folder, log and checkpoints; Ctrl-C and --resume
        args, P, G = run.args, run.args.prompts_per_step, run.args.responses_per_prompt
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        verifier = run.closing(Verifier(args, tokenizer, train + held_out))
        engine = run.closing(make_engine(args, model, tokenizer, train + held_out))
        optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=args.weight_decay, fused=True)
        reference = load_model(args)[0] if args.kl_beta > 0 else None

        # Sets the seed and learning rate before each step; logs, saves and evaluates after it.
        others = {"reference": reference} if reference else {}  # R1: saved in every checkpoint
        for step in run.steps(model, tokenizer, optimizer, engine, verifier, held_out, **others):
            # R1: the policy becomes the reference.
            if reference and args.renew_every > 0 and step > 1 and (step - 1) % args.renew_every == 0:
                renew(reference, model)
            # Sample G responses to each of P prompts, and verify their answers.
            engine.load_weights(model)
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
            advantages = compute_advantages(rewards, args).view(-1, 1).expand(mask.shape)  # (B, T)
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
