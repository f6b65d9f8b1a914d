"""Engines generate responses. Both have the same methods: generate, sleep, load_weights, close.

The engine's weights are a copy of the learner's, in the engine's own precision; `load_weights`
renews them after the updates of each step. `vllm_engine.py` holds every vLLM call; the engine here
needs nothing but transformers and is meant for small models.
"""

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from common.cli import fail
from common.distributed import gather, like, share, whole
from common.lora import named_weights
from common.records import Problem, Rollouts
from common.settings import ModelSettings

import numpy as np
import torch
from torch import Tensor

INT4_GROUP = 128  # weights with one scale
Weights = Iterable[tuple[str, Tensor]]  # as from named_weights(model)


@dataclass
class InFlight:
    """Weights that change while an engine generates: version i is loaded at token i · `every` of the responses."""

    every: int  # tokens
    versions: Sequence[Weights]  # the first is the one to begin with; the last stays to the end
    keep: bool  # the keys and values that older weights computed; else the new ones read all tokens again


class Engine:
    """What a script needs of an engine."""

    def __init__(self, args: ModelSettings) -> None:
        self.args = args

    def generate(
        self,
        prompt_ids: list[list[int]],
        n: int,
        max_tokens: int | list[int],
        temperature: float,
        seeds: list[int],
        top_k: int = 0,
        in_flight: InFlight | None = None,
    ) -> Rollouts:
        """`n` responses to each of P prompts, of at most `max_tokens`, or a limit for each prompt.

        Temperature 0 is greedy. Each prompt's own seed decides what is sampled; what else is in the batch does not.
        With `top_k` also the K likeliest tokens at each position: all are sampled from, these are reported.
        With `in_flight` the weights change on the way. A log-prob is that of the weights that sampled the token.
        A response also ends with the token in which one of `args.stop` is complete. That token stays whole: what is
        scored is what was sampled, so the text may go on behind the string for as long as the token does.
        """

    def sleep(self) -> None:
        """Hand memory to the learner until the next `load_weights`."""

    def load_weights(self, weights: Weights) -> None:
        """Take over the learner's weights."""

    def close(self) -> None:
        """Give back memory and processes."""


def make_engine(args: ModelSettings, model: Any, tokenizer: Any, problems: list[Problem]) -> Engine:
    """The engine that `args.engine` names; "auto" is vLLM where it is installed. `problems` are all it will see."""
    installed = importlib.util.find_spec("vllm") is not None
    if args.engine == "vllm" and not installed:
        fail("--engine vllm: vLLM is not installed. On a GPU: pip install -r requirements-vllm.txt.")
    if args.engine == "transformers" or not installed:
        print("engine: transformers" + ("" if installed else " (vLLM is not installed)"), flush=True)
        from common.transformers_engine import TransformersEngine

        return shared(TransformersEngine(args, model, tokenizer))
    from common.vllm_engine import VLLMEngine

    print("engine: vllm", flush=True)
    longest = max(len(problem.prompt_ids) for problem in problems) + args.max_response_tokens
    return shared(VLLMEngine(args, model, tokenizer, longest))


def shared(engine: Engine) -> Engine:
    """An engine that generates for this process's share of the prompts, and has the responses to all of them."""
    generate = engine.generate

    def generate_shared(
        prompt_ids: list[list[int]],
        n: int,
        max_tokens: int | list[int],
        temperature: float,
        seeds: list[int],
        *rest: Any,
        **more: Any,
    ) -> Rollouts:
        mine = share(len(prompt_ids))
        limits = max_tokens if isinstance(max_tokens, int) else max_tokens[mine]
        some = prompt_ids[mine]
        rollouts = generate(some, n, limits, temperature, seeds[mine], *rest, **more) if some else Rollouts()
        return Rollouts.join(gather(rollouts))

    engine.generate = generate_shared
    return engine


