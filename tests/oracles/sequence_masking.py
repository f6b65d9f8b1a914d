from statistics import fmean

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, grpo, not_negative


class Oracle(grpo.Oracle):
    CASES = [
        {"delta": 0.03, "clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1, "ddof": 0, "staleness": 1, "steps": 3},
        {"delta": 0.05, "tis_cap": 0.0, "staleness": 1, "steps": 3},
        {"delta": 0.02, "staleness": 1, "steps": 3, "responses_per_prompt": 3} | ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "delta": not_negative}
    DEFAULTS = {**grpo.Oracle.DEFAULTS, "delta": 0.02}

    def row(self, row: Row):
        """A response with a negative advantage has no loss if its tokens' mean of μ - π exceeds δ."""
        losses, slopes = super().row(row)
        away = fmean(mu - pi for mu, pi in zip(row.rollout, row.new, strict=True)) > self.args.delta
        for t, a in enumerate(row.advantages):
            if away and a < 0:
                losses[t] = slopes[t] = 0.0
        return losses, slopes

    def token_numbers(self, row: Row):
        away = fmean(mu - pi for mu, pi in zip(row.rollout, row.new, strict=True)) > self.args.delta
        return {**super().token_numbers(row), "masked": [away and a < 0 for a in row.advantages]}
