"""Problems: generated ones, or any data set of questions and answers, as token ids."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import worlds
from common.cli import fail, first_line, say
from common.foreign import time_limit
from common.models import context_length
from common.records import Problem
from common.rows import STANDARD, Pair, columns_in, pairs_of, read_dataset
from common.settings import OF_EACH_DATASET, DataSettings, Settings, dataset_names, local_path
from common.verification.answers import last_boxed

import numpy as np

INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
R = TypeVar("R")
Examples = Sequence[tuple[str, str]]  # questions and answers that stand before each question
Added = Callable[[Any], str]  # a question in, text to append to it out


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
    if columns_in(template):  # the question is the filled template
        template = "{question}"
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


def held_out_sets(args: Settings) -> list[Settings]:
    """The settings of each held-out set: that of each data set, or of one data set several `--eval-dataset`."""
    if len(dataset_names(args)) > 1 or not isinstance(args.eval_dataset, tuple):
        return settings_of_each(args)
    names = args.eval_dataset
    return [
        replace(args, eval_dataset=name, eval_problems=(args.eval_problems + len(names) - 1 - i) // len(names))
        for i, name in enumerate(names)
    ]


def held_out_pairs(args: Settings, train: list[Pair], shown: set[str]) -> tuple[list[Pair], int]:
    """Candidates for the held-out problems, and how many to take. Without others they are rows of `train`, shuffled."""
    if args.eval_dataset or args.eval_split or worlds.is_generated(args.dataset) or args.dataset in STANDARD:
        others = pairs_of(args.eval_dataset or args.dataset, "eval", args)
        return [pair for pair in others if str(pair[0]) not in shown], args.eval_problems
    random.Random(2026).shuffle(train)  # the same ones are held out for every seed, to keep runs comparable
    return train, min(args.eval_problems, len(train) // 5)


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


def first_problems(
    pairs: list[Pair], count: int, args: DataSettings, model: Any, tokenizer: Any, examples: Examples, added: Added
) -> tuple[list[Problem], int]:
    """The first `count` problems whose prompts are short enough, and how many before them are too long."""
    problems: list[Problem] = []
    tried = 0
    while len(problems) < count and tried < len(pairs):
        part = pairs[tried : tried + count - len(problems)]
        problems += [problem for problem in make_problems(part, args, model, tokenizer, examples, added) if problem]
        tried += len(part)
    return problems, tried - len(problems)


def load_problems(
    args: Settings, model: Any, tokenizer: Any, added: Added = lambda q: ""
) -> tuple[list[Problem], list[Problem]]:
    """Training problems and `args.eval_problems` held-out ones, disjoint by question."""
    examples = few_shot_examples(args)
    making, shown = (model, tokenizer, examples, added), {question for question, _ in examples}
    sets, names = settings_of_each(args), short_names(dataset_names(args))
    pairs = [[pair for pair in pairs_of(one.dataset, "train", one) if str(pair[0]) not in shown] for one in sets]
    weights, train, held_out = args.mix or [1.0] * len(sets), [], []
    tests = held_out_sets(args)
    test_names = names if len(sets) > 1 else short_names(tuple(str(one.eval_dataset) for one in tests))
    for i, (one, name) in enumerate(zip(tests, test_names, strict=True)):
        candidates, count = held_out_pairs(one, pairs[i if len(sets) > 1 else 0], shown)
        found, too_long = first_problems(candidates, count, one, *making)
        if too_long and not found:
            fail(f"all problems{of(name)} {too_long_prompts(one)}: raise --max-prompt-tokens.")
        if too_long:
            say(f"note: {too_long} held-out problems{of(name)} {too_long_prompts(one)}; others take their place.")
        if not found:
            what = f"--dataset {one.dataset} has {len(pairs[0])} rows, too few to hold any out"
            fail(f"{what}: pass held-out problems as --eval-split or --eval-dataset.")
        if len(found) < one.eval_problems:
            say(f"note: {len(found)} held-out problems{of(name)}, not {one.eval_problems}: there are no more.")
        held_out += [replace(problem, dataset=name) for problem in found]
    asked = {problem.question for problem in held_out}
    for one, name, weight, rows in zip(sets, names, weights, pairs, strict=True):
        rows = [pair for pair in rows if str(pair[0]) not in asked]
        if not rows:
            fail(f"--dataset {one.dataset}: every training question is also a held-out one.")
        found, too_long = first_problems(rows, len(rows), one, *making)
        if not found:
            fail(f"all training problems{of(name)} {too_long_prompts(one)}: raise --max-prompt-tokens.")
        if too_long:
            what = f"{too_long} of {len(rows)} training problems{of(name)} {too_long_prompts(one)}"
            say(f"note: {what}; they are left out.")
        train += [replace(problem, dataset=name, weight=weight / sum(weights)) for problem in found]
    return train, held_out


def of(name: str) -> str:
    return f" of {name}" if name else ""


def too_long_prompts(args: DataSettings) -> str:
    return f"have prompts of more than {args.max_prompt_tokens} tokens"


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
