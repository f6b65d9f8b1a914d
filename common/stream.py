"""Responses that a transformers model samples token by token; groups join and leave while others continue."""

import copy
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from common.cache import Rows
from common.cli import fail
from common.engines import Request
from common.experts import watched
from common.logprobs import distribution
from common.records import Rollouts

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor


class Responses:
    """What was sampled so far for all B rows. Tensors have one column more than T, for rows that have ended."""

    def __init__(self, request: Request, T: int, device: torch.device, routed: tuple[int, int] = (0, 0)) -> None:
        """`routed`: the number of layers, and of experts in each, to record."""
        n, K = request.n, request.top_k
        self.limits = torch.tensor(request.limits, dtype=torch.long, device=device).repeat_interleave(n)  # (B,)
        B = len(self.limits)
        self.lengths = torch.zeros_like(self.limits)  # (B,)
        self.finished = torch.zeros(B, dtype=torch.bool, device=device)  # (B,) ended by EOS or a stop string
        self.tokens = torch.zeros(B, T + 1, dtype=torch.long, device=device)  # (B, T + 1)
        self.logps = torch.zeros(B, T + 1, device=device)  # (B, T + 1)
        self.top_ids = torch.zeros(B, T + 1, K, dtype=torch.long, device=device)  # (B, T + 1, K)
        self.top_logps = torch.zeros(B, T + 1, K, device=device)  # (B, T + 1, K)
        self.experts = torch.zeros(B, T + 1, *routed, dtype=torch.int16, device=device)  # (B, T + 1, L, K)
        self.random = random_numbers(n, request.limits, request.seeds, T + 1).to(device)  # (B, T + 1)

    def alive(self, rows: Any = slice(None)) -> Tensor:
        """(b,) whether the response in each of these rows is unfinished."""
        return ~self.finished[rows] & (self.lengths[rows] < self.limits[rows])

    def add(self, rows: Tensor, token: Tensor, logp: Tensor, ended: Tensor) -> None:
        """Add the next token of b rows: tokens (b,), log-probs (b, V), and whether the token ends the response (b,).

        For rows that had already ended, it is ignored.
        """
        t = self.lengths[rows]  # (b,)
        self.tokens[rows, t] = token
        self.logps[rows, t] = logp.gather(1, token[:, None]).squeeze(1)
        if K := self.top_ids.shape[2]:
            self.top_logps[rows, t], self.top_ids[rows, t] = logp.topk(K)
        alive = self.alive(rows)  # (b,)
        self.lengths[rows] += alive
        self.finished[rows] |= ended & alive

    def join(self, others: list["Responses"]) -> None:
        """Append the rows of others."""
        for name, mine in vars(self).items():
            setattr(self, name, torch.cat([mine, *(getattr(other, name) for other in others)]))

    def select(self, rows: Any) -> "Responses":
        """Some of the rows."""
        some = copy.copy(self)
        for name, mine in vars(self).items():
            setattr(some, name, mine[rows])
        return some

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
            # Copies, because other processes receive a row's whole storage.
            [row.clone() for row in cut(self.top_ids.cpu())] if K else [],
            [row.clone() for row in cut(self.top_logps.cpu())] if K else [],
            experts=cut(self.experts.cpu()) if self.experts.shape[3] else [],
        )


class StopStrings:
    """Looks for a stop string token by token; the response is decoded after its prompt, as in vLLM."""

    def __init__(self, stop: tuple[str, ...], tokenizer: Any, prompt_ids: list[int]) -> None:
        self.stop, self.longest = stop, max(map(len, stop))
        self.tokenizer = tokenizer.backend_tokenizer
        self.stream = DecodeStream(ids=prompt_ids, skip_special_tokens=True)
        self.end = ""  # of the text so far

    def complete(self, token: int) -> bool:
        """Add the next token; returns whether it completes a stop string."""
        # The stream gives nothing until a character of several tokens is complete.
        text = self.end + (self.stream.step(self.tokenizer, token) or "")
        self.end = text[-self.longest :]
        return any(string in text for string in self.stop)


def random_numbers(n: int, limits: list[int], seeds: list[int], T: int) -> Tensor:
    """(B, T) random numbers in (0, 1], one per token; a prompt's depend only on its seed and limit."""
    random = torch.ones(len(limits), n, T)
    for i, (seed, end) in enumerate(zip(seeds, limits, strict=True)):
        random[i, :, :end] = 1 - torch.rand(n, end, generator=torch.Generator().manual_seed(seed))
    return random.flatten(0, 1)


def choose(logp: Tensor, random: Tensor, greedy: bool) -> Tensor:
    """Tokens (b,) from log-probs (b, V): the likeliest, or where the cumulative sum reaches a row's number (b,)."""
    if greedy:
        return logp.argmax(-1)
    cumulative = logp.exp().cumsum(-1)  # (b, V)
    return torch.searchsorted(cumulative, random[:, None] * cumulative[:, -1:]).squeeze(1)


