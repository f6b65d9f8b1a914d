import math

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, grpo, without


class Oracle(grpo.Oracle):
    CASES = [
        {"ratio_cap": 1.05, "ddof": 0, "kl_beta": 0.3, "tis_cap": 1.1},
        {"ddof": 0, "kl_beta": 0.3, "tis_cap": 0.0},
        {"ratio_cap": math.inf} | ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {
        **without(grpo.Oracle.RANGES, "clip_eps"),
        "ratio_cap": lambda v: v > 0,
    }
    DEFAULTS = {
        **without(grpo.Oracle.DEFAULTS, "clip_eps"),
        "ratio_cap": 5.0,
    }

    def weight(self, lengths, i):
        return 1 / sum(lengths)

    def row(self, row: Row):
        slopes = []  # every token has a gradient
        for new, anchor, a, w in zip(row.new, self.anchor(row), row.advantages, self.tis(row), strict=True):
            slopes.append(-w * min(math.exp(new - anchor), self.args.ratio_cap) * a)
        return [slope * new for slope, new in zip(slopes, row.new, strict=True)], slopes

    def clipped(self, row: Row):
        """Whether the cap applies; in CISPO such tokens keep their gradient."""
        return [ratio > self.args.ratio_cap for ratio in self.ratios(row)]
