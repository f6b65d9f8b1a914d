"""Rewards that depend on length: L1's LCPO, Kimi k1.5's, and the cosine."""

import math

import grpo
from common.data import add_text, load_problems
from common.models import load_model
from methods import cosine_length, kimi_length, lcpo, lcpo_max
from tools.scripts import call

import pytest
import torch
from runs import refused
from test_identities import close

CORRECT = torch.tensor([[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
LENGTHS = torch.tensor([[10, 40, 30, 20], [7, 50, 50, 7], [3, 9, 27, 81]]).double()
BUDGETS = torch.tensor([[25], [50], [9]]).double()


def rewards(script, correct=CORRECT, lengths=LENGTHS, **settings):
    args = script.Args(**settings)
    return call(script.shape_rewards, correct=correct, lengths=lengths, budgets=BUDGETS, args=args)


class TestLengthRewards:
    def test_without_weight_the_length_is_nothing(self):
        assert torch.equal(rewards(lcpo, alpha=0.0), CORRECT)
        assert torch.equal(rewards(lcpo_max, alpha=0.0, delta=1.0), CORRECT)
        assert torch.equal(rewards(kimi_length, length_weight=0.0), CORRECT)

    @pytest.mark.parametrize(
        "script,settings",
        [
            (lcpo, {"alpha": 0.01}),
            (lcpo_max, {"alpha": 0.01}),
            (kimi_length, {}),
            (cosine_length, {}),
        ],
    )
    def test_equal_lengths_are_grpo(self, script, settings):
        """With equal lengths, advantages depend only on correctness."""
        shaped = rewards(script, lengths=torch.full_like(LENGTHS, 20), **settings)
        expected = grpo.compute_advantages(CORRECT, grpo.Args())
        torch.testing.assert_close(script.compute_advantages(shaped, script.Args()), expected, rtol=1e-4, atol=1e-12)

    def test_exact_is_symmetric_and_for_incorrect_answers_too(self):
        longer, shorter = (rewards(lcpo, lengths=BUDGETS + d + 0 * LENGTHS, alpha=0.01) for d in (5, -5))
        close(longer, shorter)
        close(longer, CORRECT - 0.05)

    def test_max_is_a_limit(self):
        """Correct answers get 1 far below the budget, δ at it and 0 far above; incorrect ones get 0."""
        lengths = BUDGETS + torch.tensor([-9, -2, 0, 2, 60])
        shaped = rewards(lcpo_max, torch.ones(3, 5, dtype=torch.float64), lengths, alpha=0.1, delta=0.5)
        close(shaped, torch.tensor([1.0, 0.7, 0.5, 0.3, 0.0], dtype=torch.float64).expand(3, 5))
        assert (rewards(lcpo_max)[CORRECT == 0] == 0).all()

    def test_kimi_compares_within_the_group(self):
        """The shortest correct answer gains w/2, the longest loses it, and an incorrect one never gains."""
        bonus = rewards(kimi_length) - CORRECT
        expected = torch.tensor([[0.5, -0.5, -1 / 6, 0.0], [0.5, -0.5, -0.5, 0.0], [0.0, 0.0, 0.0, -0.5]])
        torch.testing.assert_close(bonus[:, [0, 1, 3]], expected[:, [0, 1, 3]].double(), rtol=1e-6, atol=1e-6)
        close(rewards(kimi_length), rewards(kimi_length, lengths=3 * LENGTHS + 5))

    def test_cosine_ends(self):
        """Correct answers get 2 to 1, incorrect ones -10 to 0, and all get -10 at the limit."""
        T = 1000
        lengths = torch.tensor([[0, T // 2, T - 1, T]]).double()
        correct, incorrect = (
            rewards(cosine_length, c * torch.ones(1, 4), lengths, max_response_tokens=T) for c in (1, 0)
        )
        assert correct[0].tolist() == pytest.approx([2.0, 1.5, 1.0, -10.0], abs=1e-4)
        assert incorrect[0].tolist() == pytest.approx([-10.0, -5.0, 0.0, -10.0], abs=1e-4)

    def test_budgets(self):
        """Budgets are uniform over the range, fixed for each question, and different with another seed."""
        args = lcpo.Args(min_budget=0.4, max_response_tokens=70)
        budgets = torch.tensor([lcpo.budget(f"{i}+1=?", args) for i in range(4000)]).double()
        assert budgets.min() == 28 and budgets.max() == 70
        assert budgets.mean() == pytest.approx(49, abs=4 * 12.4 / math.sqrt(4000))
        assert budgets[:100].tolist() == [lcpo.budget(f"{i}+1=?", args) for i in range(100)]
        args.seed = 2
        assert budgets[:100].tolist() != [lcpo.budget(f"{i}+1=?", args) for i in range(100)]

    def test_prompts_tell_the_budget(self):
        """Training, held-out and chat prompts (in the last message) state the budget; an empty text adds nothing."""
        args = lcpo.Args(eval_problems=5)
        for problems in load_problems(args, *load_model(args), lambda question: lcpo.budget_text(question, args)):
            for p in problems[:5]:
                assert p.prompt == f"{p.question} within {lcpo.budget(p.question, args)} tokens\n"
        chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1=?"}]
        asked = f"1+1=? within {lcpo.budget(chat, args)} tokens"
        assert add_text(chat, lcpo.budget_text(chat, args)) == [chat[0], {"role": "user", "content": asked}]
        assert add_text(chat, "") == chat

    def test_the_budget_must_be_told(self, capsys, tmp_path):
        error = refused(capsys, tmp_path, lcpo, budget_prompt="Be brief.")
        assert "--budget-prompt must contain {n}" in error