def nucleus(logp: Tensor, top_k: int, top_p: float) -> Tensor:
    """Log-probs (b, V) of the `top_k` likeliest tokens (0: all), limited to the fewest with probability `top_p`.

    As in vLLM: first k, then p of what remains, each renormalized; the others are -inf.
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


class Stream:
    """Groups of unfinished responses; groups join between two tokens, and each leaves when all of it has ended.

    After an update of the engine, later tokens use its new weights with the keys and values already computed.
    """

    def __init__(
        self, engine: Any, T: int, temperature: float = 1.0, top_k: int = 0, stop: tuple[str, ...] = ()
    ) -> None:
        """`T` is the largest limit of a response, `top_k` the number of likeliest tokens to report."""
        self.engine, self.model, self.T = engine, engine.model, T
        self.temperature, self.top_k, self.stop = temperature, top_k, (*engine.args.stop, *stop)
        self.head = self.model.get_output_embeddings()
        self.groups: dict[Any, Request] = {}  # under way, with one prompt each
        self.order: list[tuple[Any, int]] = []  # keys and sizes of the groups whose rows `responses` has
        self.rows: Rows | None = None  # that are computed
        self.prompt_experts: dict[Any, Tensor] = {}  # (s, L, K) of each group, if recorded
        self.responses = self.new_responses(Request([], 1, [], temperature, [], top_k))  # of all groups
        self.stops: list[StopStrings] = []  # of all responses, if there are any stop strings

    def new_responses(self, request: Request) -> Responses:
        return Responses(request, self.T, self.model.device, self.engine.routed)

    @torch.inference_mode()
    def join(self, keys: Sequence[Any], request: Request) -> None:
        """Begin `request.n` responses to each prompt; `keys` name the groups."""
        self.tidy()
        new, n = Rows(self.model, request.prompts, self.T), request.n
        hidden, experts = self.read(new)  # (b, D), (b, s, L, K)
        for key, prompt, of_prompt in zip(keys, request.prompts, experts, strict=False):
            self.prompt_experts[key] = of_prompt[-len(prompt) :].cpu()
        hidden = hidden.repeat_interleave(n, 0)  # (b, D)
        new.repeat(n)
        new.numbers += len(self.responses.limits)
        self.add_groups({key: request.part(slice(i, i + 1)) for i, key in enumerate(keys)})
        self.add_rows([new] if self.add_token(new, hidden) else [])

    def add_groups(self, groups: dict[Any, Request]) -> None:
        self.groups |= groups
        self.order += [(key, group.n) for key, group in groups.items()]
        self.responses.join([self.new_responses(group) for group in groups.values()])
        for group in groups.values() if self.stop else ():
            self.stops += [StopStrings(self.stop, self.engine.tokenizer, group.prompts[0]) for _ in range(group.n)]

    def add_rows(self, new: list[Rows]) -> None:
        first, *more = [self.rows, *new] if self.rows else [*new, None]
        if first and (more := [rows for rows in more if rows]):
            first.join(more)
        self.rows = first

    @torch.inference_mode()
    def step(self) -> None:
        """Sample the next token of every response."""
        if not self.rows:
            return
        hidden, experts = self.read(self.rows)  # (b, D), (b, 1, L, K)
        if len(experts):
            numbers = self.rows.numbers  # (b,)
            self.responses.experts[numbers, self.responses.lengths[numbers] - 1] = experts[:, 0]
        if not self.add_token(self.rows, hidden):
            self.rows = None

    def read(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Hidden states (b, D) at the last of the unread tokens (b, s), and the experts (b, s, L, K) used for them.

        The experts are empty if they are not recorded.
        """
        if self.engine.routed == (0, 0):
            return rows.read(), torch.empty(0)
        with watched(self.model) as outputs:
            hidden = rows.read()
        of_layers = [experts.to(torch.int16).unflatten(0, rows.tokens.shape) for _, _, experts in outputs]
        return hidden, torch.stack(of_layers, 2)

    def add_token(self, rows: Rows, hidden: Tensor) -> bool:
        """Sample a token of each row from the hidden states (b, D) before it; returns whether any response goes on."""
        responses, numbers = self.responses, rows.numbers
        logp = distribution(hidden, self.head, self.temperature or 1.0, self.engine.args.fp32_lm_head)  # (b, V)
        if logp[:, 0].isnan().any():  # the softmax spreads a NaN over its row
            fail("the model computes no finite probabilities: its weights are broken, or --lr is too high.", code=1)
        logp = nucleus(logp, self.engine.top_k, self.engine.top_p)
        random = responses.random[numbers, responses.lengths[numbers]]  # (b,)
        token = choose(logp, random, greedy=self.temperature == 0)  # (b,)
        ended = (token[:, None] == self.engine.eos).any(1)  # (b,)
        if self.stops:
            pairs = zip(numbers.tolist(), token.tolist(), strict=True)
            complete = [self.stops[row].complete(one) for row, one in pairs]
            ended |= torch.tensor(complete, device=ended.device)  # (b,)
        responses.add(numbers, token, logp, ended)
        alive = responses.alive(numbers)  # (b,)
        count = int(alive.sum())
        if count == 0:
            return False
        rows.append(token)
        if count <= 0.875 * len(alive):  # a few rows are not worth the time to drop them
            rows.keep(alive, count)
        return True

    @torch.inference_mode()
    def tidy(self) -> None:
        """Drop the rows of responses that have ended, and forget the groups that have left."""
        if self.rows:
            alive = self.responses.alive(self.rows.numbers)  # (b,)
            self.rows.keep(alive, int(alive.sum()))
        stays = [key in self.groups for key, n in self.order for _ in range(n)]
        if all(stays):
            return
        stay = torch.tensor(stays, device=self.model.device)  # (B,)
        if self.rows:
            self.rows.numbers = (stay.cumsum(0) - 1)[self.rows.numbers]
        self.responses = self.responses.select(stay)
        self.stops = [stop for stop, kept in zip(self.stops, stays, strict=False) if kept]
        self.order = [(key, n) for key, n in self.order if key in self.groups]

    def slices(self) -> dict[Any, slice]:
        """The rows in `responses` of each group that is under way."""
        ends = accumulate(n for _, n in self.order)
        of_all = {key: slice(end - n, end) for (key, n), end in zip(self.order, ends, strict=True)}
        return {key: of_all[key] for key in self.groups}

    @torch.inference_mode()
    def take(self) -> dict[Any, Rollouts]:
        """Remove and return the groups whose responses have all ended."""
        alive = self.responses.alive().tolist()
        ended = {key: rows for key, rows in self.slices().items() if not any(alive[rows])}
        found = {key: self.responses.select(rows).rollouts() for key, rows in ended.items()}
        for key, rollouts in found.items():
            del self.groups[key]
            rollouts.experts = [torch.cat([self.prompt_experts[key], own[:-1]]) for own in rollouts.experts]
            self.prompt_experts.pop(key, None)
        return found

    @torch.inference_mode()
    def reread(self) -> None:
        """Recompute all keys and values with the engine's current weights."""
        self.tidy()
        if self.rows:
            numbers, tokens = self.rows.numbers, self.responses.tokens.tolist()
            prompts = [group.prompts[0] for group in self.groups.values() for _ in range(group.n)]
            lengths = self.responses.lengths.tolist()
            read = [prompts[i] + tokens[i][: lengths[i] - 1] for i in numbers.tolist()]
            last = self.rows.tokens[:, 0]
            self.rows = Rows(self.model, read, self.T)
            self.rows.numbers = numbers
            self.rows.read()
            self.rows.append(last)

    @torch.inference_mode()
    def state_dict(self) -> dict[Any, Any]:
        """The groups under way: request, responses, and keys and values (rows, H, S, D) of each layer."""
        self.tidy()
        found = {}
        for key, rows in self.slices().items():
            own, request = self.responses.select(rows), self.groups[key]
            mine = (self.rows.numbers >= rows.start) & (self.rows.numbers < rows.stop)  # (b,)
            order = mine.nonzero().squeeze(1)[self.rows.numbers[mine].argsort()]
            S = len(request.prompts[0]) + int(own.lengths.max()) - 1  # columns of an unfinished row
            layers = [(layer.keys[order, :, -S:], layer.values[order, :, -S:]) for layer in self.rows.cache.layers]
            kept = {name: tensor.clone() for name, tensor in vars(own).items() if name != "random"}
            part = {"prompts": request.prompts, "n": request.n, "limits": request.limits, "seeds": request.seeds}
            found[key] = {"request": part, "responses": kept, "layers": layers}
        return found

    @torch.inference_mode()
    def load_state_dict(self, state: dict[Any, Any]) -> None:
        """Continue from such a state; the rows are in the order of their keys."""
        device, self.groups, self.order, self.rows, self.stops = self.model.device, {}, [], None, []
        self.responses, parts = self.responses.select(slice(0, 0)), []
        for key, found in sorted(state.items()):
            request = Request(temperature=self.temperature, top_k=self.top_k, **found["request"])
            self.add_groups({key: request})
            rows = self.slices()[key]
            for name, tensor in found["responses"].items():
                getattr(self.responses, name)[rows] = tensor.to(device)
            lengths, alive = self.responses.lengths, self.responses.alive().tolist()
            numbers = [i for i in range(rows.start, rows.stop) if alive[i]]
            tokens = [self.responses.tokens[i, : lengths[i]].tolist() for i in range(rows.start, rows.stop)]
            for stop, sampled in zip(self.stops[rows], tokens, strict=False):
                for token in sampled:
                    stop.complete(token)
            part = Rows(self.model, [request.prompts[0] + tokens[i - rows.start] for i in numbers], self.T)
            part.numbers += torch.tensor(numbers, device=device) - part.numbers
            part.skip([(keys.to(device), values.to(device)) for keys, values in found["layers"]])
            parts.append(part)
        self.add_rows(parts)
