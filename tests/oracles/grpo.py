import math
from statistics import pstdev, stdev

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Reference, Row, at_least, not_negative, positive


class Oracle(Reference):
    CASES = [
        {"clip_eps": 0.05, "ddof": 0, "kl_beta": 0.3, "tis_cap": 1.1},
        {"kl_beta": 0.3, "tis_cap": 0.0},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {
        "clip_eps": positive,
        "ddof": lambda v: v in (0, 1),
        "kl_beta": not_negative,
        "tis_cap": not_negative,
        "responses_per_prompt": at_least(2),
    }
    DEFAULTS = {
        "clip_eps": 0.2,
        "ddof": 1,
        "kl_beta": 0.0,
        "ratio_anchor": "learner",
        "tis_cap": 2.0,
        "num_minibatches": 4,
    }

    def advantages(self, rewards):
        std = stdev if self.args.ddof else pstdev
        return [[(r - sum(row) / len(row)) / (std(row) + 1e-6) for r in row] for row in rewards]

    def weight(self, lengths, i):
        return 1 / (len(lengths) * lengths[i])

    def bounds(self):
        """The ratios between which the gradient is nonzero for both signs of the advantage."""
        return 1 - self.args.clip_eps, 1 + self.args.clip_eps

    def row(self, row: Row):
        """PPO's clip by cases instead of by a minimum."""
        low, high = self.bounds()
        losses, slopes = [], []
        for new, anchor, a, w in zip(row.new, self.anchor(row), row.advantages, self.tis(row), strict=True):
            ratio = math.exp(new - anchor)
            if a > 0 and ratio > high:
                losses.append(-w * high * a)
                slopes.append(0.0)
            elif a < 0 and ratio < low:
                losses.append(-w * low * a)
                slopes.append(0.0)
            else:
                losses.append(-w * ratio * a)
                slopes.append(-w * ratio * a)
        return losses, slopes

    def with_kl(self, row: Row):
        losses, slopes = self.row(row)
        if self.args.kl_beta:
            for t, (new, ref) in enumerate(zip(row.new, row.ref, strict=True)):
                losses[t] += self.args.kl_beta * (math.exp(ref - new) - (ref - new) - 1)
                slopes[t] += self.args.kl_beta * (1 - math.exp(ref - new))
        return losses, slopes

    def clipped(self, row: Row):
        """Whether the clip sets the gradient of each token to 0."""
        low, high = self.bounds()
        return [
            (a > 0 and ratio > high) or (a < 0 and ratio < low)
            for ratio, a in zip(self.ratios(row), row.advantages, strict=True)
        ]

    def clip_numbers(self, row: Row):
        clipped = list(zip(self.clipped(row), row.advantages, strict=True))
        return {"clip_pos": [was and a > 0 for was, a in clipped], "clip_neg": [was and a < 0 for was, a in clipped]}

    def kl_numbers(self, row: Row):
        """k3 of each token if the KL is in the loss."""
        if not self.args.kl_beta:
            return {}
        return {"kl": [math.exp(ref - new) - (ref - new) - 1 for new, ref in zip(row.new, row.ref, strict=True)]}

    def token_numbers(self, row: Row):
        return self.clip_numbers(row) | self.kl_numbers(row)
