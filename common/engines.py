"""Engines generate responses. Both have the same methods: generate, sleep, load_weights, close.

The engine's weights are a copy of the learner's, in the engine's own precision; `load_weights`
renews them after the updates of each step. `vllm_engine.py` holds every vLLM call; the engine here
needs nothing but transformers and is meant for small models.
"""

import copy
import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from common.cli import fail, first_line
from common.distributed import gather, has_bf16, like, share, whole
from common.logprobs import distribution
from common.lora import named_weights, whole_weights
from common.models import eos_ids
from common.records import Problem, Rollouts
from common.settings import ModelSettings

import numpy as np
import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor
from transformers import AutoModelForCausalLM, Cache, DynamicLayer
from transformers.initialization import no_init_weights

INT4_GROUP = 128  # weights with one scale
MAX_ROWS = 1024  # that the engine here computes at a time: bounds the memory of keys and values
Weights = Iterable[tuple[str, Tensor]]  # as from named_weights(model)


@dataclass
class InFlight:
    """Weights that change while an engine generates: version i is loaded at token i · `every` of the responses."""

    every: int  # tokens
    versions: Sequence[Weights]  # the first is the one to begin with; the last stays to the end
    keep: bool  # the keys and values that older weights computed; else the new ones read all tokens again


class Engine(Protocol):
    """What a script needs of an engine."""

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
        return shared(TransformersEngine(model, tokenizer, args.fp32_lm_head, args.rollout_precision, stop=args.stop))
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


