import math
from collections import defaultdict

from oracles import Response, at_least, positive, reinforce


class Oracle(reinforce.Oracle):
    CASES = [
        {},
        {"kl_beta": 1.5, "update_epochs": 1},
        {"num_minibatches": 1, "update_epochs": 2, "responses_per_prompt": 3},
        {"spin": True},
        {"spin": True, "kl_beta": 1.5, "responses_per_prompt": 2, "update_epochs": 3},
    ]
    RANGES = {"kl_beta": positive, "responses_per_prompt": at_least(2)}
    DEFAULTS = {"kl_beta": 0.1, "num_minibatches": 4, "spin": False}

    def batch(self, rounds):
        """With SPIN a solution nobody sampled before the others: here the sum of a question such as 17+17=?."""
        groups = super().batch(rounds)
        if not self.args.spin:
            return groups
        digit = {20 + d: str(d) for d in range(10)}  # of the embedded tokenizer
        with_solution = []
        for group in groups:
            prompt = group[0].prompt
            first = "".join(digit[token] for token in prompt[: next(i for i, t in enumerate(prompt) if t not in digit)])
            tokens = [20 + int(d) for d in str(2 * int(first))] + [1]
            n = len(tokens)
            with_solution.append([Response(prompt, tokens, [0.0] * n, False, True, [True] * n), *group])
        return with_solution

    def prepare(self, rows):
        """SPIN's reference is the opponent, the policy that sampled."""
        if self.args.spin:
            for row in rows:
                row.ref = row.old

    def of_script(self, module, rewards):
        return module.compute_advantages(0 * rewards, rewards, self.args)[0]

    def advantages(self, rewards):
        """At the reference, where nothing tells the responses of a pair apart."""
        return self.of_pairs([[0.0] * len(row) for row in rewards], rewards)

    def of_pairs(self, scores, rewards):
        """Minus the slope of the mean loss of all pairs in the log-prob of each response."""
        slopes = [[0.0] * len(row) for row in rewards]
        pairs = [
            (g, w, x)
            for g, row in enumerate(rewards)
            for w in range(len(row))
            for x in range(len(row))
            if row[w] > row[x]
        ]
        for g, w, x in pairs:
            margin = self.args.kl_beta * (scores[g][w] - scores[g][x])
            slope = self.args.kl_beta / (1 + math.exp(margin)) / len(pairs)
            slopes[g][w] += slope
            slopes[g][x] -= slope
        return slopes

    def prepare_update(self, rows, responses):
        groups = defaultdict(list)
        for row, response in zip(rows, responses, strict=True):
            groups[tuple(response.prompt)].append((row, response))
        scores = [[sum(row.new) - sum(row.ref) for row, _ in group] for group in groups.values()]
        right = [[float(response.correct) for _, response in group] for group in groups.values()]
        if self.args.spin:
            right = [[1.0] + [0.0] * (len(group) - 1) for group in right]
        slopes = self.of_pairs(scores, right)
        for group, of_group in zip(groups.values(), slopes, strict=True):
            for (row, _), slope in zip(group, of_group, strict=True):
                row.advantages = [slope] * len(row.new)

    def weight(self, lengths, i):
        return 1.0

    def tis(self, row):
        return [1.0] * len(row.new)
