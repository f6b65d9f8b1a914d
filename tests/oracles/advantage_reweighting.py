import math

from oracles import ENGINE_ANCHOR, ONE_UPDATE, fraction, grpo


class Oracle(grpo.Oracle):
    CASES = [
        {"alpha": 0.9, "clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1, "ddof": 0},
        {"tis_cap": 0.0},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "alpha": fraction}
    DEFAULTS = {**grpo.Oracle.DEFAULTS, "alpha": 0.3}

    def prepare(self, rows):
        for row in rows:
            row.advantages = [
                a - self.args.alpha * (1 - math.exp(old)) * a for a, old in zip(row.advantages, row.old, strict=True)
            ]
