import math

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, grpo, positive, without


class Oracle(grpo.Oracle):
    CASES = [
        {"tau_pos": 2.0, "tau_neg": 5.0, "kl_beta": 0.3, "tis_cap": 1.1},
        {"tau_pos": 30.0, "tau_neg": 8.0, "ddof": 0},
        {"kl_beta": 0.3, "tis_cap": 0.0},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {
        **without(grpo.Oracle.RANGES, "clip_eps"),
        "tau_pos": positive,
        "tau_neg": positive,
    }
    DEFAULTS = {
        **without(grpo.Oracle.DEFAULTS, "clip_eps"),
        "tau_pos": 1.0,
        "tau_neg": 1.05,
    }

    def row(self, row: Row):
        """The gate 2/τ (1 + tanh(τ (r - 1) / 2)), whose derivative by r is sech²(τ (r - 1) / 2)."""
        losses, slopes = [], []
        for new, anchor, a, w in zip(row.new, self.anchor(row), row.advantages, self.tis(row), strict=True):
            tau = self.args.tau_pos if a > 0 else self.args.tau_neg
            ratio = math.exp(new - anchor)
            half = tau * (ratio - 1) / 2
            losses.append(-w * 2 / tau * (1 + math.tanh(half)) * a)
            slopes.append(-w * ratio * a * (1 - math.tanh(half) ** 2))
        return losses, slopes

    def token_numbers(self, row: Row):
        """The gate's derivative by r."""
        taus = [self.args.tau_pos if a > 0 else self.args.tau_neg for a in row.advantages]
        halves = [tau * (ratio - 1) / 2 for tau, ratio in zip(taus, self.ratios(row), strict=True)]
        return {"gate": [1 / math.cosh(half) ** 2 for half in halves], **self.kl_numbers(row)}
