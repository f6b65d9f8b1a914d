import math
from statistics import fmean, pstdev, stdev

from oracles import Row, at_least, grpo


class Oracle(grpo.Oracle):
    CASES = [
        {},
        {"clip_eps": 0.05, "baseline": "group", "kl_beta": 0.3},
        {"kl_beta": 0.3, "tis_cap": 0.0, "average": "token"},
        {"baseline": "group", "std": "rewards", "average": "token", "kl_beta": 0.3},
        {"ratio_anchor": "sampler", "tis_cap": 0.0, "kl_beta": 0.1},
        {"tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 1},
    ]
    RANGES = {
        **{name: ok for name, ok in grpo.Oracle.RANGES.items() if name != "ddof"},
        "responses_per_prompt": at_least(1),
    }
    DEFAULTS = {
        **{name: value for name, value in grpo.Oracle.DEFAULTS.items() if name != "ddof"},
        "baseline": "none",
        "std": "tokens",
        "average": "response",
    }

    def advantages(self, rewards):
        if self.args.baseline == "none":
            return rewards
        unit = stdev([r for row in rewards for r in row]) + 1e-6 if self.args.std == "rewards" else 1.0
        return [[(r - fmean(row)) / unit for r in row] for row in rewards]

    def prepare(self, rows):
        for row in rows:
            if self.args.baseline == "none":
                kl = [old - ref for old, ref in zip(row.old, row.ref, strict=True)]
                row.advantages = [a - self.args.kl_beta * sum(kl[t:]) for t, a in enumerate(row.advantages)]
        if self.args.std == "tokens":
            tokens = [a for row in rows for a in row.advantages]
            for row in rows:
                row.advantages = [(a - fmean(tokens)) / (pstdev(tokens) + 1e-6) for a in row.advantages]

    def weight(self, lengths, i):
        return 1 / sum(lengths) if self.args.average == "token" else super().weight(lengths, i)

    def with_kl(self, row: Row):
        losses, slopes = self.row(row)
        if self.args.baseline == "group":
            for t, (new, ref) in enumerate(zip(row.new, row.ref, strict=True)):
                losses[t] += self.args.kl_beta * math.pow(new - ref, 2) / 2
                slopes[t] += self.args.kl_beta * (new - ref)
        return losses, slopes
