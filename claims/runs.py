"""What the claims by training runs share: arms with paired seeds, and the statistics of their differences.

An arm is a script's name, with changes of claims/variant.py, and flags on top of SETTINGS: "grpo --clip-eps 0.1",
"grpo+coin"; with "@100" it has seeds of its own, from 101 on, and the flag "SEED" is the seed. Without "@", seed s of
every arm has the same problems and seeds of the engine, where a step has as many prompts, and the same base model
unless the flags name another. A
run stays in runs/claims/ under a name made of its command and its script's code, so an interrupted claim resumes, and
arms that several claims share are run once. A run that ends because its numbers are not finite has a final accuracy of
0. With the same versions of the libraries, every x86 processor with AVX2 should give the same numbers (ENVIRONMENT).
"""

import hashlib
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from claims.court import VOID, judge, judge_lossless, load, record, rounded, software, store
from common.checkpoints import checkpoints
from common.cli import fail
from common.metrics import read_metrics
from tools.compare import code
from tools.plots import BLUE, GRAY, GREEN, ORANGE, PURPLE, RED, draw_intervals, panel
from tools.reports import today
from tools.scripts import ROOT, command, script_path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from scipy import stats

RUNS, CHECKS = ROOT / "runs" / "claims", ROOT / "runs" / "checks"
JOBS = 2  # runs at a time, with one thread each
SETTINGS = (
    "--engine transformers --prompts-per-step 8 --responses-per-prompt 8 --steps 30 --eval-every 0 --save-every 0 "
    "--eval-problems 64 --eval-samples 8"
)
ENVIRONMENT = {  # one thread, and the same instructions whatever the processor has
    "OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2,STRICT", "ONEDNN_MAX_CPU_ISA": "AVX2",
}  # fmt: skip
LAST = ""  # flags after all others: tests make runs tiny
REUSE = "--num-minibatches 4 --update-epochs 4 --steps 25"  # 16 updates from every rollout batch
SEARCH = "--dataset search --steps 40 --eval-problems 256 --eval-samples 4"
RATES, SWEEP_SEEDS = ("3e-5", "1e-4", "3e-4"), (101, 102)
CLIPPED = 0.01  # if no arm clips this fraction of the loss weight, the comparison says nothing about clipping
COLORS = (GRAY, BLUE, ORANGE, GREEN, RED, PURPLE)


@dataclass(frozen=True)
class Trial:
    """One run, read from its folder."""

    folder: Path

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """What it logged, a row for each step, step 0 being the base model."""
        return read_metrics(self.folder)

    @cached_property
    def settings(self) -> dict[str, Any]:
        return json.loads((self.folder / "config.json").read_text())["args"]

    @property
    def ended(self) -> bool:
        """Whether it reached its last evaluation; a run that was interrupted did not."""
        return self.rows[-1]["step"] == self.settings["steps"] and "eval/avg" in self.rows[-1]

    @property
    def weights(self) -> str:
        """The folder with the model after the last step, from the repository's root."""
        return str(checkpoints(self.folder)[-1].relative_to(ROOT))

    def last(self, metric: str = "eval/avg") -> float:
        """A metric of the last step, or 0 for a run that did not reach it."""
        return (self.rows[-1].get(metric) or 0.0) if self.ended else 0.0

    def series(self, metric: str) -> list[float]:
        """A metric by step, from step 1 on. A missing value repeats the last one; after an early end accuracy is 0."""
        values, rows = [], {row["step"]: row for row in self.rows}
        for step in range(1, self.settings["steps"] + 1):
            value = rows[step].get(metric) if step in rows else 0.0 if metric == "accuracy" else None
            values.append(value if value is not None else values[-1] if values else 0.0)
        return values

    def mean(self, metric: str, steps: int = 0) -> float:
        """The mean of a metric over all steps, or over the last so many."""
        return statistics.mean(self.series(metric)[-steps:])

    @property
    def clipped(self) -> float:
        """Fraction of the loss weight whose gradient was clipped or masked, over all updates."""
        return self.mean("clip_pos") + self.mean("clip_neg")

    @property
    def budget(self) -> dict[str, float]:
        """Responses generated, tokens trained on, and updates."""
        own = self.settings
        prompts = sum(row.get("sampled_prompts", own["prompts_per_step"]) for row in self.rows if row["step"] > 0)
        return {
            "responses": prompts * own["responses_per_prompt"],
            "tokens": sum(row.get("response_tokens", 0) for row in self.rows),
            "updates": own["steps"] * own["num_minibatches"] * own["update_epochs"],
        }


