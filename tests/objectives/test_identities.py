"""Relations between the methods, and gradients against exact values on small problems."""

import itertools
import math
import warnings

import cispo
import dapo
import dppo
import dr_grpo
import gmpo
import grpo
import gspo
import maxrl
import reinforce
import rloo
from tools.scripts import call

import pytest
import torch

B, T = 40, 6
OFF = 1e9  # a bound that is never reached


def rows(seed, spread=0.5):
    """Random (B, T) log-probs, advantages and a ragged mask, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    lengths = torch.randint(1, T + 1, (B, 1), generator=generator)
    mask = torch.arange(T) < lengths
    old = -normal(B, T).abs() - 0.05
    new, rollout = old + spread * normal(B, T), old + 0.3 * normal(B, T)
    return new.clamp(max=-1e-3), old, rollout.clamp(max=-1e-3), normal(B, 1).expand(B, T), mask


def gradient(script, inputs, weights=None, **settings):
    """Gradient (B, T) of a minibatch's loss, by default without TIS; `weights` replaces the script's own."""
    logp, old, rollout, advantages, mask = inputs
    args = script.Args(**({"tis_cap": 0.0} if hasattr(script.Args, "tis_cap") else {}) | settings)
    logp = logp.detach().clone().requires_grad_()
    # DPPO's ratio is to the rollout policy.
    anchor = rollout if getattr(args, "ratio_anchor", "learner") == "engine" else old
    values = {"logp": logp, "rollout_logp": rollout, "advantages": advantages, "mask": mask, "args": args}
    loss, _ = call(script.policy_loss, old_logp=anchor, **values)
    if hasattr(script, "tis_weight"):
        loss = loss * call(script.tis_weight, old_logp=old, **values)
    weights = call(script.token_weights, mask=mask.double(), args=args) if weights is None else weights
    return torch.autograd.grad((weights * loss).sum(), logp)[0]


def close(a, b):
    assert a.abs().sum() > 0, "both sides would be 0: change the inputs"
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
class TestOnPolicy:
    """At ratio 1 the clipped methods are one algorithm, up to aggregation."""

    @pytest.mark.parametrize("script", [gspo, gmpo])
    def test_response_mean_family(self, seed, script):
        inputs = rows(seed, spread=0.0)
        close(gradient(script, inputs), gradient(grpo, inputs))

    def test_token_mean_family(self, seed):
        inputs = rows(seed, spread=0.0)
        _, old, _, advantages, mask = inputs
        token_mean = mask.double() / mask.sum()
        reference = gradient(dapo, inputs)
        close(gradient(cispo, inputs), reference)
        close(gradient(dppo, (old, old, old, advantages, mask), token_mean), reference)
        close(gradient(reinforce, inputs, token_mean), reference)

    def test_dr_grpo_is_dapo_times_a_constant(self, seed):
        inputs = rows(seed, spread=0.0)
        mask = inputs[-1]
        scale = mask.double().sum() / (len(mask) * 96)
        close(gradient(dr_grpo, inputs, max_response_tokens=96), scale * gradient(dapo, inputs))


@pytest.mark.parametrize("seed", range(3))
class TestGradients:
    def test_ppo_clip_is_a_mask(self, seed):
        """The gradient of PPO's minimum is M r A; its value is not, because clipped tokens still count (1 ± ε) A."""
        inputs = rows(seed)
        logp, old, _, a, mask = inputs
        r = torch.exp(logp - old)
        keep = ~(((a > 0) & (r > 1.2)) | ((a < 0) & (r < 0.8)))
        assert not keep[mask].all()
        close(gradient(grpo, inputs), -(mask / (B * mask.double().sum(1, keepdim=True))) * keep * r * a)
        loss, _ = grpo.policy_loss(logp, old, a, grpo.Args())
        assert not torch.allclose(loss, -(keep * r * a))

    def test_gspo_is_the_same_for_every_token(self, seed):
        """Every token's gradient is -(1/B) M_i s_i A_i / |o_i|."""
        inputs = rows(seed, spread=5e-4)
        logp, old, _, a, mask = inputs
        length = mask.double().sum(1, keepdim=True)
        s = torch.exp(((logp - old) * mask).sum(1, keepdim=True) / length)
        keep = ~(((a > 0) & (s > 1 + 4e-4)) | ((a < 0) & (s < 1 - 3e-4)))
        assert keep.any() and not keep.all()
        close(gradient(gspo, inputs), -1.0 * mask * keep * s * a / (B * length))

    def test_gmpo_drops_clipped_tokens_only(self, seed):
        """Tokens that are not clipped get -(1/B) w_i A_i / |o_i|, where w_i includes the clipped ones."""
        inputs = rows(seed)
        logp, old, _, a, mask = inputs
        d, length = logp - old, mask.double().sum(1, keepdim=True)
        clipped = torch.where(a > 0, d.clamp(max=0.4), d.clamp(min=-0.4))
        w = torch.exp((clipped * mask).sum(1, keepdim=True) / length)
        close(gradient(gmpo, inputs), -1.0 * mask * (clipped == d) * w * a / (B * length))

    def test_cispo_with_ppo_mask_is_dapo(self, seed):
        """2506.13585, Eq. 6 and 7: without a cap, and with PPO's mask, CISPO's gradient is PPO's."""
        inputs = rows(seed)
        logp, old, _, a, _ = inputs
        r = torch.exp(logp - old)
        keep = ~(((a > 0) & (r > 1.28)) | ((a < 0) & (r < 0.8)))
        close(gradient(cispo, inputs, ratio_cap=OFF) * keep, gradient(dapo, inputs))

    def test_cispo_keeps_every_token(self, seed):
        inputs = rows(seed, spread=2.0)
        assert (gradient(cispo, inputs, ratio_cap=1.2)[inputs[-1]] != 0).all()

    def test_dppo_mask_forms(self, seed):
        """Eq. 12 with binary TV equals the authors' code: masked iff π - μ > δ (A > 0) or π - μ < -δ (A < 0)."""
        inputs = rows(seed)
        logp, _, rollout, a, _ = inputs
        args = dppo.Args(delta=0.1)
        _, metrics = dppo.policy_loss(logp, rollout, a, args)
        moved = logp.exp() - rollout.exp()
        assert torch.equal(metrics["clip_pos"].bool(), (a > 0) & (moved > 0.1))
        assert torch.equal(metrics["clip_neg"].bool(), (a < 0) & (moved < -0.1))
        assert metrics["clip_pos"].any() and metrics["clip_neg"].any()

    def test_dppo_is_anchored_on_the_engine(self, seed):
        logp, old, rollout, a, mask = rows(seed)
        close(gradient(dppo, (logp, old, rollout, a, mask)), gradient(dppo, (logp, old - 1.0, rollout, a, mask)))

    def test_dppo_with_the_ratio_as_divergence_is_ppo(self, seed, monkeypatch):
        """With D = |r - 1| the mask is PPO's clip, here with the rollout policy as the old policy."""
        inputs = rows(seed)
        logp, _, rollout, a, mask = inputs
        monkeypatch.setattr(dppo, "divergence", lambda mu, pi, kind: (pi[..., 0] / mu[..., 0] - 1).abs())
        weights = mask / (B * mask.double().sum(1, keepdim=True))
        close(gradient(dppo, inputs, weights, delta=0.2), gradient(grpo, (logp, rollout, rollout, a, mask)))

    def test_tis_cap(self, seed):
        """The weight min(old / rollout, C) multiplies the clipped loss of each token, and carries no gradient."""
        inputs = rows(seed)
        _, old, rollout, _, mask = inputs
        weight = torch.exp(old - rollout)
        assert (weight[mask] > 1.1).any() and (weight[mask] < 1.1).any()
        for script in (grpo, dr_grpo, dapo, cispo, maxrl, reinforce):
            capped = gradient(script, inputs) * weight.clamp(max=1.1)
            close(gradient(script, inputs, tis_cap=1.1), capped)

    def test_tis_of_a_response(self, seed):
        """For one loss per response, GSPO averages the TIS weights arithmetically, GMPO geometrically."""
        inputs = rows(seed, spread=1e-5)
        _, old, rollout, _, mask = inputs
        weight, length = torch.exp(old - rollout).clamp(max=1.1), mask.double().sum(1, keepdim=True)
        arithmetic = (weight * mask).sum(1, keepdim=True) / length
        geometric = torch.exp((weight.log() * mask).sum(1, keepdim=True) / length)
        close(gradient(gspo, inputs, tis_cap=1.1), gradient(gspo, inputs) * arithmetic)
        close(gradient(gmpo, inputs, tis_cap=1.1), gradient(gmpo, inputs) * geometric)
        assert not torch.allclose(arithmetic, geometric)

    def test_clip_higher(self, seed):
        """DAPO's higher upper bound only changes positive advantages with a ratio in (1.2, 1.28]."""
        inputs = rows(seed, spread=0.25)
        logp, old, _, a, mask = inputs
        r = torch.exp(logp - old)
        weights = mask.double() / mask.sum()
        changed = gradient(dapo, inputs) != gradient(grpo, inputs, weights)
        assert torch.equal(changed, mask & (a > 0) & (r > 1.2) & (r <= 1.28))
        assert changed.any()

    def test_equal_lengths(self, seed):
        """With equal lengths the token mean is the mean of the response means."""
        mask = torch.ones(B, T, dtype=torch.bool)
        torch.testing.assert_close(dapo.token_weights(mask), grpo.token_weights(mask))


