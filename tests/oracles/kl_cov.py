import math

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, clip_cov, fraction, grpo, not_negative, without
from oracles.forking_tokens import check_largest


class Oracle(clip_cov.Oracle):
    CASES = [
        {"cov_fraction": 0.3, "kl_cov_coef": 20.0, "kl_beta": 0.3, "tis_cap": 1.1, "ddof": 0},
        {"tis_cap": 0.0},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {**without(grpo.Oracle.RANGES, "clip_eps"), "cov_fraction": fraction, "kl_cov_coef": not_negative}
    DEFAULTS = {**without(grpo.Oracle.DEFAULTS, "clip_eps"), "cov_fraction": 2e-3, "kl_cov_coef": 1.0}

    def settings_fit(self):
        return True

    def prepare(self, rows):
        check_largest(self.covariances(rows), [was for row in rows for was in row.chosen], self.args.cov_fraction)

    def row(self, row: Row):
        losses, slopes = grpo.Oracle.row(self, row)
        for t, (new, anchor, was) in enumerate(zip(row.new, self.anchor(row), row.chosen, strict=False)):
            if was:
                ratio = math.exp(new - anchor)
                losses[t] += self.args.kl_cov_coef * (ratio - 1 - math.log(ratio))
                slopes[t] += self.args.kl_cov_coef * (ratio - 1)
        return losses, slopes
