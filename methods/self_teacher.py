"""A teacher that is the model itself: a moving average of its weights, with extra information in its prompts."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from common.batch import Batch, collate
from common.data import add_text, check_prompts, few_shot_examples, make_problem
from common.distributed import local
from common.logprobs import vocabulary_logps
from common.models import load_model
from common.records import Problem, Rollouts
from common.settings import Settings

import torch
from torch import Tensor


class SelfTeacher:
    """It starts with the model's weights. Checkpoints must hold `model`."""

    def __init__(self, args: Settings, model: Any, tokenizer: Any) -> None:
        self.args, self.tokenizer, self.examples = args, tokenizer, few_shot_examples(args)
        # Its prompts are not the engine's, so it chooses its own experts.
        self.model = load_model(replace(args, replay_routing=False))[0].requires_grad_(False)
        self.follow(model, 1.0)

    @torch.no_grad()
    def follow(self, model: Any, rate: float) -> None:
        """Move the teacher's weights part of the way to the model's, each process its shard."""
        for own, other in zip(self.model.parameters(), model.parameters(), strict=True):
            local(own).lerp_(local(other), rate)

    def describe(
        self, rollouts: Rollouts, shown: list[int | None], find_answer: Callable[[str], str | None]
    ) -> list[dict[str, str] | None]:
        """What the teacher is shown for each response: a text and its answer, or nothing."""
        texts = self.tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
        return [None if j is None else {"response": texts[j], "answer": find_answer(texts[j]) or ""} for j in shown]

    def batch(self, problems: list[Problem], rollouts: Rollouts, told: list[dict[str, str] | None]) -> Batch:
        """The B responses after prompts with --feedback, filled with what the teacher is shown for each, if any."""
        G, args, longer = len(told) // len(problems), replace(self.args, max_prompt_tokens=None), []
        for i, values in enumerate(told):
            text = self.args.feedback if values is not None else ""
            for name, value in (values or {}).items():
                text = text.replace(f"{{{name}}}", value)
            pair = add_text(problems[i // G].question, text), ""
            longer.append(make_problem(pair, args, self.tokenizer, self.examples))
        check_prompts(longer, self.model, args)
        return collate(longer, replace(rollouts, experts=[]), self.model.device)

    def logps(self, batch: Batch, rows: Tensor) -> Tensor:
        """Log-probs (N, V) at each response token of some rows."""
        return vocabulary_logps(self.model, batch, rows, len(self.tokenizer), self.args)

    def weights(self, told: list[dict[str, str] | None]) -> Tensor:
        """(B, 1): 1 - --grpo-weight for each response for which the teacher is shown something, else 0."""
        weights = [[(1 - self.args.grpo_weight) * (values is not None)] for values in told]
        return torch.tensor(weights, device=self.model.device)
