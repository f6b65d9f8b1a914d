"""Held-out evaluation: avg@n, the unbiased pass@k, and how long correct and wrong answers are."""

import math
from typing import Any

from common.engines import Engine, prompt_seeds
from common.records import Problem
from common.settings import Settings
from common.verify import Verifier


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that k of n samples, drawn without replacement, hold a correct one: 1 - C(n-c, k) / C(n, k).

    Unbiased for the chance that k new samples hold one (Chen et al., 2107.03374, Eq. 1).
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} cannot be estimated from {n} samples: k must be between 1 and n")
    return 1.0 - math.prod(1.0 - k / i for i in range(n - correct + 1, n + 1))


def mean(values: list[Any]) -> float | None:
    return sum(values) / len(values) if values else None


Sample = tuple[Problem, str, float]  # a problem, a response to it, and its reward


def evaluate(
    engine: Engine, verifier: Verifier, problems: list[Problem], n: int, args: Settings
) -> tuple[dict[str, float | None], list[Sample]]:
    """Metrics over n samples of every problem, and one sample of each.

    The average over all samples, avg@n, comes with its standard error over problems; of several data sets also
    that of each. The seeds of the samples are always the same, so that two evaluations differ by the weights alone.
    """
    prompts = [problem.prompt_ids for problem in problems]
    seeds = prompt_seeds(len(prompts), 0)
    rollouts = engine.generate(prompts, n, args.max_response_tokens, args.temperature, seeds)
    correct = verifier(problems, rollouts)
    greedy = engine.generate(prompts, 1, args.max_response_tokens, 0.0, seeds)
    counts = [sum(correct[i : i + n]) for i in range(0, len(correct), n)]  # correct ones of each problem
    average = sum(counts) / len(correct)
    variance = sum((c / n - average) ** 2 for c in counts) / max(1, len(counts) - 1)
    lengths = [len(tokens) for tokens in rollouts.tokens]
    metrics = {
        "eval/n": n,
        "eval/avg": average,
        "eval/standard_error": math.sqrt(variance / len(counts)),
        "eval/greedy": mean(verifier(problems, greedy)),
        "eval/length_correct": mean([x for x, ok in zip(lengths, correct, strict=True) if ok]),
        "eval/length_wrong": mean([x for x, ok in zip(lengths, correct, strict=True) if not ok]),
        "eval/truncated": mean(rollouts.truncated),
    }
    names = [problem.dataset for problem in problems]
    for name in dict.fromkeys(names) if len(set(names)) > 1 else []:
        metrics[f"eval/avg/{name}"] = mean([c / n for c, own in zip(counts, names, strict=True) if own == name])
    if verifier.own:
        metrics["eval/reward"] = mean(rollouts.rewards)
    metrics["eval/verifier_failures"] = verifier.take_failures()
    for k in sorted({1 << i for i in range(n.bit_length())} | {n}):
        metrics[f"eval/pass@{k}"] = mean([pass_at_k(n, c, k) for c in counts])
    first = range(0, len(correct), n)
    texts = verifier.tokenizer.batch_decode([rollouts.tokens[i] for i in first], skip_special_tokens=True)
    return metrics, [(p, text, rollouts.rewards[i]) for p, text, i in zip(problems, texts, first, strict=True)]
