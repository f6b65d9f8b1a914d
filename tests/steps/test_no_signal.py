"""Steps that hold nothing to learn from: no division by zero, no endless loop, and no update out of nothing."""

import json
import math
from pathlib import Path

from tools.plots import read_metrics
from tools.scripts import load, parents
from common.verification.verifier import Verifier

import pytest
import torch
from conftest import SMALL, needed
from oracles import oracle
from safetensors.torch import load_file

ROOT = Path(__file__).parent.parent


def run(name, folder, **settings):
    """Final weights and logged rows of a small run."""
    module = load(name)
    module.main(module.Args(**SMALL | needed(module) | {"run_dir": folder} | settings))
    rows = read_metrics(folder)
    for row in rows:
        assert all(math.isfinite(value) for value in row.values() if value is not None)
    return load_file(folder / "checkpoint-000002" / "model.safetensors"), rows[1:]


def of_script(name, **settings):
    """Those of the settings that a script has."""
    return {key: value for key, value in settings.items() if hasattr(load(name).Args, key)}


def unchanged(name, weights):
    initial = load_file(ROOT / "models" / load(name).Args.model / "model.safetensors")
    return all(torch.equal(weights[key], initial[key]) for key in initial)


@pytest.mark.parametrize("name", list(parents()))
def test_all_responses_truncated_and_wrong(name, tmp_path, capsys):
    short = of_script(name, overlong_cache=1, max_rounds=2, interrupt_from=1.0)
    weights, rows = run(name, tmp_path / "run", max_response_tokens=1, **short)
    assert all(row["truncated"] == 1 and row["accuracy"] == 0 and row["zero_std_groups"] == 1 for row in rows)
    learns = type(oracle(name, None)).LEARNS_WITHOUT_REWARDS
    assert all((row["grad_norm"] > 0) == learns for row in rows)
    assert unchanged(name, weights) != learns


@pytest.mark.parametrize("name", list(parents()))
def test_all_responses_right(name, tmp_path, monkeypatch, capsys):
    """Only a few learn from that: PPO's critic, for one, does not know yet that all is well."""
    monkeypatch.setattr(Verifier, "judge", lambda self, responses, *_: [True] * len(responses))
    fixed = of_script(name, overlong_cache=0, max_rounds=2)
    weights, rows = run(name, tmp_path / "run", **fixed)
    assert all(row["accuracy"] == 1 for row in rows)
    assert unchanged(name, weights) != type(oracle(name, None)).LEARNS_WHEN_ALL_IS_RIGHT


def test_overlong_filter_that_leaves_nothing(tmp_path, capsys):
    settings = {"overlong_cache": 1, "max_rounds": 2, "overlong_filter": True}
    weights, _ = run("dapo", tmp_path / "run", max_response_tokens=1, **settings)
    assert unchanged("dapo", weights)


@pytest.mark.parametrize("name", ["grpo", "dapo"])
def test_data_set_with_one_row(name, tmp_path, capsys):
    """The one problem fills the batch as many times as there are prompts in it."""
    for file, question, answer in (("train", "7+5=?", "12"), ("eval", "7+6=?", "13")):
        (tmp_path / f"{file}.jsonl").write_text(json.dumps({"question": question, "answer": answer}) + "\n")
    data = {"dataset": str(tmp_path / "train.jsonl"), "eval_dataset": str(tmp_path / "eval.jsonl")}
    _, rows = run(name, tmp_path / "run", **data)
    assert len(rows) == 2
    assert "note: 1 held-out problems, not 4" in capsys.readouterr().out
