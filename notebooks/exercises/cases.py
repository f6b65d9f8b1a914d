"""Random inputs for every exercise: several shapes, every setting, and values that expose mistakes."""

import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from notebooks.exercises.exercises import Exercise, defaults, functions, module, parameters

import torch
from torch import Tensor

# Non-default values of every setting that an exercise's function reads.
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "reinforce.compute_advantages": [{"baseline": "none"}, {"baseline": "ema"}],
    "grpo.compute_advantages": [{"ddof": 0}],
    "dr_grpo.token_weights": [{"max_response_tokens": 40}, {"max_response_tokens": 1000}],
    "grpo.policy_loss": [{"clip_eps": 0.05}, {"clip_eps": 0.45}],
    "dapo.policy_loss": [{"clip_eps_low": 0.4}, {"clip_eps_high": 0.5}],
    "cispo.policy_loss": [{"ratio_cap": 1.3}, {"ratio_cap": 3.0}],
    "grpo.tis_weight": [{"tis_cap": 1.2}, {"tis_cap": 0.0}],
    "ppo.compute_advantages": [{"gamma": 0.8}, {"gae_lambda": 0.5}],
    "ppo.value_loss": [{"value_clip": 0.5}],
    "gspo.policy_loss": [{"clip_eps_low": 6e-4}, {"clip_eps_high": 1e-4}],
    "gmpo.policy_loss": [{"clip_log_eps": 0.15}, {"clip_log_eps": 0.8}],
    "gmpo.tis_weight": [{"tis_cap": 1.2}, {"tis_cap": 0.0}],
    "dppo.policy_loss": [
        {"delta": 0.05}, {"ratio_cap": 1.5}, {"divergence": "binary-kl"}, {"divergence": "topk-tv"},
        {"divergence": "topk-kl"},
    ],
}  # fmt: skip
# Log ratios on both sides of every clip; some distinguish a clip on the ratio from one on its log.
MOVES = [-0.7, -0.45, -0.3, -0.21, -0.05, 0.1, 0.19, 0.26, 0.37, 0.6, 2.0]
# For GSPO, whose clip is about a thousand times narrower.
MEANS = [-8e-4, -4.5e-4, -3.5e-4, -1.5e-4, 5e-5, 2e-4, 3.5e-4, 9e-4]
# For PPO's critic: how far value and return are from the old value. Moves are inside, between and outside the clips.
VALUES = [(way * size, way * side) for side in (1.5, -1.5, 0.4) for size in (0.1, 0.35, 0.9) for way in (1, -1)]