# A policy over three outcomes, the first of which is correct: everything can be enumerated


def bandit(theta, G):
    """(probability, outcomes) of every tuple of G samples from softmax(θ)."""
    p = theta.softmax(0)
    for outcomes in itertools.product(range(3), repeat=G):
        yield math.prod(p[o].item() for o in outcomes), outcomes


def expected_gradient(theta, G, advantages):
    """E[1/G Σ_i A_i ∇ log π(o_i)] over all tuples of G samples."""
    p = theta.softmax(0)
    total = torch.zeros(3, dtype=torch.float64)
    for probability, outcomes in bandit(theta, G):
        rewards = torch.tensor([[float(o == 0) for o in outcomes]], dtype=torch.float64)
        scores = torch.eye(3, dtype=torch.float64)[list(outcomes)] - p  # ∇ log softmax
        total += probability * (advantages(rewards)[0][:, None] * scores).mean(0)
    return total


THETA = torch.tensor([-0.7, 0.4, 0.1], dtype=torch.float64)
SUCCESS = THETA.softmax(0)[0]
GRAD_P = SUCCESS * (torch.eye(3, dtype=torch.float64)[0] - THETA.softmax(0))  # ∇p


@pytest.mark.parametrize("G", [2, 3, 5])
class TestUnbiased:
    def test_rloo(self, G):
        close(expected_gradient(THETA, G, rloo.compute_advantages), GRAD_P)

    def test_group_mean_is_a_scale(self, G):
        expected = (G - 1) / G * GRAD_P
        close(expected_gradient(THETA, G, dr_grpo.compute_advantages), expected)

    def test_reinforce(self, G):
        for baseline in ("none", "ema"):
            args = reinforce.Args(baseline=baseline)
            close(expected_gradient(THETA, G, lambda r, a=args: reinforce.compute_advantages(r, 0.3, a)), GRAD_P)

    def test_maxrl_truncation_order(self, G):
        """Dropping groups without a correct response makes the estimate unbiased for T = G - 1, not for T = G."""

        def exact(order):
            return (1 - (1 - SUCCESS) ** order) / SUCCESS * GRAD_P

        actual = expected_gradient(THETA, G, maxrl.compute_advantages)
        close(actual, exact(G - 1))
        assert not torch.allclose(actual, exact(G), rtol=1e-3)


