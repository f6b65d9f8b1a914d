"""Means with their intervals, and tables of them."""

import math
import statistics

from scipy import stats


def interval(values: list[float], confidence: float = 0.95) -> tuple[float, float]:
    """Mean of at least two values, and half the width of its interval (Student's t)."""
    spread = statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values), stats.t.ppf((1 + confidence) / 2, len(values) - 1) * spread


def fraction_interval(values: list[float], confidence: float = 0.95) -> tuple[float, float]:
    """Interval for the mean of values between 0 and 1, such as each problem's pass@k.

    Wilson's score interval for a fraction (1927) with Student's t, and with the number of yes-or-no values that would
    have the same standard error as these values. It stays within [0, 1]. If all values are 0 or all are 1, it still has
    a width, unlike Student's interval and a bootstrap.
    """
    if len(values) < 2:
        return 0.0, 1.0
    mean, variance = statistics.mean(values), statistics.variance(values)
    t = float(stats.t.ppf((1 + confidence) / 2, len(values) - 1))
    count = len(values) if variance == 0 else len(values) * mean * (1 - mean) / variance
    center = (mean + t**2 / (2 * count)) / (1 + t**2 / count)
    half = t / (1 + t**2 / count) * math.sqrt(mean * (1 - mean) / count + (t / (2 * count)) ** 2)
    return max(0.0, center - half), min(1.0, center + half)


def written(values: list[float], form: str = ".3f") -> str:
    """The formatted mean, with its 95 % interval if there are several values."""
    if len(values) < 2:
        return f"{values[0]:{form}}"
    mean, half = interval(values)
    return f"{mean:{form}} ± {half:{form.lstrip('+')}}"


def aligned(rows: list[list[str]]) -> str:
    """Rows of cells as columns, the first one to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *cells[1:]]) for row, cells in zip(rows, padded, strict=True))
