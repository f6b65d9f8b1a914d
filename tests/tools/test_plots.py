"""tools.plots groups runs by their differences, and every method keeps its style."""

import json

import grpo
from common.folders import write_config
from common.metrics import logged_rows
from tools import plots

import pytest
from runs import ended, on_tiny, run


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


# The metric of each line in a run's picture, by panel title and label.
SHOWN = {
    "Accuracy": {"training": "accuracy", "held out": "eval/avg"},
    "Reward": {"reward": "reward", "groups without signal": "zero_std_groups"},
    "Response length": {"correct": "length_correct", "incorrect": "length_incorrect"},
    "Entropy": {"full vocabulary": "entropy"},
    "Ratio before clipping": {"max": "ratio_max", "mean": "ratio", "min": "ratio_min"},
    "Clipped tokens": {"advantage > 0": "clip_pos", "advantage < 0": "clip_neg"},
    "Engine / learner mismatch": {"max": "mismatch_max", "mean": "mismatch_mean"},
    "Gradient norm": {"norm": "grad_norm"},
}


@pytest.mark.curves
def test_each_curve_shows_what_its_label_says(tmp_path, monkeypatch):
    """Each line shows the metric of its label, and a legend names each line once."""
    names = [name for lines in SHOWN.values() for name in lines.values()]
    rows = [{"step": step} | {name: i + step / 10 for i, name in enumerate(names)} for step in range(4)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    figures = []
    monkeypatch.setattr(plots.Figure, "savefig", lambda figure, *args, **kwargs: figures.append(figure))
    plots.draw_curves(tmp_path, "a run")
    assert {axes.get_title() for axes in figures[0].axes} == set(SHOWN)
    for axes in figures[0].axes:
        drawn = {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines}
        expected = {
            label: ([row["step"] for row in rows], [row[name] for row in rows])
            for label, name in SHOWN[axes.get_title()].items()
        }
        assert drawn == expected, axes.get_title()
        colors = {line.get_label(): line.get_color() for line in axes.lines}
        legend = axes.get_legend()
        named = {text.get_text(): line.get_color() for text, line in zip(legend.texts, legend.get_lines(), strict=True)}
        assert named == colors and len(set(colors.values())) == len(colors), axes.get_title()


def test_each_line_of_several_runs_has_its_label(tmp_path):
    """Legend styles belong to the named runs, and each panel shows the metric of its title."""
    folders = [write_run(tmp_path / name, name, seed=1) for name in ("grpo", "ppo")]
    names = {
        "Accuracy (points: held out)": "accuracy",
        "Reward": "reward",
        "Response length": "length",
        "Entropy": "entropy",
    }
    for i, folder in enumerate(folders):
        rows = [
            {"step": step} | {name: 10 * i + k + step / 10 for k, name in enumerate(names.values())} for step in (1, 2)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    figure = plots.overlay(plots.grouped(tuple(folders)))
    legend = figure.legends[0]
    style = {
        text.get_text(): (line.get_color(), line.get_linestyle())
        for text, line in zip(legend.texts, legend.get_lines(), strict=True)
    }
    assert style.keys() == {"grpo", "ppo"} and len(set(style.values())) == 2
    for axes in figure.axes:
        k = list(names).index(axes.get_title())
        drawn = {
            (line.get_color(), line.get_linestyle()): list(line.get_ydata())
            for line in axes.lines
            if len(line.get_ydata())
        }
        assert drawn == {style[name]: [10 * i + k + 0.1, 10 * i + k + 0.2] for i, name in enumerate(("grpo", "ppo"))}


def test_any_number_of_methods_has_a_style():
    """A style follows from the name alone, and lines in one picture differ even if two styles are equal."""
    top = {name: plots.method_style(name) for name in plots.FIXED}
    assert len(set(top.values())) == len(top), "two of the eleven look the same"
    names = [f"method_{i}" for i in range(200)]
    found = [plots.method_style(name) for name in names]
    assert len(set(found)) > 100 and not set(found) & set(top.values())
    assert found[:2] == [("#0072B2", "--", "*"), ("black", "-", "s")]
    groups = [plots.Group(name, {}, {}) for name in names]
    assert len(set(plots.styles(groups))) == len(names), "of 200 lines in one picture two look the same"


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


def test_curves_are_drawn_while_a_run_goes_on(tiny_model, tmp_path, monkeypatch):
    """Curves are redrawn after each evaluation but the first, with its numbers."""
    drawn = []
    monkeypatch.setattr(plots, "draw_curves", lambda folder, title: drawn.append((title, logged_rows(folder)[-1])))
    run("grpo", tmp_path / "run", **on_tiny(tiny_model) | {"steps": 3, "eval_every": 1})
    assert [(row["step"], "eval/avg" in row) for _, row in drawn] == [(1, True), (2, True), (3, True)]
    assert all(title.startswith("grpo.py, ") for title, _ in drawn)
