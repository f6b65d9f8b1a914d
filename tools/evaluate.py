"""Evaluation: avg@n, the unbiased pass@k, and the lengths of correct and incorrect answers.

It prints what a training run logs about its held-out problems, for any model and data set:

    python -m tools.evaluate --model X --dataset gsm8k --k 1 8 64 --max-response-tokens 1024

The run folder holds all responses, one line per problem in samples.jsonl and greedy.jsonl, and the figures in
results.json. --resume continues an interrupted evaluation, with the same figures at the end. See docs/evaluating.md.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common.cli import fail, lacks_memory
from common.data import check_prompts, evaluation_pairs, few_shot_examples, first_problems, load_problems
from common.distributed import world_size
from common.engines import MAX_ROWS, Engine, make_engine, prompt_seeds
from common.environments import EpisodeEngine, load_environment
from common.evaluation import Outcome, behavior, figures, mean, pass_at_k, respond
from common.folders import open_folder, resume_flags, saved_settings, write_config, write_whole
from common.help import parse_args
from common.models import load_model
from common.records import Problem
from common.rows import STANDARD, questions, read_dataset
from common.settings import Count, DataSettings, NonNegative, Seed, dataset_names
from common.terminal import Terminal
from common.verification import Verifier
from common.verification.rewards import rehearse_rewards, summary
from tools.sampling import SamplingSettings
from tools.stats import aligned, fraction_interval
from worlds import DATASETS

MOST_CUT_OFF = 0.5  # warn if a larger fraction of the responses was cut off


@dataclass(kw_only=True)
class Args(SamplingSettings, DataSettings):
    k: tuple[Count, ...] = (1, 4, 16)
    """pass@k for each of these."""
    eval_samples: Count | None = None
    """n, the samples of each problem; by default the largest k. More make pass@k more certain."""
    eval_problems: Count | None = None
    """Only the first problems, this many (in --eval-seed's order, if that is not 0); by default all."""
    held_out: bool = False
    """Only the rows that a training run with the same settings would hold out of --train-split."""
    environment: str | None = None
    """Environment of the responses: guessing, calculator, retrieval, python, ADAPTER:TASK or file.py:NAME."""
    max_turns: Count = 8
    """Turns of an episode, with an --environment."""
    difficulty_column: str | None = None
    """Separate figures for each value of this column. Built in: the number of terms of sums, the level of math500."""
    max_response_tokens: Count | None = None
    """T: length limit of a response; embedded models have a default. Reasoning models need 1,000 to 30,000."""
    temperature: NonNegative = 1.0
    """Sampling temperature; 0 is greedy, for --k 1."""
    seed: Seed = 0
    """Seed of the samples; evaluations in training runs use their --eval-seed, by default 0."""
    run_dir: Path | None = None
    """Folder for samples and figures; by default a new one under runs/."""
    resume: Path | None = None
    """Run folder of an evaluation to resume."""

    def checked(self) -> "Args":
        args = super().checked()
        if not args.k or max(args.k) > (args.eval_samples or max(args.k)):
            fail(f"--k {' '.join(map(str, args.k))} needs numbers from 1 to --eval-samples {args.eval_samples or ''}.")
        if args.temperature == 0 and (args.eval_samples or max(args.k)) > 1:
            fail("--temperature 0 gives the same response each time: use --k 1.")
        if len(dataset_names(args)) > 1:
            fail("an evaluation uses one data set: pass one --dataset, and evaluate the others separately.")
        if args.held_out and args.eval_problems is None:
            fail("--held-out needs the --eval-problems of the training run, which decides the held-out rows.")
        if args.dataset in DATASETS and args.difficulty_column:
            fail("--difficulty-column belongs to a data set of your own: name it with --dataset.")
        return args


def load_evaluation(args: Args, model: Any, tokenizer: Any) -> list[Problem]:
    """The problems of an evaluation."""
    if args.held_out:
        return load_problems(args, model, tokenizer)[1]
    examples = few_shot_examples(args)
    pairs = evaluation_pairs(args, {question for question, _ in examples})[: args.eval_problems]
    if not pairs:
        fail("--few-shot holds every question of the evaluation: pass another file of examples or another data set.")
    problems = first_problems(pairs, len(pairs), "problems", args, tokenizer, examples)
    check_prompts(problems, model, args)
    return problems


def difficulty(args: Args) -> tuple[str, Callable[[Problem], Any]] | None:
    """The measure of difficulty: its name, and its value for a problem; None if it is unknown."""
    name = args.eval_dataset or args.dataset
    if name in DATASETS and DATASETS[name][0] in ("countdown", "search"):
        return "numbers", lambda problem: len(problem.answer.numbers)
    if name in DATASETS:
        return "terms", lambda problem: len(re.findall(r"\d+", problem.question))
    known = STANDARD.get(name)
    column = args.difficulty_column or (known and known.difficulty_column)
    if not column:
        return None
    split = known.eval_split if known else args.eval_split or args.train_split
    rows = read_dataset(name, args.dataset_config, split).flatten()
    if column not in rows.column_names:
        fail(f"--difficulty-column {column}: the data set has {', '.join(rows.column_names)}.")
    if known:
        args = replace(args, question_column=known.question_column, answer_column=known.answer_column)
    values = dict(zip(map(str, questions(rows, args, name)), rows[column], strict=True))
    return column, lambda problem: values[problem.question]


def readable(answer: Any) -> Any:
    """An answer in a form that JSON can store."""
    return answer if isinstance(answer, str | tuple) else str(answer)


class Samples:
    """A file with one line per finished problem; these are not sampled again."""

    def __init__(self, path: Path, problems: list[Problem], n: int, temperature: float) -> None:
        self.path, self.problems, self.n, self.temperature = path, problems, n, temperature
        # As many problems as the engine here computes at once, so a chunk gives the same responses as the whole list.
        self.chunk = max(1, MAX_ROWS // n)
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
        if len(lines) < len(problems):  # the end of a chunk may be missing
            lines = lines[: len(lines) // self.chunk * self.chunk]
        try:
            self.rows = [json.loads(line) for line in lines]
            same = [row["question"] for row in self.rows] == [p.question for p in problems[: len(lines)]]
        except (ValueError, TypeError, KeyError):
            same = False
        if not same:
            fail(f"{path} is damaged, or the data set has changed: start a new evaluation.")
        write_whole(path, "".join(line + "\n" for line in lines))

    def complete(self, engine: Engine, verifier: Verifier, args: Args, say: Callable[[str], None]) -> None:
        """Sample and verify the missing chunks, and append each one to the file."""
        seeds = prompt_seeds(len(self.problems), args.seed)
        for start in range(len(self.rows), len(self.problems), self.chunk):
            part = slice(start, start + self.chunk)
            problems = self.problems[part]
            rollouts, outcomes = respond(engine, verifier, problems, self.n, self.temperature, seeds[part])
            texts = verifier.tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
            rows = [
                {"question": problem.question, "answer": readable(problem.answer), "prompt": problem.prompt}
                | {"responses": texts[i * self.n : (i + 1) * self.n], **asdict(outcome), "verifier_failures": 0}
                for i, (problem, outcome) in enumerate(zip(problems, outcomes, strict=True))
            ]
            for i, row in enumerate(rows if rollouts.rewards else ()):  # what each function of --reward gave
                row["functions"] = rollouts.rewards[i * self.n : (i + 1) * self.n]
            rows[0]["verifier_failures"] = verifier.take_numbers()["verifier_failures"]  # of the chunk
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(row) + "\n" for row in rows))
            self.rows += rows
            correct = mean([ok for row in self.rows for ok in row["correct"]])
            say(f"{self.path.stem:7}  {len(self.rows)} of {len(self.problems)} problems, {correct:.3f} correct")

    def outcomes(self) -> list[Outcome]:
        return [Outcome(*(row[name] for name in Outcome.__annotations__)) for row in self.rows]


def with_intervals(sampled: list[Outcome], greedy: list[Outcome], ks: list[int]) -> dict[str, Any]:
    """The figures of some problems, with 95 % intervals over problems for those that are fractions."""
    n, found = len(sampled[0].correct), figures(sampled, greedy, ks)
    of_each = {f"pass@{k}": [pass_at_k(n, sum(outcome.correct), k) for outcome in sampled] for k in ks}
    of_each |= {"avg": [sum(o.correct) / n for o in sampled], "greedy": [float(o.correct[0]) for o in greedy]}
    return {"problems": len(sampled), **found} | {f"{k}_interval": fraction_interval(v) for k, v in of_each.items()}


def table(rows: dict[str, dict[str, Any]], ks: list[int]) -> str:
    """The figures of all problems and of each difficulty, in columns; pass@1 is avg@n."""
    n = rows["all"]["n"]
    fractions = {"avg": f"avg@{n}"} | {f"pass@{k}": f"pass@{k}" for k in ks if k > 1} | {"greedy": "greedy"}
    lines = [["", "problems", *fractions.values(), "cut off", "tokens correct", "incorrect"]]
    for name, found in rows.items():
        cells = [name, str(found["problems"])]
        for key in fractions:
            low, high = found[f"{key}_interval"]
            cells.append(f"{found[key]:.3f} [{low:.3f}, {high:.3f}]")
        lengths = ["-" if found[key] is None else f"{found[key]:.1f}" for key in ("length_correct", "length_incorrect")]
        lines.append([*cells, f"{found['truncated']:.3f}", *lengths])
    return aligned(lines)


def main(args: Args) -> None:
    if world_size() > 1:
        fail("an evaluation runs in one process: leave out torchrun.")
    folder = None
    try:
        with ExitStack() as stack:
            args = (saved_settings(args, "evaluate")[0] if args.resume else args).checked()
            terminal = Terminal(lambda: None)
            stack.callback(terminal.close)
            folder = open_folder(args, "evaluate", stack)
            run(args, folder, terminal.write_line, stack)
    except KeyboardInterrupt:
        fail(f"stopped. {resume_hint(folder, args)}", 130)
    except Exception as error:
        if not lacks_memory(error):
            raise
        fail(f"not enough memory: lower --eval-samples or --max-response-tokens. {resume_hint(folder, args)}", 1)


def resume_hint(folder: Path | None, args: Args) -> str:
    if folder is None or not (folder / "config.json").exists():
        return "Nothing was written."
    return f"Finished problems are saved. Resume: python -m tools.evaluate {resume_flags(folder, args)}"


def run(args: Args, folder: Path, say: Callable[[str], None], stack: ExitStack) -> None:
    """Sample, verify and print the figures."""
    rehearse_rewards(args, args.eval_dataset or args.dataset, "eval")
    environment = load_environment(args.environment) if args.environment else None
    model, tokenizer = load_model(args)
    model.requires_grad_(False)  # so no gradients take memory
    problems, graded = load_evaluation(args, model, tokenizer), difficulty(args)
    verifier = Verifier(args, tokenizer, problems)
    stack.callback(verifier.close)
    engine = make_engine(args, model, tokenizer, problems)
    engine.top_p, engine.top_k = args.top_p, args.top_k
    stack.callback(engine.close)
    if environment:
        engine = EpisodeEngine(engine, environment, tokenizer, args, args.max_turns)
    if not (folder / "config.json").exists():
        write_config(folder, "evaluate", args)
    n, ks = args.eval_samples or max(args.k), sorted(set(args.k))
    sampled = Samples(folder / "samples.jsonl", problems, n, args.temperature)
    greedy = Samples(folder / "greedy.jsonl", problems, 1, 0.0)
    for samples in (sampled, greedy):
        samples.complete(engine, verifier, args, say)

    outcomes = list(zip(sampled.outcomes(), greedy.outcomes(), strict=True))
    groups = defaultdict(list)
    if graded:
        for problem, outcome in zip(problems, outcomes, strict=True):
            groups[graded[1](problem)].append(outcome)
    names = sorted(groups, key=lambda value: (0, value, "") if isinstance(value, int | float) else (1, 0, str(value)))
    rows = {"all": with_intervals(*map(list, zip(*outcomes, strict=True)), ks)}
    rows |= {f"{graded[0]} {name}": with_intervals(*map(list, zip(*groups[name], strict=True)), ks) for name in names}
    rows["all"]["verifier_failures"] = sum(row["verifier_failures"] for row in sampled.rows + greedy.rows)
    found = behavior(problems, [text for row in sampled.rows for text in row["responses"]], args)
    rows["all"] |= found
    if args.reward:
        rewards = {"reward": mean([reward for outcome, _ in outcomes for reward in outcome.rewards])}
        given = [of_response for row in sampled.rows for of_response in row["functions"]]
        for name in given[0]:
            rewards |= summary(name, [of_response[name] for of_response in given])
        rows["all"] |= rewards
        found |= rewards
    write_whole(folder / "results.json", json.dumps(rows, indent=2) + "\n")
    part = f" (top-p {args.top_p:g}, top-k {args.top_k})" if args.top_p < 1 or args.top_k else ""
    say(
        f"\n{args.model} on {args.eval_dataset or args.dataset}: {n} samples of each problem at temperature "
        f"{args.temperature:g}{part}, at most {args.max_response_tokens} tokens; 95 % intervals over problems\n"
    )
    say(table(rows, ks))
    if found:
        say("\n" + aligned([[name, "-" if value is None else f"{value:.3f}"] for name, value in found.items()]))
    if rows["all"]["truncated"] > MOST_CUT_OFF:
        say(f"warning: most responses were cut off: raise --max-response-tokens {args.max_response_tokens}.")
    say(f"\nresponses and figures     {folder}")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
