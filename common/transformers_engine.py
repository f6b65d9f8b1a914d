"""A sampling loop over a Hugging Face model: it needs nothing but transformers and is meant for small models."""

import copy
from typing import Any

from common.cli import fail, first_line
from common.distributed import has_bf16
from common.engines import MAX_ROWS, Engine, Request, Weights, rounded
from common.logprobs import distribution
from common.lora import whole_weights
from common.models import eos_ids
from common.records import Rollouts
from common.settings import ModelSettings

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor
from transformers import AutoModelForCausalLM, Cache, DynamicLayer
from transformers.initialization import no_init_weights

ROOM = 16  # tokens, the least that a cache grows by


def close_gaps(tensor: Tensor, gaps: Tensor, sources: Tensor, count: int) -> Tensor:
    """The first `count` rows of a tensor, after the rows `sources` (behind them) replaced the rows `gaps`, in place."""
    tensor[gaps] = tensor[sources]
    return tensor[:count]


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer, (b, H, S, D), at the front of buffers with room for more tokens.

    `DynamicLayer` copies all of them for each token.
    """

    buffers: tuple[Tensor, ...] = ()  # keys and values, (b, H, room, D)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens, and return all."""
        if not self.is_initialized:
            self.keys, self.values, self.is_initialized = key_states[:, :, :0], value_states[:, :, :0], True
        start = self.keys.shape[2]
        end = start + key_states.shape[2]
        if not self.buffers or end > self.buffers[0].shape[2]:
            self.move(end + max(ROOM, end // 2))
        for buffer, states in zip(self.buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = states
        self.keys, self.values = (buffer[:, :, :end] for buffer in self.buffers)
        return self.keys, self.values

    def move(self, room: int, copies: int = 1) -> None:
        """Move to buffers for `room` tokens, with each row `copies` times."""
        length = self.keys.shape[2]

        def moved(states: Tensor) -> Tensor:  # (b, H, S, D)
            b, H, _, D = states.shape
            buffer = states.new_empty(b, copies, H, room, D)
            buffer[:, :, :, :length] = states[:, None]
            return buffer.flatten(0, 1)

        self.buffers = (moved(self.keys), moved(self.values))
        self.keys, self.values = (buffer[:, :, :length] for buffer in self.buffers)

    def keep(self, *which: Any) -> None:
        """Drop rows, as `close_gaps` does."""
        self.keys, self.values = close_gaps(self.keys, *which), close_gaps(self.values, *which)
        self.buffers = tuple(buffer[: len(self.keys)] for buffer in self.buffers)


class Rows:
    """The b rows that the model still computes: their unread tokens, and the keys and values of those it has read."""

    def __init__(self, model: Any, prompt_ids: list[list[int]], max_tokens: int) -> None:
        self.model, P, W = model, len(prompt_ids), max(map(len, prompt_ids))
        self.prompts = torch.zeros(P, W, dtype=torch.long)  # (P, W), padded on the left
        self.seen = torch.ones(P, W + max_tokens, dtype=torch.long)  # (b, W + T), 0 on padding
        for i, ids in enumerate(prompt_ids):
            self.prompts[i, W - len(ids) :] = torch.tensor(ids)
            self.seen[i, : W - len(ids)] = 0
        self.prompts, self.seen = self.prompts.to(model.device), self.seen.to(model.device)
        self.numbers = torch.arange(P, device=model.device)  # (b,) of the rows in the whole batch
        self.start(self.prompts)

    def start(self, tokens: Tensor) -> None:
        """Begin with an empty cache, and `tokens` (b, S) to read."""
        self.cache, self.length = make_cache(self.model), tokens.shape[1]
        self.tokens = tokens  # (b, s) unread
        self.position = (self.seen[:, : self.length].cumsum(1) - 1).clamp(min=0)  # (b, s) of the unread tokens

    def read(self) -> Tensor:
        """Read the unread tokens, and return the hidden states (b, D) at the last of them."""
        output = self.model.base_model(
            input_ids=self.tokens,
            attention_mask=self.seen[:, : self.length],
            position_ids=self.position,
            past_key_values=self.cache,
            use_cache=True,
        )
        return output.last_hidden_state[:, -1]

    def repeat(self, n: int) -> None:
        """Continue each row n times: a prompt is read once for all its responses."""
        self.seen, self.position = self.seen.repeat_interleave(n, 0), self.position.repeat_interleave(n, 0)
        self.numbers = torch.arange(len(self.seen), device=self.seen.device)
        for layer in self.cache.layers:
            layer.move(layer.buffers[0].shape[2], n)

    def append(self, token: Tensor) -> None:
        """The next unread token of each row, (b,)."""
        self.tokens, self.position, self.length = token[:, None], self.position[:, -1:] + 1, self.length + 1

    def keep(self, alive: Tensor, count: int) -> None:
        """Drop all but the `count` rows that are `alive` (b,): only rows behind the first `count` of them move."""
        gaps, sources = (~alive[:count]).nonzero().squeeze(1), count + alive[count:].nonzero().squeeze(1)
        for name in ("numbers", "tokens", "seen", "position"):
            setattr(self, name, close_gaps(getattr(self, name), gaps, sources, count))
        for layer in self.cache.layers:
            layer.keep(gaps, sources, count)


class Responses:
    """What was sampled so far for all B rows."""

    def __init__(self, limits: list[int], n: int, top_k: int, device: torch.device) -> None:
        B, T = len(limits) * n, max(limits)
        self.limits = torch.tensor(limits, device=device).repeat_interleave(n)  # (B,)
        self.lengths = torch.zeros_like(self.limits)  # (B,)
        self.finished = torch.zeros(B, dtype=torch.bool, device=device)  # (B,) by EOS or a stop string
        self.tokens = torch.zeros(B, T, dtype=torch.long, device=device)  # (B, T)
        self.logps = torch.zeros(B, T, device=device)  # (B, T)
        self.top_ids = torch.zeros(B, T, top_k, dtype=torch.long, device=device)  # (B, T, K)
        self.top_logps = torch.zeros(B, T, top_k, device=device)  # (B, T, K)

    def alive(self, rows: Tensor) -> Tensor:
        """(b,) whether the response in each of these rows goes on."""
        return ~self.finished[rows] & (self.lengths[rows] < self.limits[rows])

    def add(self, t: int, rows: Tensor, token: Tensor, logp: Tensor, ended: Tensor) -> None:
        """Take position t of b rows: tokens (b,), log-probs (b, V), and whether the token ends the response (b,).

        Of rows that have ended before, nothing counts.
        """
        self.tokens[rows, t] = token
        self.logps[rows, t] = logp.gather(1, token[:, None]).squeeze(1)
        if K := self.top_ids.shape[2]:
            self.top_logps[rows, t], self.top_ids[rows, t] = logp.topk(K)
        alive = self.alive(rows)  # (b,)
        self.lengths[rows] += alive
        self.finished[rows] |= ended & alive

    def rollouts(self) -> Rollouts:
        """The finished responses."""

        def cut(rows: Any) -> list:
            return [row[:end] for row, end in zip(rows, ends, strict=True)]

        ends, K = self.lengths.tolist(), self.top_ids.shape[2]
        return Rollouts(
            cut(self.tokens.tolist()),
            cut(self.logps.tolist()),
            (~self.finished).tolist(),
            [[True] * end for end in ends],
            # Copies, because other processes receive the whole storage of a row.
            [row.clone() for row in cut(self.top_ids.cpu())] if K else [],
            [row.clone() for row in cut(self.top_logps.cpu())] if K else [],
        )


class StopStrings:
    """Looks for a stop string token by token; the response is decoded after its prompt, as in vLLM."""

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


def make_cache(model: Any) -> Cache:
    return Cache(layers=[GrowingLayer() for _ in range(model.config.get_text_config().num_hidden_layers)])


def random_numbers(n: int, limits: list[int], seeds: list[int]) -> Tensor:
    """(B, T) numbers in (0, 1], for each token its own; those of a prompt depend on its seed and limit alone."""
    random = torch.ones(len(limits), n, max(limits))
    for i, (seed, end) in enumerate(zip(seeds, limits, strict=True)):
        random[i, :, :end] = 1 - torch.rand(n, end, generator=torch.Generator().manual_seed(seed))
    return random.flatten(0, 1)


def choose(logp: Tensor, random: Tensor, greedy: bool) -> Tensor:
    """Tokens (b,) by their log-probs (b, V): the likeliest, or those in whose part of [0, 1] the numbers (b,) fall."""
    if greedy:
        return logp.argmax(-1)
    cumulative = logp.exp().cumsum(-1)  # (b, V)
    return torch.searchsorted(cumulative, random[:, None] * cumulative[:, -1:]).squeeze(1)


def nucleus(logp: Tensor, top_k: int, top_p: float) -> Tensor:
    """Log-probs (b, V) of the `top_k` likeliest tokens (0: all), and of those the fewest with `top_p` probability.

    As in vLLM: first k, then p of what is left, each renormalized; the others are -inf.
    """
    if 0 < top_k < logp.shape[1]:
        least = logp.topk(top_k).values[:, -1:]  # (b, 1)
        logp = logp.masked_fill(logp < least, -torch.inf).log_softmax(-1)
    if top_p < 1:
        ordered, tokens = logp.sort(-1, descending=True)  # (b, V), (b, V)
        before = ordered.exp().cumsum(-1) - ordered.exp()  # (b, V) probability of the likelier tokens
        dropped = torch.zeros_like(logp, dtype=torch.bool).scatter(1, tokens, before >= top_p)  # (b, V)
        logp = logp.masked_fill(dropped, -torch.inf).log_softmax(-1)
    return logp


class TransformersEngine(Engine):
    """A sampling loop over a Hugging Face model: a prompt is read once for its group, and rows leave as they end."""

    def __init__(self, args: ModelSettings, model: Any, tokenizer: Any, max_rows: int = MAX_ROWS) -> None:
        super().__init__(args)
        self.precision = args.rollout_precision
        if self.precision == "auto":
            self.precision = "bf16" if has_bf16(model.device) else "fp32"
        dtype = {"fp32": torch.float32, "fp16": torch.float16}.get(self.precision, torch.bfloat16)
        with no_init_weights():
            self.model = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=dtype)
        self.model.tie_weights()
        self.model.to(model.device).requires_grad_(False).eval()
        self.eos = torch.tensor(eos_ids(model, tokenizer), device=model.device)
        self.tokenizer, self.max_rows = tokenizer, max_rows
        self.update(whole_weights(model))
        self.check_cache()

    @torch.inference_mode()
    def check_cache(self) -> None:
        """End the program if the model computes something else with the cache than without it."""
        tokens = torch.arange(2, 8, device=self.model.device)[None] % self.model.config.get_text_config().vocab_size
        cache, reason = make_cache(self.model), ""
        try:
            whole = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state[:, -1]
            for part in (tokens[:, :4], tokens[:, 4:5], tokens[:, 5:]):
                hidden = self.model.base_model(input_ids=part, past_key_values=cache, use_cache=True).last_hidden_state
            difference = (hidden[:, -1] - whole).abs().max() / whole.abs().max()
        except Exception as error:  # recurrent and encoder-decoder models have other caches, or none
            difference, reason = torch.inf, f" ({first_line(error)})"
        if difference > 0.05:
            fail(f"--engine transformers needs a model with a standard KV cache{reason}. Take another --model.")

    def update(self, weights: Weights) -> None:
        """Load the learner's weights, rounded to the engine's precision."""
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
    def sample(self, request: Request) -> Rollouts:
        """`Engine.sample`, at most `max_rows` responses at a time."""
        n, limits, temperature, in_flight = request.n, request.limits, request.temperature, request.in_flight
        if len(request.prompts) > (at_once := max(1, self.max_rows // n)):
            parts = [slice(i, i + at_once) for i in range(0, len(request.prompts), at_once)]
            return Rollouts.join(self.sample(request.part(part)) for part in parts)
        device, head, stop = self.model.device, self.model.get_output_embeddings(), (*self.args.stop, *request.stop)
        rows = Rows(self.model, request.prompts, max(limits))
        responses = Responses(limits, n, request.top_k, device)
        random = random_numbers(n, limits, request.seeds).to(device)  # (B, T)
        stops = [StopStrings(stop, self.tokenizer, ids) for ids in request.prompts for _ in range(n) if stop]
        for t in range(max(limits)):
            if in_flight and (weights := in_flight.due(t)) is not None:
                self.update(weights)
                if t > 0 and not in_flight.keep:
                    rows.start(torch.cat([rows.prompts[rows.numbers // n], responses.tokens[rows.numbers, :t]], 1))
            hidden = rows.read()  # (b, D), of the first tokens (P, D)
            if t == 0:
                hidden = hidden.repeat_interleave(n, 0)  # (B, D)
                rows.repeat(n)
            logp = distribution(hidden, head, temperature or 1.0, self.args.fp32_lm_head)  # (b, V)
            if logp[:, 0].isnan().any():  # the softmax spreads a NaN over its row
                fail("the model computes no finite probabilities: its weights are broken, or --lr is too high.", code=1)
            logp = nucleus(logp, self.top_k, self.top_p)
            token = choose(logp, random[rows.numbers, t], greedy=temperature == 0)  # (b,)
            ended = (token[:, None] == self.eos).any(1)  # (b,)
            if stops:
                pairs = zip(rows.numbers.tolist(), token.tolist(), strict=True)
                ended |= torch.tensor([stops[row].complete(one) for row, one in pairs], device=device)  # (b,)
            responses.add(t, rows.numbers, token, logp, ended)
            alive = responses.alive(rows.numbers)  # (b,)
            count = int(alive.sum())
            if count == 0:
                break
            rows.append(token)
            if count <= 0.875 * len(alive):  # a few rows are not worth the time to drop them
                rows.keep(alive, count)
        return responses.rollouts()
