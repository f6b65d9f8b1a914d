import math
from collections import defaultdict

from oracles import at_least, positive, reinforce

import torch


class Oracle(reinforce.Oracle):
    CASES = [
        {"kl_beta": 1.5},
        {"kl_beta": 1.5, "update_epochs": 1},
        {"num_minibatches": 1, "update_epochs": 2, "responses_per_prompt": 3},
    ]
    RANGES = {"kl_beta": positive, "responses_per_prompt": at_least(2)}
    DEFAULTS = {"kl_beta": 0.1, "num_minibatches": 4}

    def both_advantages(self, module, rewards):
        """Advantages at the reference, where both responses of a pair have score 0."""
        zeros = [[0.0] * len(row) for row in rewards]
        scores, preferred = (torch.tensor(rows, dtype=torch.float64) for rows in (zeros, rewards))
        return module.compute_advantages(scores, preferred, self.args)[0], self.of_pairs(zeros, rewards)

    def of_pairs(self, scores, rewards):
        """Minus the derivative of the mean loss over all pairs by each response's log-prob."""
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

    def advantages(self, rewards):
        return [[0.0] * len(row) for row in rewards]  # `prepare_update` sets them

    def preferred(self, responses):
        """For each response to a prompt, a value; the response with the higher value is the better of a pair."""
        return [float(response.correct) for response in responses]

    def prepare_update(self, rows, responses):
        groups = defaultdict(list)
        for row, response in zip(rows, responses, strict=True):
            groups[tuple(response.prompt)].append((row, response))
        scores = [[sum(row.new) - sum(row.ref) for row, _ in group] for group in groups.values()]
        preferred = [self.preferred([response for _, response in group]) for group in groups.values()]
        slopes = self.of_pairs(scores, preferred)
        for group, of_group in zip(groups.values(), slopes, strict=True):
            for (row, _), slope in zip(group, of_group, strict=True):
                row.advantages = [slope] * len(row.new)

    def weight(self, lengths, i):
        return 1.0

    def tis(self, row):
        return [1.0] * len(row.new)

    def logged_rewards(self, groups, kl):
        return [[float(response.correct) for response in group] for group in groups]

    def rollout_numbers(self, row):
        return {"kl": [old - ref for old, ref in zip(row.old, row.ref, strict=True)]}

    def update_numbers(self, rows, responses):
        """The mean loss over all pairs of a correct and an incorrect response to one prompt."""
        scored = [
            (response, preferred, sum(row.new) - sum(row.ref))
            for (row, response), preferred in zip(
                zip(rows, responses, strict=True), self.preferences(responses), strict=True
            )
        ]
        margins = [
            self.args.kl_beta * (x - y)
            for winner, better, x in scored
            for loser, worse, y in scored
            if winner.prompt == loser.prompt and better > worse
        ]
        losses = [math.log1p(math.exp(-margin)) for margin in margins]
        return {"dpo_loss": sum(losses) / max(1, len(losses))}

    def preferences(self, responses):
        return [float(response.correct) for response in responses]
