from oracles import Response, dpo


def solution(prompt):
    """The solution of a question such as 17+17=? and a line break, for the tiny model, as `Response` fields."""
    digit = {20 + d: str(d) for d in range(10)}  # token ids of the embedded tokenizer
    first = "".join(digit[token] for token in prompt[: next(i for i, t in enumerate(prompt) if t not in digit)])
    tokens = [*prompt[:-2], *(20 + int(d) for d in str(2 * int(first))), 1]
    return tokens, [0.0] * len(tokens), False, True, [True] * len(tokens)


class Oracle(dpo.Oracle):
    DEFAULTS = dpo.Oracle.DEFAULTS | {"solution_column": "solution"}
    ELSEWHERE = {"solution_column"}
    LEARNS_WITHOUT_REWARDS = LEARNS_WHEN_ALL_IS_CORRECT = True  # from the data set's solutions
    CASES = [
        {"kl_beta": 1.5},
        {"kl_beta": 1.5, "responses_per_prompt": 2, "update_epochs": 3},
        {"num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 3},
    ]

    def batch(self, rounds):
        """Each group starts with a solution, which was not sampled."""
        groups = super().batch(rounds)
        return [[Response(group[0].prompt, *solution(group[0].prompt)), *group] for group in groups]

    def prepare(self, rows):
        """The reference is the opponent, that is, the rollout policy."""
        for row in rows:
            row.ref = row.old

    def preferred(self, responses):
        return [1.0] + [0.0] * (len(responses) - 1)

    def preferences(self, responses):
        return [0.0 if response.step else 1.0 for response in responses]

    def logged_rewards(self, groups, kl):
        """Rewards of the sampled responses."""
        return [[float(response.correct) for response in group if response.step] for group in groups]
