"""Problems: generated ones, or any data set of questions and answers, as token ids."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import worlds
from common.cli import fail, first_line, flag, say
from common.foreign import require_inside, time_limit
from common.models import context_length
from common.records import Problem
from common.settings import DATA_FILES, OF_EACH_DATASET, DataSettings, Settings, dataset_names, local_path
from common.verification.answers import last_boxed, parse_number

import numpy as np

INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
R = TypeVar("R")
# A question, as text or chat messages, its answer and, of a row of a data set, where it is and all columns.
Pair = tuple[Any, ...]
Examples = Sequence[tuple[str, str]]  # questions and answers that stand before each question
Added = Callable[[Any], str]  # a question in, text to append to it out
MAX_EMPTY = 0.01  # largest fraction of rows without a question or answer that is left out


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
    """The answer in a solution: after `####` (GSM8K), in the last box (MATH), or the text itself.

    >>> final_answer("He has 40 + 2 = 42 apples.\\n#### 42")
    '42'
    """
    if "####" in text:
        answer = text.rsplit("####", 1)[1].strip()
        return answer.replace(",", "") if parse_number(answer) else answer  # 1,234 but not (1,5)
    boxed = last_boxed(text)
    return (text if boxed is None else boxed).strip()


def correct_answers(answer: Any) -> str | tuple[str, ...]:
    """The final answer of a row, or those of a list, any of which is correct."""
    if isinstance(answer, list | tuple):
        return tuple(final_answer(str(one)) for one in answer)
    return final_answer(str(answer))


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    """A row as a worker process gets it: what JSON lacks, such as a date, as text."""
    return json.loads(json.dumps(row, default=str))


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
    except Exception as error:  # every reader has its own kinds
        fail(f"{given} (split {split}) cannot be read: {first_line(error.__cause__ or error)}")


def question_answer_pairs(args: DataSettings, split: str, setting: str) -> list[Pair]:
    """(question, final answer, where it is, all columns) of every row; a question may be text or chat messages.

    Columns are kept for reward functions only.
    """
    whole = read_dataset(args.dataset, args.dataset_config, split, setting)
    rows = whole.flatten()
    given = f"{flag(setting)} {args.dataset}"
    for kind, column in (("question", args.question_column), ("answer", args.answer_column)):
        if column not in rows.column_names:
            fail(f"{given} has no column '{column}': use --{kind}-column with one of {', '.join(rows.column_names)}.")
    if len(rows) == 0:
        fail(f"{given}: the split {split} is empty.")
    try:
        pairs = list(zip(rows[args.question_column], rows[args.answer_column], strict=True))
    except UnicodeDecodeError as error:
        fail(f"{given} has text that is not UTF-8: {first_line(error)}")
    empty = [i for i, (q, a) in enumerate(pairs) if q in ("", None, []) or a in (None, []) or not str(a).strip()]
    if empty:  # MATH has two such rows; many of them mean that the columns are wrong
        what = f"{given}: {len(empty)} of {len(pairs)} rows of split {split} have an empty question or answer, "
        what += f"the first is row {empty[0]}"
        if len(empty) > MAX_EMPTY * len(pairs):
            fail(f"{what}; check --question-column and --answer-column.")
        say(f"note: {what}; they are left out.")
    left_out = set(empty)
    return [
        (question, correct_answers(answer), f"row {i} of split {split}", as_json(whole[i]) if args.reward else {})
        for i, (question, answer) in enumerate(pairs)
        if i not in left_out
    ]


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


def few_shot_examples(args: DataSettings) -> list[tuple[str, str]]:
    """The questions and answers of the file that `--few-shot` names."""
    if args.few_shot is None:
        return []
    rows = read_dataset(args.few_shot, None, "train", "few_shot")
    if absent := {"question", "answer"} - set(rows.column_names):
        fail(f"--few-shot {args.few_shot} has no column '{min(absent)}': add it.")
    examples = [(str(question), str(answer)) for question, answer in zip(rows["question"], rows["answer"], strict=True)]
    if args.answer_format == "boxed" and not args.reward and not any(last_boxed(answer) for _, answer in examples):
        say("note: no answer in --few-shot has a \\boxed{}, where the verifier reads the answer.")
    return examples


def make_prompt(
    question: Any, template: str | None, tokenizer: Any, system: str | None = None, examples: Examples = ()
) -> tuple[str, list[int]]:
    """The prompt as text and token ids, with the tokenizer's chat template if it has one.

    Without `template`, a chat model is asked to reason and to box its answer; other models read the question and a line
    break. Examples are earlier turns of a chat, or text followed by an empty line, as in lm-evaluation-harness.
    """
    chat = tokenizer.chat_template is not None
    template = template or ("{question}" + INSTRUCTION if chat else "{question}\n")
    if system is not None and not chat:
        fail("--system-prompt is for chat models, and this model's tokenizer has no chat template: use --prompt.")
    if isinstance(question, list) and not chat:
        fail("the questions are chat messages, but this model's tokenizer has no chat template: use a chat model.")
    messages = question
    if not isinstance(question, list):
        messages = [{"role": "user", "content": template.replace("{question}", str(question))}]
    head = [message for message in messages[:1] if message.get("role") == "system"]
    rest = messages[len(head) :]
    if system is not None and head:
        fail(f"--system-prompt: the questions have their own, leave it out: {head[0].get('content')!r:.80}")
    if system is not None:
        head = [{"role": "system", "content": system}]
    shown = [(template.replace("{question}", asked), answer) for asked, answer in examples]
    if chat:
        turns = [{"role": r, "content": text} for q, a in shown for r, text in (("user", q), ("assistant", a))]
        messages = [*head, *turns, *rest]
        try:
            with time_limit():
                text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # of any kind
            fail(f"the model's chat template refuses a question ({first_line(error)}): {str(messages)[:80]}")
    else:
        text = "".join(f"{q}{'' if q[-1:].isspace() else ' '}{a}\n\n" for q, a in shown) + rest[0]["content"]
    return text, tokenizer(text, add_special_tokens=not chat)["input_ids"]  # a template has the special tokens


def add_text(question: Any, text: str) -> Any:
    """A question, as text or chat messages, with a text appended to it or to its last message."""
    if not isinstance(question, list):
        return f"{question}{text}"
    return [*question[:-1], question[-1] | {"content": question[-1]["content"] + text}] if text else question


def settings_of_each(args: Settings) -> list[Settings]:
    """The settings of each data set as if it were the only one, with its part of the held-out problems."""
    names, each = dataset_names(args), []
    for i, name in enumerate(names):
        own = {key: v[i] if isinstance(v := getattr(args, key), tuple) else v for key in OF_EACH_DATASET}
        held_out = (args.eval_problems + len(names) - 1 - i) // len(names)
        each.append(replace(args, dataset=name, eval_problems=held_out, **own))
    return each


def short_names(names: tuple[str, ...]) -> list[str]:
    """The last parts of each name, as many as are needed to distinguish them; "" if there is only one name."""
    parts = [name.split("/") if local_path(name) is None else Path(name).with_suffix("").parts for name in names]
    for length in range(1, max(map(len, parts)) + 1):
        short = ["/".join(part[-length:]) for part in parts]
        if len(set(short)) == len(names):
            return short if len(names) > 1 else [""]
    return list(names)


def read_pairs(args: Settings, shown: set[str]) -> tuple[list[Pair], list[Pair]]:
    """Training and held-out pairs of one data set, without the questions `shown` in examples."""

    def others(pairs: list[Pair]) -> list[Pair]:
        return [pair for pair in pairs if str(pair[0]) not in shown]

    train = others(pairs_of(args.dataset, "train", args))
    if args.eval_dataset or args.eval_split or worlds.is_generated(args.dataset) or args.dataset in STANDARD:
        held_out = others(pairs_of(args.eval_dataset or args.dataset, "eval", args))
    else:  # hold some rows out, the same ones for every seed, to keep runs comparable
        random.Random(2026).shuffle(train)
        count = min(args.eval_problems, len(train) // 5)
        train, held_out = train[count:], train[:count]
    if not held_out:
        what = f"--dataset {args.dataset} has {len(train)} rows, too few to hold any out"
        fail(f"{what}: pass held-out problems as --eval-split or --eval-dataset.")
    if len(held_out) < args.eval_problems:
        say(f"note: {len(held_out)} held-out problems, not {args.eval_problems}: there are no more.")
    return train, held_out[: args.eval_problems]


def make_problems(
    pairs: list[Pair], args: DataSettings, model: Any, tokenizer: Any, examples: Examples, added: Added = lambda q: ""
) -> list[Problem | None]:
    """The problem of each (question, answer), None where the prompt is longer than `args.max_prompt_tokens`."""
    context, vocabulary = context_length(model), model.get_input_embeddings().num_embeddings
    problems: list[Problem | None] = []
    for question, answer, *more in pairs:
        asked = add_text(question, added(question))
        prompt, prompt_ids = make_prompt(asked, args.prompt, tokenizer, args.system_prompt, examples)
        if not prompt_ids:
            fail("a prompt has no tokens: check --prompt and --question-column.")
        if max(prompt_ids) >= vocabulary:
            fail(f"the tokenizer uses token {max(prompt_ids)}, but the model has only {vocabulary}: {prompt[:80]!r}")
        if args.max_prompt_tokens and len(prompt_ids) > args.max_prompt_tokens:
            problems.append(None)
            continue
        if len(prompt_ids) + args.max_response_tokens > context:
            what = f"a prompt of {len(prompt_ids)} tokens and --max-response-tokens {args.max_response_tokens} exceed "
            what += f"the model's context of {context} tokens: lower --max-response-tokens, or leave out long prompts"
            fail(f"{what} with --max-prompt-tokens. The prompt: {prompt[:80]!r}")
        origin = dict(zip(("where", "row"), more, strict=False))  # a generated problem has none
        problems.append(Problem(str(question), answer, prompt, list(prompt_ids), **origin))
    return problems


def load_problems(
    args: Settings, model: Any, tokenizer: Any, added: Added = lambda q: ""
) -> tuple[list[Problem], list[Problem]]:
    """Training problems and `args.eval_problems` held-out ones, disjoint by question."""
    examples = few_shot_examples(args)
    sets, names = settings_of_each(args), short_names(dataset_names(args))
    weights = args.mix or [1.0] * len(sets)
    pairs = [read_pairs(one, {question for question, _ in examples}) for one in sets]
    asked = {str(question) for _, held_out in pairs for question, *_ in held_out}
    problems: tuple[list[Problem], list[Problem]] = ([], [])
    for one, name, weight, (train, held_out) in zip(sets, names, weights, pairs, strict=True):
        train = [pair for pair in train if str(pair[0]) not in asked]
        if not train:
            fail(f"--dataset {one.dataset}: every training question is also a held-out one.")
        made = [make_problems(part, one, model, tokenizer, examples, added) for part in (train, held_out)]
        kept = [[problem for problem in part if problem] for part in made]
        if any(too_long := [part.count(None) for part in made]):
            what = (
                f"{too_long[0]} of {len(train)} training problems and {too_long[1]} of {len(held_out)} held-out ones "
            )
            what += f"{f'of {name} ' if name else ''}have prompts of more than {one.max_prompt_tokens} tokens"
            if not all(kept):
                fail(f"{what}: raise --max-prompt-tokens.")
            say(f"note: {what}; they are left out.")
        for part, all_of_part in zip(kept, problems, strict=True):
            all_of_part.extend(replace(problem, dataset=name, weight=weight / sum(weights)) for problem in part)
    return problems


@lru_cache(maxsize=16)
def shuffled(seed: int, epoch: int, size: int) -> list[int]:
    return random.Random(f"{seed}-{epoch}").sample(range(size), size)


def sample_rows(rows: list[R], seed: int, start: int, count: int) -> list[R]:
    """Rows `start` to `start + count` of an endless stream of reshuffled passes, which depends on the seed alone."""
    sampled, size = [], len(rows)
    while len(sampled) < count:
        epoch, offset = divmod(start + len(sampled), size)
        sampled += [rows[i] for i in shuffled(seed, epoch, size)[offset : offset + count - len(sampled)]]
    return sampled


def problem_stream(problems: list[Problem], seed: int, start: int, count: int) -> list[Problem]:
    """`sample_rows` of problems; of several data sets each has its own stream, and the mixing weights choose one.

    The choice depends on the seed and the problem's number alone. `datasets.interleave_datasets` would end with the
    data, and would repeat each data set in the same order.
    """
    parts: dict[str, list[Problem]] = {}
    for problem in problems:
        parts.setdefault(problem.dataset, []).append(problem)
    if len(parts) == 1:
        return sample_rows(problems, seed, start, count)
    weights = [part[0].weight for part in parts.values()]
    chosen = np.random.default_rng(seed).choice(len(parts), start + count, p=weights)  # the first ones never change
    streams = [
        iter(sample_rows(part, seed, int((chosen[:start] == i).sum()), int((chosen[start:] == i).sum())))
        for i, part in enumerate(parts.values())
    ]
    return [next(streams[i]) for i in chosen[start:]]


def sample_problems(problems: list[Problem], count: int, number: int, args: Settings) -> list[Problem]:
    """The `count` problems of batch `number`, counted from 1, in the endless stream of `args.seed`."""
    return problem_stream(problems, args.seed, (number - 1) * count, count)
