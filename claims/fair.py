"""Fair trials: claims by runs, in two worlds, whose arms have their own learning rates, seeds and problems.

- **Learning rate**: each arm uses its best one in each world, which `python -m claims NAME --sweep` finds on seeds of
  its own: three rates, then the next ones beyond the best until it has a worse one on either side, or 3e-6 or 3e-3 is
  the best. It is stored in reports/learning_rates.json before the runs of the verdict can start.
- **Seeds and problems**: every run has its own seed, its own 256 of the world's 512 held-out problems, and its own
  seeds of their samples (--eval-seed). Arms are independent samples.
- **Control**: the first arm is compared with itself on other seeds, which shows what no difference looks like.

A claim has ARMS (name: script and flags, without a learning rate), which `compute` runs in both worlds. The verdict is
that of both; where they do not agree it is inconclusive, and the effect says what each gives. Some claims are about one
world, which they name in WORLDS. Claims whose first arm is the same share its runs.
"""

from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

from claims import runs
from claims.court import INCONCLUSIVE, judge, judge_lossless
from common.cli import fail, say
from tools.plots import draw_intervals, panel
from tools.reports import read_report, write_report

from matplotlib.figure import Figure

WORLDS = {
    "sums": "--eval-problems 256 --eval-samples 2",
    "search": f"{runs.SEARCH} --model search --eval-samples 2",
    "search-hard": "--dataset search-hard --model search --steps 40 --eval-problems 256 --eval-samples 16",
    "sums-hard": "--dataset sums-hard --steps 60 --eval-problems 256 --eval-samples 32",
}
BOTH = ("sums", "search")
AGAIN = "again"  # what the control is called after the arm that it repeats
RATES = ("3e-6", "1e-5", "3e-5", "1e-4", "3e-4", "1e-3", "3e-3")
FIRST = RATES[2:5]
REPORT = "learning_rates"  # the accuracy of each arm that was swept, by rate

Arms = dict[str, str]


def arms_of(world: str, arms: Arms) -> Arms:
    """The arms with their world's flags and with seeds of their own: the first one from 1001 on, the next from 2001."""
    return {
        name: f"{words.split()[0]} {WORLDS[world]} {' '.join(words.split()[1:])} --eval-seed SEED @{1000 * i}"
        for i, (name, words) in enumerate(arms.items(), 1)
    }


def missing_rates(found: dict[str, float]) -> list[str]:
    """The rates to try next: the first three, then the neighbors of the best."""
    best = RATES.index(max(found, key=found.get)) if found else 0
    return [rate for rate in (RATES[max(best - 1, 0) : best + 2] if found else FIRST) if rate not in found]


def sweep_arm(words: str, metric: Callable[[runs.Trial], float] = runs.accuracy) -> dict[str, float]:
    """Compare learning rates for an arm, and store what they gave."""
    while rates := missing_rates(found := read_report(REPORT, {}).get(words, {})):
        found |= runs.sweep(words, metric, rates)
        write_report(REPORT, read_report(REPORT, {}) | {words: {r: found[r] for r in RATES if r in found}})
    return found


def sweep(claim: ModuleType) -> None:
    """Compare learning rates for each arm of a claim in each of its worlds."""
    for world in getattr(claim, "WORLDS", BOTH):
        for name, words in arms_of(world, claim.ARMS).items():
            say(f"{name}, {world}: {sweep_arm(words, getattr(claim, 'METRIC', runs.accuracy))}")


def at_best_rate(words: str) -> str:
    """An arm with the learning rate that its sweep has found."""
    found = read_report(REPORT, {}).get(words, {})
    if missing_rates(found):
        fail(f"the best learning rate of `{words}` is not known: run python -m claims NAME --sweep first.")
    return f"{words} --lr {max(found, key=found.get)}"


