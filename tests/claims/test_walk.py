"""The walk on which GiGPO's credit is compared with the true one, and on which policies learn."""

from itertools import product
from types import SimpleNamespace

from claims import court

import numpy as np
import pytest
import torch

claim = court.load("same_state_turns_pay_in_long_episodes")
learning = court.load("same_state_turns_learn_faster")


def taken(steps):
    """A source of chance that takes these steps."""
    return SimpleNamespace(integers=lambda count, size: np.array(steps))


@pytest.mark.parametrize("turns", [2, 3])
def test_true_advantages_are_those_of_all_episodes(turns):
    start, goal = claim.FIELDS.index((1, 1)), claim.FIELDS.index((0, 0))
    won = np.zeros((4,) * turns)
    for steps in product(range(4), repeat=turns):
        won[steps] = claim.walk(start, goal, turns, taken(steps))[2]
    after_first = won.reshape(4, -1).mean(1)
    truth = claim.true_advantages(goal, turns)
    assert truth[0, start] == pytest.approx(after_first - after_first.mean()) and won.sum() > 0
    beside = claim.FIELDS.index((1, 0))
    assert truth[-1, beside].tolist() == [-0.25, 0.75, -0.25, -0.25]  # one step is left, and the second leads there


def test_a_walk_ends_at_the_goal_and_stays_on_the_board():
    corner, goal = claim.FIELDS.index((0, 0)), claim.FIELDS.index((1, 0))
    left, right = 1, 0
    fields, steps, reward = claim.walk(corner, goal, 4, taken([left, left, right, right]))
    assert fields == [corner] * 3 and steps.tolist() == [left, left, right] and reward == 1
    fields, steps, reward = claim.walk(corner, goal, 2, taken([left, left]))
    assert fields == [corner] * 2 and len(steps) == 2 and reward == 0


@pytest.mark.parametrize("astray", [0.0, 0.5])
def test_the_chance_to_reach_the_goal_is_that_of_all_episodes(astray):
    start, goal, turns = claim.FIELDS.index((1, 1)), claim.FIELDS.index((0, 0)), 3
    policy = np.random.default_rng(1).dirichlet(np.ones(4), len(claim.FIELDS))  # (fields, 4)
    chance = 0.0
    for steps in product(range(4), repeat=turns):
        fields, _, reward = claim.walk(start, goal, turns, taken(steps))
        passed = [*fields, *[goal] * (turns - len(fields))]  # at the goal, all that follows counts as reached
        taken_with = [
            (1 - astray) * policy[field, step] + astray / 4 for field, step in zip(passed, steps, strict=True)
        ]
        chance += reward * np.prod(taken_with)
    assert learning.chance(policy, start, goal, turns, astray) == pytest.approx(chance) and chance > 0


def test_a_policy_walks_by_its_own_steps_or_astray():
    """How often each step is the policy's, and how often each field follows."""
    start, goal = claim.FIELDS.index((1, 1)), claim.FIELDS.index((4, 4))
    policy, rng = np.tile([0.1, 0.2, 0.3, 0.4], (len(claim.FIELDS), 1)), np.random.default_rng(1)
    walks = [learning.walk(policy, start, goal, 2, 0.5, rng) for _ in range(20_000)]
    steps = np.bincount([steps[0] for _, steps, _ in walks], minlength=4) / len(walks)
    fields = np.bincount([fields[1] for fields, *_ in walks], minlength=len(claim.FIELDS)) / len(walks)
    assert steps == pytest.approx([0.1, 0.2, 0.3, 0.4], abs=0.015)
    assert fields[claim.NEXT[start]] == pytest.approx([0.175, 0.225, 0.275, 0.325], abs=0.015)


@pytest.mark.parametrize("method", ["GRPO", "GiGPO"])
def test_the_gradient_of_a_group(method):
    """Two episodes, won and lost, from the same field: the sum of (one-hot of a step - policy) times its advantage."""
    walks = [([12, 13], [1, 2], 1.0), ([12], [0], 0.0)]
    logits = torch.randn(len(claim.FIELDS), 4, dtype=torch.float64, requires_grad=True)
    learning.loss(logits, walks, learning.METHODS[method]).backward()
    z = 0.5**0.5  # of 1 and 0, or of 0.95 and 0, with the sample's std
    of_state = z if method == "GiGPO" else 0.0  # field 13 was visited once
    expected = torch.zeros_like(logits)
    for field, step, advantage, length in ((12, 1, z + of_state, 2), (13, 2, z, 2), (12, 0, -z - of_state, 1)):
        expected[field] -= (torch.eye(4)[step] - logits[field].softmax(0)).detach() * advantage / (2 * length)
    assert logits.grad.numpy() == pytest.approx(expected.numpy(), abs=1e-5)
