"""A model, an engine and data so small that a check of a whole loop takes a moment, in plain torch and float64.

`train` in loop.py gets them from the check and the grader, and the embedded model from `train.py`. What it may use:

    policy(tokens)                  logits (B, S, V) after each token of a (B, S) batch; a torch.nn.Module
    engine.load_weights(policy)     the engine samples with its own copy of the weights, in lower precision
    engine.generate(problems, G)    responses (token ids, EOS included), their log-probs, whether each was truncated:
                                    three lists with B = P * G entries, those to one problem next to each other
    data.sample(step)               P problems, each with `prompt_ids` and `answer`
    data.text(ids)                  the text of a response
    optimizer                       step() and zero_grad(), as torch's
"""

import random
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

TOKENS = ("", "0", "1", "2", "3", "+", "=", "\\boxed{", "}", "so ")  # the tokens' texts; 0 is EOS
EOS, LIMIT = 0, 6
STEP = 0.1  # standard deviation of a weight's change in an update


class Policy(torch.nn.Module):
    """Logits tanh(Σ embedding[tokens so far] hidden) output, and a part that depends on the last token alone."""

    def __init__(self, **weights: Tensor) -> None:
        super().__init__()
        for name, weight in weights.items():
            setattr(self, name, torch.nn.Parameter(weight.clone()))

    def forward(self, tokens: Tensor) -> Tensor:
        state = torch.tanh(self.embedding[tokens].cumsum(1) @ self.hidden)  # (B, S, D)
        return state @ self.output + self.bigram[tokens]  # (B, S, V)


class Engine:
    def __init__(self, policy: Policy, seed: int) -> None:
        self.policy = Policy(**dict(policy.named_parameters()))
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def load_weights(self, policy: Policy) -> None:
        for mine, weight in zip(self.policy.parameters(), policy.parameters(), strict=True):
            mine.copy_(weight.bfloat16())

    @torch.no_grad()
    def generate(self, problems: list[Any], G: int) -> tuple[list[list[int]], list[list[float]], list[bool]]:
        tokens = torch.tensor([problem.prompt_ids for problem in problems for _ in range(G)])  # (B, 4)
        logps = torch.zeros(len(tokens), 0, dtype=torch.double)
        for _ in range(LIMIT):
            logp = self.policy(tokens)[:, -1].log_softmax(-1)  # (B, V)
            chosen = logp.exp().multinomial(1, generator=self.generator)  # (B, 1)
            tokens, logps = torch.cat([tokens, chosen], 1), torch.cat([logps, logp.gather(1, chosen)], 1)
        responses = tokens[:, -LIMIT:].tolist()
        ends = [ids.index(EOS) + 1 if EOS in ids else LIMIT for ids in responses]
        kept = [ids[:end] for ids, end in zip(responses, ends, strict=True)]
        of_kept = [values[:end] for values, end in zip(logps.tolist(), ends, strict=True)]
        return kept, of_kept, [EOS not in ids for ids in kept]


class Data:
    """Whether the sum of two digits is odd: "2+1=" has the answer 1."""

    def __init__(self, P: int, seed: int) -> None:
        self.P, self.seed = P, seed

    def sample(self, step: int) -> list[SimpleNamespace]:
        pairs = [(a, b) for a in range(4) for b in range(4)]
        chosen = random.Random(f"{self.seed}.{step}").sample(pairs, self.P)
        return [SimpleNamespace(prompt_ids=[1 + a, 5, 1 + b, 6], answer=str((a + b) % 2)) for a, b in chosen]

    def text(self, ids: list[int]) -> str:
        return "".join(TOKENS[i] for i in ids)


class Recorder:
    """An optimizer that keeps every update's gradient.

    It moves the weights in a random direction that does not depend on the gradient, so two loops compute gradients at
    the same weights, and rounding errors do not add up. With AdamW they would, because it divides by the gradient's
    size.
    """

    def __init__(self, policy: Policy, seed: int) -> None:
        self.weights = list(policy.parameters())
        self.generator = torch.Generator().manual_seed(seed)
        self.gradients: list[Tensor] = []

    @torch.no_grad()
    def step(self) -> None:
        for weight in self.weights:
            if weight.grad is None:
                raise ValueError("optimizer.step() comes before loss.backward(): there is no gradient.")
            self.gradients.append(weight.grad.clone())
            weight += STEP * torch.randn(weight.shape, generator=self.generator, dtype=weight.dtype)

    def zero_grad(self) -> None:
        for weight in self.weights:
            weight.grad = None


def run_loop(function: Any, weights: dict[str, Tensor], seed: int, args: SimpleNamespace) -> tuple[Any, list[Tensor]]:
    """What `function` returns, and the gradients, one per parameter and update."""
    torch.manual_seed(seed)
    policy = Policy(**weights)
    optimizer = Recorder(policy, seed)
    result = function(policy, Engine(policy, seed), Data(args.prompts_per_step, seed), optimizer, args)
    return result, optimizer.gradients
