"""A rollout batch as tensors, its minibatches and micro-batches."""

from collections.abc import Iterator
from dataclasses import dataclass

from common.distributed import rank, world_size
from common.records import Rollouts
from common.settings import Settings

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence


@dataclass
class Batch:
    """B rows of prompt and response, padded on the right.

    The masks come from lengths, never from token values: where pad is eos, a mask built from
    `tokens != pad` would hide the end of every response, and no response would learn to stop.
    """

    tokens: Tensor  # (B, S) prompt, response, padding
    prompt_lengths: Tensor  # (B,)
    response: Tensor  # (B, T) the response's tokens alone
    mask: Tensor  # (B, T) True on the tokens of the response, EOS included
    sampled: Tensor  # (B, T) True on those that the engine sampled; what was put there instead has no loss
    rollout_logp: Tensor  # (B, T) what the engine reported, 0 on padding
    rewards: Tensor  # (B,) once they were judged: 1 where right, or those of --reward
    # (B, T, K) the engine's likeliest tokens and their log-probs, only where they were asked for; K is 0 otherwise
    top_ids: Tensor
    top_logp: Tensor

    @property
    def lengths(self) -> Tensor:
        """(B,) tokens of each row, without padding."""
        return self.prompt_lengths + self.mask.sum(1)


def collate(prompt_ids: list[list[int]], rollouts: Rollouts, device: torch.device | str) -> Batch:
    """The B = P·G rows of P prompts and their responses."""
    G = len(rollouts.tokens) // len(prompt_ids)
    prompts = [torch.tensor(ids) for ids in prompt_ids for _ in range(G)]
    responses = [torch.tensor(ids) for ids in rollouts.tokens]
    rows = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    lengths = torch.tensor([len(ids) for ids in responses])  # (B,)
    mask = torch.arange(int(lengths.max())) < lengths[:, None]  # (B, T)
    rollout_logp, sampled = torch.zeros(mask.shape), mask.clone()  # (B, T), (B, T)
    rollout_logp[mask] = torch.tensor([logp for row in rollouts.logps for logp in row])
    sampled[mask] = torch.tensor([was for row in rollouts.sampled for was in row])
    K = rollouts.top_ids[0].shape[1] if rollouts.top_ids else 0
    top_ids, top_logp = torch.zeros(*mask.shape, K, dtype=torch.long), torch.zeros(*mask.shape, K)  # (B, T, K)
    if K:
        top_ids[mask], top_logp[mask] = torch.cat(rollouts.top_ids), torch.cat(rollouts.top_logps)
    return Batch(
        tokens=pad_sequence(rows, batch_first=True).to(device),
        prompt_lengths=torch.tensor([len(ids) for ids in prompts]).to(device),
        response=pad_sequence(responses, batch_first=True).to(device),
        mask=mask.to(device),
        sampled=sampled.to(device),
        rollout_logp=rollout_logp.to(device),
        rewards=torch.tensor(rollouts.rewards, dtype=torch.float).to(device),
        top_ids=top_ids.to(device),
        top_logp=top_logp.to(device),
    )


def minibatches(P: int, G: int, args: Settings) -> Iterator[Tensor]:
    """Row numbers (b,) of each minibatch of each pass; the G rows of a prompt stay together."""
    for _ in range(args.update_epochs):
        for groups in torch.randperm(P).chunk(args.num_minibatches):
            yield (groups[:, None] * G + torch.arange(G)).flatten()


def micro_batches(rows: Tensor, batch: Batch, max_tokens: int) -> Iterator[Tensor]:
    """Split row numbers into parts of at most `max_tokens` padded tokens, rows of like length together.

    How rows are split is a matter of memory and speed only: the loss and its gradient are sums over
    rows, with weights fixed before. Several processes are dealt the rows in the order of their
    length; all make the same number of passes, the last perhaps without rows, to keep step.
    """
    lengths = batch.lengths[rows].cpu()  # (b,)
    rows = rows[lengths.argsort(descending=True, stable=True)]
    N = world_size()
    of_process = [list(parts(rows[i::N], batch, max_tokens)) for i in range(N)]
    passes = max(map(len, of_process))
    mine = of_process[rank()]
    yield from mine
    yield from [rows[:0]] * (passes - len(mine))


def parts(rows: Tensor, batch: Batch, max_tokens: int) -> Iterator[Tensor]:
    """Cut row numbers in order of falling length into parts of at most `max_tokens` padded tokens.

    A row longer than that stands alone. A part also ends where its padding would exceed a sixteenth of
    `max_tokens`: one more pass costs less than that.
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
