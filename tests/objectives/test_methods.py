"""The further methods: their relations to one another, and what each of them claims of itself."""

import math
import re

import dapo
import grpo
import ppo
import reinforce
from common.batch import collate
from common.data import add_text, load_problems
from common.engines import prompt_seeds
from common.logprobs import vocabulary_logps
from common.models import load_model, load_teacher
from common.records import Problem, Rollouts
from methods import dcpo, dpo, entropy, lcpo, lopti, opd, reinforce_pp, reinforce_rej, sapo, vapo, vineppo

import pytest
import torch
import torch.nn.functional as F
from conftest import SMALL, teacher_of
from safetensors.torch import load_file
from test_errors import refused
from test_identities import GRAD_P, SUCCESS, THETA, close, expected_gradient, gradient, rows
from test_scripts import run


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


class TestREINFORCEpp:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)

    def test_the_mean_is_that_of_tokens(self):
        """Over tokens advantages have mean 0 and std 1; over responses neither, where lengths differ."""
        mask = torch.arange(9) < torch.tensor([9, 1, 2, 1, 5, 7, 8, 1, 3, 3, 2, 1])[:, None]
        for baseline in ("none", "group"):
            args = reinforce_pp.Args(baseline=baseline)
            raw = reinforce_pp.compute_advantages(self.rewards, args).view(-1, 1).expand(mask.shape)
            advantages = reinforce_pp.normalize(raw, mask)
            assert advantages[mask].mean().abs() < 1e-12
            assert advantages[mask].std(correction=0).item() == pytest.approx(1, abs=1e-5)
            assert advantages[:, 0].mean().abs() > 0.05
            assert (advantages[8:, 0] != 0).all(), "the group without signal has some from the others"

    def test_equal_lengths_and_no_baseline_are_a_z_score_of_the_batch(self):
        mask = torch.ones(12, 3, dtype=torch.bool)
        raw = reinforce_pp.compute_advantages(self.rewards, reinforce_pp.Args()).view(-1, 1).expand(mask.shape)
        expected = (self.rewards - self.rewards.mean()) / (self.rewards.std(correction=0) + 1e-6)
        close(reinforce_pp.normalize(raw, mask)[:, 0], expected.flatten())

    def test_every_prompt_counts_the_same(self):
        """A right and a wrong answer are as far apart in easy groups as in hard ones; under GRPO they are not."""

        def spreads(advantages):
            return (advantages.max(1).values - advantages.min(1).values)[:2]

        args = reinforce_pp.Args(baseline="group", std="rewards")
        easy, hard = spreads(reinforce_pp.compute_advantages(self.rewards, args))
        assert easy == hard > 0
        even = torch.cat([self.rewards, torch.tensor([[1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)])
        easy, even = spreads(grpo.compute_advantages(even, grpo.Args())[[0, 3]])
        assert easy > 1.1 * even

    def test_lite_ppo_has_the_std_of_rewards(self):
        """Of the raw rewards, which is larger than that of the centered ones that ScaleRL takes."""
        args = reinforce_pp.Args(baseline="group", std="rewards")
        centered = self.rewards - self.rewards.mean(1, keepdim=True)
        close(reinforce_pp.compute_advantages(self.rewards, args), centered / (self.rewards.std() + 1e-6))
        assert self.rewards.std() > 1.2 * centered.std()

    def test_with_the_clip_and_average_of_dapo_it_is_dapo(self):
        """Beyond the advantages and the average, nothing of the objective is new."""
        inputs = rows(0)
        close(gradient(reinforce_pp, inputs), gradient(grpo, inputs))
        close(gradient(reinforce_pp, inputs, average="token"), gradient(dapo, inputs, clip_eps_high=0.2))

    def test_k2_has_the_gradient_of_the_kl(self):
        """As a loss, on-policy: E[∇k2] = ∇KL(π‖ref), and E[k2] is not the KL. k3 is the other way round."""
        logits = torch.tensor([0.3, -0.5, 1.1, 0.2], dtype=torch.float64, requires_grad=True)
        logp = logits.log_softmax(0)
        ref = torch.tensor([0.1, 0.4, -0.3, 0.9], dtype=torch.float64).log_softmax(0)
        exact = (logp.exp() * (logp - ref)).sum()
        k2 = (logp.exp().detach() * reinforce_pp.kl_penalty(logp, ref)).sum()
        close(*(torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (k2, exact)))
        assert abs(k2 - exact) > 0.01 * exact

    @pytest.mark.parametrize(
        "settings,words",
        [
            ({"baseline": "group", "responses_per_prompt": 1}, "--responses-per-prompt 2 or more"),
            ({"std": "rewards"}, "--std rewards needs --baseline group"),
        ],
    )
    def test_settings_that_do_not_go_together(self, settings, words, capsys, tmp_path):
        assert words in refused(capsys, tmp_path, reinforce_pp, **settings)


class TestLopti:
    def test_without_both_it_is_grpo(self, tmp_path, capsys):
        """α = 0, and η = 0 or 1, which leaves the unlikely or the other tokens without any: to the bit."""
        expected, _ = run("grpo", tmp_path / "grpo")
        for eta in (0.0, 1.0):
            weights, _ = run("lopti", tmp_path / f"{eta}", alpha=0.0, eta=eta)
            assert all(torch.equal(weights[key], expected[key]) for key in expected)
        weights, _ = run("lopti", tmp_path / "lopti", alpha=0.0)
        assert any(not torch.equal(weights[key], expected[key]) for key in expected)

    @pytest.mark.parametrize("seed", range(3))
    def test_both_passes_are_a_whole(self, seed):
        """Each token has its gradient in one of two passes, the unlikely ones in the first, whatever η is."""
        inputs = rows(seed)
        _, old, _, _, mask = inputs
        for eta in (0.2, 0.5):
            first, then = lopti.isolate(old, mask, lopti.Args(eta=eta))
            assert torch.equal(first | then, mask) and not (first & then).any()
            assert old[first].max() <= math.log(eta) < old[then].min()
            weights = lopti.token_weights(mask.double(), lopti.Args())
            parts = [gradient(lopti, inputs, weights * part) for part in (first, then)]
            close(sum(parts), gradient(grpo, inputs))
            assert all((of_part[~part] == 0).all() for of_part, part in zip(parts, (first, then), strict=True))

    def test_a_token_at_the_bound_is_unlikely(self):
        logp = torch.tensor([[0.25, 0.5, 0.75]], dtype=torch.float64).log()
        mask = torch.ones(1, 3, dtype=torch.bool)
        first, then = lopti.isolate(logp, mask, lopti.Args(eta=logp[0, 1].exp().item()))
        assert first.tolist() == [[True, True, False]] and then.tolist() == [[False, False, True]]

    @pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
    def test_reweighting(self, alpha):
        """A certain token keeps its advantage, one of probability 0 has 1 - α of it; between them it is a line."""
        p = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
        for sign in (1.0, -1.0):
            weighed = lopti.reweight(torch.full_like(p, sign), p.log(), lopti.Args(alpha=alpha))
            torch.testing.assert_close(weighed, sign * torch.tensor([[1, 1 - alpha / 2, 1 - alpha]]).double())

    def test_the_gradient_of_a_token_grows_with_its_unlikelihood(self):
        """What both are for: in the logits it is at least 1 - π and at most √2 (1 - π) (Prop. 4.2)."""
        logits = torch.randn(200, 9, generator=torch.Generator().manual_seed(0)).double().mul(2).requires_grad_()
        logp = logits.log_softmax(1)[:, 0]
        norms = torch.autograd.grad(logp.sum(), logits)[0].norm(dim=1)
        shares = norms / (1 - logp.exp())
        assert (shares >= 1).all() and (shares <= math.sqrt(2)).all()


def gradient_at(script, ratio, q, sign, **settings):
    """Slope in its log-prob of the loss of a token with this ratio, whose old probability was q."""
    logp = torch.tensor([[math.log(ratio * q)]], dtype=torch.float64, requires_grad=True)
    old = torch.full_like(logp, math.log(q)).detach()
    mask = torch.ones(1, 1, dtype=torch.bool)
    loss, _ = script.policy_loss(logp, old, old, torch.full_like(old, sign), mask, script.Args(**settings))
    return torch.autograd.grad(loss.sum(), logp)[0].item()


class TestDCPO:
    @pytest.mark.parametrize(
        "q,low,high", [(0.9, 0.69, 1.06), (0.01, 0.005, 0.05), (1.0, 0.8, 0.5 + 0.5 * 1.8**0.5), (1e-9, 5e-10, 1e-8)]
    )
    def test_bounds(self, q, low, high):
        """Old probabilities and the new ones between which there is a gradient: those of the paper's table first."""
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
        """Where the advantage is negative and the ratio high, PPO's clip never ends; here it does at c."""
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
        """With the population's std; of each prompt on its own, one that comes twice in a batch included."""
        rewards, seen = torch.rand(10, 7, generator=torch.Generator().manual_seed(0)).double(), {}
        prompts, args = [[1], [2, 3], [1], [1], [2, 3]], dcpo.Args(ddof=0)
        for batch in rewards.split(5):
            so_far = dcpo.remember(seen, prompts, batch, args)
        assert so_far[:, 0].tolist() == [4, 3, 5, 6, 4]
        for prompt, own in (((1,), rewards[[0, 2, 3, 5, 7, 8]]), ((2, 3), rewards[[1, 4, 6, 9]])):
            assert seen[prompt] == pytest.approx((len(own), own.mean().item(), own.var(correction=0).item()))

    def test_a_group_without_signal_learns_from_the_visits_before(self):
        """At the n-th visit 1/n of what all rewards say, which is the smaller of the two."""
        args, seen, right = dcpo.Args(), {}, torch.ones(1, 4, dtype=torch.float64)
        for n in range(1, 5):
            rewards = right if n > 1 else torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
            so_far = dcpo.remember(seen, [[7]], rewards, args)
            advantages = dcpo.compute_advantages(rewards, so_far, args)
            if n > 1:
                _, mean, variance = seen[(7,)]
                close(advantages, (right - mean) / (variance**0.5 + 1e-6) / n)

    def test_the_nearer_to_zero_is_taken(self):
        """A run of bad luck at the third visit: the blend that overstates it is left."""
        rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
        so_far = torch.tensor([[3.0, 0.75, 0.19]], dtype=torch.float64)
        new, of_all = (rewards - 0.25) / (0.5 + 1e-6), (rewards - 0.75) / (0.19**0.5 + 1e-6)
        blends = torch.stack([2 / 3 * new + 1 / 3 * of_all, 1 / 3 * new + 2 / 3 * of_all])
        advantages = dcpo.compute_advantages(rewards, so_far, dcpo.Args())
        close(advantages.abs(), blends.abs().min(0).values)
        close(advantages, torch.where(rewards > 0, blends[1], blends[0]))


class TestReinforceRej:
    @pytest.mark.parametrize("G", [2, 3, 5])
    def test_expected_gradients(self, G):
        """With ±1 in all groups 2 ∇p, of right answers alone ∇p; rejected groups take their part from the former."""

        def expected(keep):
            args = reinforce_rej.Args(keep=keep)
            return expected_gradient(THETA, G, lambda r: reinforce_rej.compute_advantages(2 * r - 1, args))

        close(expected("all"), 2 * GRAD_P)
        close(expected("right"), GRAD_P)
        close(expected("mixed"), (2 - SUCCESS ** (G - 1) - (1 - SUCCESS) ** (G - 1)) * GRAD_P)

    def test_groups_of_two_are_those_of_grpo(self):
        """One right and one wrong answer have the z-scores ±1."""
        rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
        actual = reinforce_rej.compute_advantages(2 * rewards - 1, reinforce_rej.Args())
        torch.testing.assert_close(actual, grpo.compute_advantages(rewards, grpo.Args(ddof=0)), rtol=1e-5, atol=0.0)

    def test_same_advantages_same_gradient(self):
        """Beyond the advantages nothing is new: GRPO's objective with the clip, REINFORCE's with log-probs."""
        inputs = rows(0)
        mask = inputs[-1]
        close(gradient(reinforce_rej, inputs), gradient(grpo, inputs))
        weights = grpo.token_weights(mask.double(), grpo.Args())
        close(gradient(reinforce_rej, inputs, loss="log-prob"), gradient(reinforce, inputs, weights))

    def test_raft_is_supervised_learning_on_right_answers(self):
        """The gradient of their mean log-prob, wherever the ratios are."""
        logp, old, rollout, _, mask = rows(0)
        right = torch.arange(len(mask)) % 3 == 0
        rewards = (2.0 * right - 1).double().view(-1, 4)
        advantages = reinforce_rej.compute_advantages(rewards, reinforce_rej.Args(keep="right")).view(-1, 1)
        inputs = logp, old, rollout, advantages.expand(mask.shape), mask
        expected = -(mask & right[:, None]).double() / mask.sum(1, keepdim=True) / len(mask)
        close(gradient(reinforce_rej, inputs, keep="right", loss="log-prob"), expected)

    def test_a_loss_without_a_ratio_has_no_anchor(self, capsys, tmp_path):
        settings = {"loss": "log-prob", "ratio_anchor": "sampler", "tis_cap": 0.0}
        assert "--loss log-prob has no ratio" in refused(capsys, tmp_path, reinforce_rej, **settings)


class TestEntropy:
    def test_what_acts_on_nothing_is_no_control(self, tmp_path, capsys):
        """All tokens, a bonus of 0, and one that has no reason to begin: to the bit."""
        expected, _ = run("entropy", tmp_path / "none", control="none")
        idle = [
            {"control": "top-entropy", "top_share": 1.0},
            {"control": "bonus", "entropy_coef": 0.0},
            {"control": "adaptive", "target_entropy": 0.0},
        ]
        for i, settings in enumerate(idle):
            weights, _ = run("entropy", tmp_path / f"{i}", **settings)
            assert all(torch.equal(weights[key], expected[key]) for key in expected), settings
        for settings in ({"control": "top-entropy"}, {"control": "bonus"}):
            weights, _ = run("entropy", tmp_path / settings["control"], **settings)
            assert any(not torch.equal(weights[key], expected[key]) for key in expected), settings

    def test_without_control_it_is_grpo_with_the_mean_over_tokens(self):
        inputs = rows(0)
        close(gradient(entropy, inputs, control="none"), gradient(dapo, inputs, clip_eps_high=0.2))

    def test_the_covariance_is_what_entropy_costs(self):
        """A softmax whose logits follow their advantages, z + η A, loses η Cov(log π, A) of entropy, to first order."""
        logits = torch.tensor([0.3, -0.5, 1.1, 0.2], dtype=torch.float64)
        advantages = torch.tensor([1.0, -0.4, 0.7, -2.0], dtype=torch.float64)
        eta = torch.zeros((), dtype=torch.float64, requires_grad=True)
        logp = (logits + eta * advantages).log_softmax(0)
        p = logp.exp()
        (slope,) = torch.autograd.grad(-(p * logp).sum(), eta)
        p, logp = p.detach(), logp.detach()
        close(slope, -(p * (logp - (p * logp).sum()) * (advantages - (p * advantages).sum())).sum())

    def test_chosen_tokens(self):
        """The share with the highest entropy; with the largest covariance; some of those between two of them."""
        _, old, _, advantages, mask = rows(0)
        entropies = torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)).double()
        entropies[~mask] = 9.0
        N = int(mask.sum())
        chosen = entropy.choose(old, entropies, advantages, mask, entropy.Args(control="top-entropy", top_share=0.3))
        assert chosen.sum() == int(0.3 * N) and not chosen[~mask].any()
        assert entropies[chosen].min() > entropies[mask & ~chosen].max()

        cov = (old - old[mask].mean()) * (advantages - advantages[mask].mean())
        chosen = entropy.choose(old, entropies, advantages, mask, entropy.Args(control="kl-cov", cov_share=0.1))
        assert chosen.sum() == int(0.1 * N) and cov[chosen].min() > cov[mask & ~chosen].max()
        assert not chosen[~mask].any()

        inside, seen = mask & (cov >= 0.2) & (cov <= 0.9), []
        for seed in range(40):
            torch.manual_seed(seed)
            args = entropy.Args(control="clip-cov", cov_share=0.1, cov_low=0.2, cov_high=0.9)
            seen.append(entropy.choose(old, entropies, advantages, mask, args))
            assert seen[-1].sum() == int(0.1 * N) and not seen[-1][~inside].any()
        assert torch.equal(torch.stack(seen).any(0), inside), "each of them has its chance"
        few = entropy.Args(control="clip-cov", cov_share=1.0, cov_low=0.2, cov_high=0.9)
        assert torch.equal(entropy.choose(old, entropies, advantages, mask, few), inside)
        one = entropy.Args(control="kl-cov", cov_share=0.0)
        assert entropy.choose(old, entropies, advantages, mask, one).sum() == 1
        assert not entropy.choose(old, entropies, torch.zeros_like(advantages), mask, one).any(), "without signal, none"

    def test_clip_cov_drops_the_chosen_and_kl_cov_holds_them(self):
        """Gradients: 0 where it was r A; and β (1 - r) beside r A. PPO's clip has no part in either."""
        logp, old, _, a, mask = rows(0)
        chosen = mask & (old < -1)
        r = torch.exp(logp - old)
        for kind, expected in (("clip-cov", -r * a * ~chosen), ("kl-cov", -r * a + 3 * chosen * (r - 1))):
            args = entropy.Args(control=kind, kl_cov_coef=3.0)
            leaf = logp.clone().requires_grad_()
            loss, _ = entropy.policy_loss(leaf, old, old, a, mask, args)
            loss = entropy.control(loss, leaf, old, torch.zeros_like(old), chosen, 0.0, args)
            close(torch.autograd.grad(loss.sum(), leaf)[0], expected)

    def test_adaptive_bonus(self):
        """It begins at 0, rises by Δ in each step whose entropy is too low, and pays only in those; never below 0."""
        args, coef, paid = entropy.Args(entropy_coef=0.5, target_entropy=0.2), 0.0, []
        for mean in (0.3, 0.1, 0.2, 0.1, 0.3, 0.1):
            bonus, coef = entropy.adapt(coef, mean, args)
            paid.append(bonus)
        assert paid == [0.0, 0.0, 0.5, 1.0, 0.0, 1.0]

    def test_entropy_has_its_gradient_in_chunks_too(self, monkeypatch):
        """Of the whole vocabulary: the same as from all logits at once, and none where it was not asked for."""
        from common import logprobs

        torch.manual_seed(0)
        head = torch.nn.Linear(5, 11, dtype=torch.float64)
        hidden, targets = torch.randn(7, 5, dtype=torch.float64), torch.randint(11, (7, 1))
        asked = {}
        for chunk in (7, 2):
            leaf = hidden.clone().requires_grad_()
            parts = [
                logprobs.checkpoint(
                    logprobs.logp_and_entropy, h, y, head, 0.7, True, entropy_gradient=True, use_reentrant=False
                )
                for h, y in zip(leaf.split(chunk), targets.split(chunk), strict=True)
            ]
            asked[chunk] = torch.autograd.grad(torch.cat([h for _, h in parts]).sum(), leaf)[0]
        leaf = hidden.clone().requires_grad_()
        expected = torch.distributions.Categorical(logits=head(leaf).float() / 0.7).entropy().sum()
        torch.testing.assert_close(asked[7], torch.autograd.grad(expected, leaf)[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(asked[2], asked[7])
        assert not logprobs.logp_and_entropy(leaf, targets, head, 0.7, True)[1].requires_grad

    def test_bounds_in_the_wrong_order(self, capsys, tmp_path):
        assert "--cov-low is above --cov-high" in refused(capsys, tmp_path, entropy, cov_low=2.0, cov_high=1.0)


class TestLCPO:
    correct = torch.tensor([[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    lengths = torch.tensor([[10, 40, 30, 20], [7, 50, 50, 7], [3, 9, 27, 81]]).double()
    budgets = torch.tensor([[25], [50], [9]]).double()

    def rewards(self, kind, correct=correct, lengths=lengths, **settings):
        return lcpo.shape_rewards(correct, lengths, self.budgets, lcpo.Args(length_reward=kind, **settings))

    def test_without_weight_the_length_is_nothing(self):
        assert torch.equal(self.rewards("exact", alpha=0.0), self.correct)
        assert torch.equal(self.rewards("max", alpha=0.0, delta=1.0), self.correct)
        assert torch.equal(self.rewards("kimi", length_weight=0.0), self.correct)

    @pytest.mark.parametrize("kind", ["exact", "max", "kimi", "cosine"])
    def test_equal_lengths_are_grpo(self, kind):
        """Advantages are those of right and wrong alone, whatever the length costs."""
        equal = torch.full_like(self.lengths, 20)
        shaped = lcpo.compute_advantages(self.rewards(kind, lengths=equal, alpha=0.01), lcpo.Args())
        expected = grpo.compute_advantages(self.correct, grpo.Args())
        torch.testing.assert_close(shaped, expected, rtol=1e-4, atol=1e-12)

    def test_exact_is_symmetric_and_for_wrong_answers_too(self):
        longer = self.rewards("exact", lengths=self.budgets + 5 + 0 * self.lengths, alpha=0.01)
        shorter = self.rewards("exact", lengths=self.budgets - 5 + 0 * self.lengths, alpha=0.01)
        close(longer, shorter)
        close(longer, self.correct - 0.05)

    def test_max_is_a_limit(self):
        """From 1 far below the budget over δ at it to 0 beyond, and nothing for wrong answers."""
        right = torch.ones(3, 5, dtype=torch.float64)
        lengths = self.budgets + torch.tensor([-9, -2, 0, 2, 60])
        rewards = self.rewards("max", right, lengths, alpha=0.1, delta=0.5)
        close(rewards, torch.tensor([1.0, 0.7, 0.5, 0.3, 0.0], dtype=torch.float64).expand(3, 5))
        assert (self.rewards("max")[self.correct == 0] == 0).all()

    def test_kimi_compares_within_the_group(self):
        """The shortest right answer gains w/2, the longest loses it, and a wrong one never gains."""
        lam = self.rewards("kimi", length_weight=1.0) - self.correct
        expected = torch.tensor([[0.5, -0.5, -1 / 6, 0.0], [0.5, -0.5, -0.5, 0.0], [0.0, 0.0, 0.0, -0.5]])
        torch.testing.assert_close(lam[:, [0, 1, 3]], expected[:, [0, 1, 3]].double(), rtol=1e-6, atol=1e-6)
        close(self.rewards("kimi", length_weight=1.0), self.rewards("kimi", lengths=3 * self.lengths + 5))

    def test_cosine_ends(self):
        """Right: 2 falls to 1. Wrong: -10 rises to 0. At the limit itself -10 for both."""
        T = 1000
        lengths = torch.tensor([[0, T // 2, T - 1, T]]).double()
        right, wrong = (self.rewards("cosine", c * torch.ones(1, 4), lengths, max_response_tokens=T) for c in (1, 0))
        assert right[0].tolist() == pytest.approx([2.0, 1.5, 1.0, -10.0], abs=1e-4)
        assert wrong[0].tolist() == pytest.approx([-10.0, -5.0, 0.0, -10.0], abs=1e-4)

    def test_budgets(self):
        """Even over the range, one for each question, and another with another seed."""
        args = lcpo.Args(length_reward="exact", min_budget=0.4, max_response_tokens=70)
        budgets = torch.tensor([lcpo.budget(f"{i}+1=?", args) for i in range(4000)]).double()
        assert budgets.min() == 28 and budgets.max() == 70
        assert budgets.mean() == pytest.approx(49, abs=4 * 12.4 / math.sqrt(4000))
        assert budgets[:100].tolist() == [lcpo.budget(f"{i}+1=?", args) for i in range(100)]
        args.seed = 2
        assert budgets[:100].tolist() != [lcpo.budget(f"{i}+1=?", args) for i in range(100)]

    def test_prompts_tell_the_budget(self):
        """Training and held-out prompts alike; chat messages in the last one; without budgets nothing is added."""
        args = lcpo.Args(length_reward="max", eval_problems=5)
        for problems in load_problems(args, *load_model(args), lambda question: lcpo.budget_text(question, args)):
            for p in problems[:5]:
                assert p.prompt == f"{p.question} Think for {lcpo.budget(p.question, args)} tokens.\n"
        chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1=?"}]
        asked = f"1+1=? Think for {lcpo.budget(chat, args)} tokens."
        assert add_text(chat, lcpo.budget_text(chat, args)) == [chat[0], {"role": "user", "content": asked}]
        assert lcpo.budget_text("1+1=?", lcpo.Args(length_reward="kimi")) == "" and add_text(chat, "") == chat

    def test_the_budget_must_be_told(self, capsys, tmp_path):
        settings = {"length_reward": "exact", "budget_prompt": "Be brief."}
        assert "--budget-prompt must contain {n}" in refused(capsys, tmp_path, lcpo, **settings)


class TestVAPO:
    @staticmethod
    def episode(seed, B=6, T=9):
        generator = torch.Generator().manual_seed(seed)
        mask = torch.arange(T) < torch.randint(1, T + 1, (B, 1), generator=generator)
        rewards, values = (torch.randn(B, T, generator=generator, dtype=torch.float64) for _ in range(2))
        return rewards * mask, values, mask

    @pytest.mark.parametrize("seed", range(3))
    def test_with_one_length_it_is_gae(self, seed):
        """Where all have the same length, λ = 1 - 1 / (α |o|) of PPO; the returns are those of λ = 1."""
        rewards, values, _ = self.episode(seed)
        mask = torch.ones_like(values, dtype=torch.bool)
        for alpha in (0.2, 0.5, 1e6):
            advantages, returns = vapo.compute_advantages(rewards, values, mask, vapo.Args(gae_alpha=alpha, gamma=0.9))
            lam = 1 - 1 / (alpha * 9)
            expected, _ = ppo.compute_advantages(rewards, values, mask, ppo.Args(gae_lambda=lam, gamma=0.9))
            torch.testing.assert_close(advantages, expected, rtol=1e-5, atol=1e-6)
            _, monte_carlo = ppo.compute_advantages(rewards, values, mask, ppo.Args(gae_lambda=1.0, gamma=0.9))
            close(returns, monte_carlo)

    @pytest.mark.parametrize("seed", range(3))
    def test_returns_hold_no_value(self, seed):
        rewards, values, mask = self.episode(seed)
        _, returns = vapo.compute_advantages(rewards, values, mask, vapo.Args())
        _, others = vapo.compute_advantages(rewards, values + 7, mask, vapo.Args())
        close(returns, others)
        close(returns[:, 0], rewards.sum(1))

    def test_reach_of_a_reward(self):
        """λ of each response: the weights λ^l sum to α |o| where that is more than 1; below it λ is 0."""
        lengths = torch.tensor([400, 100, 20, 3])
        mask = torch.arange(400) < lengths[:, None]
        rewards = torch.zeros(mask.shape, dtype=torch.float64)
        rewards[torch.arange(4), lengths - 1] = 1.0
        advantages, _ = vapo.compute_advantages(rewards, torch.zeros_like(rewards), mask, vapo.Args(gae_alpha=0.05))
        # With values of 0 the advantage of a token is λ to the power of its distance from the end.
        assert advantages.sum(1).tolist() == pytest.approx([20.0, 5.0, 1.0, 1.0], rel=1e-4)
        assert advantages[0, -2].item() == pytest.approx(0.95)

    @pytest.mark.parametrize("seed", range(3))
    def test_with_one_bound_it_has_the_gradient_of_ppo(self, seed):
        inputs = rows(seed)
        close(gradient(vapo, inputs, clip_eps_low=0.2, clip_eps_high=0.2), gradient(ppo, inputs))
        close(gradient(vapo, inputs), gradient(dapo, inputs))

    def test_the_policy_waits_for_the_critic(self, tmp_path):
        """After the first half of the steps the weights are the initial ones to the bit, and the critic is not."""
        initial = load_model(vapo.Args())[0].state_dict()
        vapo.main(vapo.Args(**SMALL | {"steps": 4}, run_dir=tmp_path, value_pretraining=0.5, save_every=2))
        half, end = (load_file(tmp_path / f"checkpoint-00000{step}" / "model.safetensors") for step in (2, 4))
        assert all(torch.equal(half[name], initial[name]) for name in half)
        assert any(not torch.equal(end[name], initial[name]) for name in end)
        critic = torch.load(tmp_path / "checkpoint-000002" / "state.pt", weights_only=True)["critic"]
        assert critic["head.weight"].abs().max() > 0


class Chain:
    """A policy and a verdict that can be enumerated: three steps, each right with a chance of its own, then EOS.

    A step is a token 5 (right) or 6 (wrong) and the end of a line, 3; an answer is right if two steps at least are.
    """

    chances = (0.7, 0.4, 0.2)

    def generate(self, prompts, n, limits, temperature, seeds):
        assert n == 1 and len(prompts) == len(limits) == len(seeds) == len(set(seeds))
        rollouts = Rollouts()
        for prompt, seed in zip(prompts, seeds, strict=True):
            generator = torch.Generator().manual_seed(seed)
            begun = prompt[1:]  # after a prompt of one token
            tokens = []
            for chance in self.chances[len(begun) // 2 :]:
                tokens += [5 if torch.rand(1, generator=generator) < chance else 6, 3]
            rollouts.tokens.append([*tokens, 1])
            rollouts.logps.append([0.0] * len(rollouts.tokens[-1]))
            rollouts.sampled.append([True] * len(rollouts.tokens[-1]))
            rollouts.truncated.append(False)
        return rollouts

    @staticmethod
    def right(tokens):
        return tokens.count(5) >= 2

    def verify(self, problems, rollouts):
        right = [self.right(tokens) for tokens in rollouts.tokens]
        rollouts.rewards = [float(r) for r in right]
        return right

    def value(self, begun):
        """Exactly, over all endings."""
        done = len(begun) // 2
        if done == 3:
            return float(self.right(begun))
        p = self.chances[done]
        return p * self.value([*begun, 5, 3]) + (1 - p) * self.value([*begun, 6, 3])


class TestVinePPO:
    problems = (Problem("a", "1", "a", [7]), Problem("b", "1", "b", [8]))

    def estimate(self, K, **settings):
        chain, args = Chain(), vineppo.Args(value_samples=K, responses_per_prompt=4, **settings)
        rollouts = chain.generate([[7]] * 4 + [[8]] * 4, 1, [9] * 8, 1.0, prompt_seeds(8, 1))
        steps = [vineppo.split_steps(tokens, {3}, args) for tokens in rollouts.tokens]
        values, continuations = vineppo.estimate_values(self.problems, rollouts, steps, chain, chain.verify, 1, args)
        beginnings = {(i // 4, *row[:t]) for i, row in enumerate(rollouts.tokens) for t in [0, *steps[i][:-1]]}
        assert continuations == K * len(beginnings)
        rewards = torch.tensor(chain.verify(None, rollouts)).double().view(2, 4)
        return chain, args, rollouts, steps, values, rewards

    def test_many_samples_give_the_true_advantages(self):
        """K = 4000: within five standard errors, of a policy whose every ending is enumerated."""
        chain, args, rollouts, steps, values, rewards = self.estimate(4000)
        advantages = vineppo.compute_advantages(rewards, values, steps, args)
        for i, tokens in enumerate(rollouts.tokens):
            exact = [chain.value(tokens[:t]) for t in (0, 2, 4, 6)]
            assert values[i] == pytest.approx(exact[:3], abs=5 * 0.5 / 4000**0.5)
            expected = [exact[1] - exact[0]] * 2 + [exact[2] - exact[1]] * 2 + [exact[3] - exact[2]] * 3
            assert advantages[i].tolist() == pytest.approx(expected, abs=0.08)
        assert rewards.min() == 0 and rewards.max() == 1

    def test_a_state_is_valued_once(self):
        _, _, rollouts, _, values, _ = self.estimate(5)
        of_state = {}
        for i, (tokens, row) in enumerate(zip(rollouts.tokens, values, strict=True)):
            for t, v in zip((0, 2, 4), row, strict=True):
                assert of_state.setdefault((i // 4, *tokens[:t]), v) == v
        assert len(of_state) < 8 * 3

    @pytest.mark.parametrize("max_steps", [1, 2, 3, 20])
    def test_steps_add_up_to_the_outcome(self, max_steps):
        """R - V(x), however the response is split; with one step that is each token's advantage, REINFORCE's."""
        _, args, _, steps, values, rewards = self.estimate(3, max_steps=max_steps)
        advantages = vineppo.compute_advantages(rewards, values, steps, args)
        gain = rewards.flatten() - torch.tensor([row[0] for row in values])
        sums = [sum(row[end - 1].item() for end in ends) for row, ends in zip(advantages, steps, strict=True)]
        assert sums == pytest.approx(gain.tolist(), abs=1e-6)
        assert {len(ends) for ends in steps} == {min(3, max_steps)}
        args.aggregate = "last"
        for row, ends, g in zip(vineppo.compute_advantages(rewards, values, steps, args), steps, gain, strict=True):
            assert row[: ends[-1]].tolist() == pytest.approx([g.item()] * ends[-1], abs=1e-6)

    def test_aggregates(self):
        """Of the values after the steps, of which the last is the outcome."""
        args = vineppo.Args(aggregate="min")
        rewards, values, steps = torch.ones(1, 1), [[0.5, 0.25, 0.75]], [[2, 4, 7]]
        assert vineppo.compute_advantages(rewards, values, steps, args).tolist() == [[-0.25] * 7]
        args.aggregate = "mean"
        assert vineppo.compute_advantages(rewards, values, steps, args)[0].tolist() == pytest.approx([1 / 6] * 7)

    def test_a_step_holds_what_begins_in_it(self):
        """The end of a line belongs to the step before it, and EOS to the last; nothing is lost."""
        args = vineppo.Args()
        assert vineppo.split_steps([5, 3, 5, 5, 3, 5, 1], {3}, args) == [2, 5, 7]
        assert vineppo.split_steps([5, 3, 5, 3, 1], {3}, args) == [2, 5]
        assert vineppo.split_steps([3], {3}, args) == [1]
        assert vineppo.split_steps([5, 3, 5, 3, 5, 3, 5, 1], {3}, vineppo.Args(max_steps=2)) == [2, 8]

    @pytest.mark.parametrize("seed", range(3))
    def test_beyond_the_advantages_it_is_ppo(self, seed):
        inputs = rows(seed)
        close(gradient(vineppo, inputs), gradient(ppo, inputs))


class TestDPO:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0, 1.0], [0.0] * 5], dtype=torch.float64)

    def advantages(self, rewards, seed=None, **settings):
        generator = torch.Generator().manual_seed(seed or 0)
        scores = torch.randn(rewards.shape, generator=generator, dtype=torch.float64) * (seed is not None)
        return dpo.compute_advantages(scores, rewards, dpo.Args(**settings))[0]

    def test_two_responses_are_grpo(self):
        """At the reference, one right and one wrong response: GRPO's direction with token sums, β/√2 times as long."""
        rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
        ours = self.advantages(rewards, kl_beta=0.3)
        close(2 * ours, 0.3 / 2**0.5 * grpo.compute_advantages(rewards, grpo.Args()) * (1 + 1e-6 * 2**0.5))
        assert (ours[2:] == 0).all()

    def test_at_the_reference_every_group_has_the_direction_of_grpo(self):
        """Whatever its size: advantages are multiples of GRPO's, by a factor that is the group's own."""
        ours, theirs = self.advantages(self.rewards), grpo.compute_advantages(self.rewards, grpo.Args())
        for a, b in zip(ours[:2], theirs[:2], strict=True):
            close(a / a.norm(), b / b.norm())
        assert (ours[2] == 0).all() and ours.sum().abs() < 1e-12

    @pytest.mark.parametrize("seed", range(3))
    def test_it_is_the_gradient_of_the_papers_loss(self, seed):
        """Eq. 7 over all pairs of all groups, differentiated by autograd through sums of token log-probs."""
        logp, ref, _, _, mask = rows(seed)
        logp = logp.clone().requires_grad_()
        scores = ((logp - ref) * mask).sum(1)
        right = torch.randn(40, generator=torch.Generator().manual_seed(seed)) > 0
        losses = [
            -F.logsigmoid(0.7 * (scores[w] - scores[x]))
            for start in range(0, 40, 8)
            for w in range(start, start + 8)
            for x in range(start, start + 8)
            if right[w] and not right[x]
        ]
        expected = torch.stack(losses).mean()
        args = dpo.Args(kl_beta=0.7)
        advantages, loss = dpo.compute_advantages(scores.detach().view(5, 8), right.double().view(5, 8), args)
        assert loss.item() == pytest.approx(expected.item())
        inputs = logp, ref, ref, advantages.view(-1, 1).expand(mask.shape), mask
        close(gradient(dpo, inputs), torch.autograd.grad(expected, logp)[0])

    def test_pairs_that_are_told_apart_pull_less(self):
        """β σ(-m): half of β at the reference, nothing far on the right side, all of β on the wrong one."""
        rewards = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        for score, pull in ((0.0, 0.25), (1000.0, 0.0), (-1000.0, 0.5)):
            advantages, _ = dpo.compute_advantages(score * rewards, rewards, dpo.Args(kl_beta=0.5))
            assert advantages[0].tolist() == pytest.approx([pull, -pull], abs=1e-12)

    def test_only_differences_to_the_reference_count(self):
        scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        ours, shifted = (dpo.compute_advantages(s, self.rewards, dpo.Args()) for s in (scores, scores + 7.0))
        close(ours[0], shifted[0])
        close(ours[1], shifted[1])

    def test_spin_begins_as_imitation(self):
        """At the opponent, Eq. 4.7's gradient is β/2 times: up with the solution, down with one's own responses."""
        rewards = torch.tensor([[1.0, 0.0, 0.0]] * 4, dtype=torch.float64)
        ours = self.advantages(rewards, kl_beta=0.3)
        close(ours, 0.3 / 2 / 4 * torch.tensor([[1.0, -0.5, -0.5]] * 4, dtype=torch.float64))

    @pytest.mark.parametrize("seed", range(3))
    def test_spin_ends_where_both_are_the_same(self, seed):
        """A response that is the data set's solution makes a pair without a gradient, wherever the policy has gone."""
        logp, ref, _, _, mask = (x[:2] for x in rows(seed))
        logp, ref, mask = logp[:1].repeat(2, 1), ref[:1].repeat(2, 1), mask[:1].repeat(2, 1)
        scores, preferred = ((logp - ref) * mask).sum(1).view(1, 2), torch.tensor([[1.0, 0.0]])
        advantages, loss = dpo.compute_advantages(scores, preferred, dpo.Args(spin=True))
        inputs = logp, ref, ref, advantages.view(-1, 1).expand(mask.shape), mask
        each = gradient(dpo, inputs)
        assert each.abs().max() > 0 and each.sum(0).abs().max() == 0 and loss.item() == pytest.approx(math.log(2))

    def test_spin_puts_the_solution_in_front(self, capsys):
        """Whole, with its EOS, and as nothing that the engine has sampled; the policy's own responses stay."""
        args = dpo.Args(spin=True)
        model, tokenizer = load_model(args)
        train, _ = load_problems(args, model, tokenizer)
        problems = train[:2]
        solutions = dpo.reference_solutions(problems, model, tokenizer, args)
        own = Rollouts(
            [[5, 1], [6, 1], [7], [8, 1]], [[-1.0] * 2, [-2.0] * 2, [-3.0], [-4.0] * 2], [False, False, True, False]
        )
        own.sampled = [[True] * len(tokens) for tokens in own.tokens]
        paired = dpo.with_solutions(problems, own, solutions)
        assert [paired.tokens[i] for i in (1, 2, 4, 5)] == own.tokens and len(paired.tokens) == 6
        assert paired.truncated == [False, False, False, False, True, False]
        for i, problem in ((0, problems[0]), (3, problems[1])):
            assert paired.tokens[i][-1] == tokenizer.eos_token_id and not any(paired.sampled[i])
            text = tokenizer.decode(paired.tokens[i][:-1])
            assert text.splitlines()[-1] == f"\\boxed{{{problem.answer}}}"
            assert text.count("\n") == sum(map(problem.question.count, "+-")), "all steps are there"

    def test_spin_on_real_data(self, chat_model, gsm8k_file, tmp_path, capsys):
        """The whole answer column is the solution; one that does not fit is refused."""
        settings = {"model": str(chat_model), "dataset": str(gsm8k_file), "spin": True}
        weights, logged = run("dpo", tmp_path / "run", **settings)
        assert logged[1]["dpo_loss"] == pytest.approx(math.log(2), abs=1e-3) and logged[1]["grad_norm"] > 0
        own = tmp_path / "own.py"
        own.write_text("def half(problem, text, tokens, truncated): return 0.5")
        same, _ = run("dpo", tmp_path / "half", **settings, reward=(f"{own}:half",))
        assert all(torch.equal(weights[key], same[key]) for key in weights), "rewards count no more"
        args = dpo.Args(**settings)
        model, tokenizer = load_model(args)
        train, _ = load_problems(args, model, tokenizer)
        texts = tokenizer.batch_decode([*dpo.reference_solutions(train[:3], model, tokenizer, args).values()])
        assert all(re.search(r"= <<\d+\+\d+=\d+>>\d+ apples\.\n#### [\d,]+<\|im_end\|>$", text) for text in texts)
        model.config.max_position_embeddings = 100
        with pytest.raises(SystemExit):
            dpo.reference_solutions(train, model, tokenizer, args)
        assert "error: --spin: a solution of" in capsys.readouterr().err


class TestOPD:
    def test_a_teacher_that_agrees_teaches_nothing(self):
        logp, old, rollout, _, mask = rows(0)
        advantages = opd.compute_advantages(old, old)
        loss, _ = opd.policy_loss(logp, old, rollout, advantages, mask, opd.Args())
        assert (loss == 0).all()

    def test_sampled_kl_has_the_gradient_of_the_kl(self):
        """On a softmax over four tokens, by enumeration: E[-r A] has ∇KL(π‖teacher) for its gradient, and its value."""
        logits = torch.tensor([0.3, -0.5, 1.1, 0.2], dtype=torch.float64, requires_grad=True)
        logp = logits.log_softmax(0)
        teacher = torch.tensor([0.1, 0.4, -0.3, 0.9], dtype=torch.float64).log_softmax(0)
        old = logp.detach()
        loss, _ = opd.policy_loss(logp, old, old, opd.compute_advantages(teacher, old), old < 0, opd.Args())
        sampled, exact = (old.exp() * loss).sum(), (logp.exp() * (logp - teacher)).sum()
        assert sampled.item() == pytest.approx(exact.item())
        close(*(torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (sampled, exact)))

    def test_full_kl(self):
        """At each response token that of the two distributions, 0 on padding; only the student has a gradient."""
        args = opd.Args(temperature=0.7)
        model, tokenizer = load_model(args)
        args.teacher = teacher_of("worlds/sums/model")
        teacher = load_teacher(args, tokenizer)
        prompt, responses = tokenizer("7+5=?\n")["input_ids"], [[5, 6, 7, 1], [8, 1]]
        logps, sampled = [[0.0] * len(r) for r in responses], [[True] * len(r) for r in responses]
        batch = collate([prompt], Rollouts(responses, logps, [False] * 2, sampled), "cpu")
        pair = [vocabulary_logps(m, batch, torch.arange(2), len(tokenizer), args) for m in (model, teacher)]
        kl = opd.full_kl(*pair, batch.mask)
        for i, response in enumerate(responses):
            tokens = torch.tensor([prompt + response])
            p, q = ((m(input_ids=tokens).logits[0, len(prompt) - 1 : -1] / 0.7).softmax(-1) for m in (model, teacher))
            expected = (p * (p / q).log()).sum(-1)
            torch.testing.assert_close(kl[i, : len(response)], expected, rtol=1e-3, atol=1e-5)
            assert (expected > 1e-3).any()
        assert (kl[1, 2:] == 0).all()
        kl.sum().backward()
        assert any(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
        assert all(p.grad is None for p in teacher.parameters())

    @pytest.mark.parametrize("seed", range(3))
    def test_within_the_clip_it_is_grpo(self, seed):
        """With the same advantages; there is no clip beyond it."""
        inputs = rows(seed)
        close(gradient(opd, inputs), gradient(grpo, inputs, clip_eps=1e6))

    def test_the_teacher_must_fit(self, capsys, tmp_path, chat_model):
        assert "name a teacher with --teacher" in refused(capsys, tmp_path, opd)
        error = refused(capsys, tmp_path, opd, teacher="./nowhere")
        assert error.startswith("error: --teacher ") and "nowhere: no such model folder" in error
        assert "has another tokenizer than --model" in refused(capsys, tmp_path, opd, teacher=str(chat_model))
        full = {"teacher": "sums", "kl": "full", "ratio_anchor": "sampler", "tis_cap": 0.0}
        assert "--kl full has no ratio: leave out --ratio-anchor" in refused(capsys, tmp_path, opd, **full)
