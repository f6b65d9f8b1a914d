from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, grpo, not_negative


class Oracle(grpo.Oracle):
    LEARNS_WITHOUT_REWARDS = LEARNS_WHEN_ALL_IS_CORRECT = True  # from the entropy
    CASES = [
        {"entropy_coef": 0.3, "kl_beta": 0.3, "tis_cap": 1.1, "clip_eps": 0.05, "ddof": 0},
        {"entropy_coef": 0.3, "kl_beta": 0.3, "tis_cap": 0.0},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "entropy_coef": not_negative}
    DEFAULTS = {**grpo.Oracle.DEFAULTS, "entropy_coef": 0.005}

    def weight(self, lengths, i):
        return 1 / sum(lengths)

    def entropy_slopes(self, row: Row):
        return [-self.args.entropy_coef] * len(row.new)
