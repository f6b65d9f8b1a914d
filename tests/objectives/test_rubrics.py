"""Evolving rubrics: what the judge finds, and which criteria stay in use."""

from recipes import rubrics
from recipes.patterns import judge, marked

import pytest
import torch
from runs import refused

ARGS = rubrics.Args()
CRITERIA = ARGS.persistent + ARGS.candidates


def test_the_judge():
    """Scores by the default criteria: box; first terms, last term, goes on, boxes the result; guesses, false."""
    prompt = "9-2+26=?\n"
    responses = {
        "9-2=7\n7+26=33\n\\boxed{33}": [1, 1, 1, 1, 1, 0, 0],
        "9-2=8\n8+26=34\n\\boxed{34}": [1, 1, 1, 0, 1, 0, 1],  # the mark separates a sum from the next line
        "9-2=7\n5+26=31\n\\boxed{30}": [1, 1, 1, 0, 0, 0, 0],
        "9-2=7\n\\boxed{7}": [1, 1, 0, 0, 1, 0, 0],
        "\\boxed{33}": [1, 0, 0, 0, 0, 1, 0],
        "9-2=": [0, 1, 0, 0, 0, 0, 0],
    }
    scores = judge([prompt] * len(responses), list(responses), CRITERIA)
    assert scores.T.tolist() == list(responses.values())
    assert marked("1+2=3\n-4-5=-9\n3+4=8") == "1+2=3\n-4-5=-9\n3+4=8[false]"


def test_criteria_come_and_go():
    """Criteria that separate a group are added, those that no longer do are dropped, and the best K others stay."""
    args = rubrics.Args(persistent=("a",), candidates=("b", "c", "!d"), max_criteria=2)
    scores = torch.tensor([
        [[1.0, 1, 1, 1], [1, 1, 1, 1]],  # persistent, equal for all responses
        [[1, 0, 0, 0], [0, 0, 0, 0]],  # separates one group a little
        [[0, 0, 0, 0], [1, 1, 1, 1]],  # differs only between groups
        [[1, 1, 0, 0], [0, 1, 0, 1]],
    ])  # fmt: skip
    used = rubrics.add_criteria([0], scores)
    assert used == [0, 1, 3]
    assert rubrics.rubric_rewards(scores, used, args).tolist() == [[1, 0, 1, 1], [1, 0, 1, 0]]
    assert rubrics.drop_criteria(used, scores, args) == [0, 1, 3]
    assert rubrics.drop_criteria([0, 2, 3], scores, args) == [0, 3]
    args.max_criteria = 1
    assert rubrics.drop_criteria(used, scores, args) == [0, 3]


@pytest.mark.parametrize("name", ["persistent", "candidates"])
def test_a_criterion_that_is_no_pattern(name, capsys, tmp_path):
    said = refused(capsys, tmp_path, rubrics, **{name: ("a", "!(")})
    assert f"--{name} ( is no regular expression" in said
