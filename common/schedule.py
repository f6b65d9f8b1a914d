"""The seeds and the learning rate of each step."""

import math
import random

from common.settings import Settings

import numpy as np
import torch


def seed_step(seed: int, step: int) -> None:
    """Seed every generator from the run's seed and the step.

    A step's randomness depends on nothing that came before, so a resumed run needs no stored state.
    """
    words = np.random.SeedSequence(seed, spawn_key=(step,)).generate_state(3)
    random.seed(int(words[0]))
    np.random.seed(words[1])
    torch.manual_seed(int(words[2]))


def learning_rate(step: int, args: Settings) -> float:
    """The learning rate of rollout batch number `step`, counted from 1.

    It rises over the warm-up and then stays, or falls toward 0 at the end of the run, linearly or as half a cosine
    (the schedules of transformers, one rollout batch ahead: no step has a rate of 0).
    """
    if step <= args.warmup_steps:
        return args.lr * step / args.warmup_steps
    progress = (step - 1 - args.warmup_steps) / max(1, args.steps - args.warmup_steps)  # of the steps after the warm-up
    factor = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * progress))}
    return args.lr * factor[args.lr_schedule]
