from statistics import pstdev, stdev

from oracles import ENGINE_ANCHOR, ONE_UPDATE, agent, fraction, not_negative


class Oracle(agent.Oracle):
    CASES = [
        {"discount": 0.7, "step_weight": 0.5, "clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1},
        {"max_turns": 2, "ddof": 0, "discount": 0.0},
        {"kl_beta": 0.3, "tis_cap": 0.0, "max_response_tokens": 20},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {**agent.Oracle.RANGES, "discount": fraction, "step_weight": not_negative}
    LEARNS_WHEN_ALL_IS_CORRECT = True  # to be correct in fewer turns
    DEFAULTS = {**agent.Oracle.DEFAULTS, "discount": 0.95, "step_weight": 1.0}

    def token_advantages(self, responses):
        """Compare each turn with every turn of its group, one by one."""
        G, rows = self.args.responses_per_prompt, []
        for i, response in enumerate(responses):
            group = responses[i // G * G : i // G * G + G]
            (of_episodes,) = self.advantages([[float(r.correct) for r in group]])
            row = [of_episodes[i % G]] * len(response.tokens)
            turns = self.turns[id(response)]
            for k, (start, state) in enumerate(turns):
                same = [
                    self.followed(other, j)
                    for other in group
                    for j, (_, its) in enumerate(self.turns[id(other)])
                    if its == state and state is not None
                ]
                if len(same) < 2:
                    continue
                std = (stdev if self.args.ddof else pstdev)(same)
                score = (self.followed(response, k) - sum(same) / len(same)) / (std + 1e-6)
                end = turns[k + 1][0] if k + 1 < len(turns) else len(response.tokens)
                for t in range(start, end):
                    row[t] += self.args.step_weight * score
            rows.append(row)
        return rows

    def followed(self, response, turn):
        """The reward, discounted once per later turn."""
        reward = float(response.correct)
        for _ in self.turns[id(response)][turn + 1 :]:
            reward *= self.args.discount
        return reward
