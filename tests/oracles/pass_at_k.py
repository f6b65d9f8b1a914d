import itertools
from statistics import fmean, pstdev

from oracles import ENGINE_ANCHOR, ONE_UPDATE, at_least, grpo, without


class Oracle(grpo.Oracle):
    CASES = [
        {"k": 3, "clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1},
        {"k": 1, "tis_cap": 0.0},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {**without(grpo.Oracle.RANGES, "ddof"), "k": at_least(1)}
    DEFAULTS = {**without(grpo.Oracle.DEFAULTS, "ddof"), "k": 2}

    def settings_fit(self):
        return self.args.k < self.args.responses_per_prompt

    def advantages(self, rewards):
        """A response's mean z-score over its subsets of k responses; a subset's reward is its best one."""
        advantages = []
        for group in rewards:
            subsets = list(itertools.combinations(range(len(group)), self.args.k))
            best = [max(group[i] for i in subset) for subset in subsets]
            scores = [(value - fmean(best)) / (pstdev(best) + 1e-6) for value in best]
            members = [[s for s, subset in zip(scores, subsets, strict=True) if i in subset] for i in range(len(group))]
            advantages.append(list(map(fmean, members)))
        return advantages
