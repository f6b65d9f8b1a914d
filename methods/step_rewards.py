"""A reward model that scores the steps of a response, where steps end, and responses continued from there."""

from common.batch import Batch, micro_batches
from common.clock import clock
from common.engines import Engine, prompt_seeds
from common.logprobs import response_hidden
from common.records import Problem, Rollouts
from common.settings import Settings

import torch
import torch.nn.functional as F
from torch import Tensor


class RewardModel(torch.nn.Module):
    """Logit of the chance that a response will be correct: the body of a language model with a scalar head."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.base_model = model.base_model
        self.head = torch.nn.Linear(model.config.get_text_config().hidden_size, 1).to(model.device)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch, rows: Tensor, args: Settings) -> Tensor:
        """Logits (b, T): at t, of the prompt and the tokens before t; 0 on padding."""
        hidden, mask = response_hidden(self, batch, rows, args), batch.token_mask[rows]  # (N, D), (b, T)
        return torch.zeros(mask.shape, device=mask.device).masked_scatter(mask, self.head(hidden.float()).squeeze(-1))

    def fit(self, batch: Batch, labels: Tensor, last: Tensor, updates: int, lr: float, args: Settings) -> None:
        """Updates by the mean cross-entropy with labels (B, T) at the last tokens of steps, a mask (B, T)."""
        optimizer = torch.optim.AdamW(self.parameters(), lr=lr, weight_decay=args.weight_decay)
        for _ in range(updates):
            for rows, w in micro_batches(torch.arange(len(last)), last / last.sum(), batch, args):  # (m,), (m, T)
                logits = self(batch, rows, args)  # (m, T)
                F.binary_cross_entropy_with_logits(logits, labels[rows], weight=w, reduction="sum").backward()
            optimizer.step()
            optimizer.zero_grad()


def split_steps(tokens: list[int], ends: set[int]) -> list[int]:
    """Where each step of a response ends: after a token in `ends`; the last one at the end, EOS included."""
    return [*(t + 1 for t, token in enumerate(tokens[:-2]) if token in ends), len(tokens)]


def last_tokens(steps: list[list[int]], like: Tensor) -> Tensor:
    """Mask (B, T), like this one, of the last token of each step of each response."""
    found = torch.zeros_like(like)
    for i, ends in enumerate(steps):
        found[i, [end - 1 for end in ends]] = True
    return found


def continue_responses(engine: Engine, problems: list[Problem], begun: list[list[int]], *key: int) -> Rollouts:
    """Responses that continue these tokens, one per problem, up to the length limit in all."""
    given = Rollouts(begun, [[0.0] * len(ids) for ids in begun], [], [[True] * len(ids) for ids in begun])
    args, prompts = engine.args, [problem.prompt_ids for problem in problems]
    seeds = prompt_seeds(len(problems), args.seed, *key)
    with clock("generate"):
        return engine.extend(prompts, given, args.max_response_tokens, args.temperature, seeds)
