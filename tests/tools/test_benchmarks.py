"""Benchmarks without their runs: reports from made-up results."""

import json
import re
import runpy
import shutil
import sys
from types import SimpleNamespace

from benchmarks import ablation, effects, methods, peers, r1, stress
from benchmarks.peers_loop import loop_gradient
from claims import runs
from tools import reports
from tools.reports import REPORTS, read_report
from tools.scripts import ROOT, components, load, parents

import pytest
import torch
import tyro


@pytest.mark.parametrize("name", ["agreement", "gpu_memory", "soak", "verifier"])
def test_benchmarks_without_settings_have_a_help(name, monkeypatch, capsys):
    """Help says how to run a benchmark and how long it takes, without running it."""
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__")
    text = capsys.readouterr().out
    assert end.value.code == 0
    for expected in (f"python -m benchmarks.{name}", "about "):
        assert expected in text, f"the help of benchmarks.{name} does not say {expected!r}: {text}"


@pytest.mark.parametrize("name", [name for name in parents() if components(name)])
def test_ablation(name, tmp_path, monkeypatch, capsys):
    """The table has the recipe, a line without each component, and one without all; no run is repeated."""
    names = ablation.variants(name)
    assert len(names) == len(components(name)) + 2, f"two components of {name} have the same flags"
    script, ran = load(name), []
    for flags in filter(None, names):
        assert tyro.cli(script.Args, args=flags.split()) != script.Args(), f"{name} {flags} changes nothing"

    def pretended(name, seed, steps, flags):
        ran.append((seed, flags))
        gain = seed / 10 if flags else 0.0
        log = [{"step": step, "eval/avg": 0.5 + step / 100 + gain, "length": 30.0} for step in (0, 10, 20)]
        return {"method": name, "seed": seed, "seconds": 60.0, "log": log}

    page = tmp_path / "page.md"
    page.write_text(f"Above\n\n| {name} | flags | old\n|---|\n\nBelow\n")
    monkeypatch.setattr(reports, "REPORTS", tmp_path)
    monkeypatch.setattr(ablation, "PAGE", page)
    monkeypatch.setattr(ablation, "run", pretended)
    for seeds in (1, 2, 2):
        ablation.main(ablation.Args(name, steps=20, seeds=seeds))
    assert len(ran) == len(set(ran)) == 2 * len(names)
    above, table, below = page.read_text().split("\n\n")
    assert (above, below) == ("Above", "Below\n")
    lines = table.splitlines()[2:]
    assert len(lines) == len(names) and "| 0.700 ± 0.000 |  | 0.650 |" in lines[0]
    # 0.1 and 0.2 above the whole recipe: ± t(0.975, 1) * 0.0707 / √2
    for line in lines[1:]:
        assert "| 0.850 ± 0.635 | +0.150 ± 0.635 | 0.800 |" in line
    for arguments, message in (
        (ablation.Args(name), "holds runs of 20 steps"),
        (ablation.Args("grpo"), "has no table"),
    ):
        with pytest.raises(SystemExit):
            ablation.main(arguments)
        assert message in capsys.readouterr().err


def test_tables_show_what_was_measured():
    page = (REPORTS / "methods.md").read_text()
    assert methods.table(read_report("methods")) in page, "reports/methods.md: python -m benchmarks.methods --redraw"
    assert r1.table(read_report("r1")) in page, "reports/methods.md: python -m benchmarks.r1 --redraw"
    form = r1.table_of_form(read_report("r1_form"))
    assert form in page, "reports/methods.md: python -m benchmarks.r1 --redraw"
    measured = {name: found for name in filter(components, parents()) if (found := read_report(f"ablation_{name}"))}
    assert {"olmo3", "scalerl"} <= measured.keys()
    for recipe, found in measured.items():
        table = ablation.table(recipe, found)
        assert table in page, f"reports/methods.md: python -m benchmarks.ablation {recipe} --redraw"
    written = (REPORTS / "stress.md").read_text()
    assert written == stress.page(read_report("stress")), "reports/stress.md: python -m benchmarks.stress --redraw"
    written = (REPORTS / "effects.md").read_text()
    assert written == effects.page(read_report("effects")), "reports/effects.md: python -m benchmarks.effects --redraw"
    assert "Not measured yet" not in written
    written, found = (ROOT / "docs" / "scaling.md").read_text(), read_report("agreement")
    for name in parents():
        both = [found[f"{name}, {kind}"] for kind in ("plain", "with options")]
        numbers = [f"{one[key]:.1e}" for one in both for key in ("weights", "metrics")]
        assert f"| {name} | {' | '.join(numbers)} |\n" in written, name
    written = (REPORTS / "peers.md").read_text()
    assert written == peers.table(read_report("peers")), "reports/peers.md: python -m benchmarks.peers --redraw"


