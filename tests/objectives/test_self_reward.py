"""Self-rewarding: the policy's own judgements replace the verifier."""

from methods import self_reward

import pytest
import torch
from runs import assert_same_rows, assert_same_weights, differing, ended, on_tiny, refused, run


def test_with_a_judge_that_is_right_it_is_grpo(tiny_model, tmp_path, monkeypatch, capsys):
    """With a perfect judge the run equals GRPO's bit for bit, and not with a poor one. Odd-length texts are correct."""
    monkeypatch.setattr(
        "common.verification.Verifier.judge",
        lambda self, texts, golds, cut: [float(len(t) % 2 and not c) for t, c in zip(texts, cut, strict=True)],
    )
    settings = on_tiny(tiny_model) | {"lr": 1e-2, "answer_format": "last-number"}
    theirs, of_grpo = run("grpo", tmp_path / "grpo", **settings)
    wrong, _ = run("self_reward", tmp_path / "wrong", **settings)
    monkeypatch.setattr("common.verification.verifier.last_number", lambda text: "1" if len(text) % 2 else None)
    monkeypatch.setattr(self_reward, "scores", lambda said, args: torch.ones(len(said) // args.judgements))
    ours, own = run("self_reward", tmp_path / "right", **settings)
    assert_same_weights(ours, theirs)
    assert_same_rows(own, of_grpo, more=("judge_agreement",))
    assert [row["judge_agreement"] for row in own if "judge_agreement" in row] == [1.0, 1.0]
    assert differing(wrong, theirs)


def test_a_judgement_that_the_model_cannot_read(tiny_model, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("common.verification.verifier.last_number", lambda text: "1")
    settings = on_tiny(tiny_model) | {"answer_format": "last-number", "judge_prompt": "7" * 1000 + "{answer}"}
    assert "exceed the model's context" in ended(capsys, lambda: run("self_reward", tmp_path / "run", **settings))


@pytest.mark.parametrize(
    "texts,expected",
    [(["7+5=12 yes\n\\boxed{7+5}", "7+5=12 no"], [0.5]), (["\\boxed{7+5}", "7-5=2 no\n7+5=12 yes"], [0.0]),
     (["7+5=12 yes", "7+5=12 yes", "7+5=13 no", "7+5=13 no"], [1.0, 0.0])],
)  # fmt: skip
def test_a_judgement_accepts_in_its_first_line(texts, expected):
    """Only a judgement's first line counts; a later `yes` is about another attempt."""
    torch.testing.assert_close(self_reward.scores(texts, self_reward.Args()), torch.tensor(expected))


@pytest.mark.parametrize(
    "settings,said",
    [
        ({"accepts": "["}, "--accepts [ is no regular expression"),
        ({"judge_prompt": " right?"}, "{answer} in --judge-prompt"),
        ({"reward": ("correct=1", "docs/rewards/format.py:short=0.2")}, "leave out --reward"),
    ],
)
def test_what_cannot_judge_is_refused(settings, said, capsys, tmp_path):
    assert said in refused(capsys, tmp_path, self_reward, **settings)
