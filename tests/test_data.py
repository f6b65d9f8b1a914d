"""Problems, prompts and held-out splits."""

import json
from collections import Counter

import grpo
from common.data import arithmetic_problems, final_answer, load_problems, sample_problems
from common.models import load_model
from common.records import Problem

import pytest


@pytest.mark.parametrize(
    "text,answer",
    [
        ("She has 48/2 = 24.\n#### 72", "72"),
        ("#### 1,234", "1234"),
        (r"so $x = \boxed{\frac{1}{2}}$.", r"\frac{1}{2}"),
        (" 42 ", "42"),
    ],
)
def test_final_answer(text, answer):
    assert final_answer(text) == answer


def test_arithmetic_is_right_and_held_out():
    train, held_out = arithmetic_problems("train"), arithmetic_problems("eval")
    assert len(held_out) == 512 and len(train) == 20_000
    assert not {q for q, _ in train} & {q for q, _ in held_out}
    for question, answer in train + held_out:
        terms = question.removesuffix("=?").replace("-", "+-").split("+")
        assert sum(map(int, terms)) == int(answer) and 2 <= len(terms) <= 6
        partial = 0
        for term in terms:
            partial += int(term)
            assert 0 <= partial <= 99


def test_chat_template_and_gsm8k(chat_model, gsm8k_file):
    args = grpo.Args(model=str(chat_model), dataset=str(gsm8k_file), eval_problems=10)
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


def test_few_empty_rows_are_left_out_and_named(chat_model, tmp_path, capsys):
    """As in MATH, where two of 7,500 answers are empty."""
    rows = [{"question": f"{i}+1=?", "answer": "" if i == 7 else str(i + 1)} for i in range(200)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = grpo.Args(model=str(chat_model), dataset=str(tmp_path / "data.jsonl"), eval_problems=20)
    model, tokenizer = load_model(args)
    train, held_out = load_problems(args, model, tokenizer)
    assert len(train) + len(held_out) == 199
    assert all(p.question == f"{int(p.answer) - 1}+1=?" for p in train + held_out)
    assert "1 of 200 rows" in capsys.readouterr().out


def test_prompt_template(chat_model, gsm8k_file):
    args = grpo.Args(model=str(chat_model), dataset=str(gsm8k_file), prompt="Q: {question} A:")
    model, tokenizer = load_model(args)
    assert load_problems(args, model, tokenizer)[0][0].prompt.startswith("<|im_start|>user\nQ: Tom has")


def test_messages_nested_columns_and_eval_split(chat_model, tmp_path):
    """The layout of many published sets: chat messages, and the answer inside a struct."""
    for name, count in (("train", 6), ("test", 3)):
        rows = [
            {"prompt": [{"role": "user", "content": f"{name} {i}?"}], "reward_model": {"ground_truth": str(i)}}
            for i in range(count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = grpo.Args(
        model=str(chat_model),
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
    stream = sample_problems(problems, seed=3, start=0, count=70)
    for epoch in range(10):
        assert len({p.question for p in stream[7 * epoch : 7 * epoch + 7]}) == 7
    assert sample_problems(problems, 3, 33, 20) == stream[33:53]
    assert Counter(p.question for p in sample_problems(problems, 4, 0, 14)) == Counter({str(i): 2 for i in range(7)})
    assert sample_problems(problems, 4, 0, 70) != stream
