"""REINFORCE++, Lite PPO, Lopti, Advantage Reweighting, Reinforce-Rej and RAFT: other advantages than GRPO's."""

import math

import dapo
import grpo
import reinforce
from methods import (
    advantage_reweighting,
    lite_ppo,
    lopti,
    raft,
    raft_pp,
    reinforce_pp,
    reinforce_pp_baseline,
    reinforce_rej,
)

import pytest
import torch
from runs import assert_same_weights, differing, on_tiny, refused, run
from test_identities import GRAD_P, SUCCESS, THETA, close, expected_gradient, gradient, rows

REWARDS = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)


def without_kl(rewards, mask):
    """REINFORCE++'s token advantages for B responses."""
    raw = reinforce_pp.compute_advantages(rewards, torch.zeros(mask.shape), reinforce_pp.Args())
    return reinforce_pp.normalize(raw, mask)


def with_baseline(rewards, mask):
    """REINFORCE++-baseline's token advantages."""
    raw = reinforce_pp_baseline.compute_advantages(rewards).view(-1, 1).expand(mask.shape)
    return reinforce_pp_baseline.normalize(raw, mask)


class TestREINFORCEpp:
    @pytest.mark.parametrize("of_tokens", [without_kl, with_baseline])
    def test_the_mean_is_that_of_tokens(self, of_tokens):
        """Advantages have mean 0 and std 1 over tokens, but not over responses of different lengths."""
        mask = torch.arange(9) < torch.tensor([9, 1, 2, 1, 5, 7, 8, 1, 3, 3, 2, 1])[:, None]
        advantages = of_tokens(REWARDS, mask)
        assert advantages[mask].mean().abs() < 1e-12
        assert advantages[mask].std(correction=0).item() == pytest.approx(1, abs=1e-5)
        assert advantages[:, 0].mean().abs() > 0.05
        assert (advantages[8:, 0] != 0).all(), "the group without signal has some from the others"

    def test_equal_lengths_and_no_baseline_are_a_z_score_of_the_batch(self):
        expected = (REWARDS - REWARDS.mean()) / (REWARDS.std(correction=0) + 1e-6)
        close(without_kl(REWARDS, torch.ones(12, 3, dtype=torch.bool))[:, 0], expected.flatten())

    def test_the_kl_counts_from_a_token_to_the_end(self):
        """A token's advantage includes the KL of all later tokens, so the last token's KL lowers all advantages."""
        kl, args = torch.zeros(12, 3, dtype=torch.float64), reinforce_pp.Args(kl_beta=0.1)
        kl[5, 2] = 2.0
        expected = REWARDS.view(-1, 1).expand(12, 3).clone()
        expected[5] -= 0.1 * 2.0
        close(reinforce_pp.compute_advantages(REWARDS, kl, args), expected)
        kl = kl.flip(1)  # a KL at the first token lowers only that one
        expected = REWARDS.view(-1, 1).expand(12, 3).clone()
        expected[5, 0] -= 0.1 * 2.0
        close(reinforce_pp.compute_advantages(REWARDS, kl, args), expected)

    def test_every_prompt_counts_the_same(self):
        """In Lite PPO, correct and incorrect answers are equally far apart in easy and hard groups."""

        def spreads(advantages):
            return (advantages.max(1).values - advantages.min(1).values)[:2]

        easy, hard = spreads(lite_ppo.compute_advantages(REWARDS))
        assert easy == hard > 0
        even = torch.cat([REWARDS, torch.tensor([[1.0, 1.0, 0.0, 0.0]], dtype=torch.float64)])
        easy, even = spreads(grpo.compute_advantages(even, grpo.Args())[[0, 3]])
        assert easy > 1.1 * even, "under GRPO they are not"

    def test_lite_ppo_has_the_std_of_rewards(self):
        """Lite PPO uses the std of raw rewards, which is larger than that of ScaleRL's centered ones."""
        centered = REWARDS - REWARDS.mean(1, keepdim=True)
        close(lite_ppo.compute_advantages(REWARDS), centered / (REWARDS.std() + 1e-6))
        assert REWARDS.std() > 1.2 * centered.std()

    def test_beyond_advantages_they_are_grpo(self):
        """Apart from advantages the objective is GRPO's, in Lite PPO with DAPO's average."""
        inputs = rows(0)
        close(gradient(reinforce_pp, inputs), gradient(grpo, inputs))
        close(gradient(reinforce_pp_baseline, inputs), gradient(grpo, inputs))
        close(gradient(lite_ppo, inputs), gradient(dapo, inputs, clip_eps_high=0.2))

    def test_k2_has_the_gradient_of_the_kl(self):
        """On-policy, E[∇k2] = ∇KL(π‖ref), but E[k2] is not the KL; k3 is the opposite."""
        logits = torch.tensor([0.3, -0.5, 1.1, 0.2], dtype=torch.float64, requires_grad=True)
        logp = logits.log_softmax(0)
        ref = torch.tensor([0.1, 0.4, -0.3, 0.9], dtype=torch.float64).log_softmax(0)
        exact = (logp.exp() * (logp - ref)).sum()
        k2 = (logp.exp().detach() * reinforce_pp_baseline.kl_penalty(logp, ref)).sum()
        close(*(torch.autograd.grad(loss, logits, retain_graph=True)[0] for loss in (k2, exact)))
        assert abs(k2 - exact) > 0.01 * exact

    def test_a_baseline_needs_a_group(self, capsys, tmp_path):
        assert "--responses-per-prompt" in refused(capsys, tmp_path, reinforce_pp_baseline, responses_per_prompt=1)


