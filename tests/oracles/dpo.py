import math
from collections import defaultdict

from oracles import at_least, positive, reinforce


class Oracle(reinforce.Oracle):
    CASES = [
        {},
        {"kl_beta": 1.5, "update_epochs": 1},
        {"num_minibatches": 1, "update_epochs": 2, "responses_per_prompt": 3},
    ]
    RANGES = {"kl_beta": positive, "responses_per_prompt": at_least(2)}
    DEFAULTS = {"kl_beta": 0.1, "num_minibatches": 4}

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
        slopes = self.of_pairs(scores, [[float(response.correct) for _, response in g] for g in groups.values()])
        for group, of_group in zip(groups.values(), slopes, strict=True):
            for (row, _), slope in zip(group, of_group, strict=True):
                row.advantages = [slope] * len(row.new)

    def weight(self, lengths, i):
        return 1.0

    def tis(self, row):
        return [1.0] * len(row.new)
