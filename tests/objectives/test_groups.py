"""Methods that use more of a group than its rewards' mean and std: Pass@k Training, GDPO, TTRL."""

import math
from math import comb

import grpo
from methods import gdpo, pass_at_k, ttrl

import pytest
import torch
from runs import assert_same_weights, differing, on_tiny, refused, run
from safetensors.torch import load_file
from test_identities import GRAD_P, SUCCESS, THETA, close, expected_gradient


class TestPassAtK:
    def test_k_1_is_grpo_with_the_population_std(self):
        rewards = (torch.rand(50, 6, generator=torch.Generator().manual_seed(0)) < 0.4).double()
        close(
            pass_at_k.compute_advantages(rewards, pass_at_k.Args(k=1)),
            grpo.compute_advantages(rewards, grpo.Args(ddof=0)),
        )

    @pytest.mark.parametrize("G,k", [(3, 2), (4, 3), (5, 2), (5, 4)])
    def test_without_the_std_it_is_the_gradient_of_pass_at_k(self, G, k):
        """It is ∇(1 - (1 - p)^k) times 1/k - 1/G: 1/k from the mean over subsets, 1/G from the baseline."""

        def without_std(rewards):
            fail = comb(int((rewards == 0).sum()), k) / comb(G, k)
            return pass_at_k.compute_advantages(rewards, pass_at_k.Args(k=k)) * (math.sqrt(fail * (1 - fail)) + 1e-6)

        exact = k * (1 - SUCCESS) ** (k - 1) * GRAD_P
        close(expected_gradient(THETA, G, without_std), (1 / k - 1 / G) * exact)

    def test_easy_prompts_have_no_signal(self):
        """Groups with fewer than k incorrect responses have no signal, and hard prompts have the most."""
        rewards = torch.tensor([[1.0] * correct + [0.0] * (8 - correct) for correct in range(9)], dtype=torch.float64)
        signal = pass_at_k.compute_advantages(rewards, pass_at_k.Args(k=4)).abs().sum(1)
        assert ((signal > 0) == torch.tensor([0, 1, 1, 1, 1, 0, 0, 0, 0], dtype=torch.bool)).all()
        assert signal[1] > signal[3] > signal[4]

    def test_k_must_be_less_than_the_group(self, capsys, tmp_path):
        assert "--k 4 must be less than --responses-per-prompt 4" in refused(capsys, tmp_path, pass_at_k, k=4)


class TestGDPO:
    """Two reward functions; the second one's range is ten times as large."""

    REWARDS = torch.tensor([[[1, 1, 0, 0], [1, 0, 0, 0]], [[0, 10, 0, 10], [0, 10, 10, 10]]], dtype=torch.float64)

    @staticmethod
    def advantages(rewards, *weights):
        return gdpo.compute_advantages(rewards, rewards.new_tensor(weights), gdpo.Args(ddof=0))

    def test_one_function_is_grpo_up_to_the_scale_of_the_batch(self):
        theirs = grpo.compute_advantages(self.REWARDS[0], grpo.Args(ddof=0))
        ours = self.advantages(self.REWARDS[:1], 0.3)
        torch.testing.assert_close(ours, theirs / theirs.std(correction=0), rtol=1e-5, atol=0)
        silent = torch.cat([self.REWARDS[:1], torch.ones(1, 2, 4, dtype=torch.float64)], 1)
        of_batch = self.advantages(silent, 1.0)
        assert (of_batch[2:] == 0).all() and (of_batch[0].abs() > 1.4).all(), "groups without signal raise the others"

    def test_the_scale_of_a_reward_does_not_matter(self):
        """A function's scale does not matter; in GRPO the one with the larger range decides alone."""
        scaled = self.REWARDS * torch.tensor([7.0, 0.01])[:, None, None]
        torch.testing.assert_close(
            self.advantages(scaled, 1, 1), self.advantages(self.REWARDS, 1, 1), rtol=1e-3, atol=1e-4
        )
        first, both, none, second = self.advantages(self.REWARDS, 1, 1)[0]
        assert both > 1 and none < -1 and first.abs() < 1e-5 and second.abs() < 1e-5
        merged = grpo.compute_advantages(self.REWARDS.sum(0), grpo.Args())[0]
        assert merged[1] > merged[3] > 0.5 and merged[0] < -0.5

    def test_it_separates_what_a_sum_merges(self):
        """(1, 0) and (0, 1) have the same sum, but the reward that fewer responses get is worth more."""
        rewards = torch.tensor([[[1, 0, 0, 0]], [[0, 1, 1, 0]]], dtype=torch.float64)
        merged = grpo.compute_advantages(rewards.sum(0), grpo.Args())[0]
        rare, common, _, _ = self.advantages(rewards, 1, 1)[0]
        assert merged[0] == merged[1] and rare > common + 0.3


class TestTTRL:
    def test_where_the_majority_is_correct_it_is_grpo(self, tiny_model, tmp_path, monkeypatch, half_correct, capsys):
        """If the majority vote equals the verdicts, the run equals GRPO's bit for bit."""

        def correct(verifier, rollouts, G):
            return torch.tensor(rollouts.correct).view(-1, G).float()

        monkeypatch.setattr(ttrl, "majority", correct)
        (ours, rows), (theirs, _) = (run(name, tmp_path / name, **on_tiny(tiny_model)) for name in ("ttrl", "grpo"))
        assert_same_weights(ours, theirs)
        assert differing(ours, load_file(tiny_model / "model.safetensors")) and 0 < rows[1]["majority_correct"] <= 1

    def test_it_has_one_reward(self, capsys, tmp_path):
        assert "leave out --reward" in refused(capsys, tmp_path, ttrl, reward=("correct",))