def words(arm: str, seed: int) -> list[str]:
    """What follows `python` in the command of a run."""
    first, *flags = shlex.split(arm)
    seed += sum(int(flag[1:]) for flag in flags if flag.startswith("@"))
    flags = [flag.replace("SEED", str(seed)) for flag in flags if not flag.startswith("@")]
    script = ["-m", "claims.variant", first] if "+" in first else command(script_path(first))
    return [*script, *SETTINGS.split(), *flags, *LAST.split(), "--seed", str(seed)]


def code_hash(arm: str) -> str:
    """Of the code that makes an arm's runs: its script without comments, and claims/variant.py where it is used."""
    script, *changes = arm.split()[0].split("+")
    text = "\n".join(code(script))
    if changes:
        text += (Path(__file__).parent / "variant.py").read_text()
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def by_todays_code(result: dict[str, Any]) -> bool:
    """Whether the scripts of all arms are still those that made, or repeated, their runs, comments apart."""

    def script(command: str) -> str:
        words = command.removeprefix("python ").removeprefix("-m ").removeprefix("claims.variant ").split()
        return words[0].removesuffix(".py").rpartition(".")[2] if "+" not in words[0] else words[0]

    arms = result["arms"].values()
    return all(code_hash(script(arm["command"])) in (arm.get("code"), arm.get("repeated_code")) for arm in arms)


def python(args: list[str], ended: Callable[[], bool] = lambda: True) -> None:
    """Run a command of this repository on one thread; a run may also end because its numbers are not finite."""
    env = os.environ | ENVIRONMENT
    ran = subprocess.run([sys.executable, *args], cwd=ROOT, env=env, capture_output=True, text=True)
    if "not finite" not in ran.stderr and (ran.returncode or not ended()):
        reason = (ran.stderr.strip() or "no reason given").splitlines()[-1]
        fail(f"python {' '.join(args)} did not finish: {reason}", code=1)


def trial(arm: str, seed: int) -> Trial:
    """The run of an arm with a seed: a stored one, or else a new one."""
    key = hashlib.sha256("\n".join([*words(arm, seed), code_hash(arm)]).encode()).hexdigest()[:16]
    folder = RUNS / f"{arm.split()[0].partition('+')[0]}-{key}"
    if not (folder / "done").exists():
        shutil.rmtree(folder, ignore_errors=True)
        python([*words(arm, seed), "--run-dir", str(folder)], lambda: Trial(folder).ended)
        for name in ("best", "rollouts"):
            shutil.rmtree(folder / name, ignore_errors=True)
        for path in (*folder.glob("*/state.pt"), folder / "curves.png"):
            path.unlink(missing_ok=True)
        (folder / "done").touch()
    return Trial(folder)


def trials(arms: dict[str, str], last: int, first: int = 1) -> dict[str, list[Trial]]:
    """All runs of the arms with the seeds `first` to `last`, two at a time, seed by seed."""
    seeds = range(first, last + 1)
    jobs = [(arm, seed) for seed in seeds for arm in dict.fromkeys(arms.values())]
    with ThreadPoolExecutor(JOBS) as pool:
        done = dict(zip(jobs, pool.map(lambda job: trial(*job), jobs), strict=True))
    return {name: [done[arm, seed] for seed in seeds] for name, arm in arms.items()}


