"""A teacher that is the model itself: a moving average of its weights, with extra information in its prompts."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from common.batch import Batch, collate
from common.data import add_text, check_prompts, few_shot_examples, make_problem
from common.distributed import local
from common.logprobs import vocabulary_logps
from common.models import context_length, load_model
from common.records import Problem, Rollouts
from common.settings import Settings

import torch
from torch import Tensor

SEAMS = 8  # tokens that a prompt may have more than its parts


def filled(template: str, **values: str) -> str:
    """A template with these values in place of their names in braces."""
    return re.sub(r"\{(\w+)\}", lambda name: values.get(name[1], name[0]), template)


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
    ) -> list[str | None]:
        """What is added to the teacher's prompt for each response: another one, or else the feedback on it, if any."""
        texts = self.tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
        told: list[str | None] = [None] * len(texts)
        for i, said in enumerate(rollouts.feedback):
            told[i] = filled(self.args.reward_feedback, text=said) if said.strip() else None
        for i, j in enumerate(shown):
            if j is not None:
                told[i] = filled(self.args.feedback, response=texts[j], answer=find_answer(texts[j]) or "")
        return told

    def batch(self, problems: list[Problem], rollouts: Rollouts, told: list[str | None]) -> Batch:
        """The B responses after prompts with the text for each, if any; its end is cut off if the context is full."""
        G, args, longer = len(told) // len(problems), replace(self.args, max_prompt_tokens=None), []
        for i, text in enumerate(told):
            problem, text = problems[i // G], text or ""
            room = context_length(self.model) - args.max_response_tokens - len(problem.prompt_ids) - SEAMS
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            if len(ids) > room:
                text = self.tokenizer.decode(ids[: max(0, room)])
            pair = add_text(problem.messages or problem.question, text), ""
            longer.append(make_problem(pair, args, self.tokenizer, self.examples))
        check_prompts(longer, self.model, args)
        return collate(longer, replace(rollouts, experts=[]), self.model.device)

    def logps(self, batch: Batch, rows: Tensor) -> Tensor:
        """Log-probs (N, V) at each response token of some rows."""
        return vocabulary_logps(self.model, batch, rows, len(self.tokenizer), self.args)

    def weights(self, told: list[str | None]) -> Tensor:
        """(B, 1): 1 - --grpo-weight for each response for which the teacher is told something, else 0."""
        weights = [[(1 - self.args.grpo_weight) * (text is not None)] for text in told]
        return torch.tensor(weights, device=self.model.device)
