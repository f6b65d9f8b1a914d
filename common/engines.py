"""Engines generate responses with a copy of the learner's weights, in the engine's own precision.

`vllm_engine.py` holds every call to vLLM; `transformers_engine.py` needs only transformers and is meant for small
models.
"""

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from common.cli import fail, say
from common.clock import clock
from common.distributed import gather, local, shard, whole
from common.lora import named_weights
from common.models import context_length
from common.records import Problem, Rollouts
from common.settings import ModelSettings

import numpy as np
import torch
from torch import Tensor

INT4_GROUP = 128  # weights per scale
MAX_ROWS = 1024  # rows that the transformers engine samples at once; bounds the memory of the KV cache
Weights = Iterable[tuple[str, Tensor]]  # as from named_weights(model)


@dataclass(frozen=True)
class Request:
    """`n` responses to each of P prompts. Temperature 0 is greedy."""

    prompts: list[list[int]]
    n: int
    limits: list[int]  # most tokens of a response, for each prompt
    temperature: float
    seeds: list[int]  # for each prompt
    top_k: int = 0
    problems: Sequence[Problem] = ()  # of the prompts, for an engine with an environment
    stop: tuple[str, ...] = ()  # strings that end a response, in addition to `args.stop`

    def part(self, rows: slice) -> "Request":
        """The same request for some of the prompts."""
        of_prompts = ("prompts", "limits", "seeds", "problems")
        return replace(self, **{name: getattr(self, name)[rows] for name in of_prompts})


def check_memory(args: ModelSettings, model: Any, total: int) -> None:
    """End the program if the engine's fraction of a GPU of `total` bytes leaves too little for the learner.

    When the engine starts, the learner holds only weights. When it wakes up, the learner also holds optimizer states,
    a critic with its own, the reference model, older weights, and a teacher, which is counted as large as the learner.
    """
    weights = sum(local(weight).nbytes for weight in model.parameters())
    moments = 2 * sum(local(weight).nbytes for weight in model.parameters() if weight.requires_grad)
    reference = getattr(args, "kl_beta", 0) > 0  # SPIN uses its old log-probs instead, so this is one copy too many
    frozen = (
        reference
        + (getattr(args, "teacher", None) is not None)
        + hasattr(args, "teacher_rate")
        + (0 if hasattr(args, "in_flight_prompts") else getattr(args, "staleness", 0))  # asynchronous: none kept
    )
    held = (weights + moments) * (1 + hasattr(args, "critic_lr")) + weights * frozen
    left = (1 - args.gpu_memory_utilization) * total
    if held > left:
        fits = 1 - held / total
        fail(
            f"--gpu-memory-utilization {args.gpu_memory_utilization} leaves {left / 1e9:.1f} GB to the learner, which "
            f"holds {held / 1e9:.1f} GB while vLLM generates: "
            + (f"{fits:.2f} would fit." if fits > 0 else f"more than this GPU's {total / 1e9:.1f} GB.")
        )


class WeightHistory:
    """The learner's weights before each of the last k rollout batches, for an engine that lags by k."""

    def __init__(self, staleness: int) -> None:
        self.staleness = staleness
        self.snapshots: list[dict[str, Tensor]] = []

    def oldest(self, model: Any) -> Weights:
        """Weights that are k rollout batches old, or the first ones."""
        weights = self.snapshots[0].items() if self.snapshots else named_weights(model)
        return ((name, whole(weight)) for name, weight in weights)

    def record(self, model: Any) -> None:
        """Keep the weights before a rollout batch; called once in each step, before its first update."""
        if self.staleness > 0:
            self.snapshots.append({name: weight.detach().clone() for name, weight in named_weights(model)})
            del self.snapshots[: -self.staleness]

    def state_dict(self) -> dict[str, list[dict[str, Tensor]]]:
        return {"snapshots": self.snapshots}

    def load_state_dict(self, state: dict[str, list[dict[str, Tensor]]]) -> None:
        self.snapshots = state["snapshots"]


