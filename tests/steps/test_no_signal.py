"""Steps without anything to learn cause no division by zero, no endless loop, and no update."""

import json
import math

from common.verification import Verifier
from tools.scripts import load, parents
from worlds import MODELS

import pytest
import runs
from oracles import oracle
from safetensors.torch import load_file

QUICK = {"ppo", "dapo"}
SCRIPTS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in parents()]


def run(name, folder, **settings):
    """Final weights and logged rows of a small run, evaluated only at its start and end."""
    weights, rows = runs.run(name, folder, eval_problems=1, eval_samples=1, eval_every=0, **settings)
    for row in rows:
        broken = {key: value for key, value in row.items() if value is not None and not math.isfinite(value)}
        assert not broken, f"step {row['step']}: {broken}"
    return weights, rows[1:]


def of_script(name, **settings):
    """The settings that a script has; a β that scales the whole loss, as in DPO, stays above 0.

    The default reward model of process_rewards.py would take a minute.
    """
    settings |= {"labeled_problems": 8, "reward_model_updates": 10}
    if name in ("dpo", "spin"):
        del settings["kl_beta"]
    return {key: value for key, value in settings.items() if hasattr(load(name).Args, key)}


def unchanged(name, weights):
    return not runs.differing(weights, load_file(MODELS[load(name).Args.model].folder / "model.safetensors"))


@pytest.mark.parametrize("name", SCRIPTS)
def test_all_responses_truncated_and_incorrect(name, tmp_path, capsys):
    short = of_script(name, kl_beta=0.0, overlong_cache=1, max_rounds=2, interrupt_from=1.0)
    weights, rows = run(name, tmp_path / "run", max_response_tokens=1, **short)
    learns = type(oracle(name, None)).LEARNS_WITHOUT_REWARDS
    for row in rows:
        found = {key: row[key] for key in ("truncated", "accuracy", "zero_std_groups")}
        assert found == {"truncated": 1, "accuracy": 0, "zero_std_groups": 1}, f"step {row['step']}: {found}"
        assert (row["grad_norm"] > 0) == learns, f"step {row['step']}: grad_norm {row['grad_norm']}"
    assert unchanged(name, weights) != learns


@pytest.mark.parametrize("name", SCRIPTS)
def test_all_responses_correct(name, tmp_path, monkeypatch, capsys):
    """Only a few methods learn from correct responses alone, such as PPO, whose critic starts at 0."""
    monkeypatch.setattr(Verifier, "judge", lambda self, responses, *_: [1.0] * len(responses))
    fixed = of_script(name, kl_beta=0.0, overlong_cache=0, max_rounds=2)
    fixed |= {"max_response_tokens": 64} if load(name).Args.model == "search" else {}  # few responses are longer
    weights, rows = run(name, tmp_path / "run", **fixed)
    assert [row["accuracy"] for row in rows] == [1.0, 1.0]
    assert unchanged(name, weights) != type(oracle(name, None)).LEARNS_WHEN_ALL_IS_CORRECT


def test_overlong_filter_that_leaves_nothing(tmp_path, capsys):
    settings = {"overlong_cache": 1, "max_rounds": 2, "overlong_filter": True}
    weights, _ = run("dapo", tmp_path / "run", max_response_tokens=1, **settings)
    assert unchanged("dapo", weights)


@pytest.mark.parametrize("name", ["grpo", pytest.param("dapo", marks=pytest.mark.slow)])
def test_data_set_with_one_row(name, tmp_path, capsys):
    """A single problem fills the batch."""
    for file, question, answer in (("train", "7+5=?", "12"), ("eval", "7+6=?", "13")):
        (tmp_path / f"{file}.jsonl").write_text(json.dumps({"question": question, "answer": answer}) + "\n")
    data = {"dataset": str(tmp_path / "train.jsonl"), "eval_dataset": str(tmp_path / "eval.jsonl")}
    _, rows = runs.run(name, tmp_path / "run", **data)
    assert len(rows) == 3
    assert "note: 1 held-out problems, not 4" in capsys.readouterr().out
