"""The numbers that a step must log, computed in plain Python from the records by their definitions in docs/runs.md."""

import math
from collections import defaultdict
from statistics import fmean

import pytest

STAGES = {"seconds/sync", "seconds/generate", "seconds/verify", "seconds/logps", "seconds/train"}


def fmean_or_none(values):
    return fmean(values) if values else None


class Expected:
    """One step's numbers; `reference` is the script's oracle."""

    def __init__(self, args, reference, step):
        self.args, self.reference, self.numbers = args, reference, {"step": step}
        self.weighted = defaultdict(list)  # by name, each token's (weight, value)
        self.of_updates = defaultdict(list)  # by name, a value per update
        self.ratios = []

    def add_rollouts(self, groups, rewards, rows):
        """Add groups of responses with their rewards, and the rows in the loss at the rollout weights."""
        responses = [response for group in groups for response in group]
        lengths = [len(response.tokens) for response in responses]
        verdicts = [response.correct for response in responses]
        self.numbers |= {
            "reward": fmean(reward for row in rewards for reward in row),
            "accuracy": sum(verdicts) / len(verdicts),
            "length": sum(lengths) / len(lengths),
            "length_correct": fmean_or_none([n for n, ok in zip(lengths, verdicts, strict=True) if ok]),
            "length_incorrect": fmean_or_none([n for n, ok in zip(lengths, verdicts, strict=True) if not ok]),
            "truncated": sum(response.truncated for response in responses) / len(responses),
            "zero_std_groups": fmean(max(row) - min(row) < 1e-6 for row in rewards),
            "response_tokens": sum(lengths),
            "verifier_failures": 0,
        }
        sampled = [pair for row in rows if row.rollout for pair in zip(row.old, row.rollout, strict=True)]
        if sampled:
            differences = [abs(math.exp(old) - math.exp(mu)) for old, mu in sampled]
            self.numbers |= {
                "mismatch_mean": fmean(differences),
                "mismatch_max": max(differences),
                "tis": fmean(math.exp(old - mu) for old, mu in sampled),
            }

    def add_tokens(self, rows, lengths, values, parts=None):
        """Add token values by name, a list per row, with the weights of the loss."""
        for i in range(len(rows)):
            weight = self.reference.weight(lengths, i)
            for name, of_tokens in values(rows[i]).items():
                for t, value in enumerate(of_tokens):
                    if parts is None or parts[i][t]:
                        self.weighted[name].append((weight, float(value)))

    def add_at_rollout(self, rows):
        """Add the rows in the loss, at the rollout weights."""
        self.weighted["entropy"] = []
        lengths = [self.reference.length(row) for row in rows]
        self.add_tokens(rows, lengths, lambda row: {"entropy": row.entropies} | self.reference.rollout_numbers(row))

    def add_update(self, rows, parts, responses, loss, norm):
        """Add an update on a minibatch: rows, which of their tokens have a loss, the loss, and its gradient's norm."""
        lengths = [self.reference.length(row) for row in rows]
        self.add_tokens(rows, lengths, self.of_token, parts)
        self.ratios += [ratio for row in rows for ratio in self.reference.ratios(row)]
        self.add_numbers({"loss": loss, "grad_norm": norm} | self.reference.update_numbers(rows, responses))

    def add_numbers(self, numbers):
        """Add an update's numbers."""
        for name, value in numbers.items():
            self.of_updates[name].append(value)

    def of_token(self, row):
        return {"ratio": self.reference.ratios(row)} | self.reference.token_numbers(row)

    def result(self):
        """All numbers except times."""
        found = dict(self.numbers)
        for name, pairs in self.weighted.items():
            total = sum(weight for weight, _ in pairs)
            found[name] = sum(weight * value for weight, value in pairs) / total if total else 0.0
        found |= {name: fmean(values) for name, values in self.of_updates.items()}
        if self.ratios:
            found |= {"ratio_min": min(self.ratios), "ratio_max": max(self.ratios)}
        return found

    def compare(self, row):
        """Compare with a row of the log; its times only need to be consistent."""
        times = {name for name in row if name.startswith(("seconds/", "tokens_per_second/"))}
        logged, expected = {name: row[name] for name in row if name not in times}, self.result()
        if not self.weighted["entropy"]:  # no token is in the loss, so every mean over tokens is 0
            expected = dict.fromkeys(logged.keys() - set(self.numbers), 0.0) | expected
        assert logged.keys() == expected.keys(), f"logged in one only: {sorted(logged.keys() ^ expected.keys())}"
        wrong = {
            name: (logged[name], value)
            for name, value in expected.items()
            if logged[name] != (value if value is None else pytest.approx(value, rel=1e-3, abs=2e-5))
        }
        assert not wrong, f"step {row['step']}: logged and expected: {wrong}"
        self.check_times(row, times)

    def check_times(self, row, times):
        rates, tokens = {name for name in times if name.startswith("tokens_per_second")}, row["response_tokens"]
        assert {"seconds/generate", "seconds/verify", "seconds/logps", "seconds/train"} <= times - rates <= STAGES
        dynamic = "sampled_prompts" in row
        assert rates == {"tokens_per_second/train"} | (set() if dynamic else {"tokens_per_second/generate"})
        trained = tokens * self.args.update_epochs / row["seconds/train"]
        assert row["tokens_per_second/train"] == pytest.approx(trained)
        if not dynamic:
            assert row["tokens_per_second/generate"] == pytest.approx(tokens / row["seconds/generate"])
