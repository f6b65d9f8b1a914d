from oracles import Reference, Row, call, not_negative

import torch


class Oracle(Reference):
    CASES = [
        # Three steps, because in the first one the policy is the reference and the KL is 0.
        {"baseline": "ema", "ema_decay": 0.7, "kl_beta": 0.3, "tis_cap": 1.1, "num_minibatches": 2, "update_epochs": 2}
        | {"steps": 3},
        {"baseline": "none", "tis_cap": 0.0},
        {"num_minibatches": 2, "update_epochs": 2, "max_grad_norm": 1e6},
    ]
    RANGES = {
        "ema_decay": lambda v: 0 <= v < 1,
        "kl_beta": not_negative,
        "tis_cap": not_negative,
        "responses_per_prompt": lambda v: v >= 1,
    }
    DEFAULTS = {"baseline": "batch", "ema_decay": 0.9, "kl_beta": 0.0, "tis_cap": 2.0, "num_minibatches": 1}
    ema = 0.0

    def rewards(self, groups, kl):
        return [
            [float(r.correct) - self.args.kl_beta * k for r, k in zip(group, ks, strict=True)]
            for group, ks in zip(groups, kl, strict=True)
        ]

    def advantages(self, rewards):
        everything = [r for row in rewards for r in row]
        mean = sum(everything) / len(everything)
        b = {"none": 0.0, "batch": mean, "ema": self.ema}[self.args.baseline]
        self.ema = self.args.ema_decay * self.ema + (1 - self.args.ema_decay) * mean
        return [[r - b for r in row] for row in rewards]

    def both_advantages(self, module, rewards):
        tensor = torch.tensor(rewards, dtype=torch.float64)
        return call(module.compute_advantages, rewards=tensor, ema=self.ema, args=self.args), self.advantages(rewards)

    def weight(self, lengths, i):
        return 1 / len(lengths)

    def row(self, row: Row):
        slopes = [-w * a for w, a in zip(self.tis(row), row.advantages, strict=True)]
        return [slope * new for slope, new in zip(slopes, row.new, strict=True)], slopes

    def rollout_numbers(self, row: Row):
        kl = [(old - ref) * (self.args.kl_beta > 0) for old, ref in zip(row.old, row.ref, strict=True)]
        return {**super().rollout_numbers(row), "kl": kl}
