from oracles import ENGINE_ANCHOR, ONE_UPDATE, grpo, without


class Oracle(grpo.Oracle):
    CASES = [{"clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1}, {"tis_cap": 0.0}, ENGINE_ANCHOR, ONE_UPDATE]
    RANGES = without(grpo.Oracle.RANGES, "ddof")
    DEFAULTS = without(grpo.Oracle.DEFAULTS, "ddof")

    def rewards(self, groups, kl):
        return [[1.0 if r.correct else -1.0 for r in group] for group in groups]

    def advantages(self, rewards):
        return [row if len(set(row)) > 1 else [0.0] * len(row) for row in rewards]
