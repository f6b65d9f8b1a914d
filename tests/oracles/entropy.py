import math
from statistics import fmean

from oracles import Row, grpo, not_negative, positive

ROUNDING = 1e-4  # of scores that are compared with others


def share(value):
    return 0 <= value <= 1


class Oracle(grpo.Oracle):
    CASES = [
        {},
        {"cov_share": 0.3, "kl_cov_coef": 20.0, "ddof": 0},
        {"control": "clip-cov", "cov_share": 0.2, "cov_low": 0.05, "cov_high": 1.5},
        {"control": "top-entropy", "top_share": 0.4, "clip_eps": 0.05},
        {"control": "bonus", "entropy_coef": 0.3, "kl_beta": 0.3, "tis_cap": 0.0},
        {"control": "adaptive", "entropy_coef": 0.2, "target_entropy": 10.0, "steps": 3},
        {"control": "adaptive", "target_entropy": 0.1},
        {"control": "none", "ratio_anchor": "sampler", "tis_cap": 0.0},
        {"control": "top-entropy", "tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 3},
    ]
    RANGES = {
        **grpo.Oracle.RANGES,
        **dict.fromkeys(["entropy_coef", "target_entropy", "cov_low", "kl_cov_coef"], not_negative),
        **dict.fromkeys(["top_share", "cov_share"], share),
        "cov_high": positive,
    }
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "control": "kl-cov",
        "entropy_coef": 0.005,
        "target_entropy": 0.2,
        "top_share": 0.2,
        "cov_share": 2e-3,
        "cov_low": 1.0,
        "cov_high": 5.0,
        "kl_cov_coef": 1.0,
    }
    coef = bonus = 0.0

    def settings_fit(self):
        return self.args.cov_low <= self.args.cov_high

    def prepare(self, rows):
        """The bonus of the step; and whether the right tokens were chosen, ties and chance apart."""
        kind = self.args.control
        if kind == "bonus":
            self.bonus = self.args.entropy_coef
        if kind == "adaptive":
            low = fmean(h for row in rows for h in row.entropies) <= self.args.target_entropy
            self.bonus = self.coef if low else 0.0
            self.coef = max(0.0, self.coef + self.args.entropy_coef * (1 if low else -1))
        chosen = [was for row in rows for was in row.chosen]
        scores = [h for row in rows for h in row.entropies]
        count = max(1, math.floor(self.args.top_share * len(scores)))
        if kind in ("clip-cov", "kl-cov"):
            pairs = [pair for row in rows for pair in zip(row.old, row.advantages, strict=True)]
            mean_logp, mean_advantage = (fmean(column) for column in zip(*pairs, strict=True))
            scores = [(logp - mean_logp) * (a - mean_advantage) for logp, a in pairs]
            count = max(1, math.floor(self.args.cov_share * len(scores)))
        if kind in ("top-entropy", "kl-cov"):
            threshold = sorted(scores)[-count]
            for score, was in zip(scores, chosen, strict=True):
                open_to_doubt = min(abs(score - threshold), abs(score)) < ROUNDING
                assert open_to_doubt or was == (score > threshold and score > 0), "chosen tokens"
            assert sum(chosen) >= count or threshold < ROUNDING
        if kind == "clip-cov":
            inside = [min(s - self.args.cov_low, self.args.cov_high - s) for s in scores]
            assert all(x > -ROUNDING for x, was in zip(inside, chosen, strict=True) if was), "covariances of the chosen"
            surely, perhaps = (sum(x > bound for x in inside) for bound in (ROUNDING, -ROUNDING))
            assert min(count, surely) <= sum(chosen) <= min(count, perhaps), "number of the chosen"
            assert 0 < sum(chosen) < perhaps, "nothing was left to chance"

    def length(self, row: Row):
        return sum(row.chosen) if self.args.control == "top-entropy" else super().length(row)

    def passes(self, rows):
        return [[row.chosen for row in rows]] if self.args.control == "top-entropy" else super().passes(rows)

    def weight(self, lengths, i):
        return 1 / max(1, sum(lengths))

    def bounds(self):
        return (-math.inf, math.inf) if self.args.control in ("clip-cov", "kl-cov") else super().bounds()

    def row(self, row: Row):
        losses, slopes = super().row(row)
        for t, (new, anchor, was) in enumerate(zip(row.new, self.anchor(row), row.chosen, strict=False)):
            if was and self.args.control == "clip-cov":
                losses[t] = slopes[t] = 0.0
            if was and self.args.control == "kl-cov":
                ratio = math.exp(new - anchor)
                losses[t] += self.args.kl_cov_coef * (ratio - 1 - math.log(ratio))
                slopes[t] += self.args.kl_cov_coef * (ratio - 1)
        return losses, slopes

    def entropy_slopes(self, row: Row):
        return [-self.bonus] * len(row.new)
