"""Control of the entropy: bonus, adaptive bonus, forking tokens, Clip-Cov, KL-Cov."""

import dapo
from common import logprobs
from methods import adaptive_entropy, clip_cov, entropy_bonus, forking_tokens, kl_cov

import pytest
import torch
from runs import assert_same_weights, differing, on_tiny, refused, run
from test_identities import close, gradient, rows


class TestEntropy:
    def test_what_acts_on_nothing_is_no_control(self, tmp_path, capsys, tiny_model, half_correct):
        """A bonus of 0, an adaptive one that never starts, and all tokens as forking tokens change no bit."""
        settings = on_tiny(tiny_model)
        expected, _ = run("entropy_bonus", tmp_path / "none", **settings, entropy_coef=0.0)
        idle = {"adaptive_entropy": {"target_entropy": 0.0}, "forking_tokens": {"top_fraction": 1.0}}
        for name, own in idle.items():
            weights, _ = run(name, tmp_path / name, **settings, **own)
            assert_same_weights(weights, expected)
        for name in ("entropy_bonus", "forking_tokens"):
            weights, _ = run(name, tmp_path / f"default-{name}", **settings)
            assert differing(weights, expected), f"{name} has no effect"

    @pytest.mark.parametrize("script", [entropy_bonus, adaptive_entropy, forking_tokens])
    def test_without_control_it_is_grpo_with_the_mean_over_tokens(self, script):
        inputs = rows(0)
        close(gradient(script, inputs), gradient(dapo, inputs, clip_eps_high=0.2))

    def test_the_covariance_is_what_entropy_costs(self):
        """A softmax with logits z + η A loses entropy η Cov(log π, A), to first order."""
        counts = torch.tensor([4, 1, 3, 2])  # of the four tokens in a batch, and in proportion their probabilities
        advantages = torch.tensor([1.0, -0.4, 0.7, -2.0], dtype=torch.float64)
        eta = torch.zeros((), dtype=torch.float64, requires_grad=True)
        logp = (counts.double().log() + eta * advantages).log_softmax(0)
        (slope,) = torch.autograd.grad(-(logp.exp() * logp).sum(), eta)
        old, batch = (values.detach().repeat_interleave(counts)[None] for values in (logp, advantages))  # (1, 10)
        close(slope, -kl_cov.covariance(old, batch, torch.ones_like(old, dtype=torch.bool)).mean())

    def test_forking_tokens(self):
        """The chosen tokens are the fraction with the highest entropy."""
        mask = rows(0)[-1]
        entropies = torch.rand(mask.shape, generator=torch.Generator().manual_seed(1)).double()
        entropies[~mask] = 9.0
        chosen = forking_tokens.forking_tokens(entropies, mask, forking_tokens.Args(top_fraction=0.3))
        assert chosen.sum() == int(0.3 * mask.sum()) and not chosen[~mask].any()
        assert entropies[chosen].min() > entropies[mask & ~chosen].max()

    def test_tokens_chosen_by_their_covariance(self):
        """KL-Cov chooses the tokens with the largest covariance; Clip-Cov draws among those between two bounds."""
        _, old, _, advantages, mask = rows(0)
        N = int(mask.sum())
        cov = kl_cov.covariance(old, advantages, mask)
        close(cov[mask], ((old - old[mask].mean()) * (advantages - advantages[mask].mean()))[mask])
        chosen = kl_cov.choose_tokens(cov, mask, kl_cov.Args(cov_fraction=0.1))
        assert chosen.sum() == int(0.1 * N) and cov[chosen].min() > cov[mask & ~chosen].max()
        assert not chosen[~mask].any()
        assert kl_cov.choose_tokens(cov, mask, kl_cov.Args(cov_fraction=0.0)).sum() == 1
        assert not kl_cov.choose_tokens(0 * cov, mask, kl_cov.Args(cov_fraction=0.1)).any(), "chosen without signal"

        inside, seen = mask & (cov >= 0.2) & (cov <= 0.9), []
        bounds = {"cov_low": 0.2, "cov_high": 0.9}
        for seed in range(40):
            torch.manual_seed(seed)
            seen.append(clip_cov.choose_tokens(cov, mask, clip_cov.Args(cov_fraction=0.1, **bounds)))
            assert seen[-1].sum() == int(0.1 * N) and not seen[-1][~inside].any()
        assert torch.equal(torch.stack(seen).any(0), inside), "each of them has its chance"
        assert torch.equal(clip_cov.choose_tokens(cov, mask, clip_cov.Args(cov_fraction=1.0, **bounds)), inside)

    @pytest.mark.parametrize("script", [clip_cov, kl_cov])
    def test_the_clip_of_ppo_has_no_part_in_it(self, script):
        logp, old, _, a, mask = inputs = rows(0)
        close(gradient(script, inputs), -(mask.double() / mask.sum()) * torch.exp(logp - old) * a)

    def test_the_kl_that_holds_tokens(self):
        """KL-Cov's loop adds k3 of KL(π_old ‖ π_θ) on the chosen tokens; its gradient is r - 1."""
        logp, old, _, _, _ = rows(0)
        leaf = logp.clone().requires_grad_()
        (slope,) = torch.autograd.grad(kl_cov.kl_penalty(old, leaf).sum(), leaf)
        close(slope, torch.exp(logp - old) - 1)

    def test_adaptive_bonus(self):
        """The coefficient starts at 0, rises by Δ at low entropy, else falls, not below 0; it acts at low entropy."""
        args, coef, paid = adaptive_entropy.Args(entropy_step=0.5, target_entropy=0.2), 0.0, []
        for mean in (0.3, 0.1, 0.2, 0.1, 0.3, 0.1):
            bonus, coef = adaptive_entropy.adapt(coef, mean, args)
            paid.append(bonus)
        assert paid == [0.0, 0.0, 0.5, 1.0, 0.0, 1.0]

    def test_entropy_has_its_gradient_in_chunks_too(self, monkeypatch):
        """Chunked entropy has the gradient of all logits at once, and none unless it is requested."""
        torch.manual_seed(0)
        head = torch.nn.Linear(5, 11, dtype=torch.float64)
        hidden, targets = torch.randn(7, 5, dtype=torch.float64), torch.randint(11, (7, 1))
        asked, with_gradient = {}, {"with_entropy": True, "entropy_gradient": True}
        for chunk in (7, 2):
            leaf = hidden.clone().requires_grad_()
            parts = [
                logprobs.checkpoint(
                    logprobs.logp_and_entropy, h, y, head, 0.7, True, **with_gradient, use_reentrant=False
                )
                for h, y in zip(leaf.split(chunk), targets.split(chunk), strict=True)
            ]
            asked[chunk] = torch.autograd.grad(torch.cat([h for _, h in parts]).sum(), leaf)[0]
        leaf = hidden.clone().requires_grad_()
        expected = torch.distributions.Categorical(logits=head(leaf).float() / 0.7).entropy().sum()
        torch.testing.assert_close(asked[7], torch.autograd.grad(expected, leaf)[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(asked[2], asked[7])
        without = {"with_entropy": True, "entropy_gradient": False}
        assert not logprobs.logp_and_entropy(leaf, targets, head, 0.7, True, **without)[1].requires_grad

    def test_bounds_in_the_wrong_order(self, capsys, tmp_path):
        assert "--cov-low" in refused(capsys, tmp_path, clip_cov, cov_low=2.0, cov_high=1.0)
