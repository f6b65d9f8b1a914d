from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, grpo, not_negative


class Oracle(grpo.Oracle):
    CASES = [
        {"delta": 0.02, "kl_beta": 0.3, "ddof": 0, "clip_eps": 0.05},
        {"delta": 0.1, "tis_cap": 0.0},
        {"delta": 0.02} | ENGINE_ANCHOR,
        {"delta": 0.05, "tis_cap": 1.1} | ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "delta": not_negative}
    DEFAULTS = {**grpo.Oracle.DEFAULTS, "delta": 0.5}

    def row(self, row: Row):
        losses, slopes = super().row(row)
        fallen = sum(mu - pi for mu, pi in zip(row.rollout, row.new, strict=True)) / len(row.new)
        masked = [a < 0 and fallen > self.args.delta for a in row.advantages]
        return ([0.0 if m else x for x, m in zip(values, masked, strict=True)] for values in (losses, slopes))
