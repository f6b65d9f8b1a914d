from statistics import fmean, pstdev, stdev

from oracles import ENGINE_ANCHOR, ONE_UPDATE, grpo, of_functions

import torch

SHORT = "docs/rewards/format.py:short"


class Oracle(grpo.Oracle):
    CASES = [
        {"reward": ("correct", f"{SHORT}=0.5"), "clip_eps": 0.05, "ddof": 0, "kl_beta": 0.3, "tis_cap": 1.1},
        {"reward": (f"{SHORT}=-2", "correct=0.25"), "tis_cap": 0.0},
        {"reward": ("correct=-1", f"{SHORT}=3")} | ENGINE_ANCHOR,
        ONE_UPDATE,
    ]

    def __init__(self, args):
        super().__init__(args)
        self.each = {}  # (P, G) values by reward function

    def weights(self):
        """The reward functions' weights, by name."""
        pairs = [reward.partition("=") for reward in self.args.reward or ("correct",)]
        return {name.rpartition(":")[2]: float(weight or 1) for name, _, weight in pairs}

    def rewards(self, groups, kl):
        lengths = [len(response.tokens) for group in groups for response in group]
        low, high = min(lengths), max(lengths)
        self.each = {}
        for name in self.weights():
            if name == "correct":
                self.each[name] = [[float(response.correct) for response in group] for group in groups]
            else:  # 1 for the shortest response of the batch, 0 for the longest
                self.each[name] = [
                    [(high - len(response.tokens)) / (high - low) for response in group] for group in groups
                ]
        return self.total(self.each)

    def total(self, each):
        """Weighted sums (P, G) over the functions' (P, G) values."""
        parts = [[[w * value for value in group] for group in each[name]] for name, w in self.weights().items()]
        return [[sum(values) for values in zip(*groups, strict=True)] for groups in zip(*parts, strict=True)]

    def of_each(self, each):
        total = self.total({name: super(Oracle, self).advantages(rewards) for name, rewards in each.items()})
        flat, std = [a for group in total for a in group], stdev if self.args.ddof else pstdev
        return [[(a - fmean(flat)) / (std(flat) + 1e-6) for a in group] for group in total]

    def advantages(self, rewards):
        return self.of_each(self.each or {"correct": rewards})

    def both_advantages(self, module, rewards):
        """Advantages for two functions; the second one's values differ between groups."""
        self.args.reward = ("correct=2", "b.py:other=-0.5")
        other = [[reward * (i + 1) - j for j, reward in enumerate(group)] for i, group in enumerate(rewards)]
        values = torch.tensor([rewards, other], dtype=torch.float64)  # (n, P, G)
        of_script = module.compute_advantages(values, values.new_tensor([2.0, -0.5]), self.args)
        return of_script, self.of_each({"correct": rewards, "other": other})

    def step_numbers(self, rounds, groups, rows):
        each = self.each if self.args.reward else {}
        return of_functions({name: [value for group in values for value in group] for name, values in each.items()})
