import math
import os

from oracles import ENGINE_ANCHOR, Row, at_least, grpo


class Oracle(grpo.Oracle):
    # With at most ten tokens per response and few per training step, some get three versions of the weights.
    IN_FLIGHT = {"staleness": 2, "training_tokens": 2, "in_flight_prompts": 6, "steps": 4}
    CASES = [
        IN_FLIGHT | {"tis_cap": 1.3, "clip_eps": 0.05, "kl_beta": 0.3},
        IN_FLIGHT | {"kv": "recompute", "correction": "sequence-tis", "tis_cap": 1.5, "ddof": 0},
        IN_FLIGHT | {"correction": "icepop", "icepop_low": 0.8, "tis_cap": 1.2, "clip_eps": 0.05},
        IN_FLIGHT | {"in_flight_updates": False, "correction": "sequence-mask", "tis_cap": 1.5},
        {"staleness": 3, "training_tokens": 5, "in_flight_prompts": 3, "steps": 5, "kv": "recompute", "kl_beta": 0.3}
        | {"correction": "geometric-mask", "geometric_low": 0.95, "geometric_high": 1.04},
        {"staleness": 1, "training_tokens": 1, "steps": 3, "correction": "none", "responses_per_prompt": 3}
        | ENGINE_ANCHOR,
        {"staleness": 0, "training_tokens": 0, "num_minibatches": 1, "update_epochs": 1},
    ]
    ELSEWHERE = {"overlap"}
    RANGES = {
        **grpo.Oracle.RANGES,
        "training_tokens": at_least(0),
        "in_flight_prompts": at_least(1),
        "icepop_low": lambda v: 0 <= v <= 1,
        "geometric_low": lambda v: 0 <= v <= 1,
        "geometric_high": lambda v: 1 <= v <= 1e6,
    }
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "staleness": 2,
        "in_flight_prompts": 32,
        "in_flight_updates": True,
        "kv": "keep",
        "training_tokens": 16,
        "overlap": False,
        "correction": "token-tis",
        "tis_cap": 5.0,
        "icepop_low": 0.5,
        "geometric_low": 0.9,
        "geometric_high": 1.1,
    }

    def settings_fit(self):
        return not self.args.overlap or os.cpu_count() > 1

    def tis(self, row: Row):
        kind, cap, n = self.args.correction, self.args.tis_cap, len(row.old)
        rho = [math.exp(old - mu) for old, mu in zip(row.old, row.rollout, strict=True)]
        whole = math.prod(rho)
        if kind == "geometric-mask":
            return [float(self.args.geometric_low <= whole ** (1 / n) <= self.args.geometric_high)] * n
        if kind == "none" or cap == 0:
            return [1.0] * n
        return {
            "token-tis": [min(x, cap) for x in rho],
            "sequence-tis": [min(whole, cap)] * n,
            "icepop": [x if self.args.icepop_low <= x <= cap else 0.0 for x in rho],
            "sequence-mask": [whole if whole <= cap else 0.0] * n,
        }[kind]

    def rollout_numbers(self, row: Row):
        found = super().rollout_numbers(row)
        return {**found, "tis_masked": [weight == 0 for weight in found["tis_weight"]]}

    def step_numbers(self, rounds, groups, rows):
        rho = [math.exp(old - mu) for row in rows for old, mu in zip(row.old, row.rollout, strict=True)]
        return {"ess": sum(rho) ** 2 / (len(rho) * sum(x * x for x in rho))}