class Draw:
    """Random tensors in float64."""

    def __init__(self, seed: int) -> None:
        self.generator, self.choice = torch.Generator().manual_seed(seed), random.Random(seed)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=self.generator, dtype=torch.double)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.double)

    def mask(self, B: int, T: int) -> Tensor:
        """(B, T) mask of responses with different lengths; the last column is padding."""
        lengths = torch.tensor([1 + (i * (T - 2)) // (B - 1) for i in range(B)])
        order = torch.randperm(B, generator=self.generator)
        return torch.arange(T) < lengths[order][:, None]

    def moves(self, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Log ratios and advantages (B, T): every move with both signs, if the mask is large enough."""
        pairs = torch.tensor([(move, sign) for move in MOVES for sign in (-1.0, 1.0)], dtype=torch.double)
        count = int(mask.sum())
        pairs = pairs[torch.arange(count) % len(pairs)][torch.randperm(count, generator=self.generator)]
        moves, advantages = self.normal(*mask.shape), self.normal(*mask.shape)
        moves[mask] = pairs[:, 0] * self.uniform(0.98, 1.02, count)
        advantages[mask] = pairs[:, 1] * self.uniform(0.3, 2.0, count)
        return moves, advantages

    def rewards(self, P: int, G: int) -> Tensor:
        """(P, G) of 0 and 1: one group all incorrect, one all correct, the others mixed in different proportions."""
        right = torch.tensor([0, G, *(1 + i % (G - 1) for i in range(P - 2))])[
            torch.randperm(P, generator=self.generator)
        ]
        ranks = torch.rand(P, G, generator=self.generator).argsort(1)
        return (ranks < right[:, None]).double()


def inputs(exercise: Exercise, draw: Draw, A: int, Z: int) -> dict[str, Any]:
    """One case without its settings: A groups of Z responses, or A responses of up to Z - 1 tokens."""
    function, script = exercise.function, exercise.script
    mask = draw.mask(A, Z)
    if function == "has_signal":
        correct = draw.rewards(A, Z)
        penalty = draw.uniform(-1, 0, A, Z) * (draw.uniform(0, 1, A, Z) < 0.3)
        return {"inputs": [correct, 2 * correct - 1 + penalty]}
    if function == "compute_advantages" and script != "ppo":
        rewards = draw.rewards(A, Z)
        # The moving average is far from the batch's mean; near it, a second update would hardly change the result.
        ema = rewards.mean().item() + draw.choice.choice([-1, 1]) * draw.choice.uniform(0.1, 0.3)
        return {"inputs": [rewards, *([ema] if script == "reinforce" else [])]}
    if function == "compute_advantages":
        return {"inputs": [draw.normal(A, Z), draw.normal(A, Z), mask], "shown": mask, "parts": 2}
    if function == "token_weights":
        return {"inputs": [mask]}
    weights = draw.uniform(0.5, 1.5, A, 1 if script in ("gspo", "gmpo") else Z) * mask  # per row as in the loop
    if function == "value_loss":
        old, moves, away = draw.normal(A, Z), 0.5 * draw.normal(A, Z), draw.normal(A, Z)
        count = int(mask.sum())
        shuffled = torch.randperm(count, generator=draw.generator)
        cells = torch.tensor(VALUES, dtype=torch.double).repeat(count // len(VALUES) + 1, 1)[:count][shuffled]
        moves[mask], away[mask] = (cells * draw.uniform(0.95, 1.05, count, 2)).unbind(1)
        return {"inputs": [old + moves, old, old + away], "weights": weights}
    old = draw.uniform(-3.0, -0.05, A, Z)
    moves, advantages = draw.moves(mask)
    old = torch.minimum(old, -0.01 - moves)  # a shortened move could miss the clip that it tests
    logp = old + moves
    rollout = (old + 0.6 * draw.normal(A, Z)).clamp(max=-0.01)
    if function == "kl_penalty":
        return {"inputs": [logp, old], "weights": weights, "shown": mask}
    if function == "tis_weight":
        return {"inputs": taken(exercise, old_logp=old, rollout_logp=rollout, mask=mask), "shown": mask}
    if script in ("gspo", "gmpo"):  # equal within a response
        advantages = advantages.abs()[:, :1] * torch.tensor([1.0, -1.0]).repeat(A)[:A, None].expand(A, Z)
    if script == "gspo":  # the mean log ratio is on both sides of each clip, for both signs of the advantage
        mean = torch.tensor(MEANS, dtype=torch.double).repeat_interleave(2).repeat(A)[:A, None]
        logp = old + moves - (moves * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True) + mean
    if script == "dppo":
        logp, old = draw.uniform(0.02, 0.95, A, Z).log(), draw.uniform(0.05, 0.9, A, Z).log()
    given = taken(exercise, logp=logp, old_logp=old, advantages=advantages, mask=mask)
    return {"inputs": given, "weights": weights, "parts": 2}


def taken(exercise: Exercise, **values: Tensor) -> list[Tensor]:
    """The values that the exercise's function takes, in its order."""
    names = parameters(functions(exercise.script)[exercise.function])
    return [values[name] for name in names if name in values]


def top(draw: Draw, case: dict[str, Any], K: int = 3) -> list[Tensor]:
    """DPPO's last input: log-probs of K tokens under learner and engine, and whether the sampled one is among them."""
    logp, old, _ = case["inputs"]
    is_top = draw.uniform(0, 1, *logp.shape) < 0.5
    parts = [draw.uniform(0.1, 1.0, *logp.shape, K) for _ in range(2)]
    both = []
    for part, token in zip(parts, (logp.exp(), old.exp()), strict=True):
        tokens = (1 - token[..., None]) * 0.9 * part / part.sum(-1, keepdim=True)
        tokens[..., 0] = torch.where(is_top, token, tokens[..., 0] * 0.5)
        both.append(tokens.log())
    return [*both, is_top]


def straddle(exercise: Exercise, draw: Draw, case: dict[str, Any], args: SimpleNamespace) -> None:
    """Give each response of a DPPO case a first token for which KL(μ, π) and KL(π, μ) lie on different sides of δ,
    alternately, and an advantage in the direction in which it moved, so that a swapped divergence changes the mask."""
    logp, old, advantages = case["inputs"]
    tries = 40
    spare = inputs(exercise, draw, tries * len(logp), logp.shape[1])
    if "top" in case:
        spare["top"] = top(draw, spare)
    script, given = module(exercise.script), [spare["inputs"][0], spare["inputs"][1]]
    policy_top, rollout_top, is_top = spare.get("top", (None, None, None))
    pi = script.coarse_distribution(given[0], policy_top, is_top)
    mu = script.coarse_distribution(given[1], rollout_top, is_top)
    outside = script.divergence(mu, pi, args.divergence) > args.delta
    swapped = script.divergence(pi, mu, args.divergence) > args.delta
    for kind in (0, 1):
        chosen = (outside != swapped) & (outside == bool(kind))
        rows = slice(kind, None, 2)
        count = len(logp[rows])
        for mine, theirs in zip((logp, old, *case.get("top", ())), (*given, *spare.get("top", ())), strict=True):
            mine[rows, 0] = theirs[chosen][:count]
    advantages[:, 0] = (logp - old)[:, 0].sign() * advantages[:, 0].abs()


def packed(value: Any, dtype: torch.dtype = torch.double) -> Any:
    """Tensors as plain data."""
    if not isinstance(value, Tensor):
        return value
    kind = str(dtype if value.is_floating_point() else value.dtype).removeprefix("torch.")
    return {kind: value.tolist()}


def cases(exercise: Exercise, seed: int) -> Iterator[dict[str, Any]]:
    """Cases of an exercise as plain data, those with default settings first. `setting` holds the changed setting, and
    `varied` says whether the shape differs from the first."""
    draw = Draw(seed)
    rows = {"gspo": 2 * len(MEANS), "gmpo": 12, "dppo": 12}.get(exercise.script, 6)
    shapes = [(rows, 10), (rows, 10), (rows + draw.choice.randint(1, 3), draw.choice.randint(3, 7)), (3, 13)]
    plans = [({}, shape, torch.double) for shape in shapes] + [({}, shapes[0], torch.float)]
    plans += [(setting, shapes[0], torch.double) for setting in SETTINGS.get(exercise.name, [])]
    for setting, shape, dtype in plans:
        case = inputs(exercise, draw, *shape)
        if setting.get("divergence", "").startswith("topk"):
            case["top"] = top(draw, case)
        known = defaults(exercise.script)
        if setting.get("divergence", "").endswith("kl"):
            straddle(exercise, draw, case, SimpleNamespace(**known | setting))
        plain = {
            name: [packed(x, dtype) for x in value] if isinstance(value, list) else packed(value, dtype)
            for name, value in case.items()
        }
        if "args" in parameters(functions(exercise.script)[exercise.function]):
            plain["args"] = known | setting
        yield plain | {"setting": setting, "varied": shape != shapes[0]}
