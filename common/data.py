"""Problems as token ids: generated ones, or any data set of questions and answers."""

import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import worlds
from common.cli import fail, first_line, say
from common.models import context_length
from common.records import Problem
from common.rows import STANDARD, Pair, pairs_of, read_dataset
from common.settings import OF_EACH_DATASET, DataSettings, Settings, columns_in, dataset_names, local_path
from common.verification.answers import last_boxed

import numpy as np

INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
PROMPT_SECONDS = 10.0  # of processor time, for a chat template to make a prompt
AGAIN = 0.5  # seconds until code that runs on past its time limit is interrupted again
R = TypeVar("R")
Examples = Sequence[tuple[str, str]]  # questions and answers that come before each question
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


class OutOfTime(BaseException):
    """A time limit has passed. It is not an Exception, so `except Exception` does not catch it."""


@contextmanager
def time_limit(seconds: float, wall: bool = False) -> Iterator[None]:
    """Raise TimeoutError after a block that takes too much processor or wall time; in the main thread only.

    The block is interrupted at its limit, and so is any clean-up that takes longer than AGAIN.
    """
    late = False

    def stop(*_: Any) -> None:
        nonlocal late
        late = True
        raise OutOfTime

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    timer, number = (signal.ITIMER_REAL, signal.SIGALRM) if wall else (signal.ITIMER_VIRTUAL, signal.SIGVTALRM)
    before = signal.signal(number, stop)
    signal.setitimer(timer, seconds, AGAIN)
    try:
        yield
    except OutOfTime:
        pass
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)
    if late:
        raise TimeoutError(f"it takes more than {seconds:g} seconds")


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
    shown = [(template.replace("{question}", asked), answer) for asked, answer in examples]
    if not isinstance(question, list):
        question = [{"role": "user", "content": template.replace("{question}", str(question))}]
    if not chat:
        text = "".join(f"{q}{'' if q[-1:].isspace() else ' '}{a}\n\n" for q, a in shown) + question[0]["content"]
        return text, tokenizer(text)["input_ids"]
    first = sum(message.get("role") == "system" for message in question[:1])  # 1 after a system message
    if system is not None and first:
        fail(f"--system-prompt: the questions have their own, leave it out: {question[0].get('content')!r:.80}")
    if system is not None:
        question, first = [{"role": "system", "content": system}, *question], 1
    turns = [{"role": r, "content": text} for q, a in shown for r, text in (("user", q), ("assistant", a))]
    messages = [*question[:first], *turns, *question[first:]]
    text = filled_template(messages, tokenizer)
    return text, tokenizer(text, add_special_tokens=False)["input_ids"]  # the template adds them


def filled_template(messages: list[dict[str, str]], tokenizer: Any) -> str:
    """Messages in the chat template; ends the program if it raises an exception or takes too long."""
    try:
        with time_limit(PROMPT_SECONDS):
            return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    except Exception as error:  # of any kind
        fail(f"the model's chat template refuses a question ({first_line(error)}): {str(messages)[:80]}")


def add_text(question: Any, text: str) -> Any:
    """A question, as text or chat messages, with a text appended to it or to its last message."""
    if not isinstance(question, list):
        return f"{question}{text}"
    return [*question[:-1], question[-1] | {"content": question[-1]["content"] + text}] if text else question


