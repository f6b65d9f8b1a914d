"""Rows of data sets, from the hub, a local folder, or a local file, with their questions and final answers."""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import worlds
from common.cli import fail, first_line, flag, say
from common.settings import COLUMN, DATA_FILES, DataSettings, columns_in, local_path
from common.verification.answers import last_boxed, parse_number

# A question, as text or chat messages, its answer and, for a row of a data set, its place and all columns.
Pair = tuple[Any, ...]
MAX_EMPTY = 0.01  # rows without a question or answer are left out up to this fraction


@dataclass(frozen=True)
class Standard:
    """A data set on the hub that has a short name here. Without a training split it is for evaluation only."""

    hub: str
    config: str | None
    train_split: str | None
    eval_split: str
    question_column: str
    answer_column: str
    difficulty_column: str | None = None


STANDARD = {
    "gsm8k": Standard("openai/gsm8k", "main", "train", "test", "question", "answer"),
    "math500": Standard("HuggingFaceH4/MATH-500", None, None, "test", "problem", "answer", "level"),
    "aime24": Standard("HuggingFaceH4/aime_2024", None, None, "train", "problem", "answer"),
}


def final_answer(text: str) -> str:
    """The answer in a solution: in a last line after `####` (GSM8K), in the last box (MATH), or the text itself.

    >>> final_answer("He has 40 + 2 = 42 apples.\\n#### 42")
    '42'
    """
    last = text.rstrip().rpartition("\n")[2]
    if last.startswith("####"):
        answer = last.removeprefix("####").strip()
        return answer.replace(",", "") if parse_number(answer) else answer  # 1,234 but not (1,5)
    boxed = last_boxed(text)
    return (text if boxed is None else boxed).strip()


def read_dataset(name: str, config: str | None, split: str, setting: str = "dataset") -> Any:
    """One split of the data set that a setting names: on the hub, in a local folder, or a local file."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the error message below has the reason
    path, given = local_path(name), f"{flag(setting)} {name}"
    if name in STANDARD:
        path, name, config = None, STANDARD[name].hub, STANDARD[name].config
    if path and not path.exists():
        fail(f"{given}: no such file or folder.")
    if path and path.is_file():
        if path.suffix not in DATA_FILES:
            fail(f"{given}: a data file must end in {', '.join(DATA_FILES)}.")
        if config or split != "train":
            fail(f"{given} is a file, without splits or configurations: leave out those flags.")
    try:
        if path and path.is_dir():
            require_inside(path, given)
        if path and path.is_file():  # unlike load_dataset, these readers never use the network
            return getattr(datasets.Dataset, f"from_{DATA_FILES[path.suffix]}")(str(path))
        return datasets.load_dataset(str(path or name), config, split=split)
    except Exception as error:  # every reader raises its own
        fail(f"{given} (split {split}) cannot be read: {first_line(error.__cause__ or error)}")


def strings(value: Any) -> list[str]:
    """All strings in nested lists and in the values of dictionaries."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value] if isinstance(value, str) else [text for part in inner for text in strings(part)]


def require_inside(folder: Path, given: str) -> None:
    """End the program if the description of a data folder names data elsewhere, on this machine or another."""
    import yaml
    from huggingface_hub import DatasetCard

    card, more, described = folder / "README.md", folder / ".huggingface.yaml", {}
    if card.is_file():
        described |= DatasetCard.load(card).data.to_dict()
    if more.is_file():
        described |= yaml.safe_load(more.read_text(encoding="utf-8")) or {}
    for config in described.get("configs") or ():
        for name in strings([config.get("data_files"), config.get("data_dir")]):
            if Path(name).is_absolute() or ".." in Path(name).parts or ":" in name:
                fail(f"{given}: its description names data outside the folder, which are not read: {name!r:.80}")


def question_answer_pairs(args: DataSettings, split: str, setting: str) -> list[Pair]:
    """(question, final answer, where it is, all columns) of every row; a question may be text or chat messages.

    Columns are kept for reward functions only.
    """
    whole = read_dataset(args.dataset, args.dataset_config, split, setting)
    rows = whole.flatten()
    given = f"{flag(setting)} {args.dataset}"
    needed = [("answer", args.answer_column)]
    if "question" in (columns_in(args.prompt) or ["question"]):
        needed.append(("question", args.question_column))
    for kind, column in needed:
        if column not in rows.column_names:
            fail(f"{given} has no column '{column}': use --{kind}-column with one of {', '.join(rows.column_names)}.")
    if len(rows) == 0:
        fail(f"{given}: the split {split} is empty.")
    try:
        pairs = list(zip(questions(rows, args, given), rows[args.answer_column], strict=True))
    except UnicodeDecodeError as error:
        fail(f"{given} has text that is not UTF-8: {first_line(error)}")
    empty = [i for i, (q, a) in enumerate(pairs) if q in ("", None, []) or a in (None, []) or not str(a).strip()]
    if empty:  # MATH has two such rows; many of them mean that the columns are wrong
        what = f"{given}: {len(empty)} of {len(pairs)} rows of split {split} have an empty question or answer, "
        what += f"the first is row {empty[0]}"
        if len(empty) > MAX_EMPTY * len(pairs):
            fail(f"{what}; check --question-column and --answer-column.")
        say(f"note: {what}; they are left out.")
    found = []
    for i in sorted(set(range(len(pairs))) - set(empty)):
        question, answer = pairs[i]
        several = isinstance(answer, list | tuple)  # any of them is correct
        answer = tuple(final_answer(str(one)) for one in answer) if several else final_answer(str(answer))
        # A worker process gets the row as JSON, with dates and the like as text.
        row = json.loads(json.dumps(whole[i], default=str)) if args.reward else {}
        found.append((question, answer, f"row {i} of split {split}", row))
    return found


def questions(rows: Any, args: DataSettings, given: str) -> list[Any]:
    """The question column, or the prompt template filled with the columns that it names."""
    named = {name: args.question_column if name == "question" else name for name in columns_in(args.prompt)}
    if not named:
        return rows[args.question_column]
    columns = list(named.values())
    if absent := [column for column in columns if column not in rows.column_names]:
        fail(f"--prompt names {absent[0]}, but {given} has the columns {', '.join(rows.column_names)}.")
    if args.answer_column in columns:
        fail(f"--prompt shows {args.answer_column}, which is the column with the answers.")
    filled = [re.sub(COLUMN, lambda name, row=row: str(row[named[name[1]]]), args.prompt) for row in rows]
    if "question" in named and any(isinstance(row[args.question_column], list) for row in rows):
        fail(f"--prompt names columns, but the questions of {given} are chat messages: leave it out.")
    return [None if None in map(row.get, columns) else text for row, text in zip(rows, filled, strict=True)]


def pairs_of(name: str, part: str, args: DataSettings) -> list[Pair]:
    """(question, answer) of the part "train" or "eval" of a data set; `args` names its splits and columns."""
    if worlds.is_generated(name):
        return worlds.generated_problems(name, part)
    other = name != args.dataset  # --eval-dataset: --train-split does not apply, nor --dataset-config to a file
    args, split = replace(args, dataset=name), "train" if other else args.train_split
    if other and local_path(name):
        args.dataset_config = None
    if name in STANDARD:
        known = STANDARD[name]
        args.question_column, args.answer_column = known.question_column, known.answer_column
        split = known.train_split if part == "train" else known.eval_split
        if split is None:
            fail(f"--dataset {name} is for evaluation only: pass it as --eval-dataset.")
    elif part == "eval":
        split = args.eval_split or split
    return question_answer_pairs(args, split, "eval_dataset" if other else "dataset")
