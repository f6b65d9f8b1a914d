import math
from dataclasses import dataclass

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Response, at_least, fraction, grpo


@dataclass
class Kept:
    """A hard prompt with a correct response, and when it was last in a batch."""

    response: Response
    seen: tuple[int, int]  # the step, and its place in the batch


class Oracle(grpo.Oracle):
    CASES = [
        {
            "replay_fraction": 0.75,
            "hard": 0.75,
            "max_age": 2,
            "clip_eps": 0.05,
            "ddof": 0,
            "kl_beta": 0.3,
            "tis_cap": 1.1,
            "steps": 5,
        },
        {"buffer": 2, "replay_fraction": 1.0, "hard": 1.0, "max_age": 1, "kl_beta": 0.3, "tis_cap": 0.0, "steps": 4},
        {"replay_fraction": 0.4, "hard": 0.25, "steps": 4} | ENGINE_ANCHOR,
        {"buffer": 0} | ONE_UPDATE,
    ]
    RANGES = {
        **grpo.Oracle.RANGES,
        "buffer": at_least(0),
        "replay_fraction": fraction,
        "hard": fraction,
        "max_age": at_least(1),
    }
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "buffer": 64,
        "replay_fraction": 0.25,
        "hard": 0.5,
        "max_age": 20,
        "model": "search",
        "dataset": "search-hard",
    }

    def __init__(self, args):
        super().__init__(args)
        self.kept = {}

    def batch(self, rounds):
        """Some groups start with an earlier response; the buffer then has what the step leaves."""
        groups, step = super().batch(rounds), rounds[0][0][0].step
        most = math.floor(self.args.replay_fraction * len(groups))
        waiting = sorted(self.kept, key=lambda prompt: self.kept[prompt].seen)[:most]
        asked = [tuple(group[0].prompt) for group in groups]
        assert asked[: len(waiting)] == waiting, "other prompts came back, or in another order"
        joined = [self.joined(group) for group in groups]
        for place, group in enumerate(groups):
            self.remember(group, step, place)
        young = {prompt: one for prompt, one in self.kept.items() if one.response.step + self.args.max_age > step}
        newest = sorted(young, key=lambda prompt: young[prompt].seen, reverse=True)[: self.args.buffer]
        self.kept = {prompt: young[prompt] for prompt in newest}
        return joined

    def joined(self, group):
        one = self.kept.get(tuple(group[0].prompt))
        return [one.response, *group[1:]] if one and not any(response.correct for response in group) else group

    def remember(self, group, step, place):
        prompt, correct = tuple(group[0].prompt), [response for response in group if response.correct]
        if len(correct) > self.args.hard * len(group):
            self.kept.pop(prompt, None)
        elif correct:
            self.kept[prompt] = Kept(correct[0], (step, place))
        elif prompt in self.kept:
            self.kept[prompt].seen = step, place

    def step_numbers(self, rounds, groups, rows):
        old = [response for group in groups for response in group if response.step != rounds[0][0][0].step]
        fresh = [response.correct for group in rounds[0] for response in group]
        return {"replayed": len(old), "plain_accuracy": sum(fresh) / len(fresh)}