class Engine:
    """What engines share. The vLLM and transformers engines implement `sample`, `update` and `close`."""

    context = 1 << 30  # most tokens of a prompt and its response
    top_p, top_k = 1.0, 0  # part of the distribution to sample from, set by tools
    routed = (0, 0)  # layers, and experts per token in each, to report for --replay-routing

    def __init__(self, args: ModelSettings) -> None:
        self.args = args
        self.history = WeightHistory(getattr(args, "staleness", 0))

    def load_weights(self, model: Any) -> None:
        """Load the learner's weights or, with --staleness k, those of k rollout batches ago."""
        with clock("sync"):
            self.update(self.history.oldest(model))
            self.history.record(model)

    def generate(self, problems: list[Problem], G: int, *key: int, top_k: int = 0) -> Rollouts:
        """G responses to each of P problems. The samples depend on args.seed and `key`, such as the step.

        With `top_k`, the K likeliest tokens at each position are also reported; sampling still covers all tokens.
        """
        args, prompts = self.args, [problem.prompt_ids for problem in problems]
        seeds = prompt_seeds(len(problems), args.seed, *key)
        limits = [args.max_response_tokens] * len(problems)
        with clock("generate"):
            return self.sample_shards(Request(prompts, G, limits, args.temperature, seeds, top_k, problems))

    def extend(
        self,
        prompt_ids: list[list[int]],
        begun: Rollouts,
        limit: int,
        temperature: float,
        seeds: list[int],
        stop: tuple[str, ...] = (),
    ) -> Rollouts:
        """One continuation of each response in `begun`. The given tokens keep their log-probs and `sampled` flags."""
        prompts = [prompt + tokens for prompt, tokens in zip(prompt_ids, begun.tokens, strict=True)]
        limits = [limit - len(tokens) for tokens in begun.tokens]
        return begun.extended(self.sample_shards(Request(prompts, 1, limits, temperature, seeds, stop=stop)))

    def sample_shards(self, request: Request) -> Rollouts:
        """`sample`, with the prompts divided among the processes and the responses gathered from all of them."""
        mine = request.part(shard(len(request.prompts)))
        return Rollouts.join(gather(self.sample(mine) if mine.prompts else Rollouts()))

    def sample(self, request: Request) -> Rollouts:
        """The responses to a request.

        Each prompt's own seed decides what is sampled, whatever else is in the batch.
        A response also ends with the token that completes one of `args.stop` or `request.stop`. That token is kept
        whole, because the scored tokens must be those sampled, so the text may continue after the stop string.
        """
        raise NotImplementedError

    def update(self, weights: Weights) -> None:
        """Load these weights."""
        raise NotImplementedError

    def sleep(self) -> None:
        """Free GPU memory for the learner until the next `update`, if the engine can."""

    def close(self) -> None:
        """Release memory and processes."""
        raise NotImplementedError


def make_engine(args: ModelSettings, model: Any, tokenizer: Any, problems: list[Problem]) -> Engine:
    """The engine that `args.engine` names; "auto" is vLLM if installed. `problems` determine its context length."""
    installed = importlib.util.find_spec("vllm") is not None
    if args.engine == "vllm" and not installed:
        fail("--engine vllm: vLLM is not installed. On a GPU: pip install -r requirements-vllm.txt.")
    if args.engine == "transformers" or not installed:
        from common.transformers_engine import TransformersEngine

        say("engine: transformers" + ("" if installed else " (vLLM is not installed)"))
        return TransformersEngine(args, model, tokenizer)
    from common.vllm_engine import VLLMEngine

    say("engine: vllm")
    longest = max(len(problem.prompt_ids) for problem in problems) + args.max_response_tokens
    if getattr(args, "environment", None):  # an aside may contain a whole response and an opponent's answer
        longest = min(longest + args.max_response_tokens, context_length(model))
    return VLLMEngine(args, model, tokenizer, longest)


def prompt_seeds(count: int, *key: int) -> list[int]:
    """A different seed for each of `count` prompts, from a key such as the run's seed and the step."""
    first, *rest = key
    sequences = [np.random.SeedSequence(first, spawn_key=(*rest, i)) for i in range(count)]
    # 48 bits leave room: vLLM adds the response's number.
    return [int(sequence.generate_state(1, np.uint64)[0] >> 16) for sequence in sequences]


def rounded_to_fp8(weight: Tensor) -> Tensor:
    """A weight matrix (out, in) with each row scaled to the range of 8-bit floats, rounded there, and scaled back."""
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / torch.finfo(torch.float8_e4m3fn).max  # (out, 1)
    return (weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale


def rounded_to_int8(weight: Tensor) -> Tensor:
    """A weight matrix (out, in) with each row rounded to 255 levels, -127 to 127 times the row's scale."""
    scale = weight.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127  # (out, 1)
    return (weight / scale).round() * scale


def rounded_to_int4(weight: Tensor) -> Tensor:
    """A weight matrix (out, in) rounded to 16 levels per group of 128 weights of a row, -8 to 7 times its scale.

    Symmetric, to nearest, as in compressed-tensors' scheme W4A16: the largest weight of a group is 7.5 scales.
    """
    groups = weight.split(INT4_GROUP, 1)  # each (out, at most 128)
    scales = [group.abs().amax(1, keepdim=True).clamp(min=1e-12) / 7.5 for group in groups]  # each (out, 1)
    return torch.cat([(g / s).round().clamp(-8, 7) * s for g, s in zip(groups, scales, strict=True)], 1)


NOT_ROUNDED = ("embed", "lm_head", ".gate.", "router", "shared_expert_gate", "bias", "conv")  # parts of names
ROUNDING = {"fp8": rounded_to_fp8, "int8": rounded_to_int8, "int4": rounded_to_int4}


def rounded(weights: Weights, precision: str) -> Weights:
    """The weights as rounded in an engine of this precision.

    As in vLLM, only matrices between embeddings and head are rounded, experts one by one, and routers not at all.
    """
    for name, weight in weights:
        inner = weight.ndim > 1 and not any(part in name for part in NOT_ROUNDED)
        if inner and precision in ROUNDING:
            matrices = weight.detach().reshape(-1, *weight.shape[-2:])  # of all experts of a layer, or a single one
            weight = torch.stack([ROUNDING[precision](matrix) for matrix in matrices]).view(weight.shape)
        yield name, weight
