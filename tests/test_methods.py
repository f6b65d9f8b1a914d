"""The further methods: their relations to one another, and what each of them claims of itself."""

import grpo
from methods import sapo

import pytest
import torch
from test_identities import close, gradient, rows


@pytest.mark.parametrize("seed", range(3))
class TestSAPO:
    def test_on_policy_it_is_grpo(self, seed):
        """For every τ; the value of a token's loss is -2/τ A there."""
        inputs = rows(seed, spread=0.0)
        for tau in (0.1, 1.0, 20.0):
            close(gradient(sapo, inputs, tau_pos=tau, tau_neg=2 * tau), gradient(grpo, inputs))
        loss, _ = sapo.policy_loss(*inputs, sapo.Args(tau_pos=4.0, tau_neg=8.0))
        a = inputs[3]
        torch.testing.assert_close(loss, torch.where(a > 0, -a / 2, -a / 4))

    def test_gate(self, seed):
        """Far from 1 the gradient is r A times 4 σ (1 - σ), on both sides, and is never quite 0."""
        inputs = rows(seed)
        logp, old, _, a, mask = inputs
        r = torch.exp(logp - old)
        p = torch.sigmoid(torch.where(a > 0, 3.0, 5.0).double() * (r - 1))
        weights = mask / (len(mask) * mask.double().sum(1, keepdim=True))
        actual = gradient(sapo, inputs, tau_pos=3.0, tau_neg=5.0)
        close(actual, -weights * 4 * p * (1 - p) * r * a)
        assert (actual[mask] != 0).all()
        _, metrics = sapo.policy_loss(*inputs, sapo.Args(tau_pos=3.0, tau_neg=5.0))
        close(metrics["gate"], 1 / torch.cosh(torch.where(a > 0, 3.0, 5.0) * (r - 1) / 2) ** 2)

    def test_without_temperature_it_is_the_plain_ratio(self, seed):
        """τ → 0: the gradient of r A, and the value too, but for the constant 2/τ A."""
        inputs = rows(seed)
        logp, old, _, a, mask = inputs
        r = torch.exp(logp - old)
        tiny = {"tau_pos": 1e-5, "tau_neg": 1e-5}
        weights = mask / (len(mask) * mask.double().sum(1, keepdim=True))
        torch.testing.assert_close(gradient(sapo, inputs, **tiny), -weights * r * a, rtol=1e-8, atol=1e-12)
        loss, _ = sapo.policy_loss(*inputs, sapo.Args(**tiny))
        torch.testing.assert_close(loss + 2 / 1e-5 * a, (1 - r) * a, rtol=1e-4, atol=1e-9)
