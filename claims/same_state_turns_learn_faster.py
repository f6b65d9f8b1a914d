"""Where half of the steps go astray, a policy learns faster from episodes of up to 50 turns with GiGPO than with GRPO.

Said by: GiGPO, 2505.10978, Abstract ("achieves performance gains of > 12% on ALFWorld and > 9% on WebShop over GRPO").
The authors' scripts give ALFWorld 50 turns. That the gain is in how fast a policy learns, and is larger where an
episode's reward says little about its single steps, is our reading.

Tested: the walk of same_state_turns_pay_in_long_episodes, where a random step takes the place of half of the steps. The
policy has a logit for each field and step, all 0 at first, and 60 updates, each on 8 episodes: AdamW, and the loss of
methods/gigpo.py with its advantages or with GRPO's alone. The learning rate of each method is its best of four on 8
other games. The chance that the policy reaches the goal in time is exact; how fast it learns is the mean of that chance
before each update. 32 games. Without a discount too, since a discount favors short episodes where all are won. The same
with at most 10 and 100 turns, and with 50 turns where no step goes astray. Other games had shown a gain before.

Rule: the difference in the mean chance, in its 95 % interval over the games, with at most 50 turns. Reproduced if
GiGPO's is higher than GRPO's by 0.02 or more and the interval excludes 0; contradicted if the interval excludes a gain
of 0.02 and does not lie above 0.
"""

from statistics import mean
from types import SimpleNamespace

from claims.court import axes, judge
from claims.same_state_turns_pay_in_long_episodes import FIELDS, NEXT, draw_game
from common.records import Episode
from methods.gigpo import Args, compute_advantages, policy_loss, step_advantages, token_weights
from tools.plots import BLUE, GRAY, ORANGE
from tools.stats import interval

import numpy as np
import torch

KIND = "exact"
SMALLEST = 0.02
G, UPDATES, SWEEP, GAMES = 8, 60, 8, 32
RATES = (0.03, 0.1, 0.3, 1.0)
SETTINGS = {  # most turns, fraction of the steps that go astray
    "10 turns": (10, 0.5),
    "50 turns": (50, 0.5),
    "100 turns": (100, 0.5),
    "50 turns, no step astray": (50, 0.0),
}
JUDGED = "50 turns"
METHODS = {"GRPO": Args(step_weight=0), "GiGPO": Args(), "GiGPO, γ = 1": Args(discount=1)}


def chance(policy, start, goal, turns, astray):
    """That the policy, (fields, 4) probabilities, reaches the goal within so many turns."""
    policy, value = (1 - astray) * policy + astray / 4, np.zeros(len(FIELDS))
    for _ in range(turns):
        value = (policy * np.where(goal == NEXT, 1.0, value[NEXT])).sum(1)  # (fields,)
    return float(value[start])


def walk(policy, start, goal, turns, astray, rng):
    """The fields of an episode before each of the policy's steps, these steps, and the reward."""
    fields, steps, bounds = [start], [], policy.cumsum(1)[:, :3]
    for by_policy, goes, other in zip(rng.random(turns), rng.random(turns), rng.integers(4, size=turns), strict=True):
        steps.append(int((bounds[fields[-1]] < by_policy).sum()))
        there = NEXT[fields[-1], other if goes < astray else steps[-1]]
        if there == goal:
            return fields, steps, 1.0
        fields.append(there)
    return fields[:-1], steps, 0.0


def loss(logits, walks, args):
    """Of a group of episodes, as in methods/gigpo.py with a token for each turn."""
    rewards = torch.tensor([[reward for *_, reward in walks]])  # (1, G)
    episodes = [Episode(list(range(len(fields))), fields) for fields, *_ in walks]
    rollouts = SimpleNamespace(tokens=[fields for fields, *_ in walks], episodes=episodes)
    of_turns = step_advantages(rewards, rollouts, args)  # (G, turns)
    advantages = compute_advantages(rewards, args).view(-1, 1) + args.step_weight * of_turns  # (G, turns)
    mask, taken = torch.zeros_like(of_turns), torch.zeros(2, *of_turns.shape, dtype=torch.long)
    for row, (fields, steps, _) in enumerate(walks):
        mask[row, : len(fields)], taken[:, row, : len(fields)] = 1, torch.tensor(np.array([fields, steps]))
    logp = logits.log_softmax(1)[taken[0], taken[1]]  # (G, turns)
    return (token_weights(mask) * policy_loss(logp, logp.detach(), advantages, args)[0]).sum()


def learn(args, lr, game, turns, astray, seed):
    """The chance to reach the goal before each update, as a mean."""
    logits, chances = torch.zeros(len(FIELDS), 4, dtype=torch.float64, requires_grad=True), []
    optimizer, rng = torch.optim.AdamW([logits], lr=lr, weight_decay=0), np.random.default_rng(seed)
    for _ in range(UPDATES):
        policy = logits.detach().softmax(1).numpy()
        chances.append(chance(policy, *game, turns, astray))
        walks = [walk(policy, *game, turns, astray, rng) for _ in range(G)]
        optimizer.zero_grad()
        loss(logits, walks, args).backward()
        optimizer.step()
    return mean(chances)


def compute():
    rng, found = np.random.default_rng(2026), {}
    games = [draw_game(rng) for _ in range(SWEEP + GAMES)]
    for name, setting in SETTINGS.items():
        of_setting, ends = {}, {}
        for method, args in METHODS.items():
            sweep = {lr: mean(learn(args, lr, games[i], *setting, i) for i in range(SWEEP)) for lr in RATES}
            best = max(sweep, key=sweep.get)
            ends[method] = [learn(args, best, games[i], *setting, i) for i in range(SWEEP, len(games))]
            of_setting[method] = {"lr": best, "sweep": list(sweep.values()), "mean": mean(ends[method])}
        for method in list(METHODS)[1:]:
            gains = [other - grpo for grpo, other in zip(ends["GRPO"], ends[method], strict=True)]
            of_setting[method]["gain"] = list(interval(gains))
        found[name] = of_setting
    return found


def verdict(result):
    return judge(*result[JUDGED]["GiGPO"]["gain"], SMALLEST)


def effect(result):
    of = result[JUDGED]
    chances = ", ".join(f"{name} {of[name]['mean']:.3f} (learning rate {of[name]['lr']:g})" for name in METHODS)
    gains = {name: "{:+.3f} ± {:.3f}".format(*of["GiGPO"]["gain"]) for name, of in result.items()}
    gains["γ = 1, " + JUDGED] = "{:+.3f} ± {:.3f}".format(*of["GiGPO, γ = 1"]["gain"])
    by_setting = ", ".join(f"{gain} ({name})" for name, gain in gains.items())
    return f"mean chance to reach the goal with at most {JUDGED}: {chances}; gain: {by_setting}"


def draw(result):
    panel = axes("Learning to walk to a goal", "most turns of an episode", "gain over GRPO in the mean chance")
    for shift, (name, color) in zip((-0.1, 0.1), (("GiGPO", BLUE), ("GiGPO, γ = 1", ORANGE)), strict=True):
        gains, halves = zip(*(of[name]["gain"] for of in result.values()), strict=True)
        panel.errorbar(np.arange(len(result)) + shift, gains, halves, fmt="o", color=color, label=name)
    panel.set_xticks(range(len(result)), [setting.replace(", ", ",\n") for setting in result])
    panel.axhline(0, color=GRAY)
    panel.legend()
    return panel.figure
