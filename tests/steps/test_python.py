"""The world of functions to find: its problems, its programmers, and the interpreter that runs the model's code."""

import random
import re
from collections import Counter

from common.environments import ask
from common.records import Problem
from docs.rewards.code_tests import passes_tests
from recipes import agent
from worlds import generated_problems
from worlds.pretrain import make_tokenizer, to_tensors
from worlds.python import environment
from worlds.python.environment import ENVIRONMENT
from worlds.python.problems import attempts, values
from worlds.python.writers import solution

import pytest
from runs import refused, run

PROBLEMS = generated_problems("python", "train") + generated_problems("python", "eval")
REWARD = "docs/rewards/code_tests.py:passes_tests"


def right(question):
    """The function that has both values."""
    (body,) = (body for body, passes in attempts(question).items() if passes)
    return body


def test_one_function_has_both_values_and_passes_the_tests():
    assert len(dict(PROBLEMS)) == len(PROBLEMS) == 20_512
    assert list(attempts("f(4)=20 f(5)=25 f(x)=?")) == ["x+20-4", "4+20-x", "x*20//4"]
    for question, answer in PROBLEMS[::7]:
        (x1, y1), (x2, y2) = values(question)
        for body, passes in attempts(question).items():
            defined = {}
            exec(f"def f(x): return {body}", defined)
            assert (defined["f"](x1), defined["f"](x2) == y2) == (y1, passes)
            try:
                exec(answer, defined)
                passed = True
            except AssertionError:
                passed = False
            assert passed == passes, f"{question} {body} {answer}"


class TestProgrammers:
    def written(self, textbook):
        rng = random.Random(0)
        return [(question, solution(rng, question, textbook)) for question, _ in PROBLEMS[:4000]]

    def test_most_are_wrong_and_done(self):
        written = self.written(textbook=False)
        first_right = [right(question) in text.split("\n")[1] for question, text in written]
        wrong = [text for (_, text), first in zip(written, first_right, strict=True) if not first]
        assert sum(first_right) / 4000 == pytest.approx(0.2 * 0.48, abs=0.02)  # of two operations, rarely of three
        assert sum(text.count("def") == 1 for text in wrong) / len(wrong) == pytest.approx(0.7, abs=0.02)

    def test_a_textbook_tries_until_the_test_passes(self):
        for question, text in self.written(textbook=True):
            assert text.endswith("\nTrue\n```\n") and text.count("\nFalse\n") == text.count("def") - 1
            assert f"return {right(question)}\n" in text.split("def")[-1]

    def test_what_they_call_python_prints(self):
        for question, text in self.written(textbook=True)[:8]:
            play, turns = ENVIRONMENT.play(Problem(question, "", "", [])), re.split("(?<=\n```\n)", text)
            for turn, output in zip(turns[:-1:2], turns[1::2], strict=True):
                assert ask(play, turn).text == output

    def test_outputs_have_no_loss_in_pretraining(self):
        tokenizer, text = make_tokenizer(), "```python\nprint(f(2)==6)\n```\n```output\nFalse\n```\n"
        row = tokenizer.encode("f(7)=21 f(2)=6 f(x)=?\n"), [*tokenizer.encode(text), tokenizer.eos_token_id]
        labels = to_tensors([row], tokenizer)[1][0]
        kept = tokenizer.decode(labels[labels >= 0].tolist(), skip_special_tokens=True)
        assert kept == "```python\nprint(f(2)==6)\n```\n"


def test_the_last_code_has_the_reward():
    correct, wrong = (f"```python\ndef f(x): return {body}\nprint(f(2)==6)\n```\n" for body in ("x*21//7", "x+21-7"))
    problem = Problem("f(7)=21 f(2)=6 f(x)=?", "assert f(4) == 12\nassert f(9) == 27", "", [])
    rewards = [passes_tests(problem, text, [], False) for text in (correct, wrong, wrong + correct, correct + wrong)]
    assert rewards == [1.0, 0.0, 1.0, 0.0]


def test_without_that_reward_a_run_does_not_start(tmp_path, capsys):
    error = refused(capsys, tmp_path, agent, model="worlds/sums/model", dataset="python", environment="python")
    assert "the answers are tests of code: pass --reward docs/rewards/code_tests.py:passes_tests." in error


def test_the_same_program_is_run_once(monkeypatch):
    ran = Counter()
    monkeypatch.setattr(environment, "sandbox", lambda: lambda code: (0, f"{ran.update([code])}\n"))
    play, turn = ENVIRONMENT.play(Problem("?", "", "", [])), "```python\nprint(1 / 7)\n```\n"
    assert [ask(play, turn).text for _ in range(3)] == ["```output\nNone\n```\n"] * 3
    assert ran == {"print(1 / 7)": 1}


@pytest.mark.slow
def test_it_learns_to_try_another_operation(tmp_path, capsys):
    names = dict.fromkeys(("environment", "model", "dataset"), "python")
    settings = dict(steps=10, prompts_per_step=8, responses_per_prompt=8, eval_problems=16, eval_samples=2)
    _, rows = run(
        "agent", tmp_path / "run", max_response_tokens=230, eval_every=0, reward=(REWARD,), **settings, **names
    )
    assert 0.3 < rows[0]["eval/avg"] < 0.75 < rows[-1]["eval/avg"]
    assert rows[-1]["turns"] > rows[1]["turns"] + 0.1
