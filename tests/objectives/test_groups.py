"""Methods whose advantages see more of a group than the mean and std of its rewards: Pass@k Training."""

import math
from math import comb

import grpo
from methods import pass_at_k

import pytest
import torch
from runs import refused
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
        """∇ (1 - (1 - p)^k) times 1/k, for the mean over subsets, less 1/G: the baseline holds the response itself."""

        def without_std(rewards):
            fail = comb(int((rewards == 0).sum()), k) / comb(G, k)
            return pass_at_k.compute_advantages(rewards, pass_at_k.Args(k=k)) * (math.sqrt(fail * (1 - fail)) + 1e-6)

        exact = k * (1 - SUCCESS) ** (k - 1) * GRAD_P
        close(expected_gradient(THETA, G, without_std), (1 / k - 1 / G) * exact)

    def test_easy_prompts_have_no_signal(self):
        """With fewer than k incorrect responses; and hard prompts have more than those in between."""
        rewards = torch.tensor([[1.0] * correct + [0.0] * (8 - correct) for correct in range(9)], dtype=torch.float64)
        signal = pass_at_k.compute_advantages(rewards, pass_at_k.Args(k=4)).abs().sum(1)
        assert ((signal > 0) == torch.tensor([0, 1, 1, 1, 1, 0, 0, 0, 0], dtype=torch.bool)).all()
        assert signal[1] > signal[3] > signal[4]

    def test_k_must_be_less_than_the_group(self, capsys, tmp_path):
        assert "--k 4 must be less than --responses-per-prompt 4" in refused(capsys, tmp_path, pass_at_k, k=4)
