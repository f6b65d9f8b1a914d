"""Log-probs of the tokens of a batch under a model."""

from collections.abc import Callable
from typing import Any

from common.batch import Batch, split_rows
from common.clock import clock
from common.distributed import forward, has_bf16, sum_over_processes
from common.experts import set_engine_experts, watched
from common.settings import Settings

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Elements of the (tokens, V) logits held at a time. On a GPU 512 MiB in fp32: each chunk casts the head again.
LOGITS_AT_ONCE = 1 << (27 if torch.cuda.is_available() else 24)


def distribution(hidden: Tensor, head: torch.nn.Linear, temperature: float, fp32: bool) -> Tensor:
    """Log-probs (N, V) of the next token from hidden states (N, D); the softmax is in fp32.

    Logits are divided by the sampling temperature, as in the engine. `fp32` also runs
    the head itself in fp32, which brings engine and learner closer if they compute in bf16. Its
    weights are still rounded to bf16, as the engine's are.
    """
    if fp32:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else head.weight.dtype
        with torch.autocast(kind, enabled=False):
            bias = None if head.bias is None else head.bias.float()
            logits = F.linear(hidden.float(), head.weight.to(dtype).float(), bias)  # (N, V)
    else:
        logits = head(hidden)  # (N, V)
    return (logits.float() / temperature).log_softmax(-1)