class PreallocatedLayer(DynamicLayer):
    """`DynamicLayer` copies a layer's keys and values anew for every token; this writes in place."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if start == 0:
            self.all_keys = key_states.new_zeros(*key_states.shape[:2], self.length, key_states.shape[-1])
            self.all_values = value_states.new_zeros(*value_states.shape[:2], self.length, value_states.shape[-1])
            self.is_initialized = True
        self.all_keys[:, :, start:end] = key_states
        self.all_values[:, :, start:end] = value_states
        self.keys, self.values = self.all_keys[:, :, :end], self.all_values[:, :, :end]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        end = self.get_seq_length()
        self.all_keys, self.all_values = self.all_keys[indices], self.all_values[indices]
        self.keys, self.values = self.all_keys[:, :, :end], self.all_values[:, :, :end]


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


class StopStrings:
    """Whether a response has come to a stop string, token by token, decoded behind its prompt as vLLM does it."""

    def __init__(self, stop: tuple[str, ...], tokenizer: Any, prompt_ids: list[int]) -> None:
        self.stop, self.longest = stop, max(map(len, stop))
        self.tokenizer = tokenizer.backend_tokenizer
        self.stream = DecodeStream(ids=prompt_ids, skip_special_tokens=True)
        self.end = ""  # of the text so far

    def complete(self, token: int) -> bool:
        """Take the next token: whether a stop string is complete with it."""
        # Within a character of several tokens the stream gives nothing.
        text = self.end + (self.stream.step(self.tokenizer, token) or "")
        self.end = text[-self.longest :]
        return any(string in text for string in self.stop)


class TransformersEngine:
    """A sampling loop over a Hugging Face model: the prompt is read once per group, rows leave as they end."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        fp32_lm_head: bool = False,
        precision: str = "auto",
        max_rows: int = MAX_ROWS,
        stop: tuple[str, ...] = (),
    ) -> None:
        if precision == "auto":
            precision = "bf16" if has_bf16(model.device) else "fp32"
        self.precision = precision
        dtype = torch.float32 if precision == "fp32" else torch.bfloat16
        with no_init_weights():
            self.model = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=dtype)
        self.model.tie_weights()
        self.model.to(model.device).requires_grad_(False).eval()
        self.eos = torch.tensor(eos_ids(model, tokenizer), device=model.device)
        self.fp32_lm_head = fp32_lm_head
        self.max_rows = max_rows
        self.stop, self.tokenizer = stop, tokenizer
        self.load_weights(whole_weights(model))
        self.check_cache()

    @torch.inference_mode()
    def check_cache(self) -> None:
        """End the program where the model does not go on from its keys and values as it reads a whole text."""
        tokens = torch.arange(2, 8, device=self.model.device)[None] % self.model.config.get_text_config().vocab_size
        cache = self.make_cache(6)
        try:
            whole = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state[:, -1]
            for part in (tokens[:, :4], tokens[:, 4:5], tokens[:, 5:]):
                hidden = self.model.base_model(input_ids=part, past_key_values=cache, use_cache=True).last_hidden_state
            difference = (hidden[:, -1] - whole).abs().max() / whole.abs().max()
        except Exception as error:  # recurrent and encoder-decoder models have other caches, or none
            difference, reason = torch.inf, f" ({first_line(error)})"
        else:
            reason = ""
        if difference > 0.05:
            fail(
                f"this model's cache is not keys and values for each layer, which --engine transformers needs{reason}."
            )

    def make_cache(self, length: int) -> Cache:
        layers = self.model.config.get_text_config().num_hidden_layers
        return Cache(layers=[PreallocatedLayer(length) for _ in range(layers)])

    def load_weights(self, weights: Weights) -> None:
        mine = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, learned in rounded(weights, self.precision):
                mine.pop(name).copy_(learned)
        assert not mine, f"no weights for {', '.join(mine)}"

    def sleep(self) -> None:
        pass  # between two calls it holds nothing but its copy of the weights

    def close(self) -> None:
        del self.model

    @torch.inference_mode()
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
        limits = max_tokens if isinstance(max_tokens, list) else [max_tokens] * len(prompt_ids)
        at_once = max(1, self.max_rows // n)
        parts = [slice(i, i + at_once) for i in range(0, len(prompt_ids), at_once)]
        return Rollouts.join(
            self.sample(prompt_ids[part], n, limits[part], temperature, seeds[part], top_k, in_flight) for part in parts
        )

    def sample(
        self,
        prompt_ids: list[list[int]],
        n: int,
        limits: list[int],
        temperature: float,
        seeds: list[int],
        top_k: int,
        in_flight: InFlight | None,
    ) -> Rollouts:
        device, P, B, T = self.model.device, len(prompt_ids), len(prompt_ids) * n, max(limits)
        W = max(map(len, prompt_ids))
        tokens = torch.zeros(P, W, dtype=torch.long, device=device)  # (P, W), padded on the left
        seen = torch.zeros(P, W + T, dtype=torch.long, device=device)  # (P, W + T)
        for i, ids in enumerate(prompt_ids):
            tokens[i, W - len(ids) :] = torch.tensor(ids)
            seen[i, W - len(ids) :] = 1
        prompts, position = tokens, (seen[:, :W].cumsum(1) - 1).clamp(min=0)  # (P, W), (P, W)
        cache, head = self.make_cache(W + T), self.model.get_output_embeddings()
        random = torch.ones(P, n, T)  # in (0, 1], for each token its own
        for i, (seed, end) in enumerate(zip(seeds, limits, strict=True)):
            random[i, :, :end] = 1 - torch.rand(n, end, generator=torch.Generator().manual_seed(seed))
        random = random.view(B, T).to(device)  # (B, T)

        rows = torch.arange(B, device=device)  # (b,) the rows that are still computed
        limit = torch.tensor(limits, device=device).repeat_interleave(n)  # (B,)
        sampled = torch.zeros(B, T, dtype=torch.long, device=device)  # (B, T)
        logps = torch.zeros(B, T, device=device)  # (B, T)
        top_ids = torch.zeros(B, T, top_k, dtype=torch.long, device=device)  # (B, T, K)
        top_logps = torch.zeros(B, T, top_k, device=device)  # (B, T, K)
        lengths = limit.clone()  # (B,)
        finished = torch.zeros(B, dtype=torch.bool, device=device)  # (B,) by EOS or a stop string
        stops = [StopStrings(self.stop, self.tokenizer, ids) for ids in prompt_ids for _ in range(n) if self.stop]
        for t in range(T):
            if in_flight and t % in_flight.every == 0 and t // in_flight.every < len(in_flight.versions):
                self.load_weights(in_flight.versions[t // in_flight.every])
                if t > 0 and not in_flight.keep:
                    tokens = torch.cat([prompts[rows // n], sampled[rows, :t]], 1)  # (b, W + t)
                    position = (seen[:, : W + t].cumsum(1) - 1).clamp(min=0)  # (b, W + t)
                    cache = self.make_cache(W + T)
            hidden = self.model.base_model(
                input_ids=tokens,
                attention_mask=seen[:, : W + t],
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state[:, -1]  # (b, D)
            if t == 0:  # the prompt was read once; every response of its group goes on from there
                copies = torch.arange(P, device=device).repeat_interleave(n)  # (B,)
                hidden, seen, position = hidden[copies], seen[copies], position[copies, -1:]
                for layer in cache.layers:
                    layer.batch_select_indices(copies)
            logp = distribution(hidden, head, temperature or 1.0, self.fp32_lm_head)  # (b, V)
            if logp.isnan().any():
                fail("the model computes no finite probabilities: its weights are broken, or --lr is too high.", code=1)
            if temperature == 0:
                token = logp.argmax(-1)  # (b,)
            else:  # the token in whose part of [0, 1] the random number falls
                cumulative = logp.exp().cumsum(-1)  # (b, V)
                token = torch.searchsorted(cumulative, random[rows, t, None] * cumulative[:, -1:]).squeeze(1)  # (b,)
            sampled[rows, t] = token
            logps[rows, t] = logp.gather(1, token[:, None]).squeeze(1)
            if top_k:
                top_logps[rows, t], top_ids[rows, t] = logp.topk(top_k)

            ended = torch.isin(token, self.eos)  # (b,)
            if stops:
                pairs = zip(rows.tolist(), token.tolist(), strict=True)
                ended |= torch.tensor([stops[row].complete(one) for row, one in pairs], device=device)  # (b,)
            ended &= ~finished[rows] & (t < limit[rows])  # (b,)
            lengths[rows[ended]] = t + 1
            finished[rows[ended]] = True
            alive = ~finished[rows] & (t + 1 < limit[rows])  # (b,)
            if not alive.any():
                break
            tokens, position = token[:, None], position[:, -1:] + 1  # (b, 1), (b, 1)
            # Dropping rows copies the cache, so it waits until an eighth of them has ended.
            if alive.sum() <= 0.875 * len(rows):
                keep = alive.nonzero().squeeze(1)
                rows, tokens, seen, position = rows[keep], tokens[keep], seen[keep], position[keep]
                for layer in cache.layers:
                    layer.batch_select_indices(keep)
        ends = lengths.tolist()
        return Rollouts(
            [row[:end] for row, end in zip(sampled.tolist(), ends, strict=True)],
            [row[:end] for row, end in zip(logps.tolist(), ends, strict=True)],
            (~finished).tolist(),
            [[True] * end for end in ends],
            # Copies: other processes get a row's whole storage.
            [row[:end].clone() for row, end in zip(top_ids.cpu(), ends, strict=True)] if top_k else [],
            [row[:end].clone() for row, end in zip(top_logps.cpu(), ends, strict=True)] if top_k else [],
        )
