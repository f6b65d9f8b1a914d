"""VinePPO's sampled values credit a single line of a search more accurately than GRPO's one advantage for all lines.

Said by: VinePPO, 2410.01679, Abstract at ICML 2025 (of value networks, which "barely outperform a random baseline when
comparing alternative steps"); VinePPO's advantages are differences of sampled values. GRPO is our comparison.

Tested: the embedded model of the world of search, before training; 8 responses to each of 24 held-out problems. The
true advantage of a line is the value after it minus that before it, each the mean reward of 32 continuations, or at the
end the reward. methods/vineppo.py computes it with other continuations: 3, its default, and 9, the paper's. grpo.py
gives all lines of a response its z-score. Other problems had shown a gain with 3 before. A constant has correlation 0,
as GRPO's credit has where all rewards of a group are equal; the gain where they differ is reported.

Rule: the correlation over the lines of a problem with their true advantages, in its 95 % interval over the problems.
Reproduced if VinePPO's with 3 continuations is higher than GRPO's by 0.05 or more and the interval excludes 0;
contradicted if the interval excludes a gain of 0.05 and does not lie above 0. One seed.
"""

from contextlib import closing
from statistics import mean

import grpo
from claims.court import axes, bars, judge
from common.data import load_problems
from common.models import load_model
from common.transformers_engine import TransformersEngine
from common.verification import Verifier
from methods import vineppo
from tools.plots import BLUE, GRAY, GREEN
from tools.stats import interval

import torch

KIND = "model"
SMALLEST = 0.05
FIRST, PROBLEMS, G, TRUE = 16, 24, 8, 32  # the first problems were looked at before
SAMPLES = (3, 9)


def correlation(truth, credit):
    """Over the lines of a problem; a constant has none."""
    pair = torch.stack([torch.tensor(truth), torch.tensor(credit)])  # (2, n)
    return torch.corrcoef(pair)[0, 1].item() if (pair.std(1) > 0).all() else 0.0


def compute():
    args = vineppo.Args(model="search", dataset="search", responses_per_prompt=G)
    model, tokenizer = load_model(args)
    train, held_out = load_problems(args, model, tokenizer)
    engine, problems = TransformersEngine(args, model, tokenizer), held_out[FIRST : FIRST + PROBLEMS]
    ends = {i for i in range(len(tokenizer)) if set(tokenizer.decode([i])) & set(args.step_ends)}
    with closing(Verifier(args, tokenizer, train + held_out)) as verifier:
        rollouts = engine.generate(problems, G, 1)
        rewards = verifier(problems, rollouts)  # (P, G)
        steps = [vineppo.split_steps(tokens, ends, args) for tokens in rollouts.tokens]

        def advantages(samples, seed):
            """Of each line of each problem, by so many continuations from each place."""
            args.value_samples = samples
            values, _ = vineppo.estimate_values(problems, rollouts, steps, engine, verifier, seed, args)
            by_token = vineppo.compute_advantages(rewards, values, steps, args)  # (B, T)
            return [of_lines(by_token, i) for i in range(PROBLEMS)]

        def of_lines(by_token, problem):
            rows = range(problem * G, (problem + 1) * G)
            return [by_token[row, end - 1].item() for row in rows for end in steps[row]]

        truth = advantages(TRUE, 1)
        credit = {f"VinePPO, {K} continuations": advantages(K, 1 + K) for K in SAMPLES}
        scores = grpo.compute_advantages(rewards, grpo.Args()).view(-1, 1).expand(-1, max(map(max, steps)))  # (B, T)
        credit = {"GRPO": [of_lines(scores, i) for i in range(PROBLEMS)]} | credit
    known = [i for i, lines in enumerate(truth) if torch.tensor(lines).std() > 0]
    found = {name: [correlation(truth[i], lines[i]) for i in known] for name, lines in credit.items()}
    gain = [vine - z for vine, z in zip(found[f"VinePPO, {SAMPLES[0]} continuations"], found["GRPO"], strict=True)]
    mixed = [change for change, i in zip(gain, known, strict=True) if rewards[i].std() > 0]
    return {
        "lines": sum(len(truth[i]) for i in known),
        "correlations": found,  # by problem
        "correlation": {name: mean(of_problem) for name, of_problem in found.items()},
        "gain": list(interval(gain)),
        "gain with signal": [len(mixed), *interval(mixed)],
    }


def verdict(result):
    return judge(*result["gain"], SMALLEST)


def effect(result):
    means = ", ".join(f"{value:.3f} ({name})" for name, value in result["correlation"].items())
    gain, half = result["gain"]
    groups, mixed, half_mixed = result["gain with signal"]
    gains = f"gain {gain:+.3f} ± {half:.3f}, {mixed:+.3f} ± {half_mixed:.3f} on the {groups} problems with signal"
    return f"correlation with the true advantage: {means}; {gains}; {result['lines']} lines"


def draw(result):
    panel = axes("Credit of a line in the world of search", "", "correlation with its true advantage")
    bars(panel, result["correlation"], (GRAY, BLUE, GREEN))
    return panel.figure
