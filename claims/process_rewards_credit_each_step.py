"""GRPO with process rewards credits a single line of a search more accurately than GRPO's one advantage for all lines.

Said by: GRPO, 2402.03300, Sec. 4.1.3 ("Outcome supervision only provides a reward at the end of each output, which may
not be sufficient and efficient to supervise the policy in complex mathematical tasks").

Tested: the embedded model of the world of search, before training; 8 responses to each of 24 held-out problems, others
than in sampled_values_credit_each_step. The true advantage of a line is the same as there. methods/process_rewards.py
trains its reward model before step 1, as by default: on 64 responses, whose lines have the fraction of 8 continuations
that are correct as their labels. It gives a line the sum of the normalized rewards from its end on; grpo.py gives all
lines of a response its z-score. Reported: the same sum of nearly perfect rewards, the fraction of 32 other
continuations that are correct, and its gain over GRPO.

Rule: the correlation over the lines of a problem with their true advantages, in its 95 % interval over the problems.
Reproduced if that of process rewards is higher than GRPO's by 0.05 or more and the interval excludes 0; contradicted if
the interval excludes a gain of 0.05 and does not lie above 0. One seed.
"""

from contextlib import closing
from statistics import mean

import grpo
from claims.court import axes, bars, judge
from claims.sampled_values_credit_each_step import correlation
from common.batch import collate
from common.data import load_problems, sample_problems
from common.logprobs import in_micro_batches
from common.models import load_model
from common.transformers_engine import TransformersEngine
from common.verification import Verifier
from methods import process_rewards, vineppo
from methods.step_rewards import RewardModel, last_tokens, split_steps
from tools.plots import BLUE, GRAY, GREEN
from tools.stats import interval

import torch

KIND = "model"
SMALLEST = 0.05
FIRST, PROBLEMS, G, TRUE = 40, 24, 8, 32
LEARNED, EXACT = "process rewards", "nearly perfect rewards"


def compute():
    args = process_rewards.Args(responses_per_prompt=G)
    model, tokenizer = load_model(args)
    train, held_out = load_problems(args, model, tokenizer)
    engine, problems = TransformersEngine(args, model, tokenizer), held_out[FIRST : FIRST + PROBLEMS]
    ends = {i for i in range(len(tokenizer)) if set(tokenizer.decode([i])) & set(args.step_ends)}
    reward_model = RewardModel(load_model(args)[0])
    sampling = vineppo.Args(model=args.model, dataset=args.dataset, responses_per_prompt=G, value_samples=TRUE)
    with closing(Verifier(args, tokenizer, train + held_out)) as verifier:
        labeled = sample_problems(train, args.labeled_problems, 1, args)
        process_rewards.train_reward_model(reward_model, labeled, ends, engine, verifier, 1, args)
        rollouts = engine.generate(problems, G, 1)
        rewards = verifier(problems, rollouts)  # (P, G)
        steps = [split_steps(tokens, ends) for tokens in rollouts.tokens]
        values, others = (
            vineppo.estimate_values(problems, rollouts, steps, engine, verifier, seed, sampling)[0] for seed in (1, 2)
        )
    batch = collate(problems, rollouts, model.device)
    last = last_tokens(steps, batch.response_mask)  # (B, T)
    chances = in_micro_batches(reward_model, batch, args).sigmoid() * last  # (B, T)
    true_chances = torch.zeros(last.shape)  # (B, T), up to the chance in 32 continuations
    for row, (before, reward) in enumerate(zip(others, rewards.flatten().tolist(), strict=True)):
        true_chances[row, last[row].bool()] = torch.tensor([*before[1:], reward])
    scores = grpo.compute_advantages(rewards, grpo.Args()).view(-1, 1).expand(last.shape)  # (B, T)
    by_token = {
        "truth": vineppo.compute_advantages(rewards, values, steps, sampling),
        "GRPO": scores,
        LEARNED: process_rewards.compute_advantages(chances, last, args),
        EXACT: process_rewards.compute_advantages(true_chances, last, args),
    }  # (B, T) each
    lines = [last.view(PROBLEMS, G, -1)[i].bool() for i in range(PROBLEMS)]  # (G, T) each
    of_lines = {
        name: [x.view(PROBLEMS, G, -1)[i][lines[i]].tolist() for i in range(PROBLEMS)] for name, x in by_token.items()
    }
    truth = of_lines.pop("truth")
    known = [i for i in range(PROBLEMS) if torch.tensor(truth[i]).std() > 0]
    found = {name: [correlation(truth[i], credit[i]) for i in known] for name, credit in of_lines.items()}
    labels = true_chances[last.bool()]  # (S,)
    return {
        "lines": sum(len(truth[i]) for i in known),
        "reward model": correlation(labels.tolist(), chances[last.bool()].tolist()),  # with the true values
        "correlations": found,  # by problem
        "correlation": {name: mean(of_problem) for name, of_problem in found.items()},
        **{
            gain: list(interval([x - z for x, z in zip(found[name], found["GRPO"], strict=True)]))
            for gain, name in (("gain", LEARNED), ("gain of nearly perfect rewards", EXACT))
        },
    }


def verdict(result):
    return judge(*result["gain"], SMALLEST)


def effect(result):
    means = ", ".join(f"{value:.3f} ({name})" for name, value in result["correlation"].items())
    (gain, half), (perfect, half_perfect) = result["gain"], result["gain of nearly perfect rewards"]
    of_model = f"the reward model's correlation with the true values: {result['reward model']:.3f}"
    gains = f"gain {gain:+.3f} ± {half:.3f}; of nearly perfect rewards {perfect:+.3f} ± {half_perfect:.3f}"
    return f"correlation with the true advantage: {means}; {gains}; {of_model}"


def draw(result):
    panel = axes("Credit of a line in the world of search", "", "correlation with its true advantage")
    bars(panel, result["correlation"], (GRAY, BLUE, GREEN))
    return panel.figure
