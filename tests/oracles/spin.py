from oracles import Response, dpo


class Oracle(dpo.Oracle):
    LEARNS_WITHOUT_REWARDS = LEARNS_WHEN_ALL_IS_CORRECT = True  # from the data set's solutions
    CASES = [
        {"kl_beta": 1.5},
        {"kl_beta": 1.5, "responses_per_prompt": 2, "update_epochs": 3},
        {"num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 3},
    ]

    def batch(self, rounds):
        """The first response is a solution that was not sampled: here the sum of a question such as 17+17=?."""
        digit = {20 + d: str(d) for d in range(10)}  # of the embedded tokenizer
        with_solution = []
        for group in super().batch(rounds):
            prompt = group[0].prompt
            first = "".join(digit[token] for token in prompt[: next(i for i, t in enumerate(prompt) if t not in digit)])
            tokens = [20 + int(d) for d in str(2 * int(first))] + [1]
            n = len(tokens)
            with_solution.append([Response(prompt, tokens, [0.0] * n, False, True, [True] * n), *group])
        return with_solution

    def prepare(self, rows):
        """The reference is the opponent, the policy that sampled."""
        for row in rows:
            row.ref = row.old

    def preferred(self, responses):
        return [1.0] + [0.0] * (len(responses) - 1)

    def preferences(self, responses):
        return [0.0 if response.step else 1.0 for response in responses]

    def logged_rewards(self, groups, kl):
        """Of those that were sampled."""
        return [[float(response.correct) for response in group if response.step] for group in groups]
