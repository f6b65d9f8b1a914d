from statistics import fmean

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Row, entropy_bonus, grpo, not_negative


class Oracle(entropy_bonus.Oracle):
    LEARNS_WITHOUT_REWARDS = LEARNS_WHEN_ALL_IS_CORRECT = False  # the coefficient starts at 0
    CASES = [
        {"entropy_step": 0.2, "target_entropy": 10.0, "steps": 3, "kl_beta": 0.3, "tis_cap": 1.1, "clip_eps": 0.05},
        # A target between the mean over tokens, 3.6, and the lower mean that includes padding.
        {"entropy_step": 0.2, "target_entropy": 3.0, "steps": 3, "ddof": 0, "tis_cap": 0.0},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "entropy_step": not_negative, "target_entropy": not_negative}
    DEFAULTS = {**grpo.Oracle.DEFAULTS, "entropy_step": 0.005, "target_entropy": 0.2}
    coef = bonus = 0.0

    def prepare(self, rows):
        low = fmean(h for row in rows for h in row.entropies) <= self.args.target_entropy
        self.bonus = self.coef if low else 0.0
        self.coef = max(0.0, self.coef + self.args.entropy_step * (1 if low else -1))

    def entropy_slopes(self, row: Row):
        return [-self.bonus] * len(row.new)

    def update_numbers(self, rows, responses):
        return {"bonus": self.bonus}
