"""Random inputs for the exercises of the loop: batches for its parts, and small worlds (tiny.py) for whole runs."""

from collections.abc import Iterator
from typing import Any

from notebooks.exercises.cases import SETTINGS, Draw, packed
from notebooks.exercises.exercises import Exercise
from notebooks.exercises.tiny import TOKENS

import torch
from torch import Tensor

SHAPES = ((6, 10), (6, 10), (4, 5), (8, 13))  # rows, and the most tokens of a response
SIZES = ({}, {"prompts_per_step": 6, "responses_per_prompt": 3})
UNCLIPPED: dict[str, Any] = {"max_grad_norm": 10.0}  # clipped gradients do not show a constant factor
OF_THE_LOOP: list[dict[str, Any]] = [
    {"num_minibatches": 4, "update_epochs": 1}, UNCLIPPED, {"clip_eps": 0.02}, {"ddof": 0, **UNCLIPPED},
    {"tis_cap": 1.0}, {"steps": 4, "update_epochs": 1},
]  # fmt: skip
# What tends to follow a token: the box, a digit, the end of the box, EOS. About every third response is correct.
PRIOR = {"=": {"\\boxed{": 4.0, "so ": 3.0}, "so ": {"\\boxed{": 4.0, "so ": 3.0}, "}": {"": 5.0},
         "\\boxed{": dict.fromkeys("01", 4.0), **{digit: {"}": 5.0} for digit in "01"}}  # fmt: skip
D = 4  # the policy's width


def loop_cases(exercise: Exercise, seed: int) -> Iterator[dict[str, Any]]:
    """Cases in the format of `cases.cases`."""
    draw = Draw(seed)
    if exercise.function in ("train", "changed"):
        own = OF_THE_LOOP
        if exercise.method:
            own = [UNCLIPPED, *SETTINGS.get(f"{exercise.method}.policy_loss", [])]
        for setting in (*SIZES, *own):
            sizes = setting in SIZES
            args = exercise.settings | setting
            yield {"inputs": [], "world": world(draw), "seed": draw.choice.randrange(1 << 30), "args": args,
                   "setting": {} if sizes else setting, "varied": sizes and bool(setting)}  # fmt: skip
        return
    for shape in SHAPES:
        case = PARTS[exercise.function](draw, *shape)
        case["inputs"] = [packed(x) for x in case["inputs"]]
        yield case | {"setting": {}, "varied": shape != SHAPES[0]}


def world(draw: Draw) -> dict[str, Any]:
    """The weights of a policy."""
    V = len(TOKENS)
    bigram = 0.3 * draw.normal(V, V)
    for last, following in PRIOR.items():
        for token, logit in following.items():
            bigram[TOKENS.index(last), TOKENS.index(token)] += logit
    parts = {"embedding": draw.normal(V, D), "hidden": 0.5 * draw.normal(D, D), "output": 0.3 * draw.normal(D, V)}
    return {name: packed(weight) for name, weight in (parts | {"bigram": bigram}).items()}


def lengths(draw: Draw, B: int, T: int) -> Tensor:
    """(B,) lengths of responses, from 1 to T."""
    return draw.mask(B, T + 1).sum(1)


def ids(draw: Draw, *shape: int) -> Tensor:
    return (draw.uniform(0, 9, *shape)).long()


def response_mask(draw: Draw, B: int, T: int) -> dict[str, Any]:
    return {"inputs": [lengths(draw, B, T)]}


def collate(draw: Draw, B: int, T: int) -> dict[str, Any]:
    """Token 0 occurs in prompts and responses too, so a mask cannot be built from it."""
    ends = lengths(draw, B, T).tolist()
    prompts = [ids(draw, draw.choice.randint(2, 6)).tolist() for _ in ends]
    logps = [draw.uniform(-3, -0.05, end).tolist() for end in ends]
    return {"inputs": [prompts, [ids(draw, end).tolist() for end in ends], logps], "parts": 2}


def response_logps(draw: Draw, B: int, T: int) -> dict[str, Any]:
    mask = torch.arange(T) < lengths(draw, B, T)[:, None]  # (B, T)
    prompts = torch.tensor([draw.choice.randint(2, 6) for _ in range(B)])  # (B,)
    tokens = ids(draw, B, int((prompts + mask.sum(1)).max()))
    return {"inputs": [draw.normal(*tokens.shape, 9), tokens, prompts, mask]}


def exact_rewards(draw: Draw, B: int, T: int) -> dict[str, Any]:
    """All kinds of text in random order: correct, incorrect, an earlier box, no box, unfinished, truncated."""
    rows = []
    for i in range(2 * B):
        answer, other = str(draw.choice.randint(10, 99)), str(draw.choice.randint(100, 999))
        box, wrong = f"\\boxed{{{answer}}}", f"\\boxed{{{other}}}"
        kinds = [box, f"{answer} so {box}", wrong, f"{wrong} no, {box}", f"{box} no, {wrong}", answer]
        kinds += [box[:-1], box.replace("}", "0}")]
        text = kinds[i % len(kinds)] + "." * draw.choice.randint(0, T)
        rows.append((text, answer, i % 7 == 3 or i % 5 == 0))
    draw.choice.shuffle(rows)
    return {"inputs": list(map(list, zip(*rows, strict=True)))}


def minibatches(draw: Draw, B: int, T: int) -> dict[str, Any]:
    count = draw.choice.choice([n for n in range(2, B + 1) if B % n == 0])
    return {"inputs": [torch.randperm(B, generator=draw.generator), T, count], "parts": count}


PARTS = {made.__name__: made for made in (response_mask, collate, response_logps, exact_rewards, minibatches)}
