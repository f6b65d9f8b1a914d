from statistics import fmean, stdev

from oracles import ENGINE_ANCHOR, ONE_UPDATE, grpo, without


class Oracle(grpo.Oracle):
    CASES = [{"clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1}, {"tis_cap": 0.0}, ENGINE_ANCHOR, ONE_UPDATE]
    RANGES = without(grpo.Oracle.RANGES, "ddof")
    DEFAULTS = without(grpo.Oracle.DEFAULTS, "ddof")

    def advantages(self, rewards):
        unit = stdev([r for row in rewards for r in row]) + 1e-6
        return [[(r - fmean(row)) / unit for r in row] for row in rewards]

    def weight(self, lengths, i):
        return 1 / sum(lengths)
