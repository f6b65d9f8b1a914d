"""Means over seeds, and what may be said of them."""

import statistics

from scipy import stats


def interval(values: list[float], confidence: float = 0.95) -> tuple[float, float]:
    """Mean of at least two values, and half the width of its interval (Student's t)."""
    spread = statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values), stats.t.ppf((1 + confidence) / 2, len(values) - 1) * spread
