import math

from oracles import grpo


def share(value):
    return 0 <= value <= 1


class Oracle(grpo.Oracle):
    CASES = [
        {},
        {"alpha": 0.9, "eta": 0.1, "clip_eps": 0.05, "ddof": 0},
        {"eta": 0.2, "alpha": 0.0, "kl_beta": 0.3, "tis_cap": 0.0},
        {"eta": 0.0, "ratio_anchor": "sampler", "tis_cap": 0.0},
        {"eta": 0.05, "tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 3},
    ]
    RANGES = {**grpo.Oracle.RANGES, "alpha": share, "eta": share}
    DEFAULTS = {**grpo.Oracle.DEFAULTS, "alpha": 0.3, "eta": 0.5}

    def prepare(self, rows):
        for row in rows:
            row.advantages = [
                a - self.args.alpha * (1 - math.exp(old)) * a for a, old in zip(row.advantages, row.old, strict=True)
            ]

    def passes(self, rows):
        unlikely = [[math.exp(old) <= self.args.eta for old in row.old] for row in rows]
        others = [[not is_unlikely for is_unlikely in row] for row in unlikely]
        return [part for part in (unlikely, others) if any(any(row) for row in part)]
