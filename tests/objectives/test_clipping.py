"""SAPO and DCPO: how they relate to GRPO, and the bounds that they claim."""

import math

import grpo
from methods import dcpo, sapo

import pytest
import torch
from test_identities import close, gradient, rows


@pytest.mark.parametrize("seed", range(3))
class TestSAPO:
    def test_on_policy_it_is_grpo(self, seed):
        """On-policy, SAPO's gradient is GRPO's for every τ, and a token's loss is -2/τ A."""
        inputs = rows(seed, spread=0.0)
        for tau in (0.1, 1.0, 20.0):
            close(gradient(sapo, inputs, tau_pos=tau, tau_neg=2 * tau), gradient(grpo, inputs))
        logp, old, _, a, _ = inputs
        loss, _ = sapo.policy_loss(logp, old, a, sapo.Args(tau_pos=4.0, tau_neg=8.0))
        torch.testing.assert_close(loss, torch.where(a > 0, -a / 2, -a / 4))

    def test_gate(self, seed):
        """Each token's gradient is r A times 4 σ (1 - σ), on both sides of 1, and is never exactly 0."""
        inputs = rows(seed)
        logp, old, _, a, mask = inputs
        r = torch.exp(logp - old)
        p = torch.sigmoid(torch.where(a > 0, 3.0, 5.0).double() * (r - 1))
        weights = mask / (len(mask) * mask.double().sum(1, keepdim=True))
        actual = gradient(sapo, inputs, tau_pos=3.0, tau_neg=5.0)
        close(actual, -weights * 4 * p * (1 - p) * r * a)
        assert (actual[mask] != 0).all()
        _, metrics = sapo.policy_loss(logp, old, a, sapo.Args(tau_pos=3.0, tau_neg=5.0))
        close(metrics["gate"], 1 / torch.cosh(torch.where(a > 0, 3.0, 5.0) * (r - 1) / 2) ** 2)

    def test_without_temperature_it_is_the_plain_ratio(self, seed):
        """For τ → 0 the gradient is that of r A, and so is the value up to the constant 2/τ A."""
        inputs = rows(seed)
        logp, old, _, a, mask = inputs
        r = torch.exp(logp - old)
        tiny = {"tau_pos": 1e-5, "tau_neg": 1e-5}
        weights = mask / (len(mask) * mask.double().sum(1, keepdim=True))
        torch.testing.assert_close(gradient(sapo, inputs, **tiny), -weights * r * a, rtol=1e-8, atol=1e-12)
        loss, _ = sapo.policy_loss(logp, old, a, sapo.Args(**tiny))
        torch.testing.assert_close(loss + 2 / 1e-5 * a, (1 - r) * a, rtol=1e-4, atol=1e-9)


def gradient_at(script, ratio, q, sign, **settings):
    """Slope of a token's loss in its log-prob, for this ratio and old probability q."""
    logp = torch.tensor([[math.log(ratio * q)]], dtype=torch.float64, requires_grad=True)
    old = torch.full_like(logp, math.log(q)).detach()
    loss, _ = script.policy_loss(logp, old, torch.full_like(old, sign), script.Args(**settings))
    return torch.autograd.grad(loss.sum(), logp)[0].item()


