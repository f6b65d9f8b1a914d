"""Problems, prompts and held-out splits."""

import json
from collections import Counter
from datetime import datetime

import grpo
from common.data import load_problems, make_prompt, problem_stream, sample_problems
from common.models import load_model
from common.records import Problem
from common.rows import final_answer, pairs_of
from worlds import generated_problems

import datasets
import pytest
from transformers import AutoTokenizer


@pytest.mark.parametrize(
    "text,answer",
    [
        ("She has 48/2 = 24.\n#### 72", "72"),
        ("#### 1,234", "1234"),
        ("#### setup ####\nx = 1\nprint(x)", "#### setup ####\nx = 1\nprint(x)"),
        (r"so $x = \boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (" 42 ", "42"),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


def test_chat_template_and_gsm8k(chat_model, gsm8k_file):
    args = grpo.Args(model=str(chat_model), max_response_tokens=96, dataset=str(gsm8k_file), eval_problems=10)
    model, tokenizer = load_model(args)
    train, held_out = load_problems(args, model, tokenizer)
    assert (len(train), len(held_out)) == (50, 10)
    assert not {p.question for p in train} & {p.question for p in held_out}
    problem = held_out[0]
    assert problem.prompt.startswith("<|im_start|>user\nTom has")
    assert problem.prompt.endswith("within \\boxed{}.<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(problem.prompt_ids) == problem.prompt
    numbers = [int(word) for word in problem.question.split() if word.isdigit()]
    assert int(problem.answer) == sum(numbers)


@pytest.mark.parametrize("reward", [(), ("correct",)])
def test_columns_are_kept_for_reward_functions(reward, chat_model, tmp_path):
    """Reward functions get the whole row, with nested columns; values that JSON lacks become text."""
    rows = [{"question": f"{i}+1=?", "answer": str(i + 1), "level": i, "info": {"source": "a"}} for i in range(20)]
    day = datetime(2026, 11, 23)
    datasets.Dataset.from_list([row | {"day": day} for row in rows]).to_parquet(tmp_path / "data.parquet")
    args = grpo.Args(
        model=str(chat_model), max_response_tokens=96, dataset=str(tmp_path / "data.parquet"), reward=reward
    )
    train, held_out = load_problems(args, *load_model(args))
    for problem in train + held_out:
        of_data = rows[int(problem.answer) - 1] | {"day": str(day)}
        assert problem.row == (of_data if reward else {}), problem.where


def test_few_empty_rows_are_left_out_and_named(chat_model, tmp_path, capsys):
    """A few empty rows are left out and counted, as in MATH, where two of 7,500 answers are empty."""
    rows = [{"question": f"{i}+1=?", "answer": "" if i == 7 else str(i + 1)} for i in range(200)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = grpo.Args(
        model=str(chat_model), max_response_tokens=96, dataset=str(tmp_path / "data.jsonl"), eval_problems=20
    )
    model, tokenizer = load_model(args)
    train, held_out = load_problems(args, model, tokenizer)
    assert len(train) + len(held_out) == 199
    assert all(p.question == f"{int(p.answer) - 1}+1=?" for p in train + held_out)
    assert all(p.where == f"row {int(p.answer) - 1} of split train" for p in train + held_out)
    assert "1 of 200 rows" in capsys.readouterr().out


def test_prompt_template(chat_model, gsm8k_file):
    args = grpo.Args(model=str(chat_model), max_response_tokens=96, dataset=str(gsm8k_file), prompt="Q: {question} A:")
    model, tokenizer = load_model(args)
    assert load_problems(args, model, tokenizer)[0][0].prompt.startswith("<|im_start|>user\nQ: Tom has")


def test_system_prompt(chat_model, gsm8k_file, capsys):
    args = grpo.Args(
        model=str(chat_model),
        max_response_tokens=96,
        dataset=str(gsm8k_file),
        system_prompt="Be brief.",
        eval_problems=4,
    )
    model, tokenizer = load_model(args)
    for problem in (problems := load_problems(args, model, tokenizer))[0] + problems[1]:
        assert problem.prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nTom has")
    own = [{"role": "system", "content": "Be long."}, {"role": "user", "content": "1+1=?"}]
    for question, model, words in (
        (own, chat_model, "leave it out: 'Be long.'"),
        ("1+1=?", None, "is for chat"),
    ):
        tokenizer = AutoTokenizer.from_pretrained(model or "worlds/sums/model")
        with pytest.raises(SystemExit):
            make_prompt(question, None, tokenizer, "Be brief.")
        assert words in capsys.readouterr().err


def test_prompts_that_are_too_long_are_left_out_and_counted(chat_model, gsm8k_file, capsys):
    """Prompts within the limit keep their order; later rows fill the gaps among the held-out problems."""
    args = grpo.Args(model=str(chat_model), max_response_tokens=96, dataset=str(gsm8k_file), eval_problems=10)
    model, tokenizer = load_model(args)
    train, held_out = load_problems(args, model, tokenizer)
    limit = sorted(len(p.prompt_ids) for p in train)[20]
    args.max_prompt_tokens = limit
    short = [problem for problem in held_out + train if len(problem.prompt_ids) <= limit]
    assert load_problems(args, model, tokenizer) == (short[10:], short[:10])
    output, left = capsys.readouterr().out, {problem.question for problem in short[:10]}
    rows = [problem for problem in held_out + train if problem.question not in left]
    dropped = len([problem for problem in rows if len(problem.prompt_ids) > limit])
    assert f"note: {dropped} of {len(rows)} training problems have prompts of more than {limit} tokens" in output
    assert "held-out problems have prompts of more than" in output and "; they are left out." in output
    args.max_prompt_tokens = 3
    with pytest.raises(SystemExit):
        load_problems(args, model, tokenizer)
    assert (
        "all held-out problems have prompts of more than 3 tokens: raise --max-prompt-tokens" in capsys.readouterr().err
    )


@pytest.fixture
def with_columns(tmp_path):
    """Rows in SVAMP's format."""
    rows = [{"Body": f"Tom has {i} nuts.", "Ask": {"text": f"And {i} more?"}, "Answer": str(2 * i)} for i in range(30)]
    (tmp_path / "svamp.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "svamp.jsonl"


def test_a_prompt_of_several_columns(with_columns, chat_model):
    """A dot in a name selects a nested column, and braces without a name stay as they are."""
    template = "{Body} {Ask.text} Box it: \\boxed{}"
    own = {"dataset": str(with_columns), "answer_column": "Answer", "prompt": template, "eval_problems": 4}
    args = grpo.Args(model=str(chat_model), max_response_tokens=96, **own).checked()
    train, held_out = load_problems(args, *load_model(args))
    assert len(train) == 26 and len(held_out) == 4 and not {p.question for p in train} & {p.question for p in held_out}
    for problem in train:
        number = int(problem.answer) // 2
        assert problem.question == f"Tom has {number} nuts. And {number} more? Box it: \\boxed{{}}"
        assert problem.prompt.startswith(f"<|im_start|>user\n{problem.question}<|im_end|>")


def test_a_prompt_of_the_question_and_other_columns(with_columns, chat_model):
    template = "{Body} {question} End with \\boxed{answer}"
    own = {"dataset": str(with_columns), "answer_column": "Answer", "question_column": "Ask.text", "prompt": template}
    args = grpo.Args(model=str(chat_model), max_response_tokens=96, eval_problems=4, **own).checked()
    for problem in load_problems(args, *load_model(args))[0]:
        number = int(problem.answer) // 2
        text = f"Tom has {number} nuts. And {number} more? End with \\boxed{{answer}}"
        assert problem.prompt.startswith(f"<|im_start|>user\n{text}<|im_end|>")


@pytest.mark.parametrize(
    "prompt,words",
    [
        ("{Body} {Nothing}", "--prompt names Nothing, but --dataset"),
        ("{Body} = {Answer}", "--prompt shows Answer, which is the column with the answers"),
        ("no name", "--prompt must contain {question}"),
        ("\\boxed{Body}", "--prompt must contain {question}"),
        ("{question} {Nothing}", "has no column 'question'"),
    ],
)
def test_columns_that_a_prompt_may_not_name(prompt, words, with_columns, capsys):
    with pytest.raises(SystemExit):
        args = grpo.Args(dataset=str(with_columns), answer_column="Answer", prompt=prompt).checked()
        pairs_of(str(with_columns), "train", args)
    assert words in capsys.readouterr().err


def test_a_prompt_lacks_what_a_row_lacks(with_columns, capsys):
    """A row without a value in one of the prompt's columns is left out and counted."""
    row = {"Body": None, "Ask": {"text": "?"}, "Answer": "1"}
    with_columns.write_text(with_columns.read_text() * 4 + json.dumps(row) + "\n")
    args = grpo.Args(dataset=str(with_columns), answer_column="Answer", prompt="{Body} {Ask.text}").checked()
    assert len(pairs_of(str(with_columns), "train", args)) == 120
    assert "1 of 121 rows of split train have an empty question" in capsys.readouterr().out


def test_several_held_out_sets(chat_model, gsm8k_file, tmp_path):
    """Each held-out set keeps its name and provides its part of the problems, and none is trained on."""
    for name, rows in (("a", range(20)), ("b", range(15, 40))):
        text = "".join(json.dumps({"question": f"{i} + {i}?", "answer": str(2 * i)}) + "\n" for i in rows)
        (tmp_path / f"{name}.jsonl").write_text(text)
    both = tuple(str(tmp_path / f"{name}.jsonl") for name in "ab")
    own = {"dataset": both[0], "eval_dataset": both, "eval_problems": 7, "max_response_tokens": 96}
    args = grpo.Args(model=str(chat_model), **own).checked()
    train, held_out = load_problems(args, *load_model(args))
    assert [(p.dataset, p.question) for p in held_out] == [
        *(("a", f"{i} + {i}?") for i in range(4)),
        *(("b", f"{i} + {i}?") for i in range(15, 18)),
    ]
    assert [p.question for p in train] == [f"{i} + {i}?" for i in range(4, 15)] + ["18 + 18?", "19 + 19?"]


def test_messages_nested_columns_and_eval_split(chat_model, tmp_path):
    """Chat messages, an answer inside a struct and a split for evaluation load, as many data sets need."""
    for name, count in (("train", 6), ("test", 3)):
        rows = [
            {"prompt": [{"role": "user", "content": f"{name} {i}?"}], "reward_model": {"ground_truth": str(i)}}
            for i in range(count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = grpo.Args(
        model=str(chat_model),
        max_response_tokens=96,
        dataset=str(tmp_path),
        question_column="prompt",
        answer_column="reward_model.ground_truth",
        eval_split="test",
    )
    model, tokenizer = load_model(args)
    train, held_out = load_problems(args, model, tokenizer)
    assert [p.answer for p in train] == ["0", "1", "2", "3", "4", "5"]
    assert [p.prompt for p in held_out] == [
        f"<|im_start|>user\ntest {i}?<|im_end|>\n<|im_start|>assistant\n" for i in range(3)
    ]


def test_sampling_passes_over_all_problems_and_can_start_anywhere():
    problems = [Problem(str(i), "", "", []) for i in range(7)]
    stream = problem_stream(problems, seed=3, start=0, count=70)
    for epoch in range(10):
        assert len({p.question for p in stream[7 * epoch : 7 * epoch + 7]}) == 7
    assert problem_stream(problems, 3, 33, 20) == stream[33:53]
    assert Counter(p.question for p in problem_stream(problems, 4, 0, 14)) == Counter({str(i): 2 for i in range(7)})
    assert problem_stream(problems, 4, 0, 70) != stream
    batches = [sample_problems(problems, 5, number, grpo.Args(seed=3)) for number in range(1, 15)]
    assert [problem for batch in batches for problem in batch] == stream


def test_evaluation_data_have_settings_of_their_own(tmp_path):
    """The training data's split and configuration do not apply to an evaluation file."""
    file = tmp_path / "mine.jsonl"
    file.write_text('{"question": "1+1=?", "answer": "2"}')
    args = grpo.Args(dataset="someone/data", dataset_config="main", train_split="other", eval_dataset=str(file))
    assert pairs_of(str(file), "eval", args) == [("1+1=?", "2", "row 0 of split train", {})]


@pytest.mark.slow
def test_the_seed_of_held_out_problems(chat_model, gsm8k_file):
    """Seed 0 takes the first held-out problems, other seeds take others, and none is trained on."""
    model, tokenizer = load_model(grpo.Args(model=str(chat_model)))

    def questions(**settings):
        args = grpo.Args(model=str(chat_model), max_response_tokens=8, **settings)
        train, held_out = load_problems(args, model, tokenizer)
        assert not {p.question for p in train} & {p.question for p in held_out}
        return [p.question for p in held_out]

    every = [question for question, _ in generated_problems("sums", "eval")]
    assert questions(eval_problems=64) == every[:64]
    first, other = questions(eval_problems=64, eval_seed=1), questions(eval_problems=64, eval_seed=2)
    assert set(first) < set(every) and set(other) < set(every) and first != other and first != every[:64]
    assert questions(eval_problems=512, eval_seed=1) != every
    files = [questions(dataset=str(gsm8k_file), eval_problems=2, eval_seed=seed) for seed in range(6)]
    assert len({frozenset(of_seed) for of_seed in files}) > 1
