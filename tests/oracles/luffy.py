import math

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Response, Row, grpo, positive, spin


class Oracle(grpo.Oracle):
    LEARNS_WITHOUT_REWARDS = True  # from the solutions
    # Solutions in the tiny model's data set end with a number and have no box, so with "boxed" they are incorrect.
    NUMBERS = {"answer_format": "last-number"}
    CASES = [
        {"gamma": 0.3, "clip_eps": 0.05, "ddof": 0, "kl_beta": 0.3, "tis_cap": 1.1} | NUMBERS,
        {"gamma": 0.02, "kl_beta": 0.3, "tis_cap": 0.0} | NUMBERS,
        ENGINE_ANCHOR | NUMBERS,
        {"gamma": 1.5} | ONE_UPDATE,
        {"demonstrations": 0, "clip_eps": 0.05, "tis_cap": 1.1},
    ]
    RANGES = {**grpo.Oracle.RANGES, "gamma": positive, "demonstrations": lambda v: v in (0, 1)}
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "gamma": 0.1,
        "demonstrations": 1,
        "solution_column": "solution",
        "model": "search",
        "dataset": "search-hard",
    }
    ELSEWHERE = {"solution_column"}

    def batch(self, rounds):
        groups = super().batch(rounds)
        if not self.args.demonstrations:
            return groups
        before = [Response(group[0].prompt, *spin.solution(group[0].prompt)) for group in groups]
        for response in before:
            response.correct = self.args.answer_format == "last-number"
        return [[one, *group] for one, group in zip(before, groups, strict=True)]

    def is_solution(self, row: Row):
        """Solutions have engine log-probs of 0."""
        return not any(row.rollout)

    def tis(self, row: Row):
        return [1.0] * len(row.old) if self.is_solution(row) else super().tis(row)

    def row(self, row: Row):
        if not self.is_solution(row):
            return super().row(row)
        losses, slopes, gamma = [], [], self.args.gamma
        for logp, a in zip(row.new, row.advantages, strict=True):
            p = math.exp(logp)
            losses.append(-a * p / (p + gamma))
            slopes.append(-a * p * gamma / (p + gamma) ** 2)
        return losses, slopes

    def clipped(self, row: Row):
        return [False] * len(row.old) if self.is_solution(row) else super().clipped(row)

    def logged_rewards(self, groups, kl):
        """Rewards of the sampled responses."""
        return [[float(response.correct) for response in group if response.step] for group in groups]
