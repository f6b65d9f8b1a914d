import math

from oracles import Row, grpo


class Oracle(grpo.Oracle):
    CASES = [
        {"ratio_cap": 1.05},
        {"ddof": 0, "kl_beta": 0.3, "tis_cap": 0.0},
        {"ratio_anchor": "sampler", "tis_cap": 0.0, "ratio_cap": math.inf},
        {"tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 3},
    ]
    RANGES = {
        **{name: ok for name, ok in grpo.Oracle.RANGES.items() if name != "clip_eps"},
        "ratio_cap": lambda v: v > 0,
    }
    DEFAULTS = {
        **{name: value for name, value in grpo.Oracle.DEFAULTS.items() if name != "clip_eps"},
        "ratio_cap": 5.0,
    }

    def weight(self, lengths, i):
        return 1 / sum(lengths)

    def row(self, row: Row):
        slopes = []  # every token keeps a gradient
        for new, anchor, a, w in zip(row.new, self.anchor(row), row.advantages, self.tis(row), strict=True):
            slopes.append(-w * min(math.exp(new - anchor), self.args.ratio_cap) * a)
        return [slope * new for slope, new in zip(slopes, row.new, strict=True)], slopes
