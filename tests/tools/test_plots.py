"""tools.plots groups runs by what differs, and every method keeps its style."""

import json

import grpo
from common.folders import write_config
from tools import plots, scripts
from tools.scripts import parents

import pytest
from runs import ended


def write_run(folder, method="grpo", seed=1, final=0.5, steps=4, **settings):
    folder.mkdir()
    write_config(folder, method, grpo.Args(seed=seed, steps=steps, **settings))
    rows = [{"step": 0, "eval/avg": 0.25, "seconds/evaluate": 2.0}]
    rows += [{"step": s, "accuracy": s / 10 + seed, "reward": 1.0, "length": 5.0, "entropy": 1.0, "seconds/train": 1.0}
             for s in range(1, steps + 1)]  # fmt: skip
    rows[-1]["eval/avg"] = final
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_runs_are_grouped_by_what_differs(tmp_path, capsys):
    runs = [write_run(tmp_path / f"a{s}", seed=s, final=0.5 + s / 10) for s in (1, 2, 3)]
    runs += [write_run(tmp_path / f"b{s}", seed=s, lr=1e-5) for s in (1, 2)]
    runs.append(write_run(tmp_path / "c", "dr_grpo", steps=6))
    groups = plots.grouped(tuple(runs))
    assert [(g.label, sorted(g.logs)) for g in groups] == [
        ("grpo --lr 0.0001", [1, 2, 3]), ("grpo --lr 1e-05", [1, 2]), ("dr_grpo", [1]),
    ]  # fmt: skip
    plots.main(plots.Args(tuple(runs), tmp_path / "all.png"))
    out = capsys.readouterr().out.splitlines()
    assert out[1].split() == ["grpo", "--lr", "0.0001", "3", "0.250", "0.700", "±", "0.248", "4", "6"]
    assert out[3].split() == ["dr_grpo", "1", "0.250", "0.500", "6", "8"]
    assert (tmp_path / "all.png").stat().st_size > 10_000
    band = plots.overlay(groups).axes[0].collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((1.1, 3.4)), "from the lowest to the highest seed"
    styles = [style for group in (groups, groups[1:]) for style in plots.styles(group)]
    assert len(set(styles[:3])) == 3 and styles[3:] == [plots.method_style("grpo"), plots.method_style("dr_grpo")]


def test_any_number_of_methods_has_a_style():
    """A style follows from the name alone, and lines in one picture look different even if two styles are the same."""
    top = {name: plots.method_style(name) for name in plots.FIXED}
    assert len(set(top.values())) == len(top), "two of the eleven look the same"
    names = [f"method_{i}" for i in range(200)]
    found = [plots.method_style(name) for name in names]
    assert len(set(found)) > 100 and not set(found) & set(top.values())
    assert found == [plots.method_style(name) for name in names]
    groups = [plots.Group(name, {}, {}) for name in names]
    assert len(set(plots.styles(groups))) == len(names), "of 200 lines in one picture two look the same"


def test_a_new_method_changes_no_style(monkeypatch):
    """Also where scripts are found while it is there: nothing looks at the list of methods."""
    before = {name: plots.method_style(name) for name in parents()}
    monkeypatch.setattr(scripts, "parents", lambda: {"a_new_method": "grpo", **before})
    assert {name: plots.method_style(name) for name in before} == before
    assert plots.method_style("a_new_method") not in [before[name] for name in plots.FIXED]


def test_mistakes_in_plots(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    again = write_run(tmp_path / "again")
    empty, evaluation = tmp_path / "empty", tmp_path / "evaluation"
    for folder, method in ((empty, "grpo"), (evaluation, "evaluate")):
        folder.mkdir()
        write_config(folder, method, grpo.Args())
    for runs, out, words in (
        ((), "a.png", "no run folders are given"),
        ((tmp_path / "none",), "a.png", "is not a run folder"),
        ((empty,), "a.png", "has logged no steps yet"),
        ((evaluation,), "a.png", "is an evaluation"),
        ((run, again), "a.png", "has the same seed 1 and settings as another run"),
        ((run,), "a.txt", "must end in .png"),
        ((run,), "none/a.png", "cannot be written: No such file"),
    ):
        assert words in ended(capsys, lambda runs=runs, out=out: plots.main(plots.Args(runs, tmp_path / out)))
