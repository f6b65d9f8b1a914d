import re

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Response, fraction, grpo, kimi_length, not_negative

from transformers import AutoTokenizer


class Oracle(kimi_length.Oracle):
    CASES = [
        {"min_budget": 0.2, "alpha": 0.3, "budget_prompt": "({n})", "kl_beta": 0.3, "tis_cap": 1.1},
        {"min_budget": 0.5, "alpha": 0.2, "budget_prompt": " {n}", "tis_cap": 0.0},
        {"min_budget": 0.5, "budget_prompt": " {n}", "clip_eps": 0.05, "ddof": 0} | ENGINE_ANCHOR,
        {"budget_prompt": " {n}"} | ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "min_budget": fraction, "alpha": not_negative}
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "budget_prompt": " within {n} tokens",
        "min_budget": 0.125,
        "alpha": 0.01,
    }

    def budget(self, response: Response):
        """The budget in the prompt, which otherwise has only the question."""
        prompt = AutoTokenizer.from_pretrained("worlds/sums/model").decode(response.prompt)
        before, after = map(re.escape, self.args.budget_prompt.split("{n}"))
        n = int(re.fullmatch(rf"[-+\d]+=\?{before}(\d+){after}\n", prompt)[1])
        low, high = self.args.min_budget * self.args.max_response_tokens, self.args.max_response_tokens
        assert low - 1 < n <= high, f"a budget of {n} tokens, expected {low} to {high}"
        return n

    def reward(self, response: Response, group: list[Response]):
        a, length = self.args, len(response.tokens)
        return float(response.correct) - a.alpha * abs(self.budget(response) - length)

    def step_numbers(self, rounds, groups, rows):
        off = [abs(len(response.tokens) - self.budget(response)) for group in groups for response in group]
        return {"off_budget": sum(off) / len(off)}