def test_rloo_is_a_multiple_of_the_mean_baseline():
    rewards = torch.rand(4, 6, dtype=torch.float64)
    centered = dr_grpo.compute_advantages(rewards)
    close(rloo.compute_advantages(rewards), centered * 6 / 5)


@pytest.mark.parametrize("G", [2, 4, 8, 16, 64])
def test_rloo_with_the_std_is_a_multiple_of_grpo(G):
    """RLOO's advantage over the group's std is GRPO's times G / (G - 1), for every mixed group."""
    rewards = torch.ones(G - 1, G, dtype=torch.float64).tril()  # row K has K + 1 correct responses
    combined = rloo.compute_advantages(rewards) / rewards.std(1, keepdim=True)
    expected = G / (G - 1) * grpo.compute_advantages(rewards, grpo.Args())
    torch.testing.assert_close(combined, expected, rtol=1e-4, atol=0)  # GRPO adds 1e-6 to the std


def test_one_response_has_no_group_advantage():
    """Alone, a response is its group's mean; the sample's standard deviation is not defined."""
    alone = torch.tensor([[0.0], [1.0]])
    assert (grpo.compute_advantages(alone, grpo.Args(ddof=0)) == 0).all()
    assert (dr_grpo.compute_advantages(alone) == 0).all()
    with warnings.catch_warnings(action="ignore"):  # torch warns that one sample has no std
        assert grpo.compute_advantages(alone, grpo.Args(ddof=1)).isnan().all()


