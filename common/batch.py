"""A rollout batch as tensors, its minibatches and micro-batches."""

from collections.abc import Iterator
from dataclasses import dataclass

from common.distributed import rank, world_size
from common.records import Problem, Rollouts
from common.settings import Settings

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass
class Batch:
    """B rows of prompt and response, padded on the right.

    The masks come from lengths, never from token values: if pad is eos, a mask built from
    `tokens != pad` would hide the end of every response, and no response would learn to stop.
    """

    tokens: Tensor  # (B, S) prompt, response, padding
    prompt_lengths: Tensor  # (B,)
    response: Tensor  # (B, T) only the response's tokens
    token_mask: Tensor  # (B, T) True on every token of the response, EOS included
    response_mask: Tensor  # (B, T) True on tokens that the engine sampled; inserted ones have no loss
    rollout_logp: Tensor  # (B, T) what the engine reported, 0 on padding and inserted tokens
    # (B, T, K) the engine's K likeliest tokens and their log-probs; K is 0 unless requested
    top_ids: Tensor
    top_logp: Tensor
    experts: Tensor  # (B, S, L, K) used by the engine for each token, -1 if unknown; empty unless requested

    @property
    def lengths(self) -> Tensor:
        """(B,) tokens of each row, without padding."""
        return self.prompt_lengths + self.token_mask.sum(1)


def collate(problems: list[Problem], rollouts: Rollouts, device: torch.device | str) -> Batch:
    """The B = P·G rows of P problems and their responses."""
    G = len(rollouts.tokens) // len(problems)
    prompts = [torch.tensor(problem.prompt_ids) for problem in problems for _ in range(G)]
    responses = [torch.tensor(ids) for ids in rollouts.tokens]
    rows = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    lengths = torch.tensor([len(ids) for ids in responses])  # (B,)
    token_mask = torch.arange(int(lengths.max())) < lengths[:, None]  # (B, T)
    rollout_logp, response_mask = torch.zeros(token_mask.shape), token_mask.clone()  # (B, T), (B, T)
    rollout_logp[token_mask] = torch.tensor([logp for row in rollouts.logps for logp in row])
    response_mask[token_mask] = torch.tensor([was_sampled for row in rollouts.sampled for was_sampled in row])
    K = rollouts.top_ids[0].shape[1] if rollouts.top_ids else 0
    top_ids, top_logp = torch.zeros(*token_mask.shape, K, dtype=torch.long), torch.zeros(*token_mask.shape, K)
    if K:
        top_ids[token_mask], top_logp[token_mask] = torch.cat(rollouts.top_ids), torch.cat(rollouts.top_logps)
    tokens = pad_sequence(rows, batch_first=True)  # (B, S)
    shape = (*tokens.shape, *rollouts.experts[0].shape[1:]) if rollouts.experts else (0, 0, 0, 0)
    experts = torch.full(shape, -1, dtype=torch.int16)  # (B, S, L, K)
    for i, of_tokens in enumerate(rollouts.experts):
        assert len(of_tokens) == len(rows[i]) - 1, "the experts belong to another prompt or response"
        experts[i, : len(of_tokens)] = of_tokens
    return Batch(
        tokens=tokens.to(device),
        prompt_lengths=torch.tensor([len(ids) for ids in prompts]).to(device),
        response=pad_sequence(responses, batch_first=True).to(device),
        token_mask=token_mask.to(device),
        response_mask=response_mask.to(device),
        rollout_logp=rollout_logp.to(device),
        top_ids=top_ids.to(device),
        top_logp=top_logp.to(device),
        experts=experts.to(device),
    )


def minibatches(P: int, G: int, args: Settings) -> Iterator[Tensor]:
    """Row numbers (b,) of each minibatch of each pass; the G rows of a prompt stay together."""
    for _ in range(args.update_epochs):
        for groups in torch.randperm(P).chunk(args.num_minibatches):
            yield (groups[:, None] * G + torch.arange(G)).flatten()


def micro_batches(minibatch: Tensor, weights: Tensor, batch: Batch, args: Settings) -> Iterator[tuple[Tensor, Tensor]]:
    """Row numbers (m,) and weights (m, T) of each micro-batch, from a minibatch's rows (b,) and weights (b, T).

    The split changes memory use and speed, not the result: the loss and its gradient are sums over
    rows, with weights that are fixed before the split.
    """
    of_all = weights.new_zeros(batch.token_mask.shape)  # (B, T)
    of_all[minibatch] = weights
    for rows in split_rows(minibatch, batch, args.micro_batch_tokens):
        yield rows, of_all[rows]


def split_rows(rows: Tensor, batch: Batch, max_tokens: int) -> Iterator[Tensor]:
    """Split row numbers into parts of at most `max_tokens` padded tokens, rows of similar length together.

    Rows are sorted by length and dealt to the processes in turn. All make the same number of passes,
    possibly on no rows, because each pass synchronizes gradients.
    """
    lengths, N = batch.lengths[rows].cpu(), world_size()  # (b,)
    rows = rows[lengths.argsort(descending=True, stable=True)]
    of_process = [list(parts(rows[i::N], batch, max_tokens)) for i in range(N)]
    mine = of_process[rank()]
    yield from mine + [rows[:0]] * (max(map(len, of_process)) - len(mine))


def parts(rows: Tensor, batch: Batch, max_tokens: int) -> Iterator[Tensor]:
    """Cut row numbers, sorted by decreasing length, into parts of at most `max_tokens` padded tokens.

    A longer row forms a part of its own. A part also ends once its padding would exceed a sixteenth of
    `max_tokens`, because another pass is then cheaper.
    """
    lengths = batch.lengths[rows].tolist()
    start = padding = 0
    for end, length in enumerate(lengths):
        longest = lengths[start]
        padding += longest - length
        if end > start and ((end + 1 - start) * longest > max_tokens or padding > max_tokens // 16):
            yield rows[start:end]
            start, padding = end, 0
    if len(rows):
        yield rows[start:]
