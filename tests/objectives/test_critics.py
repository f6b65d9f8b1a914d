"""PPO's and VAPO's critic, and VinePPO's sampled values."""

import random

import dapo
import ppo
import reinforce
from common.engines import Engine, Request, prompt_seeds
from common.models import load_model
from common.records import Problem, Rollouts
from methods import vapo, vineppo

import pytest
import torch
from oracles import oracle
from runs import on_tiny
from safetensors.torch import load_file
from test_identities import close, gradient, rows

T = 7


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("gamma,lam", [(1.0, 0.95), (1.0, 1.0), (0.9, 0.0), (0.9, 0.7)])
def test_gae(seed, gamma, lam):
    rng = random.Random(seed)
    lengths = [rng.randint(1, T) for _ in range(6)]
    rewards = [[rng.gauss(0, 1) for _ in range(n)] for n in lengths]
    values = [[rng.gauss(0, 1) for _ in range(n)] for n in lengths]

    def pad(rows, filler):
        return torch.tensor([row + [filler] * (T - len(row)) for row in rows], dtype=torch.float64)

    mask, args = pad([[1.0] * n for n in lengths], 0.0).bool(), ppo.Args(gamma=gamma, gae_lambda=lam)
    advantages, returns = ppo.compute_advantages(pad(rewards, 0.0), pad(values, 9.0), mask, args)
    for i, n in enumerate(lengths):
        expected, targets = oracle("ppo", args).gae(rewards[i], values[i])
        torch.testing.assert_close(advantages[i, :n].tolist(), expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(returns[i, :n].tolist(), targets, rtol=1e-10, atol=1e-12)
    assert (advantages[~mask] == 0).all() and (returns[~mask] == 0).all()


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_gae_at_its_ends(lam):
    """With γ = 1, λ = 1 gives the reward minus the value, and λ = 0 the one-step error."""
    values = torch.tensor([[0.2, 0.5, 0.9]], dtype=torch.float64)
    rewards = torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    mask = torch.ones(1, 3, dtype=torch.bool)
    advantages, _ = ppo.compute_advantages(rewards, values, mask, ppo.Args(gae_lambda=lam))
    expected = 1 - values if lam else torch.tensor([[0.3, 0.4, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(advantages, expected)


@pytest.mark.parametrize("seed", range(3))
def test_ppo_without_discount_is_reinforce(seed):
    """With γ = λ = 1, on-policy and not whitened, PPO is REINFORCE with the critic's values as its baseline."""
    logp, _, _, values, mask = rows(seed)
    reward, last = torch.rand(len(mask), 1, dtype=torch.float64), mask & ~mask.roll(-1, 1)
    last[:, -1] = mask[:, -1]
    advantages, _ = ppo.compute_advantages(reward * last, values * mask, mask, ppo.Args(gae_lambda=1.0))
    baseline = reinforce.Args(baseline="ema")
    expected = reinforce.compute_advantages(reward, values, baseline) * mask
    weights = mask.double() / mask.sum()
    of_ppo, of_reinforce = (
        gradient(script, (logp, logp, logp, A, mask), weights)
        for script, A in ((ppo, advantages), (reinforce, expected))
    )
    close(of_ppo, of_reinforce)


def test_whitening_uses_the_mask():
    """Whitening gives the tokens mean 0 and sample variance 1, and padding has no effect."""
    advantages = torch.tensor([[1.0, 2.0, 99.0], [4.0, 99.0, 99.0]], dtype=torch.float64)
    mask = torch.tensor([[True, True, False], [True, False, False]])
    white = ppo.whiten(advantages, mask)
    torch.testing.assert_close(white[mask].tolist(), oracle("ppo", ppo.Args()).whiten([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]))
    assert (white[~mask] == 0).all()


@pytest.mark.parametrize("seed", range(5))
def test_value_loss(seed):
    """The loss is ½ max((V - R)², (clip(V) - R)²), and its gradient is 0 where the clipped branch wins."""
    rng = random.Random(seed)
    values, old, returns = ([rng.gauss(0, 0.5) for _ in range(20)] for _ in range(3))
    args = ppo.Args(value_clip=0.2)
    v = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    loss = ppo.value_loss(v, torch.tensor(old, dtype=torch.float64), torch.tensor(returns, dtype=torch.float64), args)
    near = [min(max(x, o - 0.2), o + 0.2) for x, o in zip(values, old, strict=True)]
    expected = [0.5 * max((x - r) ** 2, (y - r) ** 2) for x, y, r in zip(values, near, returns, strict=True)]
    torch.testing.assert_close(loss.tolist(), expected)
    slopes = oracle("ppo", args).value_slopes(values, old, returns)
    torch.testing.assert_close(torch.autograd.grad(loss.sum(), v)[0].tolist(), slopes)
    assert 0.0 in slopes


class TestVAPO:
    @staticmethod
    def episode(seed, B=6, T=9):
        generator = torch.Generator().manual_seed(seed)
        mask = torch.arange(T) < torch.randint(1, T + 1, (B, 1), generator=generator)
        rewards, values = (torch.randn(B, T, generator=generator, dtype=torch.float64) for _ in range(2))
        return rewards * mask, values, mask

    @pytest.mark.parametrize("seed", range(3))
    def test_with_one_length_it_is_gae(self, seed):
        """With equal lengths VAPO is PPO with λ = 1 - 1 / (α |o|); its returns are those of λ = 1."""
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
        """A response's weights λ^l sum to α |o| if that is more than 1; otherwise λ is 0."""
        lengths = torch.tensor([400, 100, 20, 3])
        mask = torch.arange(400) < lengths[:, None]
        rewards = torch.zeros(mask.shape, dtype=torch.float64)
        rewards[torch.arange(4), lengths - 1] = 1.0
        advantages, _ = vapo.compute_advantages(rewards, torch.zeros_like(rewards), mask, vapo.Args(gae_alpha=0.05))
        # With values of 0, a token's advantage is λ to the power of its distance from the end.
        assert advantages.sum(1).tolist() == pytest.approx([20.0, 5.0, 1.0, 1.0], rel=1e-4)
        assert advantages[0, -2].item() == pytest.approx(0.95)

    @pytest.mark.parametrize("seed", range(3))
    def test_with_one_bound_it_has_the_gradient_of_ppo(self, seed):
        inputs = rows(seed)
        close(gradient(vapo, inputs, clip_eps_low=0.2, clip_eps_high=0.2), gradient(ppo, inputs))
        close(gradient(vapo, inputs), gradient(dapo, inputs))

    def test_the_policy_waits_for_the_critic(self, tmp_path, capsys, tiny_model, half_correct):
        """For the first half of the steps the weights stay bit for bit the same, while the critic learns."""
        settings = on_tiny(tiny_model) | {"steps": 4, "run_dir": tmp_path}
        initial = load_model(vapo.Args(**settings))[0].state_dict()
        vapo.main(vapo.Args(**settings, value_pretraining=0.5, save_every=2))
        half, end = (load_file(tmp_path / f"checkpoint-00000{step}" / "model.safetensors") for step in (2, 4))
        assert all(torch.equal(half[name], initial[name]) for name in half)
        assert any(not torch.equal(end[name], initial[name]) for name in end)
        critic = torch.load(tmp_path / "checkpoint-000002" / "state.pt", weights_only=True)["critic"]
        assert critic["head.weight"].abs().max() > 0


class Chain(Engine):
    """A policy and a verdict that can be enumerated: three steps, each with its own chance to be correct, then EOS.

    A step is token 5 (correct) or 6, then token 3, the end of a line; an answer is correct with two correct steps.
    """

    chances = (0.7, 0.4, 0.2)

    def sample_shards(self, request):
        prompts, seeds = request.prompts, request.seeds
        assert request.n == 1 and len(prompts) == len(request.limits) == len(seeds) == len(set(seeds))
        rollouts = Rollouts()
        for prompt, seed in zip(prompts, seeds, strict=True):
            generator = torch.Generator().manual_seed(seed)
            begun = prompt[1:]  # the prompt has one token
            tokens = []
            for chance in self.chances[len(begun) // 2 :]:
                tokens += [5 if torch.rand(1, generator=generator) < chance else 6, 3]
            rollouts.tokens.append([*tokens, 1])
            rollouts.logps.append([0.0] * len(rollouts.tokens[-1]))
            rollouts.sampled.append([True] * len(rollouts.tokens[-1]))
            rollouts.truncated.append(False)
        return rollouts

    @staticmethod
    def is_correct(tokens):
        return tokens.count(5) >= 2

    def verify(self, problems, rollouts):
        rollouts.correct = [self.is_correct(tokens) for tokens in rollouts.tokens]
        return torch.tensor(rollouts.correct).double().view(len(problems), -1)

    def value(self, begun):
        """The exact value, over all endings."""
        steps = len(begun) // 2
        if steps == 3:
            return float(self.is_correct(begun))
        p = self.chances[steps]
        return p * self.value([*begun, 5, 3]) + (1 - p) * self.value([*begun, 6, 3])


class TestVinePPO:
    problems = (Problem("a", "1", "a", [7]), Problem("b", "1", "b", [8]))

    def estimate(self, K, **settings):
        args = vineppo.Args(value_samples=K, responses_per_prompt=4, **settings)
        chain = Chain(args)
        rollouts = chain.sample_shards(Request([[7]] * 4 + [[8]] * 4, 1, [9] * 8, 1.0, prompt_seeds(8, 1)))
        steps = [vineppo.split_steps(tokens, {3}, args) for tokens in rollouts.tokens]
        values, continuations = vineppo.estimate_values(self.problems, rollouts, steps, chain, chain.verify, 1, args)
        beginnings = {(i // 4, *row[:t]) for i, row in enumerate(rollouts.tokens) for t in [0, *steps[i][:-1]]}
        assert continuations == K * len(beginnings)
        rewards = chain.verify(self.problems, rollouts)
        return chain, args, rollouts, steps, values, rewards

    def test_many_samples_give_the_true_advantages(self):
        """With K = 4000, values are within five standard errors of those of the enumerated policy."""
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
        """However a response is split, its advantages sum to R - V(x), with "last" each token's advantage."""
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
        """The settings "min" and "mean" aggregate the values after the steps; the last of these is the outcome."""
        args = vineppo.Args(aggregate="min")
        rewards, values, steps = torch.ones(1, 1), [[0.5, 0.25, 0.75]], [[2, 4, 7]]
        assert vineppo.compute_advantages(rewards, values, steps, args).tolist() == [[-0.25] * 7]
        args.aggregate = "mean"
        assert vineppo.compute_advantages(rewards, values, steps, args)[0].tolist() == pytest.approx([1 / 6] * 7)

    def test_a_step_holds_what_begins_in_it(self):
        """The end of a line belongs to the step before it, EOS to the last step, and no token is lost."""
        args = vineppo.Args()
        assert vineppo.split_steps([5, 3, 5, 5, 3, 5, 1], {3}, args) == [2, 5, 7]
        assert vineppo.split_steps([5, 3, 5, 3, 1], {3}, args) == [2, 5]
        assert vineppo.split_steps([3], {3}, args) == [1]
        assert vineppo.split_steps([5, 3, 5, 3, 5, 3, 5, 1], {3}, vineppo.Args(max_steps=2)) == [2, 8]

    @pytest.mark.parametrize("seed", range(3))
    def test_beyond_the_advantages_it_is_ppo(self, seed):
        inputs = rows(seed)
        close(gradient(vineppo, inputs), gradient(ppo, inputs))
