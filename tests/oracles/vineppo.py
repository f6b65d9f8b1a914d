from collections import defaultdict
from statistics import fmean

from oracles import ENGINE_ANCHOR, at_least, grpo, ppo, without

from transformers import AutoTokenizer


class Oracle(grpo.Oracle):
    CASES = [
        {"step_ends": "abcdefghijklm<>.+", "clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1},
        {"step_ends": "0123456789ABCDEFGHIJKLM", "value_samples": 5, "max_steps": 2, "clip_eps": 0.05},
        {"step_ends": "abcdefghijklmABCDEFGHIJKLM", "aggregate": "min", "kl_beta": 0.3, "tis_cap": 0.0},
        {"step_ends": "abcdefghijklmABCDEFGHIJKLM", "aggregate": "mean"} | ENGINE_ANCHOR,
        {"step_ends": "", "tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 1},
    ]
    RANGES = {
        **without(grpo.Oracle.RANGES, "ddof"),
        "responses_per_prompt": at_least(1),
        "value_samples": at_least(1),
        "max_steps": at_least(1),
    }
    DEFAULTS = {
        **without(grpo.Oracle.DEFAULTS, "ddof"),
        "value_samples": 3,
        "step_ends": "\n",
        "max_steps": 20,
        "aggregate": "none",
    }

    def batch(self, rounds):
        """The second round of generation has the continuations, K per state."""
        groups, continuations = rounds
        self.values = defaultdict(list)
        for (response,) in continuations:
            self.values[tuple(response.prompt)].append(float(response.correct))
        assert {len(correct) for correct in self.values.values()} == {self.args.value_samples}
        self.used = set()
        return groups

    def value(self, response, t):
        state = (*response.prompt, *response.tokens[:t])
        self.used.add(state)
        return fmean(self.values[state])

    def steps(self, response):
        """Start and end of each step; a step that is only the last token belongs to the previous one."""
        tokenizer = AutoTokenizer.from_pretrained("worlds/sums/model")
        starts = [0]
        for t, token in enumerate(response.tokens):
            ends_here = any(character in tokenizer.decode([token]) for character in self.args.step_ends)
            if ends_here and t + 2 < len(response.tokens) and len(starts) < self.args.max_steps:
                starts.append(t + 1)
        return list(zip(starts, [*starts[1:], len(response.tokens)], strict=True))

    def token_advantages(self, responses):
        rows = []
        for response in responses:
            steps, row = self.steps(response), []
            after = [self.value(response, end) for _, end in steps[:-1]] + [float(response.correct)]
            for (start, end), then in zip(steps, after, strict=True):
                if self.args.aggregate == "none":
                    gain = then - self.value(response, start)
                else:
                    gain = {"last": after[-1], "min": min(after), "mean": fmean(after)}[self.args.aggregate]
                    gain -= self.value(response, 0)
                row += [gain] * (end - start)
            rows.append(row)
        assert self.used == set(self.values), "states were valued that no response has"
        sampled = [
            a for row, r in zip(rows, responses, strict=True) for a, was in zip(row, r.sampled, strict=True) if was
        ]
        return [ppo.Oracle.whiten(sampled, row) for row in rows]

    def weight(self, lengths, i):
        return 1 / sum(lengths)

    def step_numbers(self, rounds, groups, rows):
        steps = [len(self.steps(response)) for group in groups for response in group]
        return {"response_steps": fmean(steps), "continuations": sum(map(len, rounds[1]))}
