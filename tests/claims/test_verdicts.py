"""Verdicts of fair trials whose rules are their own."""

from claims import court

import pytest


def made_up(arms, **differences):
    """A result on sums with these arms, whose differences from the first one are these, each ± 0.01."""
    first = next(iter(arms))
    return {
        "arms": {f"{name}, sums": arm for name, arm in arms.items()},
        "differences": {f"{first}, sums → {b}, sums": [mean, 0.01, 0.02] for b, mean in differences.items()},
    }


@pytest.mark.parametrize(
    "clipped,gain,verdict",
    [(0.1, 0.0, court.REPRODUCED), (0.1, -0.06, court.CONTRADICTED), (0.009, 0.0, court.CONTRADICTED)],
)
def test_gspo_must_clip_ten_times_as_much(clipped, gain, verdict):
    claim = court.load("gspo_clips_more_and_learns_as_well")
    result = made_up({"GRPO": {"clipped": 0.001}, "GSPO": {"clipped": clipped}}, GSPO=gain)
    assert claim.verdict(result) == verdict
    assert claim.deciding(result) == f"clipped 0.10% and {clipped:.2%}"


@pytest.mark.parametrize(
    "tokens,accuracy,verdict",
    [
        (-2.5, 0.0, court.REPRODUCED),
        (-2.5, -0.04, court.CONTRADICTED),
        (0.5, 0.0, court.CONTRADICTED),
        (-1.0, 0.0, court.INCONCLUSIVE),
        (0.0, 0.0, court.CONTRADICTED),
    ],
)
def test_shorter_responses_must_be_as_accurate(tokens, accuracy, verdict):
    arms = dict.fromkeys(("no length reward", "Kimi's"))
    result = made_up(arms, **{"Kimi's": tokens}) | {"accuracy": made_up(arms, **{"Kimi's": accuracy})}
    claim = court.load("length_reward_saves_tokens")
    assert claim.verdict(result) == verdict


@pytest.mark.parametrize(
    "few,many,loss,verdict",
    [
        (0.5, 0.4, -0.06, court.REPRODUCED),
        (0.5, 0.6, -0.06, court.INCONCLUSIVE),
        (0.5, 0.6, 0.0, court.CONTRADICTED),
    ],
)
def test_more_false_positives_must_not_help(few, many, loss, verdict):
    arms = {"q = 0": {"values": [0.5]}, "q = 0.2": {"values": [few]}, "q = 0.5": {"values": [many]}}
    claim = court.load("false_positives_damage_training")
    assert claim.verdict(made_up(arms, **{"q = 0.2": loss, "q = 0.5": loss})) == verdict


@pytest.mark.parametrize(
    "values,loss,verdict",
    [
        ([0.5], -0.06, court.REPRODUCED),
        ([0.5], -0.04, court.INCONCLUSIVE),
        ([0.5], 0.0, court.CONTRADICTED),
        ([0.2], -0.06, court.CONTRADICTED),
    ],
)
def test_without_a_kl_the_model_must_learn(values, loss, verdict):
    """The base model's accuracy is 0.3."""
    arms = {"β = 0": {"values": values, "base": 0.3}, "β = 0.04": {}, "β = 0.5": {}}
    result = made_up(arms, **{"β = 0.04": 0.0, "β = 0.5": loss})
    assert court.load("strong_kl_costs_accuracy").verdict(result) == verdict


@pytest.mark.parametrize(
    "gain,verdict", [(0.04, court.REPRODUCED), (0.025, court.INCONCLUSIVE), (0.0, court.CONTRADICTED)]
)
def test_what_a_length_limit_must_gain(gain, verdict):
    """Only the arms that the claim is about decide."""
    arms = dict.fromkeys(("incorrect", "left out", "penalty"))
    left_out, penalty = (
        made_up(arms, **{"left out": 0.1, "penalty": 0.1} | {name: gain}) for name in ("left out", "penalty")
    )
    assert court.load("overlong_filter_beats_punishment").verdict(left_out) == verdict
    assert court.load("soft_length_penalty_helps").verdict(penalty) == verdict
