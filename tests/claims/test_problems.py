"""Fair trials with the held-out problems drawn again: what the interval holds, and where its numbers come from."""

import json
from types import SimpleNamespace

from claims import problems, runs

import numpy as np
import pytest

RUNS, PROBLEMS = 16, 512
rng = np.random.default_rng(0)


def half(first, second):
    low, high = problems.interval(first, second)
    return (high - low) / 2


def test_problems_that_arms_share_cancel():
    """The arms' mean difference is certain, however different the problems are."""
    first = np.broadcast_to(rng.random(PROBLEMS), (RUNS, PROBLEMS))
    assert problems.interval(first, first + 0.05) == pytest.approx((0.05, 0.05))


def test_what_an_arm_does_better_depends_on_the_problems():
    """If all runs of an arm are alike, only the problems are drawn: Student's interval of their differences."""
    first = np.broadcast_to(rng.random(PROBLEMS), (RUNS, PROBLEMS))
    gain = 0.2 * rng.standard_normal(PROBLEMS)
    assert half(first, first + gain) == pytest.approx(1.96 * gain.std() / PROBLEMS**0.5, rel=0.04)
    assert np.mean(problems.interval(first, first + gain)) == pytest.approx(gain.mean(), abs=1e-3)


def test_runs_are_drawn_again_for_each_arm():
    """If a run does the same on all of its problems, only runs are drawn, whichever half of the problems each has."""
    arms = [0.1 * rng.standard_normal((RUNS, 1)) + np.zeros(PROBLEMS) for _ in range(2)]
    expected = 1.96 * ((arms[0][:, 0].var() + arms[1][:, 0].var()) / RUNS) ** 0.5
    for arm in arms:
        for run in arm:
            run[rng.permutation(PROBLEMS)[: PROBLEMS // 2]] = np.nan
    assert half(*arms) == pytest.approx(expected, rel=0.04)


def test_each_run_has_problems_of_its_own():
    lines = problems.written({"A": [{"b": 2, "a": 1}, {"c": 0}], "B": [{"a": 0}]})
    assert lines == {"A": ["12.", "..0"], "B": ["0.."]}
    expected = [[0.5, 1.0, np.nan], [np.nan, np.nan, 0.0]]
    assert np.array_equal(problems.accuracies(lines["A"], 2), expected, equal_nan=True)


def test_intervals_are_stored(monkeypatch):
    """Each difference but the control has one."""
    pair, again = "GRPO, sums → PPO, sums", "GRPO, sums → GRPO again, sums"
    arms = {arm: {} for arm in ("GRPO, sums", "PPO, sums", "GRPO again, sums")}
    result = {"seeds": 2, "arms": arms, "degrees": {}, "differences": {pair: [0.25, 0.1, 0.2], again: [0.0, 0.1, 0.2]}}
    stored = []
    monkeypatch.setattr(
        problems, "record", lambda _: {"verdict": "", "effect": "accuracy: ", "date": "d", "result": result}
    )
    monkeypatch.setattr(problems, "store", lambda *given, **about: stored.append((*given, about)))
    monkeypatch.setattr(problems.fair, "all_arms", lambda *_: {arm: arm for arm in arms})
    run = lambda arm: SimpleNamespace(arm=arm, settings={"eval_samples": 2})  # noqa: E731
    monkeypatch.setattr(runs, "trials", lambda arms, last: {arm: [run(arm)] * last for arm in arms})
    monkeypatch.setattr(problems, "correct", lambda t: {"x": 1, "y": 1 + t.arm.startswith("PPO")})
    found = problems.compare("critic_is_unnecessary")
    assert found == {pair: (0.0, 0.5)}  # both drawn problems are x, or both are y
    correct = {"GRPO, sums": ["11", "11"], "PPO, sums": ["12", "12"]}
    ((name, written, about),) = stored
    assert written == result | {"problems": {"correct": correct, "samples": 2, "intervals": {pair: [0.0, 0.5]}}}
    assert name == "critic_is_unnecessary" and about == {"date": "d"}
    monkeypatch.setattr(problems, "MOST", 1)
    with pytest.raises(SystemExit):  # more correct responses than a digit can say
        problems.compare("critic_is_unnecessary")


def test_verdicts_for_new_problems():
    """A loss worth naming is 0.05: Welch's intervals exclude it, and those for new problems may not."""
    pairs = [f"8 responses, {world} → 2 responses, {world}" for world in ("sums", "search")]
    again = [f"8 responses, {world} → 8 responses again, {world}" for world in ("sums", "search")]
    result = {"arms": {arm: {} for pair in pairs for arm in pair.split(" → ")}}
    result["differences"] = {pair: [0.0, 0.04, 0.05] for pair in [*pairs, *again]}
    for sums, search, expected in ((1, 1, "reproduced"), (1.2, 1.2, "reproduced"), (1.2, 1.3, "inconclusive")):
        assert problems.verdict("small_groups_suffice", result, {"sums": sums, "search": search}) == expected
    stored = result | {"problems": {"intervals": dict(zip(pairs, [(-0.04, 0.048), (-0.08, 0.04)], strict=True))}}
    assert problems.wider(stored) == pytest.approx(dict(zip(pairs, (1.2, 2), strict=True)))
    assert problems.widest([stored, stored]) == pytest.approx({"sums": 1.2, "search": 2})
    assert problems.verdict("small_groups_suffice", stored, {"sums": 1, "search": 1}) == "inconclusive"


@pytest.mark.parametrize(
    "name",
    ["dynamic_sampling_pays", "length_reward_saves_tokens", "entropy_predicts_accuracy", "grpo_against_itself"],
)
def test_only_fair_trials_of_accuracy_have_problems_to_draw(name, monkeypatch, capsys):
    monkeypatch.setattr(runs, "trials", lambda *given: pytest.fail("it starts runs"))
    with pytest.raises(SystemExit):
        problems.compare(name)
    assert f"{name} is no fair trial of accuracy with a result" in capsys.readouterr().err


def test_responses_must_be_those_of_the_run(tmp_path, monkeypatch, capsys):
    own = {"dataset": "sums", "engine": "transformers", "eval_problems": 2, "eval_samples": 2, "eval_seed": 7}
    own["max_response_tokens"] = 40
    t = SimpleNamespace(folder=tmp_path, settings=own, weights="model", ended=True, last=lambda: 0.75)

    def python(words):
        given = dict(zip(words[3::2], words[4::2], strict=True))
        assert words[:3] == ["-m", "tools.evaluate", "--held-out"] and given["--seed"] == given["--eval-seed"] == "7"
        assert given["--max-response-tokens"] == "40" and not (tmp_path / "problems").exists()
        folder = tmp_path / "problems"
        folder.mkdir()
        rows = [{"question": "x", "correct": [True, False]}, {"question": "y", "correct": [True, True]}]
        (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "results.json").touch()

    monkeypatch.setattr(runs, "python", python)
    (tmp_path / "problems").mkdir()  # of an evaluation that was interrupted
    assert problems.correct(t) == {"x": 1, "y": 2} == problems.correct(t)  # the second time from the file
    for changes, words in (({"last": lambda: 0.5}, "not the responses of the run"), ({"ended": False}, "ended early")):
        with pytest.raises(SystemExit):
            problems.correct(SimpleNamespace(**vars(t) | changes))
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_a_runs_responses_are_sampled_again(tmp_path, monkeypatch):
    """Those of its last evaluation, problem by problem."""
    monkeypatch.setattr(runs, "RUNS", tmp_path)
    monkeypatch.setattr(runs, "LAST", "--steps 1 --num-minibatches 1 --eval-problems 24 --eval-samples 2")
    t = runs.trial("grpo --eval-seed SEED", 3)
    monkeypatch.setattr(type(t), "weights", property(lambda t: str(t.folder / "checkpoint-000001")))
    found = problems.correct(t)
    assert len(found) == 24 and set(found.values()) <= {0, 1, 2}
    assert sum(found.values()) / 48 == t.last() > 0
