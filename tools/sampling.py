"""Sampling from a part of the distribution."""

from dataclasses import dataclass

from common.settings import CountOrZero, Rate


@dataclass(kw_only=True)
class SamplingSettings:
    """For evaluation and chat only, since training scores what it samples."""

    GROUP = "Model and engine"

    top_p: Rate = 1.0
    """Sample only from the fewest most likely tokens whose probabilities add up to at least this."""
    top_k: CountOrZero = 0
    """Sample from this many of the likeliest tokens; 0: from all."""