def logp_and_entropy(
    hidden: Tensor, targets: Tensor, *head: Any, with_entropy: bool, entropy_gradient: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs (N, K) of `targets` (N, K), and entropies (N,) over the whole vocabulary, or 0 without entropy."""
    logps = distribution(hidden, *head)  # (N, V)
    if not with_entropy:
        return logps.gather(-1, targets), torch.zeros_like(logps[:, 0])
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(logps.exp() * logps).sum(-1)  # (N,)
    return logps.gather(-1, targets), entropy


def computes_in_bf16(device: torch.device, args: Settings) -> bool:
    return args.learner_precision == "bf16" or (args.learner_precision == "auto" and has_bf16(device))


def autocast(device: torch.device, args: Settings, cache: bool) -> torch.autocast:
    """bf16 or fp16 compute with fp32 master weights; by default bf16 on hardware made for it.

    With `cache`, cast copies of all weights are kept until the end, for weights that are used more than once.
    """
    fp16 = args.learner_precision == "fp16"
    enabled = fp16 or computes_in_bf16(device, args)
    return torch.autocast(device.type, torch.float16 if fp16 else torch.bfloat16, enabled, cache)


def response_hidden(model: Any, batch: Batch, rows: Tensor, args: Settings) -> Tensor:
    """Hidden states just before each response token of `rows`: (N, D), row by row."""
    # A process without rows reads one token: all processes must make the same number of passes.
    tokens = batch.tokens[rows, : int(batch.lengths[rows].max())] if len(rows) else batch.tokens[:1, :1]  # (b, S)
    set_engine_experts(model, batch, rows, tokens.shape[1])
    with autocast(tokens.device, args, cache=False):
        # Padding is on the right and attention is causal, so no token sees it: no attention mask is needed.
        hidden = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state  # (b, S, D)
    return hidden[positions(batch, rows)]


def positions(batch: Batch, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column in `tokens` just before each response token of `rows`: (N,), (N,)."""
    row, t = batch.token_mask[rows].nonzero(as_tuple=True)  # (N,), (N,)
    return row, batch.prompt_lengths[rows][row] + t - 1


def target_logps(
    model: Any,
    batch: Batch,
    rows: Tensor,
    targets: Tensor,
    args: Settings,
    with_entropy: bool = False,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probs (N, K) of `targets` (N, K) at each response token of `rows`, and entropies (N,).

    The head runs on response tokens only, and in chunks that the backward pass computes again, so that the (tokens, V)
    logits never exist as a whole. A sharded model's weights must be gathered: call it through `forward`.
    """
    hidden = response_hidden(model, batch, rows, args)  # (N, D)
    head = (model.get_output_embeddings(), args.temperature, args.fp32_lm_head)
    entropy = {"with_entropy": with_entropy, "entropy_gradient": entropy_gradient}
    chunk = max(1, LOGITS_AT_ONCE // head[0].weight.shape[0])
    with autocast(hidden.device, args, cache=True):  # the head is the same for all chunks
        parts = [
            checkpoint(logp_and_entropy, h, y, *head, **entropy, use_reentrant=False)
            if len(targets) > chunk
            else logp_and_entropy(h, y, *head, **entropy)
            for h, y in zip(hidden.split(chunk), targets.split(chunk), strict=True)
        ]
    logps, entropies = (torch.cat(part) for part in zip(*parts, strict=True))
    if hasattr(model, "loss_scale"):
        logps, entropies = model.loss_scale.scale(logps), model.loss_scale.scale(entropies)
    return logps, entropies


def token_logps(model: Any, batch: Batch, rows: Tensor, args: Settings) -> Tensor:
    """Log-probs (b, T) of the responses of `rows`, 0 on padding, with a gradient."""
    return logps_and_entropies(model, batch, rows, args, with_entropy=False)[0]


def logps_and_entropies(
    model: Any, batch: Batch, rows: Tensor, args: Settings, with_entropy: bool = True, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-probs and full-vocabulary entropies of the responses of `rows`, both (b, T) and 0 on padding."""
    mask = batch.token_mask[rows]  # (b, T)
    targets = batch.response[rows][mask][:, None]  # (N, 1)
    logp, entropy = forward(
        target_logps, model, batch, rows, targets, args, with_entropy, entropy_gradient
    )  # (N, 1), (N,)
    empty = torch.zeros(mask.shape, dtype=logp.dtype, device=logp.device)  # (b, T)
    return empty.masked_scatter(mask, logp), empty.masked_scatter(mask, entropy)


def vocabulary_logps(model: Any, batch: Batch, rows: Tensor, V: int, args: Settings) -> Tensor:
    """Log-probs (N, V) of the first V tokens at each response token of `rows`, row by row."""
    every = torch.arange(V, device=batch.token_mask.device).expand(int(batch.token_mask[rows].sum()), V)  # (N, V)
    return forward(target_logps, model, batch, rows, every, args)[0]


@torch.no_grad()
def top_logps(model: Any, batch: Batch, rows: Tensor, args: Settings) -> Tensor:
    """The model's log-probs (b, T, K) of the tokens `batch.top_ids`, 0 on padding."""
    mask = batch.token_mask[rows]  # (b, T)
    result = torch.zeros(batch.top_logp[rows].shape, device=mask.device)  # (b, T, K)
    result[mask], _ = forward(target_logps, model, batch, rows, batch.top_ids[rows][mask], args)
    return result


def routed_logps(model: Any, batch: Batch, rows: Tensor, args: Settings) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs (b, T) of the responses of `rows`, with a gradient; and without one, what each token's routers did.

    These are log-probs of all experts (b, T, L, E) at the token before, which predicts it, and the experts used there
    (b, T, L, K); 0 on padding.
    """
    with watched(model) as outputs:
        logp = token_logps(model, batch, rows, args)  # (b, T)
    mask, at = batch.token_mask[rows], positions(batch, rows)  # (b, T), (N,) twice

    def of_tokens(values: list[Tensor]) -> Tensor:
        """(b, T, L, ...) from a tensor (b S, ...) of each layer."""
        found = torch.stack([value.unflatten(0, (max(1, len(rows)), -1))[at] for value in values], 1)  # (N, L, ...)
        result = found.new_zeros(*mask.shape, *found.shape[1:])  # (b, T, L, ...)
        result[mask] = found
        return result

    router_logps = [logits.detach().float().log_softmax(-1) for logits, _, _ in outputs]
    return logp, of_tokens(router_logps), of_tokens([experts for _, _, experts in outputs])


def batch_experts(model: Any, batch: Batch, args: Settings) -> tuple[Tensor, Tensor]:
    """Which experts each token used, and the routers' log-probs of them, both (B, T, L, K), in micro-batches."""

    def used(batch: Batch, rows: Tensor, args: Settings) -> Tensor:
        _, router_logp, experts = routed_logps(model, batch, rows, args)
        both = torch.stack([experts.float(), router_logp.gather(-1, experts)])  # (2, b, T, L, K)
        return both.movedim((1, 2), (-2, -1))  # (2, L, K, b, T)

    experts, router_logp = in_micro_batches(used, batch, args).movedim((-2, -1), (1, 2))
    return experts.long(), router_logp


@torch.no_grad()
def in_micro_batches(
    function: Callable[..., Tensor], batch: Batch, args: Settings, wanted: Tensor | None = None
) -> Tensor:
    """What `function(batch, rows, args)` returns for all rows of a batch (..., B, T), without gradients.

    If only some rows are wanted, the others are 0.
    """
    results = None
    wanted = torch.arange(len(batch.tokens)) if wanted is None else wanted
    with clock("logps"):
        for rows in split_rows(wanted, batch, args.micro_batch_tokens):
            values = function(batch, rows, args)  # (..., b, T)
            if results is None:
                results = values.new_zeros(*values.shape[:-2], *batch.token_mask.shape)  # (..., B, T)
            results[..., rows, :] = values
        return sum_over_processes(results)


def batch_logps(model: Any, batch: Batch, args: Settings, wanted: Tensor | None = None) -> Tensor:
    """Log-probs and entropies (2, B, T) of all rows, or of those wanted, without gradients, in micro-batches."""
    return in_micro_batches(lambda *inputs: torch.stack(logps_and_entropies(model, *inputs)), batch, args, wanted)
