"""In episodes of up to 50 turns, GiGPO credits single turns more accurately than whole episodes do.

Said by: GiGPO, 2505.10978, Abstract ("agent-environment interactions unfold over many steps and often yield sparse or
delayed rewards, making credit assignment across individual steps significantly more challenging"). The authors' scripts
give ALFWorld 50 turns (env.max_steps=50). That turns from the same state help where episodes are long, and not where
they are short, as in same_state_turns_get_truer_credit, is our reading.

Tested: a walk on 5 x 5 fields to a goal 4 steps away, by a policy that takes each of four steps with equal
chance; a step off the board stays in place. The reward is 1 at the goal. 24 games, each with 64 groups of 8 episodes of
at most 50 turns. The true advantage of a step, from its field and the turns that are left, is exact. methods/gigpo.py
gives each step the z-score of its episode, and adds that of its return, discounted by 0.95 per turn as by default,
among those of its group from the same field. The same with at most 10, 20, 100 and 200 turns. Other games had shown a
gain at 50 before.

Rule: the correlation over the steps of a game with the true advantage, in its 95 % interval over the games, with at
most 50 turns. Reproduced if GiGPO's is higher than GRPO's by 0.05 or more and the interval excludes 0; contradicted if
the interval excludes a gain of 0.05 and does not lie above 0.
"""

from statistics import mean
from types import SimpleNamespace

from claims.court import axes, judge
from common.records import Episode
from methods import gigpo
from tools.plots import BLUE, GRAY
from tools.stats import interval

import numpy as np
import torch

KIND = "exact"
SMALLEST = 0.05
SIDE, DISTANCE, GAMES, GROUPS, G = 5, 4, 24, 64, 8
TURNS, JUDGED = ("10", "20", "50", "100", "200"), "50"
FIELDS = [(x, y) for x in range(SIDE) for y in range(SIDE)]
STEPS = ((1, 0), (-1, 0), (0, 1), (0, -1))


def after(field, step):
    there = (FIELDS[field][0] + STEPS[step][0], FIELDS[field][1] + STEPS[step][1])
    return FIELDS.index(there) if there in FIELDS else field


NEXT = np.array([[after(field, step) for step in range(4)] for field in range(len(FIELDS))])  # (fields, 4)


def draw_game(rng):
    """Start and goal, DISTANCE steps apart."""
    while True:
        start, goal = rng.integers(len(FIELDS), size=2)
        if sum(abs(a - b) for a, b in zip(FIELDS[start], FIELDS[goal], strict=True)) == DISTANCE:
            return start, goal


def true_advantages(goal, turns):
    """(turns, fields, 4): how much more often the goal is reached after a step than from its field, by turn."""
    value, found = np.zeros(len(FIELDS)), []
    for _ in range(turns):
        of_steps = np.where(goal == NEXT, 1.0, value[NEXT])  # (fields, 4)
        value = of_steps.mean(1)  # (fields,)
        found.append(of_steps - value[:, None])
    return np.stack(found[::-1])


def walk(start, goal, turns, rng):
    """The fields of an episode before each step, the steps, and the reward."""
    fields, steps = [start], rng.integers(4, size=turns)
    for step in steps:
        there = NEXT[fields[-1], step]
        if there == goal:
            return fields, steps[: len(fields)], 1.0
        fields.append(there)
    return fields[:-1], steps, 0.0


def measure(start, goal, turns, rng):
    """Of one game: each method's correlation with the true advantage, and the fraction of episodes won."""
    walks = [walk(start, goal, turns, rng) for _ in range(GROUPS * G)]
    rewards = torch.tensor([reward for *_, reward in walks]).view(GROUPS, G)
    episodes = [Episode(list(range(len(fields))), fields) for fields, *_ in walks]
    rollouts = SimpleNamespace(tokens=[fields for fields, *_ in walks], episodes=episodes)  # a token a turn
    args = gigpo.Args()
    of_state = gigpo.step_advantages(rewards, rollouts, args).numpy()  # (B, turns)
    of_episode = gigpo.compute_advantages(rewards, args).flatten().numpy()  # (B,)
    truth, credit = true_advantages(goal, turns), {"GRPO": [], "GiGPO": []}
    true = np.concatenate([truth[range(len(fields)), fields, steps] for fields, steps, _ in walks])
    for row, (fields, *_) in enumerate(walks):
        whole = np.full(len(fields), of_episode[row])
        credit["GRPO"].append(whole)
        credit["GiGPO"].append(whole + args.step_weight * of_state[row, : len(fields)])
    found = {name: np.corrcoef(true, np.concatenate(of_rows))[0, 1] for name, of_rows in credit.items()}
    return {name: float(value) for name, value in found.items()} | {"won": rewards.mean().item()}


def compute():
    rng, found = np.random.default_rng(2026), {}
    games = [draw_game(rng) for _ in range(GAMES)]
    for turns in TURNS:
        of_games = [measure(*game, int(turns), rng) for game in games]
        found[turns] = {name: mean(game[name] for game in of_games) for name in of_games[0]}
        found[turns]["gain"] = list(interval([game["GiGPO"] - game["GRPO"] for game in of_games]))
    return found


def verdict(result):
    return judge(*result[JUDGED]["gain"], SMALLEST)


def effect(result):
    gains = [f"{of['gain'][0]:+.3f} ± {of['gain'][1]:.3f} ({turns})" for turns, of in result.items()]
    of_50 = ", ".join(f"{result[JUDGED][name]:.3f} ({name})" for name in ("GRPO", "GiGPO"))
    return f"correlation with the true advantage, at most {JUDGED} turns: {of_50}; gain by turns: {', '.join(gains)}"


def draw(result):
    panel = axes("Credit of a step on a walk", "most turns of an episode", "correlation with its true advantage")
    for name, color in (("GRPO", GRAY), ("GiGPO", BLUE)):
        panel.plot(TURNS, [of[name] for of in result.values()], marker="o", color=color, label=name)
    panel.legend()
    return panel.figure