@pytest.mark.parametrize("script,factor", [(dapo, 1), (grpo, 1), (rloo, 2), (dr_grpo, 2)])
def test_rewards_of_plus_minus_one(script, factor):
    """With rewards of ±1, as in DAPO, all advantages are the same as with 0 and 1, or all twice as large."""
    rewards = torch.ones(7, 8, dtype=torch.float64).tril()  # every mixed group of 8
    zero_one, plus_minus = (
        call(script.compute_advantages, rewards=r, args=script.Args()) for r in (rewards, 2 * rewards - 1)
    )
    torch.testing.assert_close(plus_minus, factor * zero_one, rtol=1e-4, atol=0)


@pytest.mark.parametrize("scale", [0.01, 0.1, 10, 100])
def test_the_std_cancels_scale_and_offset(scale):
    """GRPO's advantages do not depend on the scale and offset of rewards; Dr. GRPO's follow the scale."""
    rewards = torch.rand(200, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scaled = scale * rewards + 5
    torch.testing.assert_close(
        grpo.compute_advantages(scaled, grpo.Args()), grpo.compute_advantages(rewards, grpo.Args()), rtol=1e-3, atol=0
    )
    close(dr_grpo.compute_advantages(scaled), scale * dr_grpo.compute_advantages(rewards))


def test_adam_ignores_a_constant_factor_of_the_loss():
    """After 30 updates with the loss times 0.1, 1 and 10, AdamW's policies are the same, those of SGD are not."""
    answers = torch.tensor([0, 1, 2, 3, 4, 5, 2, 3])  # of which 0 and 1 are correct
    advantages = dr_grpo.compute_advantages((answers < 2).double()[None]).view(-1, 1)  # (G, 1)

    def trained(optimizer, factor, **settings):
        theta = torch.zeros(6, dtype=torch.float64, requires_grad=True)
        step = optimizer([theta], **settings)
        for _ in range(30):
            logp = theta.log_softmax(0)[answers][:, None]  # (G, 1)
            loss, _ = dr_grpo.policy_loss(logp, logp.detach(), advantages, dr_grpo.Args())
            (factor * loss.mean()).backward()
            step.step()
            step.zero_grad()
        return theta.softmax(0)[:2].sum().item()

    by_adam = [trained(torch.optim.AdamW, factor, lr=0.03, weight_decay=0.0) for factor in (0.1, 1, 10)]
    by_sgd = [trained(torch.optim.SGD, factor, lr=0.3) for factor in (0.1, 1, 10)]
    assert by_adam == pytest.approx([by_adam[1]] * 3, rel=1e-4) and by_adam[1] > 0.5
    assert by_sgd[0] < by_sgd[1] - 0.1 < by_sgd[2] - 0.2


def test_maxrl_largest_advantage():
    """The only correct response among N has advantage N - 1."""
    rewards = torch.zeros(1, 16, dtype=torch.float64)
    rewards[0, 3] = 1
    assert maxrl.compute_advantages(rewards)[0, 3].item() == pytest.approx(15)


def test_std_weighs_easy_and_hard_prompts_alike():
    """With the population's std and success rate p, advantages are √((1-p)/p) and -√(p/(1-p))."""
    for correct in range(1, 8):
        rewards = torch.tensor([[1.0] * correct + [0.0] * (8 - correct)], dtype=torch.float64)
        p = correct / 8
        advantages = grpo.compute_advantages(rewards, grpo.Args(ddof=0))
        assert advantages[0, 0].item() == pytest.approx(math.sqrt((1 - p) / p), rel=1e-4)
        assert advantages[0, -1].item() == pytest.approx(-math.sqrt(p / (1 - p)), rel=1e-4)
        sample = grpo.compute_advantages(rewards, grpo.Args(ddof=1))
        torch.testing.assert_close(sample, advantages * math.sqrt(7 / 8), rtol=1e-4, atol=0.0)
