"""Reinforcement learning makes a model reflect on its own steps more often.

Said by: DeepSeek-R1, 2501.12948, Sec. 2.2.4 (the "aha moment" of R1-Zero). Dr. GRPO, 2503.20783, Sec. 2.3, finds
self-reflection in base models, and no higher accuracy with it.

Tested: the fraction of 2048 responses in which the embedded model writes "wait" and corrects a line, before and after
30 steps of grpo.py. The base model does it occasionally because its training text does. The accuracy of responses with
and without it is reported. The base model's fraction, one figure from 2,048 responses for all seeds, has an uncertainty
of 0.003, which the interval does not include.

Rule: reproduced if training raises the fraction by 0.01 or more and the 95 % interval over seeds excludes 0;
contradicted if the interval excludes a rise of 0.01; one that is certain but smaller is inconclusive.

Not testable here: 0.4 % of the base model's responses have a "wait", and none of these is correct, so nothing pays that
could be selected. The world of search has attempts to go on from.
"""

from functools import cache

import grpo
from claims.court import embedded
from claims.runs import compare, draw_arms, judged, summarize
from common.models import load_model

import torch

KIND = "runs"
SMALLEST = 0.01
ARMS = {"before": "grpo", "after": "grpo"}


@cache
def waits(model):
    """Fraction of responses with "wait", and the accuracy of responses with and without it."""
    args = grpo.Args(model=model)
    _, batch, correct = embedded(256, 8, args)
    tokens = [row[mask].tolist() for row, mask in zip(batch.response, batch.response_mask, strict=True)]
    with_it = torch.tensor(["wait" in text for text in load_model(args)[1].batch_decode(tokens)])
    correct = correct.flatten().bool()
    return [x.float().mean().item() if len(x) else 0.0 for x in (with_it, correct[with_it], correct[~with_it])]


def compute(seeds):
    metrics = {"before": lambda t: waits("sums")[0], "after": lambda t: waits(t.weights)[0]}
    result = compare(ARMS, [("before", "after")], seeds, metrics)
    return result | {"base": waits("sums")}


def verdict(result):
    return judged(result, "before → after", SMALLEST)


def effect(result):
    _, right, others = result["base"]
    share = summarize(result, "fraction of responses with a wait", ".4f")
    return f"{share}; correct in the base {right:.1%} with it, {others:.1%} without; its fraction is uncertain by 0.003"


def draw(result):
    return draw_arms(result, 'Responses with a "wait", before and after', metric="fraction of responses")
