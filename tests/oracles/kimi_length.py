from oracles import ENGINE_ANCHOR, ONE_UPDATE, Response, grpo, not_negative


class Oracle(grpo.Oracle):
    LEARNS_WHEN_ALL_IS_CORRECT = True  # from the lengths
    CASES = [
        {"length_weight": 0.3, "kl_beta": 0.3, "tis_cap": 1.1, "clip_eps": 0.05, "ddof": 0},
        {"tis_cap": 0.0},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "length_weight": not_negative}
    DEFAULTS = {**grpo.Oracle.DEFAULTS, "length_weight": 1.0}

    def rewards(self, groups, kl):
        return [[self.reward(response, group) for response in group] for group in groups]

    def reward(self, response: Response, group: list[Response]):
        lengths, w = [len(r.tokens) for r in group], self.args.length_weight
        if min(lengths) == max(lengths):
            return float(response.correct)
        place = (len(response.tokens) - min(lengths)) / (max(lengths) - min(lengths))  # 0 for the shortest
        return 1.0 + w * (0.5 - place) if response.correct else w * min(0.0, 0.5 - place)
