import math

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, grpo, positive, without


class Oracle(grpo.Oracle):
    CASES = [
        {"clip_eps_low": 0.02, "clip_eps_high": 0.01, "ddof": 0, "kl_beta": 0.3, "tis_cap": 1.1},
        {"kl_beta": 0.3, "tis_cap": 0.0},
        {"clip_eps_low": 0.1, "clip_eps_high": 0.2} | ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {
        **without(grpo.Oracle.RANGES, "clip_eps"),
        "clip_eps_low": positive,
        "clip_eps_high": positive,
    }
    DEFAULTS = {
        **without(grpo.Oracle.DEFAULTS, "clip_eps"),
        "clip_eps_low": 3e-4,
        "clip_eps_high": 4e-4,
    }

    def bounds(self):
        return 1 - self.args.clip_eps_low, 1 + self.args.clip_eps_high

    def row(self, row: Row):
        low, high = self.bounds()
        weights, a = self.tis(row), row.advantages[0]
        s = math.exp(sum(new - anchor for new, anchor in zip(row.new, self.anchor(row), strict=True)) / len(row.new))
        clipped = (a > 0 and s > high) or (a < 0 and s < low)
        value = (high if a > 0 else low) * a if clipped else s * a
        # The weighted row is -Σ_t w_t s A; the derivative of s by a log-prob is s / |o|.
        slope = 0.0 if clipped else -sum(weights) * s * a / len(row.new)
        return [-w * value for w in weights], [slope] * len(row.new)

    def ratios(self, row: Row):
        """One ratio for all tokens of a response: the geometric mean."""
        ratios = super().ratios(row)
        return [math.prod(ratios) ** (1 / len(ratios))] * len(ratios)
