import math
import os
from dataclasses import replace

from oracles import at_least, cispo, fraction, positive

from transformers import AutoTokenizer


class Oracle(cispo.Oracle):
    INTERRUPTED = {"interrupt_from": 0.3, "interrupt_to": 0.6, "interrupt_text": "=?", "thinking_end": "T"}
    CASES = [
        # The gradient is not clipped, because clipping would hide the scale of the mean.
        {
            **{"steps": 3, "staleness": 1, "training_tokens": 2, "in_flight_prompts": 6, "max_grad_norm": 1e6},
            **{"kl_beta": 0.3, **INTERRUPTED},
        },
        {"steps": 3, "staleness": 2, "training_tokens": 4, "kv": "recompute", "in_flight_prompts": 3, **INTERRUPTED},
        {"steps": 3, "staleness": 2, "training_tokens": 4, "in_flight_updates": False, **INTERRUPTED},
        {"ratio_cap": 1.05, "average": "token", "num_minibatches": 2, "update_epochs": 2, "interrupt_from": 1.0},
        {"std": "group", "ddof": 0, "average": "response", "ratio_anchor": "learner", "tis_cap": 1.1, **INTERRUPTED},
        {"filter_groups": False, "kl_beta": 0.3, "num_minibatches": 2, "interrupt_from": 1.0, "fp32_lm_head": False},
        {
            **{"steps": 5, "prompts_per_step": 16, "responses_per_prompt": 2, "num_minibatches": 2},
            **{"no_resampling_pass_rate": 0.5, "ddof": 0, "staleness": 2, "interrupt_from": 1.0},
        },
    ]
    ELSEWHERE = {"overlap"}
    RANGES = {
        **cispo.Oracle.RANGES,
        "interrupt_from": fraction,
        "interrupt_to": fraction,
        "training_tokens": at_least(0),
        "in_flight_prompts": at_least(1),
        "no_resampling_pass_rate": positive,
    }
    DEFAULTS = {
        **cispo.Oracle.DEFAULTS,
        "staleness": 8,
        "in_flight_prompts": 32,
        "in_flight_updates": True,
        "kv": "keep",
        "training_tokens": 16,
        "overlap": False,
        "interrupt_from": 0.5,
        "interrupt_to": 0.65,
        "interrupt_text": "\n\\boxed{",
        "thinking_end": "\\boxed{",
        "fp32_lm_head": True,
        "average": "prompt",
        "std": "batch",
        "filter_groups": True,
        "no_resampling_pass_rate": 0.9,
        "ratio_anchor": "engine",
        "tis_cap": 0.0,
        "num_minibatches": 1,
    }

    def __init__(self, args):
        super().__init__(args)
        self.solved, self.silent = set(), set()  # prompts not submitted again; responses without signal

    def settings_fit(self):
        fits = self.args.interrupt_from == 1 or self.args.interrupt_from <= self.args.interrupt_to
        return fits and (not self.args.overlap or os.cpu_count() > 1)

    def batch(self, rounds):
        """A second round of generation has the endings of interrupted responses."""
        groups, *more = rounds
        ends = [end for (end,) in more[0]] if more else []
        groups = [[self.interrupted(response, ends) for response in group] for group in groups]
        assert not ends, "more was generated than the recorded calls ask for"
        assert len(groups) == self.args.prompts_per_step
        for group in groups:
            if sum(r.correct for r in group) / len(group) >= self.args.no_resampling_pass_rate:
                self.solved.add(tuple(group[0].prompt))
        mixed = [group for group in groups if 0 < sum(r.correct for r in group) < len(group)]
        self.silent = {id(r) for group in groups for r in group if group not in mixed}
        return groups

    def interrupted(self, response, ends):
        """The response with its ending if the first of `ends` belongs to it, which is then removed from the list."""
        if self.args.interrupt_from == 1:
            return response
        tokenizer, T = AutoTokenizer.from_pretrained("worlds/sums/model"), self.args.max_response_tokens
        text = tokenizer.convert_tokens_to_ids(list(self.args.interrupt_text))  # one token per character
        first, last = math.floor(self.args.interrupt_from * T), math.floor(self.args.interrupt_to * T)
        thinks = [
            t < len(response.tokens) and self.args.thinking_end not in tokenizer.decode(response.tokens[:t])
            for t in range(last + 1)
        ]
        for t in range(first, last + 1):
            if ends and ends[0].prompt == response.prompt + response.tokens[:t] + text:
                assert thinks[t], "it had stopped thinking"
                end = ends.pop(0)
                assert t + len(text) + len(end.tokens) <= T
                later = {t + len(text) + s: w for s, w in end.weights.items()}
                return replace(
                    response,
                    tokens=response.tokens[:t] + text + end.tokens,
                    logps=response.logps[:t] + [0.0] * len(text) + end.logps,
                    sampled=response.sampled[:t] + [False] * len(text) + end.sampled,
                    truncated=end.truncated,
                    weights={s: w for s, w in response.weights.items() if s < t} | later,
                )
        assert not thinks[last], "it should have been interrupted"
        return response

    def counts(self, response):
        return not (self.args.filter_groups and id(response) in self.silent)

    def leaves_out(self):
        return self.args.filter_groups

    def advantages(self, rewards):
        if self.args.std == "group":
            return super().advantages(rewards)
        centered = [[r - sum(row) / len(row) for r in row] for row in rewards]
        counted = [a for row in centered if len(set(row)) > 1 or not self.args.filter_groups for a in row]
        std = math.sqrt(sum(a**2 for a in counted) / (len(counted) - self.args.ddof)) if counted else 0.0
        return [[a / (std + 1e-6) for a in row] for row in centered]

    def weight(self, lengths, i):
        rows = {"token": len(lengths), "response": 1, "prompt": self.args.responses_per_prompt}[self.args.average]
        parts = [lengths[start : start + rows] for start in range(0, len(lengths), rows)]
        return 1 / (len(parts) * sum(parts[i // rows]))

    def step_numbers(self, rounds, groups, rows):
        responses = [response for group in groups for response in group]
        interrupted = sum(not all(response.sampled) for response in responses)
        return {"interrupted": interrupted / len(responses), "solved_prompts": len(self.solved)}
