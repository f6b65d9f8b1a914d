"""A rollout batch as tensors, its minibatches, and the log-probs of its tokens under a model."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from common.models import distribution
from common.records import Rollouts

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOGITS_AT_ONCE = 1 << 24  # elements of the (tokens, V) logits held at a time: 64 MiB in fp32


@dataclass
class Batch:
    """B rows of prompt and response, padded on the right.

    The mask comes from lengths, never from token values: where pad is eos, a mask built from
    `tokens != pad` would hide the end of every response, and no response would learn to stop.
    """

    tokens: Tensor  # (B, S) prompt, response, padding
    prompt_lengths: Tensor  # (B,)
    response: Tensor  # (B, T) the response's tokens alone
    mask: Tensor  # (B, T) True on the tokens of the response, EOS included
    rollout_logp: Tensor  # (B, T) what the engine reported, 0 on padding
    # (B, T, K) the engine's likeliest tokens and their log-probs, only where they were asked for; K is 0 otherwise
    top_ids: Tensor
    top_logp: Tensor

    @property
    def lengths(self) -> Tensor:
        """(B,) tokens of each row, without padding."""
        return self.prompt_lengths + self.mask.sum(1)


def collate(prompt_ids: list[list[int]], rollouts: Rollouts, device: Any) -> Batch:
    """The B = P·G rows of P prompts and their responses."""
    G = len(rollouts.tokens) // len(prompt_ids)
    prompts = [torch.tensor(ids) for ids in prompt_ids for _ in range(G)]
    responses = [torch.tensor(ids) for ids in rollouts.tokens]
    rows = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    lengths = torch.tensor([len(ids) for ids in responses])  # (B,)
    mask = torch.arange(int(lengths.max())) < lengths[:, None]  # (B, T)
    rollout_logp = torch.zeros(mask.shape)  # (B, T)
    rollout_logp[mask] = torch.tensor([logp for row in rollouts.logps for logp in row])
    K = rollouts.top_ids[0].shape[1] if rollouts.top_ids else 0
    top_ids, top_logp = torch.zeros(*mask.shape, K, dtype=torch.long), torch.zeros(*mask.shape, K)  # (B, T, K)
    if K:
        top_ids[mask], top_logp[mask] = torch.cat(rollouts.top_ids).cpu(), torch.cat(rollouts.top_logps).cpu()
    return Batch(
        tokens=torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device),
        prompt_lengths=torch.tensor([len(ids) for ids in prompts]).to(device),
        response=torch.nn.utils.rnn.pad_sequence(responses, batch_first=True).to(device),
        mask=mask.to(device),
        rollout_logp=rollout_logp.to(device),
        top_ids=top_ids.to(device),
        top_logp=top_logp.to(device),
    )


def minibatches(P: int, G: int, args: Any) -> Iterator[Tensor]:
    """Row numbers (b,) of each minibatch of each pass; the G rows of a prompt stay together."""
    for _ in range(args.update_epochs):
        for groups in torch.randperm(P).chunk(args.num_minibatches):
            yield (groups[:, None] * G + torch.arange(G)).flatten()


def micro_batches(rows: Tensor, batch: Batch, max_tokens: int) -> Iterator[Tensor]:
    """Split row numbers into parts of at most `max_tokens` padded tokens, rows of like length together.

    A row longer than that stands alone. A part also ends where its padding would exceed a sixteenth of
    `max_tokens`: one more pass costs less than that. How rows are split is a matter of memory and speed
    only: the loss and its gradient are sums over rows, with weights fixed before.
    """
    lengths = batch.lengths[rows].cpu()  # (b,)
    order = lengths.argsort(descending=True, stable=True)
    rows, lengths = rows[order], lengths[order].tolist()
    start = padding = 0
    for end, length in enumerate(lengths):
        longest = lengths[start]
        padding += longest - length
        if end > start and ((end + 1 - start) * longest > max_tokens or padding > max_tokens // 16):
            yield rows[start:end]
            start, padding = end, 0
    yield rows[start:]


def autocast(device: torch.device, args: Any) -> torch.autocast:
    """bf16 compute over the fp32 master weights, by default where the hardware is made for it."""
    bf16 = args.learner_precision == "bf16" or (args.learner_precision == "auto" and device.type == "cuda")
    return torch.autocast(device.type, torch.bfloat16, enabled=bf16)


def logp_and_entropy(hidden: Tensor, targets: Tensor, *head: Any) -> tuple[Tensor, Tensor]:
    """Log-probs of `targets` (N,) and entropies (N,) over the whole vocabulary."""
    logps = distribution(hidden, *head)  # (N, V)
    with torch.no_grad():
        entropy = -(logps.exp() * logps).sum(-1)  # (N,)
    return logps.gather(-1, targets[:, None]).squeeze(-1), entropy


def response_hidden(model: Any, batch: Batch, rows: Tensor, args: Any) -> tuple[Tensor, Tensor]:
    """What the model computed just before each response token of `rows` (N, D), and those tokens (N,)."""
    tokens = batch.tokens[rows, : int(batch.lengths[rows].max())]  # (b, S)
    with autocast(tokens.device, args):
        # Padding stands on the right and attention is causal, so no token sees it: no mask is needed.
        hidden = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state  # (b, S, D)
    row, t = batch.mask[rows].nonzero(as_tuple=True)  # (N,), (N,)
    before = batch.prompt_lengths[rows][row] + t - 1  # (N,) position in `tokens`
    return hidden[row, before], batch.response[rows][row, t]


def token_logps(model: Any, batch: Batch, rows: Tensor, args: Any) -> tuple[Tensor, Tensor]:
    """Log-probs and full-vocabulary entropies of the responses of `rows`, both (b, T) and 0 on padding.

    The head runs on response tokens only, and in chunks that the backward pass computes again, so
    that the (tokens, V) logits never exist as a whole.
    """
    hidden, targets = response_hidden(model, batch, rows, args)  # (N, D), (N,)
    head = (model.get_output_embeddings(), args.temperature, args.fp32_lm_head)
    chunk = max(1, LOGITS_AT_ONCE // head[0].weight.shape[0])
    with autocast(hidden.device, args):
        parts = [
            checkpoint(logp_and_entropy, h, y, *head, use_reentrant=False)
            if len(targets) > chunk
            else logp_and_entropy(h, y, *head)
            for h, y in zip(hidden.split(chunk), targets.split(chunk), strict=True)
        ]
    logp, entropy = (torch.cat(part) for part in zip(*parts, strict=True))  # (N,), (N,)
    mask = batch.mask[rows]  # (b, T)
    empty = torch.zeros(mask.shape, dtype=logp.dtype, device=logp.device)  # (b, T)
    return empty.masked_scatter(mask, logp), empty.masked_scatter(mask, entropy)


@torch.no_grad()
def score(model: Any, batch: Batch, args: Any) -> tuple[Tensor, Tensor]:
    """`token_logps` of all rows (B, T), without gradients, in micro-batches."""
    logp, entropy = torch.zeros_like(batch.rollout_logp), torch.zeros_like(batch.rollout_logp)
    for rows in micro_batches(torch.arange(len(batch.tokens)), batch, args.micro_batch_tokens):
        logp[rows], entropy[rows] = token_logps(model, batch, rows, args)
    return logp, entropy


@torch.no_grad()
def top_logps(model: Any, batch: Batch, rows: Tensor, args: Any) -> Tensor:
    """The model's log-probs (b, T, K) of the tokens `batch.top_ids`, 0 on padding."""
    hidden, _ = response_hidden(model, batch, rows, args)  # (N, D)
    top_ids = batch.top_ids[rows][batch.mask[rows]]  # (N, K)
    head = model.get_output_embeddings()
    chunk = max(1, LOGITS_AT_ONCE // head.weight.shape[0])
    with autocast(hidden.device, args):
        parts = [
            distribution(h, head, args.temperature, args.fp32_lm_head).gather(1, ids)
            for h, ids in zip(hidden.split(chunk), top_ids.split(chunk), strict=True)
        ]
    result = torch.zeros(*batch.mask[rows].shape, top_ids.shape[1], device=hidden.device)  # (b, T, K)
    result[batch.mask[rows]] = torch.cat(parts)
    return result
