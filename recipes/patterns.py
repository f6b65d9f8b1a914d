"""The judge of rubrics.py: criteria are patterns, looked for in responses whose false sums are marked."""

import re

import torch
from torch import Tensor

SUM = re.compile(r"(-?\d+)([-+]\d+)=(-?\d+)")
FALSE = "[false]"  # the mark


def marked(text: str) -> str:
    """A text with a mark after each false sum."""
    return SUM.sub(lambda m: m[0] if int(m[1]) + int(m[2]) == int(m[3]) else m[0] + FALSE, text)


def judge(prompts: list[str], responses: list[str], criteria: tuple[str, ...]) -> Tensor:
    """Scores (n, B) of B responses by n criteria: 1 if the pattern is found in prompt and response."""
    texts = [prompt + marked(response) for prompt, response in zip(prompts, responses, strict=True)]
    patterns = [re.compile(criterion.removeprefix("!")) for criterion in criteria]
    return torch.tensor([[float(bool(pattern.search(text))) for text in texts] for pattern in patterns])