def sweep(arm: str, metric: Callable[[Trial], float], rates: Sequence[str] = RATES) -> dict[str, float]:
    """The mean metric of an arm at each learning rate, on seeds that no verdict uses."""
    jobs = [(f"{arm} --lr {rate}", seed) for rate in rates for seed in SWEEP_SEEDS]
    with ThreadPoolExecutor(JOBS) as pool:
        values = list(pool.map(lambda job: metric(trial(*job)), jobs))
    n = len(SWEEP_SEEDS)
    return {rate: statistics.mean(values[i * n : (i + 1) * n]) for i, rate in enumerate(rates)}


@dataclass(frozen=True)
class Difference:
    """A mean difference, its standard error, and the degrees of freedom of its t-test."""

    mean: float
    error: float
    degrees: float

    @property
    def half(self) -> float:
        """Half of the 95 % interval."""
        return float(stats.t.ppf(0.975, self.degrees)) * self.error

    @property
    def detectable(self) -> float:
        """The smallest true difference that a t-test at 5 % finds with a power of 80 %."""
        return float(stats.t.ppf([0.975, 0.8], self.degrees).sum()) * self.error


def difference(first: list[float], second: list[float], paired: bool) -> Difference:
    """What the second sample has more than the first, seed by seed or as independent samples (Welch, 1947)."""
    if paired:
        changes = [y - x for x, y in zip(first, second, strict=True)]
        return Difference(statistics.mean(changes), statistics.stdev(changes) / len(changes) ** 0.5, len(changes) - 1)
    a, b = (statistics.variance(values) / len(values) for values in (first, second))
    degrees = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1)) if a + b else len(first) - 1
    return Difference(statistics.mean(second) - statistics.mean(first), (a + b) ** 0.5, degrees)


def accuracy(t: Trial) -> float:
    """Held-out accuracy after the last step (avg@n)."""
    return t.last()


def compare(
    arms: dict[str, str],
    pairs: list[tuple[str, str]],
    seeds: int,
    metric: Callable[[Trial], float] | dict[str, Callable[[Trial], float]] = accuracy,
    curve: str = "accuracy",
    paired: bool = True,
    **others: Callable[[Trial], float],
) -> dict[str, Any]:
    """Run the arms; the metric of each seed, differences of the second arm from the first, and what was spent.

    `metric` is one for all arms, or one for each. `curve` is the logged metric to draw, `others` are further ones to
    report without a verdict. A difference is (mean, half of the 95 % interval, smallest difference that so many seeds
    would have shown), with its degrees of freedom beside it where arms are not `paired` by seed.
    """
    done = trials(arms, seeds)
    of_arms = metric if isinstance(metric, dict) else dict.fromkeys(arms, metric)
    values = {name: [of_arms[name](t) for t in of_arm] for name, of_arm in done.items()}
    result = {"seeds": seeds, **software(), "arms": {}, "differences": {}}
    for name, of_arm in done.items():
        budgets = [t.budget for t in of_arm]
        result["arms"][name] = {
            "command": "python " + " ".join(words(arms[name], 1)),
            "code": code_hash(arms[name]),
            "values": values[name],
            "clipped": statistics.mean(t.clipped for t in of_arm),
            **{key: statistics.mean(budget[key] for budget in budgets) for key in budgets[0]},
            **{key: statistics.mean(map(other, of_arm)) for key, other in others.items()},
            "curve": [round(statistics.mean(step), 4) for step in zip(*(t.series(curve) for t in of_arm), strict=True)],
        }
    for a, b in pairs if seeds > 1 else []:
        found = difference(values[a], values[b], paired)
        result["differences"][f"{a} → {b}"] = [found.mean, found.half, found.detectable]
        if not paired:
            result.setdefault("degrees", {})[f"{a} → {b}"] = found.degrees
    return result


def judged(result: dict[str, Any], pair: str, smallest: float, sign: int = 1) -> str:
    """The verdict on one difference, claimed to be positive (or, with `sign` -1, negative)."""
    mean, half, _ = result["differences"][pair]
    return judge(sign * mean, half, smallest)


def judged_lossless(result: dict[str, Any], pair: str, smallest: float) -> str:
    """The verdict on a claim that nothing is lost from the first arm to the second."""
    mean, half, _ = result["differences"][pair]
    return judge_lossless(-mean, half, smallest)