class TestEffects:
    def test_every_command_is_accepted(self):
        for name, effect in effects.EFFECTS.items():
            for arm in {effect.runs, effect.without, effect.first} - {effects.BASE, ""}:
                words = runs.words(arm, 1)
                flags = words[next(i for i, word in enumerate(words) if word.startswith("--")) :]
                script = load(arm.split()[0].partition("+")[0])
                assert tyro.cli(script.Args, args=flags).steps in (40, 48), name
            assert effect.runs.split()[0] == name.split()[0] and effect.metric in effects.METRICS

    def test_runs_of_earlier_scripts_or_flags_are_marked(self):
        effect = effects.EFFECTS["lcpo_max"]
        of_today = effects.settings(effect)
        codes = [runs.code_hash(script) for script in ("lcpo_max", "lcpo_max", "lcpo")]
        one = {"with": [1, 2], "without": [1, 3], "date": "2026-11-27"}
        assert of_today["code"] == codes and "no |" in effects.page({"lcpo_max": one | of_today})
        for name in of_today:
            assert "no †" in effects.page({"lcpo_max": one | of_today | {name: "other"}})

    def test_what_is_measured(self, tmp_path, monkeypatch):
        """Metrics are measured at the end or over the last ten steps; changed flags start over."""

        def run(seed, arm):
            folder = tmp_path / f"{arm}-{seed}"
            folder.mkdir()
            (folder / "config.json").write_text('{"args": {"steps": 12}}')
            shift = seed + (10 if arm == "with" else 0)
            rows = [{"step": i, "entropy": shift + 100 * (i < 3)} for i in range(1, 13)]
            rows = [{"step": 0, "eval/avg": 0.25 * seed}, *rows]
            rows[-1] |= {"eval/avg": shift, "eval/pass@16": shift + 2}
            (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            return runs.Trial(folder)

        monkeypatch.setattr(
            effects, "trials", lambda arms, last, first: {a: [run(s, a) for s in range(first, last + 1)] for a in arms}
        )
        monkeypatch.setattr(effects, "code_hash", str)
        expected = {"held-out accuracy": [11, 12, 13], "pass@16": [13, 14, 15], "entropy": [11, 12, 13]}
        for metric, values in expected.items():
            found = effects.measured(effects.Effect("", "with", "without", metric), 3, {})
            assert found["with"] == pytest.approx(values)
            assert found.get("accuracy with") == ([11, 12, 13] if metric != "held-out accuracy" else None)
            for folder in tmp_path.iterdir():
                shutil.rmtree(folder)
        effect = effects.Effect("", "with", effects.BASE)
        found = effects.measured(effect, 3, {})
        assert found["without"] == [0.25, 0.5, 0.75] and found["with"] == [11, 12, 13]
        more = effects.measured(effect, 5, found)
        assert more["without"] == [0.25, 0.5, 0.75, 1, 1.25] and more["with"] == [11, 12, 13, 14, 15]
        for folder in tmp_path.iterdir():
            shutil.rmtree(folder)
        for changed in ({"runs": "other flags"}, {"metric": "entropy"}):
            assert effects.measured(effect, 2, found | changed)["with"] == [11, 12]
            for folder in tmp_path.iterdir():
                shutil.rmtree(folder)

    def test_runs_from_the_weights_of_a_first_run(self, monkeypatch):
        """Runs with and without the method start from the first run with the same seed."""
        begun = []

        def trial(arm, seed):
            begun.append(f"{arm}, {seed}")
            return SimpleNamespace(weights=f"weights-{seed}", last=lambda _: 1.0 + seed)

        monkeypatch.setattr(effects, "code_hash", str)
        monkeypatch.setattr(effects, "trial", trial)
        monkeypatch.setattr(
            effects,
            "trials",
            lambda arms, last, first: {a: [trial(w, s) for s in range(first, last + 1)] for a, w in arms.items()},
        )
        found = effects.measured(effects.Effect("", "max", "none", first="exact"), 3, {})
        expected = [f"exact, {seed}" for seed in (1, 2, 3)]
        expected += [f"{arm} --model weights-{seed}, {seed}" for arm in ("max", "none") for seed in (1, 2, 3)]
        assert begun == expected and found["first"] == "exact" and found["with"] == found["without"] == [2, 3, 4]
        begun.clear()
        more = effects.measured(effects.Effect("", "max", "none", first="exact"), 4, found)
        assert begun == ["exact, 4", "max --model weights-4, 4", "none --model weights-4, 4"]
        assert more["with"] == [2, 3, 4, 5]

    def test_what_is_missing_or_old_is_measured(self, tmp_path, monkeypatch):
        """As many seeds as before; the others are left alone."""
        one = {"with": [1, 2, 3, 4], "without": [1, 3, 2, 4], "date": "2026-11-27"}
        found = {name: one | effects.settings(effect) for name, effect in effects.EFFECTS.items()}
        found["pope"]["code"], begun = ["other"], []
        del found["luffy"]
        monkeypatch.setattr(effects, "read_report", lambda *_: found)
        monkeypatch.setattr(effects, "write_report", lambda *_: None)
        monkeypatch.setattr(effects, "REPORTS", tmp_path)
        monkeypatch.setattr(effects, "measured", lambda effect, seeds, _: begun.append((effect, seeds)) or one)
        monkeypatch.setattr(effects, "page", lambda _: "")
        effects.main(effects.Args())
        assert begun == [(effects.EFFECTS["pope"], 4), (effects.EFFECTS["luffy"], 3)]

    def test_every_script_is_on_the_page(self):
        found = read_report("effects")
        page = effects.page(found)
        for name in parents():
            assert re.search(rf"\b{name}\b", page), f"reports/effects.md says nothing about {name}"
        for name, one in found.items():
            effect = effects.EFFECTS[name]
            measured = one["runs"], one["without_runs"], one.get("first", "")
            assert measured == (effect.runs, effect.without, effect.first), f"{name} has other runs now"


@pytest.mark.parametrize("cap", [0.0, 1.2, 2.0])
def test_the_gradient_compared_with_peers_is_that_of_the_training_loop(cap):
    """The loop's gradient equals GRPO's by hand: TIS, clipping, and the KL in the loss."""
    point = peers.make_point(0, on_policy=False)
    gradient, advantages = loop_gradient("grpo", {"tis_cap": cap, "kl_beta": 0.3}, point, "policy")
    rewards, mask = point["rewards"], point["mask"]
    expected = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
    expected = expected.view(-1, 1).expand(mask.shape)
    torch.testing.assert_close(advantages, expected)
    ratio = (point["logp"] - point["old_logp"]).exp()
    tis = (point["old_logp"] - point["rollout_logp"]).exp()
    assert (tis[mask.bool()] > 2).any(), "no weight is truncated"
    free = torch.where(expected > 0, ratio <= 1.2, ratio >= 0.8)
    slopes = -ratio * expected * free * (tis.clamp(max=cap) if cap else 1)
    slopes = slopes + 0.3 * (1 - (point["ref"] - point["logp"]).exp())
    torch.testing.assert_close(gradient, slopes * mask / mask.sum(1, keepdim=True) / len(mask))


@pytest.mark.parametrize("method", sorted({row.method for row in peers.ROWS}))
def test_every_method_that_is_compared_runs_its_own_loop(method):
    rows = [row for row in peers.ROWS if row.method == method]
    for row in rows[:1]:
        point = peers.make_point(1, row.on_policy)
        gradient, _ = loop_gradient(method, row.ours, point, row.what)
        assert gradient.isfinite().all() and gradient.dtype == torch.double
        assert (gradient[~point["mask"].bool()] == 0).all() and gradient.abs().max() > 0
    assert torch.get_default_dtype() == torch.float


def test_pictures_are_drawn_for_any_number_of_runs():
    assert len(methods.draw(read_report("methods")).axes) == 1
    for axes in stress.draw(read_report("stress")).axes:
        shown = [tick.get_text() for tick in axes.get_yticklabels()]
        assert sorted(shown) == sorted(stress.METHODS), f"rows of the panel {axes.get_title()}: {shown}"


def test_effects_of_earlier_scripts_count_if_the_first_seed_repeats(monkeypatch):
    """With other code the first seed is run again; the other seeds are kept only if its figures are the same."""
    effect, asked = effects.Effect("learns", "grpo --lr 1e-3", "rloo"), []

    def trials(arms, last, first=1):
        asked.extend((name, seed) for name in arms for seed in range(first, last + 1))
        return {name: [SimpleNamespace(last=lambda _, s=s: s / 8) for s in range(first, last + 1)] for name in arms}

    monkeypatch.setattr(effects, "trials", trials)
    whole = effects.measured(effect, 3, {})
    assert whole["with"] == whole["without"] == [1 / 8, 2 / 8, 3 / 8] and len(asked) == 6
    old = whole | {"code": ["another"]}
    for known, made in ((whole, 0), (old, 2), (old | {"with": [0.5, 0.5, 0.5]}, 8), (old | {"runs": "grpo"}, 6)):
        asked.clear()
        assert effects.measured(effect, 3, known) | {"date": ""} == whole | {"date": ""}
        assert len(asked) == made
