"""`--resume RUN --steps N`: an extended run equals a run with N steps from the start."""

import json
import shutil
import sys
from itertools import pairwise

import grpo
from common.folders import write_config
from common.metrics import read_metrics
from common.run import Run
from methods import vapo
from recipes import r1
from tools.scripts import load

import pytest
from conftest import SMALL
from runs import assert_same_rows, assert_same_weights, results


@pytest.fixture
def settings(tiny_model):
    return SMALL | {
        "model": str(tiny_model), "dataset": str(tiny_model / "problems.jsonl"), "max_response_tokens": 8,
        "eval_problems": 2, "eval_samples": 8,
    }  # fmt: skip


def evaluated(rows):
    """Samples per problem (n) of each evaluation, by step."""
    return {row["step"]: row["eval/n"] for row in rows if "eval/n" in row}


@pytest.mark.parametrize("name", ["grpo", pytest.param("pipeline_rl", marks=pytest.mark.slow)])
def test_an_extended_run_is_a_longer_run(name, settings, tmp_path):
    """Weights and log are equal bit for bit, except that the shorter run's last evaluation stays."""
    script, settings = load(name), settings | {"eval_every": 3}
    if name == "pipeline_rl":
        settings |= {"training_tokens": 3, "in_flight_prompts": 3}
    script.main(script.Args(run_dir=tmp_path / "whole", **settings | {"steps": 4}))
    script.main(script.Args(run_dir=tmp_path / "run", **settings | {"steps": 2}))
    script.main(script.Args(resume=tmp_path / "run", steps=4))
    (weights, rows), (extended, extended_rows) = results(tmp_path / "whole"), results(tmp_path / "run")
    assert_same_weights(weights, extended)
    assert evaluated(rows) == {0: 8, 3: 2, 4: 8} and evaluated(extended_rows) == {0: 8, 2: 8, 3: 2, 4: 8}
    for row in extended_rows[2:3]:
        for key in [key for key in row if key.startswith("eval/")]:
            del row[key]
    assert_same_rows(extended_rows, rows)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["args"]["steps"] == 4


def test_an_unfinished_run_is_cut_short(settings, tmp_path):
    """A shortened run is evaluated after its new last step, even if that was logged; --eval-samples may change."""
    grpo.main(grpo.Args(run_dir=tmp_path / "run", **settings | {"steps": 3, "eval_every": 1, "save_every": 1}))
    shutil.rmtree(tmp_path / "run" / "checkpoint-000003")
    assert evaluated(read_metrics(tmp_path / "run"))[2] == 2
    grpo.main(grpo.Args(resume=tmp_path / "run", steps=2, eval_samples=12))
    assert evaluated(read_metrics(tmp_path / "run")) == {0: 8, 1: 2, 2: 12}


def test_settings_that_do_not_change_the_result_may_change(settings, tmp_path):
    """With smaller micro-batches and checkpointed gradients, a resumed run ends the same within rounding."""
    other = {"micro_batch_tokens": 64, "gradient_checkpointing": True}
    grpo.main(grpo.Args(run_dir=tmp_path / "whole", **settings | {"steps": 2}))
    grpo.main(grpo.Args(run_dir=tmp_path / "run", **settings | {"steps": 1}))
    grpo.main(grpo.Args(resume=tmp_path / "run", steps=2, **other))
    (weights, _), (resumed, _) = results(tmp_path / "whole"), results(tmp_path / "run")
    for name, weight in weights.items():
        assert (weight - resumed[name]).abs().max() < 1e-5, name
    saved = json.loads((tmp_path / "run" / "config.json").read_text())["args"]
    assert other.items() <= saved.items()


def test_a_data_file_may_have_moved(settings, tmp_path, capsys):
    """Only the file's content matters: the run continues with a moved file, twice, and refuses another one."""
    paths = [tmp_path / name for name in ("first.jsonl", "second.jsonl", "third.jsonl")]
    paths[0].write_text("".join(json.dumps({"question": f"{i}+{i}=?", "answer": str(2 * i)}) + "\n" for i in range(40)))
    grpo.main(grpo.Args(run_dir=tmp_path / "run", **settings | {"steps": 1, "dataset": str(paths[0])}))
    for steps, (old, new) in enumerate(pairwise(paths), 2):
        old.rename(new)
        grpo.main(grpo.Args(resume=tmp_path / "run", dataset=str(new), steps=steps))
    assert [row["step"] for row in read_metrics(tmp_path / "run")] == [0, 1, 2, 3]
    paths[0].write_text(paths[2].read_text() + "\n")
    with pytest.raises(SystemExit):
        grpo.main(grpo.Args(resume=tmp_path / "run", dataset=str(paths[0]), steps=4))
    assert "is not what the run" in capsys.readouterr().err


def test_the_default_number_of_steps_counts_as_given_on_the_command_line(tmp_path, monkeypatch):
    write_config(tmp_path, "grpo", grpo.Args(steps=40))
    for command, steps in (("grpo.py --resume R --steps 100", 100), ("grpo.py --resume R", 40), ("pytest --steps", 40)):
        monkeypatch.setattr(sys, "argv", command.split())
        assert Run(grpo.Args(resume=tmp_path), grpo.__file__).saved_settings().steps == steps


@pytest.mark.parametrize(
    "script,saved,given,words",
    [
        (grpo, {}, {"lr": 1e-5}, "leave out --lr"),
        (grpo, {}, {"eval_problems": 5}, "leave out --eval-problems"),  # it changes the training problems
        (grpo, {}, {"run_dir": "elsewhere"}, "leave out --run-dir"),
        (grpo, {}, {"steps": 30}, "has finished 40 steps already"),
        (grpo, {}, {"steps": 0}, "--steps"),
        (grpo, {"lr_schedule": "cosine"}, {"steps": 200}, "with --lr-schedule cosine its past steps depended"),
        (vapo, {}, {"steps": 200}, "with --value-pretraining 0.1"),
        (r1, {"stages": ("cold-start", "rl")}, {"steps": 200}, "leave out --steps"),
    ],
)
def test_what_may_not_change(script, saved, given, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(script, "load_model", None)  # an accepted run fails here instead of training 200 steps
    write_config(tmp_path, script.__name__.rpartition(".")[2], script.Args(**{"steps": 40} | saved))
    (tmp_path / "checkpoint-000040").mkdir()
    config = (tmp_path / "config.json").read_text()
    with pytest.raises(SystemExit) as stop:
        script.main(script.Args(resume=tmp_path, **given))
    error = capsys.readouterr().err.strip()
    assert stop.value.code == 2 and error.startswith("error: ") and "\n" not in error and words in error, error
    assert (tmp_path / "config.json").read_text() == config
