import math
from statistics import fmean

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, grpo, without
from oracles.reinforce_pp import normalize


class Oracle(grpo.Oracle):
    CASES = [
        {"clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1},
        {"tis_cap": 0.0},
        {"kl_beta": 0.1} | ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = without(grpo.Oracle.RANGES, "ddof")
    DEFAULTS = without(grpo.Oracle.DEFAULTS, "ddof")

    def advantages(self, rewards):
        return [[r - fmean(row) for r in row] for row in rewards]

    def prepare(self, rows):
        normalize(rows)

    def with_kl(self, row: Row):
        losses, slopes = self.row(row)
        for t, (new, ref) in enumerate(zip(row.new, row.ref, strict=True)):
            losses[t] += self.args.kl_beta * math.pow(new - ref, 2) / 2
            slopes[t] += self.args.kl_beta * (new - ref)
        return losses, slopes

    def kl_numbers(self, row: Row):
        if not self.args.kl_beta:
            return {}
        return {"kl": [(new - ref) ** 2 / 2 for new, ref in zip(row.new, row.ref, strict=True)]}
