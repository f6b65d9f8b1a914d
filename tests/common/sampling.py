"""Responses of the embedded model to three prompts, and weights that change during generation."""

import grpo
from common.engines import Request
from common.transformers_engine import MAX_ROWS, TransformersEngine

import torch

PROMPTS = ["7+5=?\n", "12+30-4=?\n", "9+9+9+9=?\n"]


def make(embedded, max_rows=MAX_ROWS, **settings):
    return TransformersEngine(grpo.Args(**settings), *embedded, max_rows)


def sample(engine, problems, n=8, temperature=1.0, seeds=(1, 2, 3), limit=48, **more):
    prompts = [problem.prompt_ids for problem in problems]
    return engine.sample(Request(prompts, n, [limit] * len(prompts), temperature, list(seeds), **more))


def three_versions(model):
    """Three versions of the weights, each a small step from the previous one."""
    noise = torch.Generator().manual_seed(0)
    moved = [model.state_dict()]
    for _ in range(2):
        moved.append({n: w + 0.2 * w.std() * torch.randn(w.shape, generator=noise) for n, w in moved[-1].items()})
    return [[(name, weights[name]) for name, _ in model.named_parameters()] for weights in moved]