def measures(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The comparisons of a result: of its metric, and of accuracy where the verdict depends on that too."""
    return {"": result} | ({"accuracy, ": result["accuracy"]} if "accuracy" in result else {})


def p_values(result: dict[str, Any]) -> dict[str, float]:
    """Of a two-sided t-test on each difference, as its interval was made."""
    found = {}
    for pair, (mean, half, _) in result["differences"].items():
        degrees = result.get("degrees", {}).get(pair, result["seeds"] - 1)
        error = half / stats.t.ppf(0.975, degrees)
        found[pair] = 2 * stats.t.sf(abs(mean) / error, degrees) if error else float(mean == 0)
    return found


def check(name: str) -> str:
    """Whether the first seed of each arm of a claim gives its stored value again, to the bit, in runs made anew.

    If so, the result says when it was `repeated`, and with which code and versions.
    """
    global RUNS
    claim, stored, folder = load(name), record(name), RUNS
    if claim.KIND != "runs" or stored is None:
        fail(f"{name} has no result by runs to repeat: python -m claims {name} computes it.")
    RUNS = CHECKS
    try:
        again, arms = rounded(claim.compute(1))["arms"], stored["result"]["arms"]
    finally:
        RUNS = folder
    pairs = {arm: (arms[arm]["values"][0], again[arm]["values"][0]) for arm in arms}
    if other := [f"{arm} {was} and now {now}" for arm, (was, now) in pairs.items() if was != now]:
        return f"other values: {'; '.join(other)}"
    for arm, of_arm in arms.items():
        of_arm["repeated_code"] = again[arm]["code"]
    store(name, stored["result"], date=stored["date"], repeated={"date": today(), **software()})
    return f"the same in {len(arms)} arms"


def judged_by_clip(result: dict[str, Any], verdict: str) -> str:
    """The verdict of a claim about clipping, or void where no arm clips 1 % of the loss weight."""
    return verdict if max(arm["clipped"] for arm in result["arms"].values()) >= CLIPPED else VOID


def summarize(result: dict[str, Any], what: str = "accuracy", form: str = ".3f") -> str:
    """Means of the arms, the differences with their intervals, and how much was clipped, in one line."""
    arms = result["arms"]
    means = ", ".join(f"{name} {statistics.mean(arm['values']):{form}}" for name, arm in arms.items())
    differences = "; ".join(
        f"{pair} {mean:+{form}} ± {half:{form}} (detectable from {seen:{form}})"
        for pair, (mean, half, seen) in result["differences"].items()
    )
    clipped = ", ".join(f"{arm['clipped']:.1%}" for arm in arms.values())
    return f"{what}: {means}; {differences}; clipped {clipped}; {result['seeds']} seeds"


def draw_arms(
    result: dict[str, Any], title: str, curve: str = "training accuracy", metric: str = "held-out accuracy"
) -> Figure:
    """The mean curve of each arm, and beside it the metric of each seed with the interval of its mean."""
    arms = result["arms"]
    figure = Figure(figsize=(8, 3.6), layout="constrained")
    figure.suptitle(title, fontsize="medium")
    left, right = figure.subplots(1, 2)
    for (name, arm), color in zip(arms.items(), COLORS, strict=False):
        left.plot(range(1, len(arm["curve"]) + 1), arm["curve"], color=color, label=name)
    panel(left, "", f"step (mean of {result['seeds']} seeds)", curve)
    left.legend(fontsize="small")
    draw_intervals(right, {name: arm["values"] for name, arm in arms.items()}, COLORS)
    panel(right, "", metric, "")
    right.locator_params(axis="x", nbins=5)
    explain_points(right)
    return figure


def explain_points(axes: Axes) -> None:
    """The legend above a panel with intervals of arms."""
    points = [Line2D([], [], marker="o", linestyle="", color=GRAY, alpha=0.35, markersize=4, label="one seed")]
    points.append(axes.errorbar([], [], xerr=[], fmt="o", color=GRAY, capsize=4, label="mean, 95 % interval"))
    axes.legend(handles=points, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2)
