import math
from statistics import fmean, pstdev, pvariance, stdev

from oracles import ENGINE_ANCHOR, Row, grpo, positive, without

import torch


class Oracle(grpo.Oracle):
    CASES = [
        {"clip_eps_low": 0.002, "clip_eps_high": 0.003, "ddof": 0, "kl_beta": 0.3, "tis_cap": 1.1},
        {"ratio_cap": 1.02, "kl_beta": 0.3, "tis_cap": 0.0},
        ENGINE_ANCHOR,
        # Four passes over 32 problems: prompts repeat, some within a batch.
        {"tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 2, "steps": 4}
        | {"prompts_per_step": 30, "eval_problems": 8},
    ]
    RANGES = {
        **without(grpo.Oracle.RANGES, "clip_eps"),
        "clip_eps_low": positive,
        "clip_eps_high": positive,
        "ratio_cap": lambda v: 1 <= v <= 1e6,
    }
    DEFAULTS = {
        **without(grpo.Oracle.DEFAULTS, "clip_eps"),
        "clip_eps_low": 0.16,
        "clip_eps_high": 0.2,
        "ratio_cap": 10.0,
    }

    def __init__(self, args):
        super().__init__(args)
        self.visits, self.prompts = {}, None  # rewards of each prompt's visits; the batch's prompts

    def rewards(self, groups, kl):
        self.prompts = [tuple(group[0].prompt) for group in groups]
        return super().rewards(groups, kl)

    def advantages(self, rewards):
        std = stdev if self.args.ddof else pstdev
        advantages = []
        for prompt, row in zip(self.prompts or range(len(rewards)), rewards, strict=True):
            groups = self.visits.setdefault(prompt, [])
            groups.append(row)
            n, means = len(groups), [fmean(group) for group in groups]
            # The variance within groups plus that of their means.
            std_of_all = math.sqrt(fmean(std(group) ** 2 for group in groups) + pvariance(means))
            new = [(r - fmean(row)) / (std(row) + 1e-6) for r in row]
            of_all = [(r - fmean(means)) / (std_of_all + 1e-6) for r in row]
            pairs = [(a + (b - a) / n, b + (a - b) / n) for a, b in zip(new, of_all, strict=True)]
            advantages.append([min(pair, key=abs) for pair in pairs])
        return advantages

    def both_advantages(self, module, rewards):
        tensor, prompts = torch.tensor(rewards, dtype=torch.float64), [[i] for i in range(len(rewards))]
        so_far = module.remember({}, prompts, tensor, self.args)
        return module.compute_advantages(tensor, so_far, self.args), self.advantages(rewards)

    def weight(self, lengths, i):
        prompts = len(lengths) / self.args.responses_per_prompt
        return 1 / prompts / lengths[i]

    def row(self, row: Row):
        """Solve |r - 1| r q = ε for the bounds."""
        cap = self.args.ratio_cap
        losses, slopes = [], []
        for new, anchor, a, w in zip(row.new, self.anchor(row), row.advantages, self.tis(row), strict=True):
            ratio, q = math.exp(new - anchor), math.exp(anchor)
            inside = 0.25 - self.args.clip_eps_low / q
            low = 0.5 + math.sqrt(inside) if inside > 0 else 0.5
            high = min(0.5 + math.sqrt(0.25 + self.args.clip_eps_high / q), cap)
            least, most = (0.0, high) if a > 0 else (low, cap)  # where there is a gradient
            losses.append(-w * min(max(ratio, least), most) * a)
            slopes.append(-w * ratio * a if least <= ratio <= most else 0.0)
        return losses, slopes

    def clipped(self, row: Row):
        return [slope == 0 for slope in self.row(row)[1]]
