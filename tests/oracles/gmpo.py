import math

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, grpo, positive, without


class Oracle(grpo.Oracle):
    CASES = [
        {"clip_log_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1},
        {"ddof": 0, "kl_beta": 0.3, "tis_cap": 0.0},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {
        **without(grpo.Oracle.RANGES, "clip_eps"),
        "clip_log_eps": positive,
    }
    DEFAULTS = {
        **without(grpo.Oracle.DEFAULTS, "clip_eps"),
        "clip_log_eps": 0.4,
    }

    def tis(self, row: Row):
        weights = super().tis(row)
        return [math.prod(weights) ** (1 / len(weights))] * len(weights)

    def row(self, row: Row):
        a, eps = row.advantages[0], self.args.clip_log_eps
        moves = [new - anchor for new, anchor in zip(row.new, self.anchor(row), strict=True)]
        terms = [min(d, eps) if a >= 0 else max(d, -eps) for d in moves]
        mean = math.exp(sum(terms) / len(terms))
        weights = self.tis(row)
        slopes = [-sum(weights) * mean * a / len(terms) * (t == d) for t, d in zip(terms, moves, strict=True)]
        return [-w * mean * a for w in weights], slopes

    def clipped(self, row: Row):
        return [
            math.log(ratio) * (1 if a > 0 else -1) > self.args.clip_log_eps
            for ratio, a in zip(self.ratios(row), row.advantages, strict=True)
        ]
