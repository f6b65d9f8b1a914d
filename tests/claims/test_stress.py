"""The stress page: runs under each condition, each method at its best rate, ranks with intervals."""

import re

from benchmarks import stress
from claims import runs
from tools import reports

import pytest
from test_fair import flags_of

RATES = {"3e-5": 0.6, "1e-4": 0.7, "3e-4": 0.1}


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The arms and seeds of all runs that the benchmark makes, in a reports folder that starts empty."""
    found = []

    class Made:
        def __init__(self, arm, seed):
            found.append((arm, seed))
            self.seed = seed

        def last(self):
            return self.seed / 1000

    for module in (reports, stress):
        monkeypatch.setattr(module, "REPORTS", tmp_path)
    monkeypatch.setattr(stress, "trial", Made)
    monkeypatch.setattr(runs, "sweep", lambda arm, metric, rates: {rate: RATES[rate] for rate in rates})
    return found


def test_every_run_is_under_its_condition_at_its_best_rate(made):
    """Each run has its condition's settings, its own seed and problems, and k extra steps with staleness k."""
    stress.main(stress.Args(seeds=2))
    assert len(made) == 2 * len(stress.CONDITIONS) * len(stress.METHODS) == len({arm for arm, _ in made}) * 2
    for k, updates in stress.CONDITIONS.values():
        arms = {f"{words} --lr 1e-4" for words in stress.arms(k, updates).values()}
        found = [flags_of(arm, seed) for arm, seed in made if arm in arms]
        assert len(found) == 2 * len(stress.METHODS) == len({args.seed for args in found})
        for args in found:
            assert (args.staleness, args.num_minibatches * args.update_epochs) == (k, updates)
            assert args.steps == 30 + k and args.lr == 1e-4 and args.eval_seed == args.seed > 1000


def test_only_missing_runs_are_made(made):
    stress.main(stress.Args(seeds=2))
    before = reports.read_report("stress")
    made.clear()
    stress.main(stress.Args(seeds=3))
    assert {seed for _, seed in made} == {3} and reports.read_report("stress")[: len(before)] == before
    page = (stress.REPORTS / "stress.md").read_text()
    assert re.search(r"^\| gspo \| 0.002 ± 0.002 \| 1 to 11 \| 1e-4 \| 0.60 \| 0.70 \| 0.10 \|$", page, re.M), page
    assert "means of 3 other seeds" in " ".join(page.split())


def test_ranks():
    """Ranks are certain where intervals are far apart; two equal methods can each be the better one."""
    far = {"a": [0.9, 0.91, 0.92], "b": [0.5, 0.51, 0.52], "c": [0.1, 0.11, 0.12]}
    assert stress.ranks(far) == {"a": "1 to 1", "b": "2 to 2", "c": "3 to 3"}
    assert stress.ranks(far | {"b": far["a"]}) == {"a": "1 to 2", "b": "1 to 2", "c": "3 to 3"}
    # b beats a in 3.9 % of the draws; with one more seed for each, in 0.9 %.
    assert stress.ranks({"a": [0.6, 0.7, 0.8], "b": [0.3, 0.4, 0.5]}) == {"a": "1 to 2", "b": "1 to 2"}
    assert stress.ranks({"a": [0.6, 0.65, 0.75, 0.8], "b": [0.3, 0.35, 0.45, 0.5]}) == {"a": "1 to 1", "b": "2 to 2"}
