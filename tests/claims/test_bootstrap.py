"""What the page says beside a verdict by runs: how firm it is, and what its runs cost."""

import random
from types import SimpleNamespace

from claims import bootstrap
from claims.page import spent
from claims.runs import difference, judged

import pytest


def stored(first, second, paired):
    found = difference(first, second, paired)
    result = {"seeds": len(first), "arms": {"a": {"values": first}, "b": {"values": second}}}
    result["differences"] = {"a → b": [found.mean, found.half, 0.0]}
    return result if paired else result | {"degrees": {"a → b": found.degrees}}


@pytest.fixture
def stays(monkeypatch):
    """How often a made-up claim that b is 0.05 above a keeps its verdict."""

    def of(result):
        verdict = lambda result: judged(result, "a → b", 0.05)  # noqa: E731
        monkeypatch.setattr(bootstrap, "record", lambda name: {"verdict": verdict(result), "result": result})
        monkeypatch.setattr(bootstrap, "load", lambda name: SimpleNamespace(verdict=verdict))
        return bootstrap.stays.__wrapped__("made up")

    return of


@pytest.mark.parametrize("paired", [True, False])
def test_a_verdict_far_from_its_threshold_stays(paired, stays):
    first = [0.50, 0.51, 0.52, 0.53] * 4
    assert stays(stored(first, [x + 0.2 + 0.01 * (i % 3) for i, x in enumerate(first)], paired)) == 1
    assert stays(stored(first, [x - 0.2 + 0.01 * (i % 3) for i, x in enumerate(first)], paired)) == 1


@pytest.mark.parametrize("paired", [True, False])
def test_a_verdict_on_its_threshold_is_a_coin_flip(paired, stays):
    first = [0.50, 0.51, 0.52, 0.53] * 4
    assert 0.3 < stays(stored(first, [x + 0.0501 + 0.02 * (-1) ** i for i, x in enumerate(first)], paired)) < 0.7


@pytest.mark.parametrize("paired", [True, False])
def test_an_uncertain_effect_stays_inconclusive(paired, stays):
    """Its mean is on either side of the threshold, but the interval nearly always holds both sides."""
    first = [0.50, 0.51, 0.52, 0.53] * 4
    assert stays(stored(first, [x + 0.03 + 0.2 * (-1) ** i for i, x in enumerate(first)], paired)) > 0.7


def test_what_an_arm_has_by_seed_is_drawn_too(monkeypatch):
    """A verdict that rests on the mean of an arm, 0.05 by its seeds, and on no difference."""
    result = stored([0.0, 0.1] * 8, [0.0] * 16, paired=True)
    verdict = lambda result: sum(result["arms"]["a"]["values"]) >= 0.8  # noqa: E731
    monkeypatch.setattr(bootstrap, "record", lambda name: {"verdict": verdict(result), "result": result})
    monkeypatch.setattr(bootstrap, "load", lambda name: SimpleNamespace(verdict=verdict))
    assert 0.3 < bootstrap.stays.__wrapped__("made up") < 0.8


def test_paired_arms_have_the_same_draw(stays):
    """Seeds differ by far more than arms do, so arms that were drawn apart would hardly ever agree."""
    first = [0.1 * i for i in range(16)]
    second = [x + 0.1 + 0.01 * (i % 3) for i, x in enumerate(first)]
    assert stays(stored(first, second, paired=True)) == 1
    assert stays(stored(first, second, paired=False)) < 1


def test_accuracy_is_drawn_again_with_its_metric():
    """Lengths are far from their threshold, accuracies on theirs; a run keeps its length and accuracy together."""
    first = [0.50, 0.51, 0.52, 0.53] * 4
    lengths = stored(first, [x + 1 for x in first], True)
    on_the_edge = stored(first, [x + 0.0501 + 0.02 * (-1) ** i for i, x in enumerate(first)], True)
    verdicts = set()
    for seed in range(20):
        drawn = bootstrap.drawn_again(lengths | {"accuracy": on_the_edge}, random.Random(seed))
        assert judged(drawn, "a → b", 0.05) == "reproduced"
        verdicts.add(judged(drawn["accuracy"], "a → b", 0.05))
        same = bootstrap.drawn_again(on_the_edge | {"accuracy": on_the_edge}, random.Random(seed))
        assert same["differences"] == same["accuracy"]["differences"] == drawn["accuracy"]["differences"]
    assert verdicts == {"reproduced", "inconclusive"}


def test_what_a_run_has_spent():
    """In each world of a fair trial, whose arms are independent; arms of other claims may have commas."""
    arms = {"a, sums": (1920, 60_400), "b, x, sums": (2432, 70_000), "a, search": (2560, 300_000)}
    arms = {name: dict(zip(("responses", "tokens"), both, strict=True)) for name, both in arms.items()}
    fair = {"arms": arms, "degrees": {}}
    assert spent(fair) == "sums 1,920 to 2,432 responses, 60k to 70k tokens; search 2,560 responses, 300k tokens"
    assert spent({"arms": arms}) == "1,920 to 2,560 responses, 60k to 300k tokens"
