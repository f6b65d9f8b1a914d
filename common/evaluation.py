"""Evaluation on held-out problems: avg@n, the unbiased pass@k, and lengths of correct and incorrect responses."""

import math
from dataclasses import dataclass
from typing import Any

import worlds
from common.engines import Engine, Request, prompt_seeds
from common.records import Problem, Rollouts, Sample
from common.settings import DataSettings, Settings
from common.verification.verifier import Verifier


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that k of n samples, drawn without replacement, hold a correct one: 1 - C(n-c, k) / C(n, k).

    Unbiased for the chance that k new samples hold one (Chen et al., 2107.03374, Eq. 1).
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} cannot be estimated from {n} samples: k must be between 1 and n")
    return 1.0 - math.prod(1.0 - k / i for i in range(n - correct + 1, n + 1))


def mean(values: list[Any]) -> float | None:
    return sum(values) / len(values) if values else None


@dataclass
class Outcome:
    """The n responses to one problem."""

    correct: list[bool]
    lengths: list[int]  # tokens
    truncated: list[bool]
    rewards: list[float]


def respond(
    engine: Engine, verifier: Verifier, problems: list[Problem], n: int, temperature: float, seeds: list[int]
) -> tuple[Rollouts, list[Outcome]]:
    """n responses to each problem, and the outcome for each problem."""
    limits = [engine.args.max_response_tokens] * len(problems)
    prompts = [problem.prompt_ids for problem in problems]
    rollouts = engine.sample_shards(Request(prompts, n, limits, temperature, seeds, problems=problems))
    rewards = verifier(problems, rollouts).flatten().tolist()
    columns = rollouts.correct, list(map(len, rollouts.tokens)), rollouts.truncated, rewards
    of_problem = [slice(i, i + n) for i in range(0, len(rollouts.tokens), n)]
    return rollouts, [Outcome(*(column[rows] for column in columns)) for rows in of_problem]


def figures(sampled: list[Outcome], greedy: list[Outcome], ks: list[int]) -> dict[str, Any]:
    """avg@n with its standard error over problems, pass@k, greedy accuracy, and lengths in tokens."""
    n = len(sampled[0].correct)
    counts = [sum(outcome.correct) for outcome in sampled]
    average = sum(counts) / (n * len(counts))
    variance = sum((c / n - average) ** 2 for c in counts) / max(1, len(counts) - 1)
    lengths = [(x, ok) for outcome in sampled for x, ok in zip(outcome.lengths, outcome.correct, strict=True)]
    return {
        "n": n,
        "avg": average,
        "standard_error": math.sqrt(variance / len(counts)),
        "greedy": mean([outcome.correct[0] for outcome in greedy]),
        "length_correct": mean([x for x, ok in lengths if ok]),
        "length_incorrect": mean([x for x, ok in lengths if not ok]),
        "truncated": mean([cut for outcome in sampled for cut in outcome.truncated]),
        **{f"pass@{k}": mean([pass_at_k(n, c, k) for c in counts]) for k in ks},
    }


def behavior(problems: list[Problem], texts: list[str], args: DataSettings) -> dict[str, float | None]:
    """Measures of what n responses to each problem do, if the data set's world has any."""
    measure = isinstance(args.dataset, str) and worlds.behavior_function(args.dataset)
    if not measure:
        return {}
    answers = [problem.answer for problem in problems for _ in range(len(texts) // len(problems))]
    return {f"behavior/{name}": value for name, value in measure(answers, texts).items()}


def evaluate(
    engine: Engine, verifier: Verifier, problems: list[Problem], n: int, args: Settings
) -> tuple[dict[str, float | None], list[Sample]]:
    """Metrics over n samples of every problem, and one sample of each.

    With several data sets, each one's avg@n is reported too. The seeds of the samples depend on --eval-seed only, so
    that two evaluations differ only in the weights.
    """
    seeds = prompt_seeds(len(problems), args.eval_seed)
    rollouts, sampled = respond(engine, verifier, problems, n, args.temperature, seeds)
    of_sampled = verifier.take_numbers()
    _, greedy = respond(engine, verifier, problems, 1, 0.0, seeds)
    found = figures(sampled, greedy, sorted({1 << i for i in range(n.bit_length())} | {n}))
    names = [problem.dataset for problem in problems]
    for name in dict.fromkeys(names) if len(set(names)) > 1 else []:
        found[f"avg/{name}"] = mean([sum(o.correct) / n for o, own in zip(sampled, names, strict=True) if own == name])
    if verifier.reward_functions:
        found["reward"] = mean([reward for outcome in sampled for reward in outcome.rewards])
    found |= of_sampled
    found["verifier_failures"] += verifier.take_numbers()["verifier_failures"]
    texts = verifier.tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
    found |= behavior(problems, texts, args)
    samples = [(p, text, o.rewards[0]) for p, text, o in zip(problems, texts[::n], sampled, strict=True)]
    return {f"eval/{name}": value for name, value in found.items()}, samples
