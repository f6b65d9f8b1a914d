"""Intervals for new problems as well as new seeds: a bootstrap over the runs and the held-out problems of a fair trial.

Each run has its own half of a world's 512 held-out problems, and Welch's interval is over runs: it holds for these 512.
They are a sample too, and the arms share them. The bootstrap draws both again, with replacement: the runs of each arm,
and the problems, the same for all runs. It is mildly conservative (Owen and Eckles, 1106.2125, Abstract).
"""

import json
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from statistics import mean
from typing import Any

from claims import fair, runs
from claims.court import load, record, rounded, store
from common.cli import fail

import numpy as np

DRAWS = 10_000
MOST = 9  # samples of a problem: their number of correct ones is a digit


def correct(t: runs.Trial) -> dict[str, int]:
    """By held-out problem, how many responses of the model after the last step are correct.

    `tools.evaluate` samples these responses again, from the same seeds.
    """
    if not t.ended:
        fail(f"{t.folder}: the run ended early, so its problems cannot be drawn again.", code=1)
    folder, own = t.folder / "problems", t.settings
    if not (folder / "results.json").exists():
        flags = {
            "model": t.weights, "dataset": own["dataset"], "engine": own["engine"], "run-dir": folder,
            "eval-problems": own["eval_problems"], "eval-samples": own["eval_samples"],
            "eval-seed": own["eval_seed"], "seed": own["eval_seed"], "k": 1,
            "max-response-tokens": own["max_response_tokens"],
        }  # fmt: skip
        shutil.rmtree(folder, ignore_errors=True)  # of an evaluation that was interrupted
        words = [str(word) for name, value in flags.items() for word in (f"--{name}", value)]
        runs.python(["-m", "tools.evaluate", "--held-out", *words])
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    found = {row["question"]: sum(row["correct"]) for row in rows}
    if abs(mean(found.values()) / own["eval_samples"] - t.last()) > 1e-9:
        fail(
            f"{folder}: not the responses of the run, whose engine had flags that tools.evaluate lacks.",
            code=1,
        )
    return found


def written(arms: dict[str, list[dict[str, int]]]) -> dict[str, list[str]]:
    """A digit for each problem of each run, in the same order: how many were correct; a dot if it had others."""
    problems = sorted({problem for of_arm in arms.values() for run in of_arm for problem in run})
    return {arm: ["".join(str(run.get(p, ".")) for p in problems) for run in of_arm] for arm, of_arm in arms.items()}


def accuracies(lines: list[str], n: int) -> np.ndarray:
    """(runs, problems): the fraction of n responses that are correct, NaN where a run had other problems."""
    return np.array([[np.nan if letter == "." else int(letter) / n for letter in line] for line in lines])


def interval(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of the difference in mean accuracy, from (runs, problems) of two arms."""
    rng, count = np.random.default_rng(0), first.shape[1]
    changes = []
    for weights in rng.multinomial(count, np.full(count, 1 / count), DRAWS):  # (problems,) how often each is drawn
        ends = []
        for arm in (first, second):
            drawn = arm[rng.integers(len(arm), size=len(arm))]  # (runs, problems)
            own = weights * ~np.isnan(drawn)  # (runs, problems)
            ends.append((np.nansum(weights * drawn, 1) / own.sum(1)).mean())
        changes.append(ends[1] - ends[0])
    low, high = np.quantile(changes, [0.025, 0.975])
    return float(low), float(high)


def wider(result: dict[str, Any]) -> dict[str, float]:
    """By difference, the longer half of its interval over half of Welch's."""
    found = {}
    for pair, ends in result["problems"]["intervals"].items():
        center, half, _ = result["differences"][pair]
        found[pair] = max(abs(end - center) for end in ends) / half
    return found


def widest(results: Iterable[dict[str, Any]]) -> dict[str, float]:
    """By world, the most that these intervals are wider than Welch's."""
    found: dict[str, float] = {}
    for pair, times in (item for result in results for item in wider(result).items()):
        world = pair.rpartition(", ")[2]
        found[world] = max(times, found.get(world, 0))
    return found


def verdict(name: str, result: dict[str, Any], times: dict[str, float]) -> str:
    """The verdict with the stored intervals for new problems or, without them, with Welch's, so much wider by world."""
    own, judged = wider(result) if "problems" in result else {}, {}
    for pair, (center, half, seen) in result["differences"].items():
        judged[pair] = [center, half * own.get(pair, times[pair.rpartition(", ")[2]]), seen]
    return load(name).verdict(result | {"differences": judged})


def fair_trial_of_accuracy(stored: dict[str, Any] | None) -> bool:
    """Whether what is stored of a claim has held-out problems to draw again."""
    return stored is not None and "degrees" in stored["result"] and stored["effect"].startswith("accuracy:")


def compare(name: str) -> dict[str, Any]:
    """Draw runs and problems of each difference of a fair trial again, and store the intervals."""
    claim, stored = load(name), record(name)
    if not fair_trial_of_accuracy(stored):
        fail(f"{name} is no fair trial of accuracy with a result: python -m claims lists the claims.")
    result = stored["result"]
    pairs = [pair.split(" → ") for pair in result["differences"] if f" {fair.AGAIN}, " not in pair]
    words = fair.all_arms(claim.ARMS, fair.worlds_of(result))
    found: dict[str, Any] = {"correct": {}, "intervals": {}}
    for world in fair.worlds_of(result):
        of_world = {arm: words[arm] for pair in pairs for arm in pair if arm.endswith(f", {world}")}
        done = runs.trials(of_world, result["seeds"])
        found["samples"] = next(iter(done.values()))[0].settings["eval_samples"]
        if found["samples"] > MOST:
            fail(f"{name}: at most {MOST} samples of a problem, and {world} has {found['samples']}.")
        with ThreadPoolExecutor(runs.JOBS) as pool:
            found["correct"] |= written({arm: list(pool.map(correct, of_arm)) for arm, of_arm in done.items()})
    for pair in pairs:
        ends = [accuracies(found["correct"][arm], found["samples"]) for arm in pair]
        found["intervals"][" → ".join(pair)] = interval(*ends)
    about = {key: value for key, value in stored.items() if key not in ("verdict", "effect", "result")}
    store(name, result | {"problems": rounded(found)}, **about)
    return found["intervals"]