class TestDCPO:
    @pytest.mark.parametrize(
        "q,low,high", [(0.9, 0.69, 1.06), (0.01, 0.005, 0.05), (1.0, 0.8, 0.5 + 0.5 * 1.8**0.5), (1e-9, 5e-10, 1e-8)]
    )
    def test_bounds(self, q, low, high):
        """The gradient is nonzero only between the bounds; the first ones are from the paper's table."""
        low, high = low / q, high / q
        for bound, sign, side in ((low, -1.0, -1), (high, 1.0, 1)):
            assert gradient_at(dcpo, bound * (1 - side * 0.01), q, sign) != 0
            assert gradient_at(dcpo, bound * (1 + side * 0.01), q, sign) == 0

    def test_what_a_token_changes_is_bounded(self):
        """At the bounds |r - 1| r q = ε, for every q that has a lower one."""
        for q in (0.65, 0.8, 0.95):
            low, high = 0.5 + (0.25 - 0.16 / q) ** 0.5, 0.5 + (0.25 + 0.2 / q) ** 0.5
            for ratio, eps, sign in ((low, 0.16, -1.0), (high, 0.2, 1.0)):
                assert abs(ratio - 1) * ratio * q == pytest.approx(eps)
                outwards = 1 + sign * 1e-9
                assert gradient_at(dcpo, ratio / outwards, q, sign) != 0 == gradient_at(dcpo, ratio * outwards, q, sign)

    def test_no_gradient_beyond_the_cap(self):
        """With a negative advantage PPO's clip never caps a high ratio; DCPO stops at c."""
        assert gradient_at(dcpo, 9.9, 0.01, -1.0) == pytest.approx(9.9) == gradient_at(grpo, 9.9, 0.01, -1.0)
        assert gradient_at(dcpo, 10.1, 0.01, -1.0) == 0 != gradient_at(grpo, 10.1, 0.01, -1.0)

    def test_on_policy_it_is_grpo_times_the_group(self):
        inputs = rows(0, spread=0.0)
        close(gradient(dcpo, inputs), 8 * gradient(grpo, inputs))

    def test_first_visit_is_grpo(self):
        rewards = (torch.rand(6, 5, generator=torch.Generator().manual_seed(0)) < 0.4).double()
        for ddof in (0, 1):
            args = dcpo.Args(ddof=ddof)
            so_far = dcpo.remember({}, [[i] for i in range(6)], rewards, args)
            close(
                dcpo.compute_advantages(rewards, so_far, args), grpo.compute_advantages(rewards, grpo.Args(ddof=ddof))
            )

    def test_what_was_seen_is_the_mean_and_variance_of_all_rewards(self):
        """Each prompt's count, mean and population variance are its own, even if it occurs twice in a batch."""
        rewards, seen = torch.rand(10, 7, generator=torch.Generator().manual_seed(0)).double(), {}
        prompts, args = [[1], [2, 3], [1], [1], [2, 3]], dcpo.Args(ddof=0)
        for batch in rewards.split(5):
            so_far = dcpo.remember(seen, prompts, batch, args)
        assert so_far[:, 0].tolist() == [4, 3, 5, 6, 4]
        for prompt, own in (((1,), rewards[[0, 2, 3, 5, 7, 8]]), ((2, 3), rewards[[1, 4, 6, 9]])):
            assert seen[prompt] == pytest.approx((len(own), own.mean().item(), own.var(correction=0).item()))

    def test_a_group_without_signal_learns_from_the_visits_before(self):
        """At the n-th visit it gets 1/n of the advantage over all visits' rewards, the smaller blend."""
        args, seen, correct = dcpo.Args(), {}, torch.ones(1, 4, dtype=torch.float64)
        for n in range(1, 5):
            rewards = correct if n > 1 else torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
            so_far = dcpo.remember(seen, [[7]], rewards, args)
            advantages = dcpo.compute_advantages(rewards, so_far, args)
            if n > 1:
                _, mean, variance = seen[(7,)]
                close(advantages, (correct - mean) / (variance**0.5 + 1e-6) / n)

    def test_the_nearer_to_zero_is_taken(self):
        """After an unlucky third visit, the blend that is closer to 0 is used."""
        rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
        so_far = torch.tensor([[3.0, 0.75, 0.19]], dtype=torch.float64)
        new, of_all = (rewards - 0.25) / (0.5 + 1e-6), (rewards - 0.75) / (0.19**0.5 + 1e-6)
        blends = torch.stack([2 / 3 * new + 1 / 3 * of_all, 1 / 3 * new + 2 / 3 * of_all])
        advantages = dcpo.compute_advantages(rewards, so_far, dcpo.Args())
        close(advantages.abs(), blends.abs().min(0).values)
        close(advantages, torch.where(rewards > 0, blends[1], blends[0]))
