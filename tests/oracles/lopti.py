import math

from oracles import ENGINE_ANCHOR, ONE_UPDATE, fraction, grpo


class Oracle(grpo.Oracle):
    CASES = [
        {"eta": 0.1, "clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1, "ddof": 0},
        {"eta": 0.2, "tis_cap": 0.0},
        {"eta": 0.0} | ENGINE_ANCHOR,
        {"eta": 0.05} | ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "eta": fraction}
    DEFAULTS = {**grpo.Oracle.DEFAULTS, "eta": 0.5}

    def passes(self, rows):
        unlikely = [[math.exp(old) <= self.args.eta for old in row.old] for row in rows]
        others = [[not is_unlikely for is_unlikely in row] for row in unlikely]
        return [part for part in (unlikely, others) if any(any(row) for row in part)]