class WeightHistory:
    """The learner's weights before each of the last k rollout batches, for an engine that lags behind by k."""

    def __init__(self, model: Any, staleness: int) -> None:
        self.model, self.staleness = model, staleness
        self.snapshots: list[dict[str, Tensor]] = []

    def oldest(self) -> Weights:
        """Weights that are k rollout batches old, or the first ones; called once in each step."""
        weights = self.snapshots[0].items() if self.snapshots else named_weights(self.model)
        self.record()
        return ((name, whole(weight)) for name, weight in weights)

    def versions(self) -> list[Weights]:
        """All weights from the oldest to the learner's own, k + 1 versions or, at the beginning, fewer."""
        every = [*self.snapshots, dict(named_weights(self.model))]
        return [[(name, whole(weight)) for name, weight in weights.items()] for weights in every]

    def record(self) -> None:
        """Keep the weights before a rollout batch; called once in each step, before its first update."""
        if self.staleness > 0:
            self.snapshots.append({name: weight.detach().clone() for name, weight in named_weights(self.model)})
            del self.snapshots[: -self.staleness]

    def state_dict(self) -> dict[str, list[dict[str, Tensor]]]:
        return {"snapshots": self.snapshots}

    def load_state_dict(self, state: dict[str, list[dict[str, Tensor]]]) -> None:
        own = dict(named_weights(self.model))
        self.snapshots = [{name: like(w, own[name]) for name, w in weights.items()} for weights in state["snapshots"]]


def prompt_seeds(count: int, *key: int) -> list[int]:
    """Seeds for `count` prompts, from a key such as the run's seed and the step: one for each, all different."""
    first, *rest = key
    sequences = [np.random.SeedSequence(first, spawn_key=(*rest, i)) for i in range(count)]
    # 48 bits: vLLM adds the response's number to them.
    return [int(sequence.generate_state(1, np.uint64)[0] >> 16) for sequence in sequences]


def continue_responses(
    engine: Engine,
    prompt_ids: list[list[int]],
    begun: Rollouts,
    max_tokens: int,
    temperature: float,
    seeds: list[int],
) -> Rollouts:
    """Responses that go on from the tokens in `begun`, one per prompt, to at most `max_tokens` in all.

    The given tokens keep their log-probs and whether they were sampled.
    """
    prompts = [prompt + tokens for prompt, tokens in zip(prompt_ids, begun.tokens, strict=True)]
    limits = [max_tokens - len(tokens) for tokens in begun.tokens]
    rest = engine.generate(prompts, 1, limits, temperature, seeds)
    return Rollouts(
        [a + b for a, b in zip(begun.tokens, rest.tokens, strict=True)],
        [a + b for a, b in zip(begun.logps, rest.logps, strict=True)],
        rest.truncated,
        [a + b for a, b in zip(begun.sampled, rest.sampled, strict=True)],
    )


def rounded_to_fp8(weight: Tensor) -> Tensor:
    """A weight matrix (out, in) with each row scaled to the range of 8-bit floats, rounded there, and scaled back."""
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / torch.finfo(torch.float8_e4m3fn).max  # (out, 1)
    return (weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale


def rounded_to_int4(weight: Tensor) -> Tensor:
    """A weight matrix (out, in) on 16 levels per group of 128 weights of a row, -8 to 7 times the group's scale.

    Symmetric, to nearest, as compressed-tensors' scheme W4A16 has it: the largest weight of a group is 7.5 scales.
    """
    groups = weight.split(INT4_GROUP, 1)  # each (out, at most 128)
    scales = [group.abs().amax(1, keepdim=True).clamp(min=1e-12) / 7.5 for group in groups]  # each (out, 1)
    return torch.cat([(g / s).round().clamp(-8, 7) * s for g, s in zip(groups, scales, strict=True)], 1)


ROUNDING = {"fp8": rounded_to_fp8, "int4": rounded_to_int4}


def rounded(weights: Weights, precision: str) -> Weights:
    """The weights as an engine of this precision has them: as in vLLM, only matrices between embeddings and head."""
    for name, weight in weights:
        inner = weight.ndim == 2 and "embed" not in name and "lm_head" not in name
        yield name, ROUNDING[precision](weight.detach()) if inner and precision in ROUNDING else weight
