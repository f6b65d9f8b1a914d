"""A run notes once, with the reason, when its responses teach nothing."""

import re
from types import SimpleNamespace

import grpo
from common.notes import FLAT_STEPS, Notes
from common.verification import Verifier

import pytest
from conftest import SMALL

LEARNS = {"truncated": 0.0, "accuracy": 0.5, "zero_std_groups": 0.5, "grad_norm": 1.0}
FLAT = LEARNS | {"zero_std_groups": 1.0, "grad_norm": 0.0}


def notes(judges=True, samples=8):
    verifier = SimpleNamespace(judges=judges, find_answer=lambda text: text or None)
    return Notes(SimpleNamespace(max_response_tokens=24, answer_format="boxed", responses_per_prompt=samples), verifier)


def first_evaluation(texts, judges=True, truncated=0.0, average=0.5, solved=0.9, std=0.1):
    metrics = {"eval/n": 4, "eval/truncated": truncated, "eval/avg": average, "eval/pass@4": solved}
    metrics |= {} if judges else {"eval/reward/f/std": std, "eval/reward/late/std": None}
    return notes(judges).of_first_evaluation(metrics, [(None, text, 0.0) for text in texts])


def test_of_the_first_evaluation():
    assert first_evaluation(["1"] * 20) == ""
    assert "95% of the responses are cut off. Raise --max-response-tokens (24 now)" in first_evaluation(
        ["1"], truncated=0.95
    )
    assert "95% of the responses have no answer in the form" in first_evaluation(["1"] + [""] * 19)
    assert first_evaluation([""] * 20, judges=False) == "", "own rewards do not need a box"
    own = {"judges": False, "average": 0.0, "solved": 0.0}
    assert first_evaluation(["1"] * 20, **own) == "", "own rewards that differ teach without a correct response"
    assert "the reward functions give all of them the same" in first_evaluation(["1"] * 20, std=0.0, **own)
    assert "no response is correct" in first_evaluation(["1"] * 20, average=0.0, solved=0.0)
    assert "all responses are correct" in first_evaluation(["1"] * 20, average=1.0, solved=1.0)


def test_of_steps():
    """The note comes after enough steps in a row, and is not repeated while nothing changes."""
    watch = notes()
    said = [watch.of_step(row) for row in [FLAT] * (FLAT_STEPS - 1) + [LEARNS] + [FLAT] * (2 * FLAT_STEPS)]
    assert [bool(text) for text in said].index(True) == 2 * FLAT_STEPS - 1 and sum(map(bool, said)) == 1
    assert "look at the responses" in "".join(said)


@pytest.mark.parametrize(
    "numbers,words",
    [
        ({"truncated": 1.0, "accuracy": 0.0}, "100% of the responses are cut off"),
        ({"accuracy": 0.0}, "no response is correct"),
        ({"accuracy": 1.0}, "all responses are correct"),
        ({"accuracy": 0.0, "grad_norm": 1.0, "kl": 0.1}, "no response is correct"),  # the KL's gradient
        ({"accuracy": 0.0, "grad_norm": 1.0}, ""),  # a teacher's
    ],
)
def test_the_reason(numbers, words):
    watch = notes()
    said = "".join(watch.of_step(FLAT | numbers) for _ in range(FLAT_STEPS))
    assert (words in said) if words else not said


def test_of_one_response_to_each_prompt():
    """A single response per prompt never differs within its group; responses to different prompts may differ."""
    row = FLAT | {"grad_norm": 1.0, "kl": 0.1}
    for accuracy, judges, expected in ((0.5, True, False), (0.0, False, False), (0.0, True, True), (1.0, True, True)):
        watch = notes(judges, samples=1)
        assert any(watch.of_step(row | {"accuracy": accuracy}) for _ in range(FLAT_STEPS)) == expected


def test_a_run_whose_responses_are_all_cut_off(tmp_path, capsys):
    settings = SMALL | {"max_response_tokens": 1, "steps": FLAT_STEPS + 1, "eval_problems": 2, "eval_samples": 1}
    grpo.main(grpo.Args(run_dir=tmp_path / "run", **settings))
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(lines) == 2 and all("Raise --max-response-tokens (1 now)." in line for line in lines)
    assert re.match(f"note: for {FLAT_STEPS} steps, .* equal rewards", lines[1])


def test_a_verifier_that_does_not_judge(tmp_path):
    (tmp_path / "own.py").write_text("def f(problem, text, tokens, truncated): return 1.0")
    for names, judges in (((), True), ((f"{tmp_path}/own.py:f",), False), (("correct", f"{tmp_path}/own.py:f"), True)):
        verifier = Verifier(grpo.Args(reward=names), None, [])
        verifier.close()
        assert verifier.judges == judges
