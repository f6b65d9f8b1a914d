from fractions import Fraction

from oracles import ENGINE_ANCHOR, ONE_UPDATE, at_least, fraction, grpo


class Oracle(grpo.Oracle):
    CASES = [
        # Three batches of four out of five problems, so that prompts repeat.
        {"pool": 5, "memory": 0.25, "clip_eps": 0.05, "ddof": 0, "kl_beta": 0.3, "tis_cap": 1.1, "steps": 3},
        {"pool": 4, "memory": 0.0, "kl_beta": 0.3, "tis_cap": 0.0},
        {"pool": 1000, "memory": 1.0, "target": 0.25} | ENGINE_ANCHOR,
        {"pool": 6, "uniform": True} | ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "pool": at_least(1), "memory": fraction, "target": fraction}
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "pool": 256,
        "memory": 0.5,
        "target": 0.5,
        "uniform": False,
        "model": "search",
        "dataset": "search-hard",
    }

    def __init__(self, args):
        super().__init__(args)
        self.visits = {}  # each prompt's verdicts by group

    def settings_fit(self):
        return self.args.pool >= self.args.prompts_per_step

    def step_numbers(self, rounds, groups, rows):
        """The accuracy expected before this step; a visit's weight is λ to the number of later visits."""
        expected, weight = [], Fraction(self.args.memory)
        for group in groups:
            before = self.visits.setdefault(tuple(group[0].prompt), [])
            weights = [weight ** (len(before) - 1 - i) for i in range(len(before))]
            hits = 1 + sum(w * sum(verdicts) for w, verdicts in zip(weights, before, strict=True))
            misses = 1 + sum(w * (len(v) - sum(v)) for w, v in zip(weights, before, strict=True))
            expected.append(hits / (hits + misses))
            before.append([response.correct for response in group])
        assert len(self.visits) <= self.args.pool, "problems from outside the pool"
        return {"expected_accuracy": float(sum(expected) / len(expected))}
