from statistics import fmean, pstdev

from oracles import ENGINE_ANCHOR, Row, at_least, grpo, without

import torch


def normalize(rows: list[Row]) -> None:
    """Normalize the advantages of all tokens in a rollout batch to mean 0 and std 1."""
    tokens = [a for row in rows for a in row.advantages]
    mean, std = fmean(tokens), pstdev(tokens)
    for row in rows:
        row.advantages = [(a - mean) / (std + 1e-6) for a in row.advantages]


class Oracle(grpo.Oracle):
    CASES = [
        {"clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1},
        {"kl_beta": 0.3, "tis_cap": 0.0},
        {"kl_beta": 0.1} | ENGINE_ANCHOR,
        {"tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 1},
    ]
    RANGES = {**without(grpo.Oracle.RANGES, "ddof"), "responses_per_prompt": at_least(1)}
    DEFAULTS = without(grpo.Oracle.DEFAULTS, "ddof")

    def advantages(self, rewards):
        return rewards

    def both_advantages(self, module, rewards):
        """Token advantages of responses with 1 to 4 tokens."""
        flat = [r for row in rewards for r in row]
        mask = torch.tensor([[t <= i % 4 for t in range(4)] for i in range(len(flat))])
        kl = torch.arange(mask.numel()).double().sin().view(mask.shape) * mask
        actual = module.compute_advantages(torch.tensor(rewards, dtype=torch.float64), kl, self.args)
        actual = module.normalize(actual, mask)
        rows = [
            Row([], of_row[is_token].tolist(), [], [r] * int(is_token.sum()), [0.0] * int(is_token.sum()))
            for of_row, is_token, r in zip(kl, mask, flat, strict=True)
        ]
        self.prepare(rows)
        return actual[mask], [a for row in rows for a in row.advantages]

    def prepare(self, rows):
        """A token's advantage includes the KL of this and all later tokens."""
        for row in rows:
            kl = [old - ref for old, ref in zip(row.old, row.ref, strict=True)]
            row.advantages = [a - self.args.kl_beta * sum(kl[t:]) for t, a in enumerate(row.advantages)]
        normalize(rows)

    def with_kl(self, row: Row):
        return self.row(row)

    def rollout_numbers(self, row: Row):
        kl = [(old - ref) * (self.args.kl_beta > 0) for old, ref in zip(row.old, row.ref, strict=True)]
        return {**super().rollout_numbers(row), "kl": kl}

    def token_numbers(self, row: Row):
        return self.clip_numbers(row)