class TestLopti:
    def test_with_one_part_it_is_grpo(self, tmp_path, capsys, tiny_model, half_correct):
        """With η = 0 or 1, where one of the passes is empty, or with α = 0, runs equal GRPO's bit for bit."""
        expected, _ = run("grpo", tmp_path / "grpo", **on_tiny(tiny_model))
        neutral = [("lopti", {"eta": 0.0}), ("lopti", {"eta": 1.0}), ("advantage_reweighting", {"alpha": 0.0})]
        for i, (name, settings) in enumerate(neutral):
            weights, _ = run(name, tmp_path / f"{i}", **on_tiny(tiny_model), **settings)
            assert_same_weights(weights, expected)
        for name, settings in (("lopti", {"eta": 0.03}), ("advantage_reweighting", {})):
            weights, _ = run(name, tmp_path / name, **on_tiny(tiny_model), **settings)
            assert differing(weights, expected), f"{name} is GRPO"

    @pytest.mark.parametrize("seed", range(3))
    def test_both_passes_are_a_whole(self, seed):
        """For any η, each token has its gradient in exactly one pass, and unlikely tokens come first."""
        inputs = rows(seed)
        _, old, _, _, mask = inputs
        for eta in (0.2, 0.5):
            first, then = lopti.isolate(old, mask, lopti.Args(eta=eta))
            assert torch.equal(first | then, mask) and not (first & then).any()
            assert old[first].max() <= math.log(eta) < old[then].min()
            weights = lopti.token_weights(mask.double())
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
        """A certain token keeps its advantage, one with probability 0 keeps 1 - α of it, linearly in between."""
        p = torch.tensor([[1.0, 0.5, 0.0]], dtype=torch.float64)
        for sign in (1.0, -1.0):
            weighed = advantage_reweighting.reweight(
                torch.full_like(p, sign), p.log(), advantage_reweighting.Args(alpha=alpha)
            )
            torch.testing.assert_close(weighed, sign * torch.tensor([[1, 1 - alpha / 2, 1 - alpha]]).double())

    def test_the_gradient_of_a_token_grows_with_its_unlikelihood(self):
        """The norm of a token's gradient in the logits is between 1 - π and √2 (1 - π) (Prop. 4.2)."""
        logits = torch.randn(200, 9, generator=torch.Generator().manual_seed(0)).double().mul(2).requires_grad_()
        logp = logits.log_softmax(1)[:, 0]
        norms = torch.autograd.grad(logp.sum(), logits)[0].norm(dim=1)
        ratios = norms / (1 - logp.exp())
        assert (ratios >= 1).all() and (ratios <= math.sqrt(2)).all()


def signed(script):
    """Advantages for rewards of 0 and 1, which the loop turns into ±1."""
    return lambda rewards: script.compute_advantages(2 * rewards - 1)


class TestReinforceRej:
    @pytest.mark.parametrize("G", [2, 3, 5])
    def test_expected_gradients(self, G):
        """±1 in all groups gives 2 ∇p, correct answers alone ∇p, and rejecting groups removes their part of 2 ∇p."""
        close(expected_gradient(THETA, G, lambda rewards: 2 * rewards - 1), 2 * GRAD_P)
        close(expected_gradient(THETA, G, signed(raft)), GRAD_P)
        close(expected_gradient(THETA, G, signed(raft_pp)), GRAD_P)
        of_mixed = (2 - SUCCESS ** (G - 1) - (1 - SUCCESS) ** (G - 1)) * GRAD_P
        close(expected_gradient(THETA, G, signed(reinforce_rej)), of_mixed)

    def test_groups_of_two_are_those_of_grpo(self):
        """In groups of two, one correct and one incorrect answer have z-scores ±1, as in GRPO."""
        rewards = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
        expected = grpo.compute_advantages(rewards, grpo.Args(ddof=0))
        torch.testing.assert_close(signed(reinforce_rej)(rewards), expected, rtol=1e-5, atol=0.0)

    def test_same_advantages_same_gradient(self):
        """Apart from advantages, the objectives are GRPO's with the clip or REINFORCE's with log-probs."""
        inputs = rows(0)
        close(gradient(reinforce_rej, inputs), gradient(grpo, inputs))
        close(gradient(raft_pp, inputs), gradient(grpo, inputs))
        close(gradient(raft, inputs), gradient(reinforce, inputs, grpo.token_weights(inputs[-1].double())))

    def test_raft_is_supervised_learning_on_correct_answers(self):
        """RAFT's gradient is that of the correct answers' mean log-prob, for any ratios."""
        logp, old, rollout, _, mask = rows(0)
        correct = torch.arange(len(mask)) % 3 == 0
        advantages = signed(raft)(correct.double().view(-1, 4)).view(-1, 1)
        inputs = logp, old, rollout, advantages.expand(mask.shape), mask
        expected = -(mask & correct[:, None]).double() / mask.sum(1, keepdim=True) / len(mask)
        close(gradient(raft, inputs), expected)