def all_arms(arms: Arms, worlds: Iterable[str] = BOTH) -> Arms:
    """All arms of all worlds with their best learning rates, and the first one once more."""
    first, flat = next(iter(arms)), {}
    for world in worlds:
        rated = {name: at_best_rate(words) for name, words in arms_of(world, arms).items()}
        rated[f"{first} {AGAIN}"] = f"{rated[first]} @500"
        flat |= {f"{name}, {world}": words for name, words in rated.items()}
    return flat


def compute(
    arms: Arms, pairs: list[tuple[str, str]], seeds: int, worlds: Iterable[str] = BOTH, **options: Any
) -> dict[str, Any]:
    """Run all arms in all worlds, and compare them; `options` are those of runs.compare."""
    first = next(iter(arms))
    compared = [(f"{a}, {w}", f"{b}, {w}") for w in worlds for a, b in [*pairs, (first, f"{first} {AGAIN}")]]
    return runs.compare(all_arms(arms, worlds), compared, seeds, paired=False, **options)


def worlds_of(result: dict[str, Any]) -> list[str]:
    """The worlds of a result, in the order of its arms."""
    return list(dict.fromkeys(arm.rpartition(", ")[2] for arm in result["arms"]))


def in_each_world(
    result: dict[str, Any], pair: tuple[str, str], smallest: float, sign: int = 1, lossless: bool = False
) -> dict[str, str]:
    """The verdict on a difference, claimed to be positive (with `sign` -1 negative), or not to be a loss."""
    found = {}
    for world in worlds_of(result):
        mean, half, _ = result["differences"][" → ".join(f"{arm}, {world}" for arm in pair)]
        found[world] = judge_lossless(-sign * mean, half, smallest) if lossless else judge(sign * mean, half, smallest)
    return found


def of_both(found: dict[str, str]) -> str:
    """The verdict that all worlds give, else that the question is open."""
    return next(iter(found.values())) if len(set(found.values())) == 1 else INCONCLUSIVE


def effect(result: dict[str, Any], found: dict[str, str], what: str = "accuracy", form: str = ".3f") -> str:
    """The verdicts by world, all means and differences, and what was spent, in one line."""
    spent = ", ".join(f"{name} {arm['responses']:.0f}" for name, arm in result["arms"].items())
    tokens = ", ".join(f"{arm['tokens']:.0f}" for arm in result["arms"].values())
    verdicts = ", ".join(f"{world} {verdict}" for world, verdict in found.items())
    return f"{runs.summarize(result, what, form)}; {verdicts}; responses {spent}; tokens {tokens}"


def between(
    arms: Arms,
    pair: tuple[str, str],
    smallest: float,
    sign: int = 1,
    lossless: bool = False,
    worlds: Iterable[str] = BOTH,
    reported: Sequence[tuple[str, str]] = (),
) -> tuple[Callable[..., Any], ...]:
    """`compute`, `of_worlds`, `verdict` and `effect` of a claim about the accuracy of two arms.

    Other pairs of arms can be `reported`; they decide nothing.
    """

    def of_worlds(result: dict[str, Any]) -> dict[str, str]:
        return in_each_world(result, pair, smallest, sign, lossless)

    return (
        lambda seeds: compute(arms, [*reported, pair], seeds, worlds),
        of_worlds,
        lambda result: of_both(of_worlds(result)),
        lambda result: effect(result, of_worlds(result)),
    )


def draw(result: dict[str, Any], title: str, metric: str = "held-out accuracy") -> Figure:
    """The metric of every run, an arm a line, a panel for each world."""
    worlds = worlds_of(result)
    figure = Figure(figsize=(8, 1.6 + 0.35 * len(result["arms"]) / len(worlds)), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    for axes, world in zip(figure.subplots(1, len(worlds), squeeze=False)[0], worlds, strict=True):
        of_world = {name: arm for name, arm in result["arms"].items() if name.endswith(f", {world}")}
        values = {name.removesuffix(f", {world}"): arm["values"] for name, arm in of_world.items()}
        draw_intervals(axes, values, runs.COLORS)
        panel(axes, "", f"{world}: {metric} of {result['seeds']} runs", "")
        runs.explain_points(axes)
    return figure
