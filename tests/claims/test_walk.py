"""The walk on which GiGPO's credit is compared with the true one: all episodes of two and three steps."""

from itertools import product
from types import SimpleNamespace

from claims import court

import numpy as np
import pytest

claim = court.load("same_state_turns_pay_in_long_episodes")


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