def settings_of_each(args: Settings, count: int) -> list[Settings]:
    """The settings of each of `count` data sets as if it were the only one, with its part of the held-out problems."""
    each = []
    for i in range(count):
        values = {name: getattr(args, name) for name in ("dataset", *OF_EACH_DATASET)}
        own = {name: v[i % len(v)] if isinstance(v, tuple) else v for name, v in values.items()}
        each.append(replace(args, eval_problems=(args.eval_problems + count - 1 - i) // count, **own))
    return each


def short_names(names: tuple[str, ...]) -> list[str]:
    """The last parts of each name, as many as are needed to distinguish them; "" if there is only one name."""
    parts = [name.split("/") if local_path(name) is None else Path(name).with_suffix("").parts for name in names]
    for length in range(1, max(map(len, parts)) + 1):
        short = ["/".join(part[-length:]) for part in parts]
        if len(set(short)) == len(names):
            return short if len(names) > 1 else [""]
    return list(names)


def evaluation_pairs(args: DataSettings, shown: set[str]) -> list[Pair]:
    """The rows to evaluate on without those that are `shown` as examples, in an order set by `args.eval_seed`."""
    pairs = pairs_of(args.eval_dataset or args.dataset, "eval", args)
    pairs = [pair for pair in pairs if str(pair[0]) not in shown]
    return random.Random(args.eval_seed).sample(pairs, len(pairs)) if args.eval_seed else pairs


def held_out_pairs(args: Settings, train: list[Pair], shown: set[str]) -> tuple[list[Pair], int]:
    """Candidates for the held-out problems, and how many to take; by default shuffled rows of `train`."""
    if args.eval_dataset or args.eval_split or worlds.is_generated(args.dataset) or args.dataset in STANDARD:
        return evaluation_pairs(args, shown), args.eval_problems
    random.Random(2026 + args.eval_seed).shuffle(train)
    return train, min(args.eval_problems, len(train) // 5)


def first_problems(pairs: list[Pair], count: int, kind: str, args: DataSettings, *prompt: Any) -> list[Problem]:
    """The first `count` problems whose prompts are short enough; `kind` names them in messages.

    `prompt` has the rest that makes a prompt: tokenizer, few-shot examples, and perhaps a text to add.
    """
    problems, too_long = [], 0
    for pair in pairs:
        if len(problems) == count:
            break
        problem = make_problem(pair, args, *prompt)
        problems += [problem] if problem else []
        too_long += problem is None
    what = f"{kind} have prompts of more than {args.max_prompt_tokens} tokens"
    if too_long and not problems:
        fail(f"all {what}: raise --max-prompt-tokens.")
    if too_long:
        say(f"note: {too_long} of {too_long + len(problems)} {what}; they are left out.")
    return problems


def make_problem(
    pair: Pair, args: DataSettings, tokenizer: Any, examples: Examples, added: Added = lambda question: ""
) -> Problem | None:
    """The problem of a question and answer, or None if the prompt is longer than `args.max_prompt_tokens`."""
    question, answer, *more = pair
    asked = add_text(question, added(question))
    prompt, prompt_ids = make_prompt(asked, args.prompt, tokenizer, args.system_prompt, examples)
    if not prompt_ids:
        fail("a prompt has no tokens: check --prompt and --question-column.")
    if args.max_prompt_tokens and len(prompt_ids) > args.max_prompt_tokens:
        return None
    origin = dict(zip(("where", "row"), more, strict=False))  # a generated problem has none
    messages = question if isinstance(question, list) else None
    return Problem(str(question), answer, prompt, list(prompt_ids), **origin, messages=messages)


def check_prompts(problems: list[Problem], model: Any, args: DataSettings) -> None:
    """End the program if a prompt and its response exceed the model's context, or a token has no embedding."""
    context, vocabulary = context_length(model), model.get_input_embeddings().num_embeddings
    for problem in problems:
        length, shown = len(problem.prompt_ids), f"{problem.prompt[:80]!r}"
        if (largest := max(problem.prompt_ids)) >= vocabulary:
            fail(f"the tokenizer uses token {largest}, but the model has only {vocabulary}: {shown}")
        if length + args.max_response_tokens > context:
            what = f"a prompt of {length} tokens and --max-response-tokens {args.max_response_tokens} exceed the "
            what += f"model's context of {context} tokens: lower --max-response-tokens, or leave out long prompts with "
            fail(f"{what}--max-prompt-tokens. The prompt: {shown}")


def load_problems(
    args: Settings, model: Any, tokenizer: Any, added: Added = lambda question: ""
) -> tuple[list[Problem], list[Problem]]:
    """Training problems and `args.eval_problems` held-out ones, disjoint by question."""
    examples, names = few_shot_examples(args), dataset_names(args)
    prompt, shown = (tokenizer, examples, added), {question for question, _ in examples}
    sets = tests = settings_of_each(args, len(names))
    train_names = test_names = short_names(names)
    if len(names) == 1 and isinstance(args.eval_dataset, tuple):
        tests, test_names = settings_of_each(args, len(args.eval_dataset)), short_names(args.eval_dataset)
    pairs = {one.dataset: [p for p in pairs_of(one.dataset, "train", one) if str(p[0]) not in shown] for one in sets}
    weights, train, held_out = args.mix or [1.0] * len(sets), [], []
    for one, name in zip(tests, test_names, strict=True):
        candidates, count = held_out_pairs(one, pairs[one.dataset], shown)
        found = first_problems(candidates, count, f"held-out problems{of(name)}", one, *prompt)
        if not found:
            what = f"--dataset {one.dataset} has {len(pairs[one.dataset])} rows, too few to hold any out"
            fail(f"{what}: pass held-out problems as --eval-split or --eval-dataset.")
        if len(found) < one.eval_problems:
            say(f"note: {len(found)} held-out problems{of(name)}, not {one.eval_problems}: there are no more.")
        held_out += [replace(problem, dataset=name) for problem in found]
    asked = {problem.question for problem in held_out}
    for one, name, weight in zip(sets, train_names, weights, strict=True):
        rows = [pair for pair in pairs[one.dataset] if str(pair[0]) not in asked]
        if not rows:
            fail(f"--dataset {one.dataset}: every training question is also a held-out one.")
        found = first_problems(rows, len(rows), f"training problems{of(name)}", one, *prompt)
        train += [replace(problem, dataset=name, weight=weight / sum(weights)) for problem in found]
    check_prompts(train + held_out, model, args)
    return train, held_out


def of(name: str) -> str:
    return f" of {name}" if name else ""


@lru_cache(maxsize=16)
def shuffled(seed: int, epoch: int, size: int) -> list[int]:
    return random.Random(f"{seed}-{epoch}").sample(range(size), size)


def sample_rows(rows: list[R], seed: int, start: int, count: int) -> list[R]:
    """Rows `start` to `start + count` of an endless stream of reshuffled passes, which depends only on the seed."""
    sampled, size = [], len(rows)
    while len(sampled) < count:
        epoch, offset = divmod(start + len(sampled), size)
        sampled += [rows[i] for i in shuffled(seed, epoch, size)[offset : offset + count - len(sampled)]]
    return sampled


def problem_stream(problems: list[Problem], seed: int, start: int, count: int) -> list[Problem]:
    """`sample_rows` for problems; with several data sets, each has its own stream, and the mixing weights choose one.

    The choice depends only on the seed and the problem's number. `datasets.interleave_datasets` would end with the
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
