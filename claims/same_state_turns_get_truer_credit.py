"""GiGPO, which compares turns from the same state, credits turns more accurately than whole episodes do.

Said by: GiGPO, 2505.10978, Abstract ("This hierarchical structure effectively captures both global trajectory quality
and local step effectiveness without relying on auxiliary models or additional rollouts").

Tested: the guessing game and its embedded model, before training. 24 held-out games are played 2048 times each. The
true advantage of a guess is how much more often games are won after it than after any guess from its state (turn and
numbers that remain), in 1920 of the episodes, where these had the guess at least 32 times. The other 128 are 16 groups
of 8, in which recipes/agent.py gives all turns of an episode its z-score, and methods/gigpo.py adds the z-score of each
turn's return, discounted by 0.95 per turn as by default, among those of its group from the same state. How many turns
share their state is reported.

Rule: the correlation over the turns of a game with the true advantage, in its 95 % interval over the games. Reproduced
if GiGPO's is higher than GRPO's by 0.05 or more and the interval excludes 0; contradicted if the interval excludes a
gain of 0.05 and does not lie above 0. One seed.
"""

from collections import Counter, defaultdict
from statistics import mean

from claims.court import axes, bars, judge
from common.data import load_problems
from common.environments import EpisodeEngine, load_environment
from common.models import load_model
from common.transformers_engine import TransformersEngine
from methods import gigpo
from tools.plots import BLUE, GRAY, ORANGE
from tools.stats import interval

import torch

KIND = "model"
SMALLEST = 0.05
GAMES, GROUPS, G, OTHERS, OFTEN = 24, 16, 8, 1920, 32


def turns_of(rollouts, row, tokenizer):
    """First token, state and guess of each turn of an episode."""
    episode, tokens = rollouts.episodes[row], rollouts.tokens[row]
    for turn, (start, state) in enumerate(zip(episode.starts, episode.states, strict=True)):
        yield start, (turn, state), tokenizer.decode(tokens[start:]).partition("?")[0]


def true_advantages(rollouts, tokenizer):
    """By state and guess, from all episodes of a game."""
    of_state, of_guess = defaultdict(list), defaultdict(list)
    for row, episode in enumerate(rollouts.episodes):
        for _, state, guess in turns_of(rollouts, row, tokenizer):
            of_state[state].append(episode.reward)
            of_guess[state, guess].append(episode.reward)
    often = {key: sum(won) / len(won) for key, won in of_guess.items() if len(won) >= OFTEN}
    return {key: value - sum(of_state[key[0]]) / len(of_state[key[0]]) for key, value in often.items()}


def shared(rollouts):
    """Of the turns after the first, the fraction whose state occurs again in their group."""
    counts = Counter((row // G, state) for row, episode in enumerate(rollouts.episodes) for state in episode.states[1:])
    return sum(n for n in counts.values() if n > 1) / counts.total()


def measure(rollouts, tokenizer, args):
    """Of one game: correlation by method, over how many turns, and the fraction of later ones that share a state."""
    split = GROUPS * G
    groups = rollouts.select(range(split))
    truth = true_advantages(rollouts.select(range(split, split + OTHERS)), tokenizer)
    rewards = torch.tensor([episode.reward for episode in groups.episodes]).view(GROUPS, G)
    of_episode = gigpo.compute_advantages(rewards, args).flatten()  # (B,)
    of_state = gigpo.step_advantages(rewards, groups, args)  # (B, T)
    found = [
        (truth[state, guess], of_episode[row], of_state[row, start])
        for row in range(split)
        for start, state, guess in turns_of(groups, row, tokenizer)
        if (state, guess) in truth
    ]
    true, episode, same = torch.tensor(found).T  # (n,)
    credit = {"GRPO": episode, "same state alone": same, "GiGPO": episode + args.step_weight * same}
    correlation = {name: torch.corrcoef(torch.stack([true, a]))[0, 1].item() for name, a in credit.items()}
    return correlation, len(found), shared(groups)


def compute():
    args = gigpo.Args()
    model, tokenizer = load_model(args)
    _, held_out = load_problems(args, model, tokenizer)
    engine = TransformersEngine(args, model, tokenizer)
    engine = EpisodeEngine(engine, load_environment(args.environment), tokenizer, args, args.max_turns)
    games = [
        measure(engine.generate([problem], GROUPS * G + OTHERS, i), tokenizer, args)
        for i, problem in enumerate(held_out[:GAMES])
    ]
    correlations, turns, shares = zip(*games, strict=True)
    return {
        "turns": sum(turns),
        "shared": mean(shares),
        "correlation": {name: mean(of_game[name] for of_game in correlations) for name in correlations[0]},
        "gain": list(interval([of_game["GiGPO"] - of_game["GRPO"] for of_game in correlations])),
    }


def verdict(result):
    return judge(*result["gain"], SMALLEST)


def effect(result):
    means = ", ".join(f"{value:.3f} ({name})" for name, value in result["correlation"].items())
    gain, half = result["gain"]
    of_turns = f"{result['turns']} turns, {result['shared']:.0%} of the later ones share their state"
    return f"correlation with the true advantage: {means}; gain {gain:+.3f} ± {half:.3f}; {of_turns}"


def draw(result):
    panel = axes("Credit of a turn in the guessing game", "", "correlation with its true advantage")
    bars(panel, result["correlation"], (GRAY, BLUE, ORANGE))
    return panel.figure
