import math
from statistics import fmean

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, fraction, grpo, not_negative, positive, without
from oracles.forking_tokens import ROUNDING


class Oracle(grpo.Oracle):
    CHOOSES = "choose_tokens"
    CASES = [
        {"cov_fraction": 0.1, "cov_low": 0.01, "cov_high": 3.0, "kl_beta": 0.3, "tis_cap": 1.1, "ddof": 0},
        {"cov_fraction": 0.2, "cov_low": 0.05, "cov_high": 1.5, "tis_cap": 0.0},
        {"cov_fraction": 0.1, "cov_low": 0.01, "cov_high": 3.0} | ENGINE_ANCHOR,
        {"cov_fraction": 0.1, "cov_low": 0.01, "cov_high": 3.0} | ONE_UPDATE,
    ]
    RANGES = {
        **without(grpo.Oracle.RANGES, "clip_eps"),
        "cov_fraction": fraction,
        "cov_low": not_negative,
        "cov_high": positive,
    }
    DEFAULTS = {**without(grpo.Oracle.DEFAULTS, "clip_eps"), "cov_fraction": 2e-3, "cov_low": 1.0, "cov_high": 5.0}

    def settings_fit(self):
        return self.args.cov_low <= self.args.cov_high

    @staticmethod
    def covariances(rows):
        """Each token's contribution to the covariance of log-prob and advantage."""
        pairs = [pair for row in rows for pair in zip(row.old, row.advantages, strict=True)]
        mean_logp, mean_advantage = (fmean(column) for column in zip(*pairs, strict=True))
        return [(logp - mean_logp) * (a - mean_advantage) for logp, a in pairs]

    def prepare(self, rows):
        """The right number of tokens is chosen, all between the bounds; which ones is random."""
        scores, chosen = self.covariances(rows), [was for row in rows for was in row.chosen]
        count = max(1, math.floor(self.args.cov_fraction * len(scores)))
        inside = [min(s - self.args.cov_low, self.args.cov_high - s) for s in scores]
        outside = [x for x, was in zip(inside, chosen, strict=True) if was and x <= -ROUNDING]
        assert not outside, f"chosen tokens whose covariance is outside of the bounds by {outside}"
        surely, perhaps = (sum(x > bound for x in inside) for bound in (ROUNDING, -ROUNDING))
        least, most = min(count, surely), min(count, perhaps)
        assert least <= sum(chosen) <= most, f"{sum(chosen)} tokens chosen, expected {least} to {most}"
        assert 0 < sum(chosen) < perhaps, "this case leaves nothing to chance: change its settings"

    def bounds(self):
        return -math.inf, math.inf

    def weight(self, lengths, i):
        return 1 / sum(lengths)

    def row(self, row: Row):
        losses, slopes = super().row(row)
        for t, was in enumerate(row.chosen):
            if was:
                losses[t] = slopes[t] = 0.0
        return losses, slopes

    def rollout_numbers(self, row: Row):
        return {**super().rollout_numbers(row), "chosen": row.chosen}

    def token_numbers(self, row: Row):
        return self.kl_numbers(row)
