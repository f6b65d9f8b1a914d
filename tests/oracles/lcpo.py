import math
import re

from oracles import Response, grpo, not_negative

from transformers import AutoTokenizer


class Oracle(grpo.Oracle):
    LEARNS_WHEN_ALL_IS_RIGHT = True  # from the lengths
    CASES = [
        {"length_reward": "exact", "min_budget": 0.2, "alpha": 0.3, "budget_prompt": "({n})"},
        {"length_reward": "max", "min_budget": 0.5, "alpha": 0.2, "delta": 0.9, "budget_prompt": " {n}"},
        {"length_reward": "kimi", "length_weight": 0.3, "kl_beta": 0.3, "tis_cap": 0.0},
        {"length_reward": "cosine", "ratio_anchor": "sampler", "tis_cap": 0.0, "clip_eps": 0.05, "ddof": 0},
        {"tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 3},
    ]
    RANGES = {
        **grpo.Oracle.RANGES,
        "min_budget": lambda v: 0 <= v <= 1,
        "alpha": not_negative,
        "delta": lambda v: 0 <= v <= 1,
        "length_weight": not_negative,
    }
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "length_reward": "kimi",
        "budget_prompt": " Think for {n} tokens.",
        "min_budget": 0.025,
        "alpha": 3e-4,
        "delta": 0.5,
        "length_weight": 1.0,
    }

    def budget(self, response: Response):
        """As it stands in the prompt, in which nothing else but the question is."""
        prompt = AutoTokenizer.from_pretrained("worlds/sums/model").decode(response.prompt)
        before, after = map(re.escape, self.args.budget_prompt.split("{n}"))
        n = int(re.fullmatch(rf"[-+\d]+=\?{before}(\d+){after}\n", prompt)[1])
        assert self.args.min_budget * self.args.max_response_tokens - 1 < n <= self.args.max_response_tokens
        return n

    def rewards(self, groups, kl):
        return [[self.reward(response, group) for response in group] for group in groups]

    def reward(self, response: Response, group):
        a, right, length, T = self.args, response.correct, len(response.tokens), self.args.max_response_tokens
        if a.length_reward == "exact":
            return float(right) - a.alpha * abs(self.budget(response) - length)
        if a.length_reward == "max":
            return min(1.0, max(0.0, a.alpha * (self.budget(response) - length) + a.delta)) if right else 0.0
        if a.length_reward == "kimi":
            lengths = [len(r.tokens) for r in group]
            if min(lengths) == max(lengths):
                return float(right)
            share = (length - min(lengths)) / (max(lengths) - min(lengths))
            return 1.0 + a.length_weight * (0.5 - share) if right else a.length_weight * min(0.0, 0.5 - share)
        if length == T:
            return -10.0
        # The cosine from its value at length 0 to that at T: 2 to 1 for right answers, -10 to 0 for wrong ones.
        at_start, at_end = (2.0, 1.0) if right else (-10.0, 0.0)
        return at_end + 0.5 * (at_start - at_end) * (1 + math.cos(math.pi * length / T))
