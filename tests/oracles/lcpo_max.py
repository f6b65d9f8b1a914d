from oracles import ENGINE_ANCHOR, ONE_UPDATE, Response, fraction, lcpo


class Oracle(lcpo.Oracle):
    CASES = [
        {"min_budget": 0.5, "alpha": 0.2, "delta": 0.9, "budget_prompt": " {n}", "kl_beta": 0.3, "tis_cap": 1.1},
        {"budget_prompt": " {n}", "tis_cap": 0.0},
        {"min_budget": 0.5, "budget_prompt": " {n}", "clip_eps": 0.05, "ddof": 0} | ENGINE_ANCHOR,
        {"budget_prompt": " {n}"} | ONE_UPDATE,
    ]
    RANGES = {**lcpo.Oracle.RANGES, "delta": fraction}
    DEFAULTS = {**lcpo.Oracle.DEFAULTS, "delta": 0.5, "alpha": 0.1}

    def reward(self, response: Response, group: list[Response]):
        a, length = self.args, len(response.tokens)
        limited = min(1.0, max(0.0, a.alpha * (self.budget(response) - length) + a.delta))
        return limited if response.correct else 0.0

    def step_numbers(self, rounds, groups, rows):
        return {"over_budget": sum(len(r.tokens) > self.budget(r) for group in groups for r in group) / len(rows)}
