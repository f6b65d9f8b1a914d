"""What a run logs in each step, besides the method's own numbers."""

import json
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from common.cli import say
from common.distributed import gather, world_size
from common.folders import write_whole
from common.records import Rollouts

import torch
from torch import Tensor


class StepMetrics:
    """Averages over one step, weighted exactly as the loss is.

    A per-token value has the weight that the token has in the loss, over all minibatches of the
    step, so a curve describes what was optimized, not the last micro-batch.
    """

    def __init__(self) -> None:
        self.sums: dict[str, float] = defaultdict(float)
        self.weights: dict[str, float] = defaultdict(float)
        self.extremes: dict[str, float] = {}
        self.loss = 0.0  # of the current update

    def add(self, values: dict[str, Tensor], weights: Tensor, mask: Tensor) -> None:
        """Per-token values, their weights and the mask, all (b, T); "ratio" also has its min and max logged."""
        for name, value in values.items():
            self.sums[name] += (weights * value.detach()).sum().item()
            self.weights[name] += weights.sum().item()
            if name == "ratio" and mask.any():
                low, high = value.detach()[mask].aminmax()
                self.extremes["ratio_min"] = min(self.extremes.get("ratio_min", float("inf")), low.item())
                self.extremes["ratio_max"] = max(self.extremes.get("ratio_max", 0.0), high.item())

    def add_loss(self, loss: Tensor) -> None:
        """A micro-batch's part of the loss. The parts of an update add up; the mean over updates is reported."""
        self.loss += loss.item()

    def add_update(self, **values: Tensor) -> None:
        """End an update; the mean of each value over the step's updates is reported."""
        for name, value in values.items():
            self.sums[name] += float(value)
            self.weights[name] += 1.0
        self.sums["loss"] += self.loss
        self.weights["loss"] += 1.0 / world_size()  # each process has a part of the loss
        self.loss = 0.0

    def result(self) -> dict[str, float]:
        """The averages over what all processes added."""
        everywhere = gather((self.sums, self.weights, self.extremes))
        names = dict.fromkeys(name for sums, *_ in everywhere for name in sums)
        sums, weights = ({name: sum(part[k][name] for part in everywhere) for name in names} for k in (0, 1))
        means = {name: sums[name] / (weights[name] or 1.0) for name in names}
        lows = [extremes["ratio_min"] for *_, extremes in everywhere if extremes]
        highs = [extremes["ratio_max"] for *_, extremes in everywhere if extremes]
        return means | ({"ratio_min": min(lows), "ratio_max": max(highs)} if lows else {})


def rollout_metrics(rewards: Tensor, rollouts: Rollouts) -> dict[str, Any]:
    """What is known before any update; rewards are (P, G)."""
    is_correct = torch.tensor(rollouts.correct, dtype=torch.bool)  # (B,)
    lengths = torch.tensor([len(tokens) for tokens in rollouts.tokens]).float()  # (B,)
    return {
        "reward": rewards.mean().item(),
        "accuracy": is_correct.float().mean().item(),
        "length": lengths.mean().item(),
        "length_correct": lengths[is_correct].mean().item() if is_correct.any() else None,
        "length_incorrect": lengths[~is_correct].mean().item() if not is_correct.all() else None,
        "truncated": sum(rollouts.truncated) / len(lengths),
        "zero_std_groups": (rewards == rewards[:, :1]).all(1).float().mean().item(),
        "response_tokens": int(lengths.sum()),
    }


def mismatch_metrics(old_logp: Tensor, rollout_logp: Tensor, mask: Tensor) -> dict[str, float | None]:
    """How far the engine's probabilities are from the learner's at the rollout weights, all (B, T)."""
    if not mask.any():  # every response was filtered out
        return {}
    difference = (old_logp.exp() - rollout_logp.exp()).abs()[mask]  # (N,)
    return {
        "mismatch_mean": difference.mean().item(),
        "mismatch_max": difference.max().item(),
        "tis": torch.exp(old_logp - rollout_logp)[mask].mean().item(),  # before the cap
    }


def logged_rows(run_dir: Path) -> list[dict]:
    """The lines of a run's log; a line that was cut off by a kill, or is otherwise damaged, is skipped."""
    rows = []
    for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, AttributeError, RecursionError):
            row = json.loads(line)
            numbers = (isinstance(x, float | None) or (isinstance(x, int) and abs(x) < 1 << 63) for x in row.values())
            if type(row.get("step")) is int and all(numbers):  # integers of 64 bits or more are refused
                rows.append(row)
    return rows


def cut_logs(run_dir: Path, step: int) -> dict[int, dict]:
    """Drop what was logged after `step`, since those steps are run again; returns the evaluations up to it."""
    metrics = run_dir / "metrics.jsonl"
    rows = [row for row in logged_rows(run_dir) if row["step"] <= step] if metrics.exists() else []
    write_whole(metrics, "".join(json.dumps(row) + "\n" for row in rows))
    for pattern in ("samples/step-{}.md", "rollouts/step-{}.jsonl.gz"):
        for path in run_dir.glob(pattern.format("[0-9]" * 6)):
            if int(path.name.split(".")[0].removeprefix("step-")) > step:
                path.unlink()
    kept = evaluations(rows)
    if step >= 0 and ({row["step"] for row in rows} != set(range(step + 1)) or 0 not in kept):
        say(f"warning: {metrics} was damaged; curves and summary lack what is missing in it.")
    return kept


def read_metrics(run_dir: Path) -> list[dict]:
    """What a run logged, one row per step, with the evaluation after it."""
    rows: dict[int, dict] = {}
    for row in logged_rows(run_dir):
        rows.setdefault(row["step"], {}).update(row)
    return [rows[step] for step in sorted(rows)]


def evaluations(rows: list[dict]) -> dict[int, dict]:
    """The rows with an evaluation, by step."""
    shown = ("eval/n", "eval/avg", "eval/standard_error", "eval/greedy")
    return {row["step"]: row for row in rows if all(row.get(name) is not None for name in shown)}
