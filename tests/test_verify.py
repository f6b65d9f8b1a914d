"""What counts as a right answer, and what a hostile one can do."""

import os
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

from common.records import Problem, Rollouts
from common.verify import MathVerify, Verifier, last_boxed, last_number, parse_number

import pytest


class Decoder:
    """A tokenizer for texts that are already there: token ids are characters."""

    def batch_decode(self, rows, skip_special_tokens):
        return ["".join(map(chr, row)) for row in rows]


@pytest.fixture(scope="module")
def verifier():
    verifier = Verifier(Decoder(), [])
    yield verifier
    verifier.close()


def right(verifier, response, gold, truncated=False):
    return verifier.judge([response], [gold], [truncated])[0]


@pytest.mark.parametrize(
    "text,box",
    [
        (r"\boxed{42}", "42"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{a{b}c} and more", "a{b}c"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{}", ""),
        (r"\boxed{42", None),
        ("42", None),
        ("", None),
    ],
)
def test_last_boxed(text, box):
    assert last_boxed(text) == box


@pytest.mark.parametrize(
    "text,value",
    [
        ("42", 42),
        (" 42 ", 42),
        ("42.", 42),
        ("42.0", 42),
        ("-7", -7),
        ("−7", -7),
        ("+7", 7),
        ("1,234,567", 1234567),
        ("1{,}234", 1234),
        (r"1\,234", 1234),
        (r"\$12", 12),
        ("$12.50", Fraction(25, 2)),
        ("12 apples", 12),
        (r"12\text{ cm}", 12),
        (r"12 \text{ square feet}", 12),
        (r"40\%", 40),
        (r"90^\circ", 90),
        ("x = 5", 5),
        (".5", Fraction(1, 2)),
        (r"\frac{1}{2}", Fraction(1, 2)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        ("3/4", Fraction(3, 4)),
    ],
)
def test_literal_numbers(text, value):
    assert parse_number(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "39+62", "6*7", "2^5", "1/0", "12,34", "1 2", "4 2", "five", "1e3", "--1", "13=12", "٤٢", "9" * 200, "."],
)
def test_not_a_literal_number(text):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    "response,gold,expected",
    [
        (r"12+30=42 so \boxed{42}", "42", True),
        (r"\boxed{42.0}", "42", True),
        (r"\boxed{1,234}", "1234", True),
        (r"\boxed{12+30}", "42", False),  # the question, echoed
        (r"\boxed{84/2}", "42", False),  # a sum in the shape of a fraction
        (r"\boxed{\frac{84}{2}}", "42", False),
        (r"\boxed{0.5}", r"\frac{1}{2}", True),
        (r"\boxed{1/2}", "0.5", True),
        (r"\boxed{41} \boxed{42}", "42", True),  # the last box counts
        (r"\boxed{42} \boxed{41}", "42", False),
        (r"\boxed{41, 42}", "42", False),
        ("the answer is 42", "42", False),
        (r"\boxed{42", "42", False),
        ("", "42", False),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", True),
        (r"\boxed{(3, \pi/2)}", r"\left( 3, \frac{\pi}{2} \right)", True),
        (r"\boxed{(3, \pi/3)}", r"\left( 3, \frac{\pi}{2} \right)", False),
        (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", True),
    ],
)
def test_judgement(verifier, response, gold, expected):
    assert right(verifier, response, gold) is expected


@pytest.mark.parametrize(
    "text,number",
    [
        ("4 + 6 = 10.", "10"),
        ("10-3", "3"),
        ("it is -3", "-3"),
        ("1,234, I think", "1,234"),
        ("2.50", "2.50"),
        ("no", None),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


def test_last_number_as_the_answer(capsys):
    verifier = Verifier(Decoder(), [], "last-number")
    texts = ["4 + 6 = 10.", "4 + 6 = 11, no, 10", "10 = 4 + 6", r"\boxed{10}", "ten", "4+6"]
    assert verifier.judge(texts, ["10"] * 6, [False] * 6) == [True, True, False, True, False, False]
    assert verifier.judge(["10"], ["10"], [True]) == [False]
    verifier.close()
    with pytest.raises(SystemExit):
        Verifier(Decoder(), [Problem("", "x^2", "", [])], "last-number")
    assert "all numbers" in capsys.readouterr().err


def test_truncated_responses_are_wrong(verifier):
    assert right(verifier, r"\boxed{42}", "42")
    assert not right(verifier, r"\boxed{42}", "42", truncated=True)


def test_groups_get_their_own_answers(verifier):
    problems = [Problem("", "1", "", []), Problem("", "2", "", [])]
    texts = [r"\boxed{1}", r"\boxed{2}", r"\boxed{2}", r"\boxed{1}"]
    rollouts = Rollouts([list(map(ord, text)) for text in texts], [[]] * 4, [False] * 4)
    assert verifier(problems, rollouts) == [True, False, True, False]


def test_hostile_answers_end_and_are_counted():
    """Answers that never finish are killed and counted; the good answers beside them are judged."""
    verifier = Verifier(Decoder(), [])
    try:
        assert right(verifier, r"\boxed{1+x^2}", "x^2+1")  # both workers' start is not part of the time
        answers = [r"\boxed{9^{9^{9^9}}}", r"\boxed{(10^9)!}", r"\boxed{1+x^2}", r"\boxed{" + "(" * 400 + "x}"]
        start = time.perf_counter()
        verdicts = verifier.judge(answers, ["x^2+1"] * 4, [False] * 4)
        assert time.perf_counter() - start < 30
        assert verdicts == [False, False, True, False]
        assert verifier.failures["timeout"] >= 2
        assert right(verifier, r"\boxed{1+x^2}", "x^2+1")  # and the workers are back
    finally:
        verifier.close()


def test_a_busy_machine_changes_no_verdict(monkeypatch):
    """The limit is of processor time: a worker that hardly gets any still finds the right answer."""
    monkeypatch.setattr("common.verify.TIME_LIMIT", 0.5)
    worker, core = MathVerify(), {min(os.sched_getaffinity(0))}
    assert worker.ask("x^2", "x^2") == "right"  # it has started
    pid = worker.process.pid
    child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for process in (busy.pid, child):
            os.sched_setaffinity(process, core)
        os.setpriority(os.PRIO_PROCESS, child, 15)
        start = time.perf_counter()
        assert worker.ask(r"\sin(x)^2", r"1-\cos^2 x") == "right"  # a tenth of a second's work
        assert time.perf_counter() - start > 0.5, "nothing was in its way"
    finally:
        busy.kill()
        worker.close()
        busy.wait()


def test_worker_that_dies_is_replaced(verifier):
    assert right(verifier, r"\boxed{1+x^2}", "x^2+1")
    for worker in verifier.workers:
        if worker.process is not None:
            worker.process.kill()
            worker.process.wait()
    assert right(verifier, r"\boxed{1+x^2}", "x^2+1")


def test_answer_that_cannot_be_parsed_fails_at_load(capsys):
    with pytest.raises(SystemExit) as stop:
        Verifier(Decoder(), [Problem("", "$$$", "", [])])
    assert stop.value.code == 2
    assert "cannot be checked" in capsys.readouterr().err
