"""The further methods: their relations to one another, and what each of them claims of itself."""

import math

import dapo
import grpo
import ppo
from common.batch import collate
from common.data import load_problems
from common.engines import prompt_seeds
from common.models import load_model
from common.records import Problem, Rollouts
from methods import dpo, lcpo, opd, reinforce_pp, sapo, vapo, vineppo

import pytest
import torch
import torch.nn.functional as F
from conftest import SMALL, teacher_of
from safetensors.torch import load_file
from test_errors import refused
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
        for problems in load_problems(args, *load_model(args), lambda question: lcpo.with_budget(question, args)):
            for p in problems[:5]:
                assert p.prompt == f"{p.question} Think for {lcpo.budget(p.question, args)} tokens.\n"
        chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1=?"}]
        asked = f"1+1=? Think for {lcpo.budget(chat, args)} tokens."
        assert lcpo.with_budget(chat, args) == [chat[0], {"role": "user", "content": asked}]
        assert lcpo.with_budget("1+1=?", lcpo.Args(length_reward="kimi")) == "1+1=?"

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
        return [self.right(tokens) for tokens in rollouts.tokens]

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
        values = vineppo.estimate_values(self.problems, rollouts, steps, chain, chain.verify, 1, args)
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
        args.teacher = teacher_of("models/arithmetic")
        teacher, _ = load_model(args, setting="teacher")
        prompt, responses = tokenizer("7+5=?\n")["input_ids"], [[5, 6, 7, 1], [8, 1]]
        logps, sampled = [[0.0] * len(r) for r in responses], [[True] * len(r) for r in responses]
        batch = collate([prompt], Rollouts(responses, logps, [False] * 2, sampled), "cpu")
        kl = opd.full_kl(model, teacher, len(tokenizer), batch, torch.arange(2), args)
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
