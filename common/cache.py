"""Keys and values of rows that a model computes together; rows leave when they end, and others join."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import Cache, DynamicLayer

ROOM = 16  # tokens, the smallest growth of a cache


def close_gaps(tensor: Tensor, gaps: Tensor, sources: Tensor, count: int) -> Tensor:
    """Copy the rows `sources` over the earlier rows `gaps`, in place, and return the first `count` rows."""
    tensor[gaps] = tensor[sources]
    return tensor[:count]


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer, (b, H, S, D), at the front of buffers with room for more tokens.

    `DynamicLayer` would copy all of them for each token.
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
        """Move to buffers for `room` tokens, with `copies` copies of each row."""
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

    def put(self, keys: Tensor, values: Tensor) -> None:
        """Replace everything by these keys and values (b, H, S, D)."""
        self.keys, self.values, self.buffers, self.is_initialized = keys, values, (), True


class Rows:
    """The b unfinished rows: their unread tokens, and the keys and values of the tokens that the model has read."""

    def __init__(self, model: Any, prompt_ids: list[list[int]], max_tokens: int) -> None:
        self.model, self.max_tokens, P, W = model, max_tokens, len(prompt_ids), max(map(len, prompt_ids))
        self.tokens = torch.zeros(P, W, dtype=torch.long)  # (b, s) unread; at first the prompts, padded on the left
        self.seen = torch.ones(P, W + max_tokens, dtype=torch.long)  # (b, W + T), 0 on padding
        for i, ids in enumerate(prompt_ids):
            self.tokens[i, W - len(ids) :] = torch.tensor(ids)
            self.seen[i, : W - len(ids)] = 0
        self.tokens, self.seen = self.tokens.to(model.device), self.seen.to(model.device)
        self.numbers = torch.arange(P, device=model.device)  # (b,) row numbers in the whole batch
        self.cache, self.length = make_cache(model), W
        self.position = (self.seen[:, :W].cumsum(1) - 1).clamp(min=0)  # (b, s) positions of the unread tokens

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
        """Set the next unread token of each row, (b,)."""
        self.tokens, self.position, self.length = token[:, None], self.position[:, -1:] + 1, self.length + 1

    def keep(self, alive: Tensor, count: int) -> None:
        """Keep only the `count` rows that are `alive` (b,).

        Live rows from position `count` on fill the gaps before it; all others stay where they are.
        """
        gaps, sources = (~alive[:count]).nonzero().squeeze(1), count + alive[count:].nonzero().squeeze(1)
        for name in ("numbers", "tokens", "seen", "position"):
            setattr(self, name, close_gaps(getattr(self, name), gaps, sources, count))
        for layer in self.cache.layers:
            layer.keep(gaps, sources, count)

    def skip(self, layers: list[tuple[Tensor, Tensor]]) -> None:
        """Count all unread tokens but the last as read, with these keys and values (b, H, S - 1, D) of each layer."""
        self.tokens, self.position = self.tokens[:, -1:], self.position[:, -1:]
        for layer, known in zip(self.cache.layers, layers, strict=True):
            layer.put(*known)

    def join(self, others: list["Rows"]) -> None:
        """Append the rows of others; all have one unread token, placed in the same column."""
        parts = [self, *others]
        # Drop the columns that no row of a part sees any more.
        lengths = [part.length - int(part.seen[:, : part.length].any(0).int().argmax()) for part in parts]
        length = max(lengths)

        def aligned(tensors: list[Tensor], dim: int, read: int) -> Tensor:
            """The last columns of each tensor, padded on the left to the same number."""
            pairs = zip(tensors, lengths, strict=True)
            ends = [(t.narrow(dim, t.shape[dim] - own + read, own - read), length - own) for t, own in pairs]
            return torch.cat([pad(end, (*(0, 0) * (end.ndim - 1 - dim), more, 0)) for end, more in ends])

        for i, layer in enumerate(self.cache.layers):
            of_parts = [part.cache.layers[i] for part in parts]
            layer.put(*(aligned([getattr(one, name) for one in of_parts], 2, 1) for name in ("keys", "values")))
        seen = aligned([part.seen[:, : part.length] for part in parts], 1, 0)
        self.seen, self.length = pad(seen, (0, self.max_tokens), value=1), length
        for name in ("numbers", "tokens", "position"):
            setattr(self, name, torch.cat([getattr(part, name) for part in parts]))


def make_cache(model: Any) -> Cache:
    return Cache(layers=[GrowingLayer() for _ in range(model.config.get_text_config().num_hidden_layers)])
