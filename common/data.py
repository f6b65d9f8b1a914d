"""Problems: generated ones, or any data set of questions and answers, as token ids."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from common.answers import last_boxed, parse_number
from common.cli import fail, first_line, flag
from common.countdown import Countdown, countdown_problem
from common.models import context_length
from common.records import Problem
from common.settings import DATA_FILES, GENERATED_DATA, Settings, local_path

INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
MOST_EMPTY = 0.01  # share of rows without a question or answer that may be left out


def arithmetic_problem(rng: random.Random, fewest: int = 2, most: int = 6) -> tuple[str, str]:
    """One sum of `fewest` to `most` terms between 1 and 49, every partial result in 0..99, and its answer."""
    total = rng.randint(1, 49)
    text = str(total)
    for _ in range(rng.randint(fewest - 1, most - 1)):
        term = rng.randint(1, 49)
        if total + term > 99 or (total >= term and rng.random() < 0.5):
            term = -term
        total += term
        text += f"{term:+d}"
    return f"{text}=?", str(total)


GENERATORS: dict[str, Callable[[random.Random], tuple[str, str | Countdown]]] = {
    "arithmetic": arithmetic_problem,
    "arithmetic-hard": partial(arithmetic_problem, fewest=5, most=8),
    "countdown": countdown_problem,
}


def generated_problems(name: str, split: str) -> list[tuple[str, str | Countdown]]:
    """A generated data set, always the same: 512 held-out ("eval") and 20,000 other ("train") questions."""
    rng = random.Random(2026)
    problems: dict[str, str | Countdown] = {}
    while len(problems) < 20_512:
        question, answer = GENERATORS[name](rng)
        problems[question] = answer
    pairs = list(problems.items())
    return pairs[:512] if split == "eval" else pairs[512:]


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


def right_answer(answer: Any) -> str | tuple[str, ...]:
    """The final answer of a row, or those of a list, of which any will do."""
    if isinstance(answer, list | tuple):
        return tuple(final_answer(str(one)) for one in answer)
    return final_answer(str(answer))


def read_dataset(name: str, config: str | None, split: str, setting: str = "dataset") -> Any:
    """One split of the data set that a setting names: on the hub, in a local folder, or a local file."""
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the reason is in the sentence below
    path, given = local_path(name), f"{flag(setting)} {name}"
    if path and not path.exists():
        fail(f"{given}: no such file or folder.")
    if path and path.is_file():
        if path.suffix not in DATA_FILES:
            fail(f"{given}: a data file must end in {', '.join(DATA_FILES)}.")
        if config or split != "train":
            fail(f"{given} is a file, without splits or configurations: name another with --eval-dataset.")
    try:
        if path and path.is_file():  # these readers, unlike load_dataset, ask nobody else for a file that is here
            return getattr(datasets.Dataset, f"from_{DATA_FILES[path.suffix]}")(str(path))
        return datasets.load_dataset(str(path or name), config, split=split)
    except Exception as error:  # every reader has its own errors; the person needs the sentence
        fail(f"{given} (split {split}) cannot be read: {first_line(error.__cause__ or error)}")


def question_answer_pairs(args: Settings, split: str) -> list[tuple[Any, str | tuple[str, ...]]]:
    """(question, final answer) of every row; a question may be text or a list of chat messages."""
    rows = read_dataset(args.dataset, args.dataset_config, split).flatten()
    for kind, column in (("question", args.question_column), ("answer", args.answer_column)):
        if column not in rows.column_names:
            fail(
                f"--dataset {args.dataset} has no column '{column}': name one of "
                f"{', '.join(rows.column_names)} with --{kind}-column."
            )
    if len(rows) == 0:
        fail(f"--dataset {args.dataset}: the split {split} is empty.")
    try:
        pairs = list(zip(rows[args.question_column], rows[args.answer_column], strict=True))
    except UnicodeDecodeError as error:  # text is decoded when it is read
        fail(f"--dataset {args.dataset} holds text that is not UTF-8: {first_line(error)}")
    empty = [i for i, (q, a) in enumerate(pairs) if q in ("", None, []) or a in (None, []) or not str(a).strip()]
    if empty:  # MATH has two such rows; many of them mean that the columns are wrong
        what = f"--dataset {args.dataset}: {len(empty)} of {len(pairs)} rows of split {split} have an empty question"
        what += f" or answer, the first is row {empty[0]}"
        if len(empty) > MOST_EMPTY * len(pairs):
            fail(f"{what}; check --question-column and --answer-column.")
        print(f"note: {what}; they are left out.", flush=True)
    left_out = set(empty)
    return [(question, right_answer(answer)) for i, (question, answer) in enumerate(pairs) if i not in left_out]


def make_prompt(
    question: Any, template: str | None, tokenizer: Any, system: str | None = None
) -> tuple[str, list[int]]:
    """The prompt as text and token ids: the chat template is applied where the tokenizer has one.

    Without `--prompt`, a chat model is asked to reason and to box its answer; a model without a
    template, such as the embedded one, reads the bare question and a line break.
    """
    chat = tokenizer.chat_template is not None
    if system is not None and not chat:
        fail("--system-prompt is for chat models, and this model's tokenizer has no chat template: use --prompt.")
    if isinstance(question, list):
        if not chat:
            fail("the questions are chat messages, but this model's tokenizer has no chat template.")
        messages = question
    else:
        text = (template or ("{question}" + INSTRUCTION if chat else "{question}\n")).replace(
            "{question}", str(question)
        )
        messages = [{"role": "user", "content": text}]
    if system is not None:
        if messages and messages[0].get("role") == "system":
            fail(f"--system-prompt: the data set's questions bring their own: {messages[0].get('content')!r:.80}")
        messages = [{"role": "system", "content": system}, *messages]
    if chat:
        try:
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # a template may raise what it likes
            fail(f"the model's chat template refuses a question ({first_line(error)}): {str(messages)[:80]}")
    # A chat template writes the special tokens itself; adding them again would double the BOS.
    return text, tokenizer(text, add_special_tokens=not chat)["input_ids"]


def load_problems(
    args: Settings, model: Any, tokenizer: Any, rewrite: Callable[[Any], Any] = lambda question: question
) -> tuple[list[Problem], list[Problem]]:
    """Training problems and `args.eval_problems` held-out ones, disjoint by question; prompts hold it rewritten."""
    if args.prompt is not None and "{question}" not in args.prompt:
        fail("--prompt must contain {question}, where the question goes.")
    if args.dataset in GENERATED_DATA:
        train, held_out = (generated_problems(args.dataset, split) for split in ("train", "eval"))
    else:
        train = question_answer_pairs(args, args.train_split)
        if args.eval_dataset or args.eval_split:
            elsewhere = replace(args, dataset=args.eval_dataset or args.dataset)
            held_out = question_answer_pairs(elsewhere, args.eval_split or args.train_split)
        else:  # hold some rows out; the shuffle is the same for every seed, so that runs compare
            random.Random(2026).shuffle(train)
            count = min(args.eval_problems, len(train) // 5)
            train, held_out = train[count:], train[:count]
            if not held_out:
                fail(
                    f"--dataset {args.dataset} has {len(train)} rows, too few to hold any out: "
                    "name held-out problems with --eval-split or --eval-dataset."
                )
    if len(held_out) < args.eval_problems:
        print(f"note: {len(held_out)} held-out problems, not {args.eval_problems}: there are no more.", flush=True)
    held_out = held_out[: args.eval_problems]
    asked = {str(question) for question, _ in held_out}
    train = [pair for pair in train if str(pair[0]) not in asked]
    if not train:
        fail(f"--dataset {args.dataset}: every training question is also a held-out one.")

    context, vocabulary = context_length(model), model.get_input_embeddings().num_embeddings
    problems, too_long = [], Counter()  # of each question, whether it is held out
    for i, (question, answer) in enumerate(held_out + train):
        prompt, prompt_ids = make_prompt(rewrite(question), args.prompt, tokenizer, args.system_prompt)
        if not prompt_ids:
            fail("a prompt has no tokens: check --prompt and the question column.")
        if max(prompt_ids) >= vocabulary:
            fail(f"the tokenizer writes token {max(prompt_ids)}, but the model has {vocabulary}: {prompt[:80]!r}")
        if args.max_prompt_tokens and len(prompt_ids) > args.max_prompt_tokens:
            too_long[i < len(held_out)] += 1
            continue
        if len(prompt_ids) + args.max_response_tokens > context:
            fail(
                f"a prompt of {len(prompt_ids)} tokens and --max-response-tokens {args.max_response_tokens} "
                f"exceed the model's context of {context} tokens: {prompt[:80]!r}. Longer prompts than "
                "--max-prompt-tokens are left out."
            )
        problems.append(Problem(str(question), answer, prompt, list(prompt_ids)))
    kept = len(held_out) - too_long[True]
    if too_long:
        what = (
            f"{too_long[False]} of {len(train)} training problems and {too_long[True]} of {len(held_out)} held-out ones"
        )
        what += f" have prompts of more than {args.max_prompt_tokens} tokens"
        if not 0 < kept < len(problems):
            fail(f"{what}: raise --max-prompt-tokens.")
        print(f"note: {what}; they are left out.", flush=True)
    return problems[kept:], problems[:kept]


def sample_problems(problems: list[Problem], seed: int, start: int, count: int) -> list[Problem]:
    """Problems number `start` to `start + count` of an endless stream of reshuffled passes.

    The stream depends on the seed alone, so a resumed run goes on where it was interrupted.
    """
    sampled, size = [], len(problems)
    while len(sampled) < count:
        epoch, offset = divmod(start + len(sampled), size)
        order = random.Random(f"{seed}-{epoch}").sample(range(size), size)
        sampled += [problems[i] for i in order[offset : offset + count - len(sampled)]]
    return sampled
