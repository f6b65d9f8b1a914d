"""Every method's advantages, weights, loss and gradient against closed forms, in float64.

The oracles are written token by token in plain Python, from the papers' formulas, and share
nothing with the scripts. Inputs are fresh for each seed: rows of different lengths, both signs of
the advantage, ratios on both sides of every bound, and three different sets of log-probs.
"""

import math
import random
from statistics import pstdev, stdev

import cispo
import dapo
import dppo
import dr_grpo
import gmpo
import grpo
import gspo
import maxrl
import ppo
import reinforce
import rloo

import pytest
import torch

SEEDS = range(5)
T = 7


def make_case(seed, spread=0.5):
    """Random inputs of policy_loss as nested lists: rows of 1 to T tokens, log-probs below 0."""
    rng = random.Random(seed)
    lengths = [rng.randint(1, T) for _ in range(8)]
    new = [[-rng.uniform(0.1, 2.5) for _ in range(n)] for n in lengths]
    old = [[min(-0.01, x + rng.gauss(0, spread)) for x in row] for row in new]
    rollout = [[min(-0.01, x + rng.gauss(0, 0.6)) for x in row] for row in old]
    advantages = [rng.choice((-1, 1)) * rng.uniform(0.2, 2) for _ in lengths]
    return new, old, rollout, advantages


def to_tensors(case, width=T):
    """The same case as (B, T) tensors; padding is filled with values that would show if they leaked."""
    new, old, rollout, advantages = case

    def pad(rows, filler):
        return torch.tensor([row + [filler] * (width - len(row)) for row in rows], dtype=torch.float64)

    mask = pad([[1.0] * len(row) for row in new], 0.0).bool()
    expanded = torch.tensor(advantages, dtype=torch.float64)[:, None].expand(mask.shape)
    return pad(new, -0.3).requires_grad_(), pad(old, -1.7), pad(rollout, -2.9), expanded, mask


def total_loss(script, case, args, width=T):
    """The scalar loss of a whole minibatch and its gradient (B, T), as the loop of the script forms them."""
    logp, old, rollout, advantages, mask = to_tensors(case, width)
    loss, _ = script.policy_loss(logp, old, rollout, advantages, mask, args)
    total = (script.token_weights(mask.double(), args) * loss).sum()
    (gradient,) = torch.autograd.grad(total, logp)
    assert (gradient[~mask] == 0).all(), "padding has a gradient"
    return total.item(), gradient


def oracle(case, token_weight, row_terms):
    """Sum of weight * loss over tokens, and its gradient; `row_terms` gives a row's losses and their slopes."""
    new, old, rollout, advantages = case
    total, gradient = 0.0, torch.zeros(len(new), T, dtype=torch.float64)
    for i, rows in enumerate(zip(new, old, rollout, strict=True)):
        weight = token_weight([len(row) for row in new], i)
        losses, slopes = row_terms(*rows, advantages[i])
        total += weight * sum(losses)
        for t, slope in enumerate(slopes):
            gradient[i, t] = weight * slope
    return total, gradient


def check(script, args, token_weight, row_terms, spread=0.5):
    for seed in SEEDS:
        case = make_case(seed, spread)
        value, gradient = total_loss(script, case, args)
        expected_value, expected_gradient = oracle(case, token_weight, row_terms)
        assert value == pytest.approx(expected_value, rel=1e-10, abs=1e-12)
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("script", [reinforce, rloo, grpo, ppo, dr_grpo, dapo, cispo, gspo, gmpo, dppo, maxrl])
def test_padding_width_changes_nothing(script, seed):
    case = make_case(seed)
    value, gradient = total_loss(script, case, script.Args())
    wider_value, wider_gradient = total_loss(script, case, script.Args(), width=T + 5)
    assert value == pytest.approx(wider_value, rel=1e-12)
    torch.testing.assert_close(gradient, wider_gradient[:, :T], rtol=1e-12, atol=0.0)


# Weights: 1/(B|o|), 1/Σ|o|, 1/(B L), 1/B


def per_response(lengths, i):
    return 1 / (len(lengths) * lengths[i])


def per_token(lengths, i):
    return 1 / sum(lengths)


def per_response_sum(lengths, i):
    return 1 / len(lengths)


def constant(length_limit):
    return lambda lengths, i: 1 / (len(lengths) * length_limit)


def tis(old, rollout, cap):
    return min(math.exp(old - rollout), cap) if cap else 1.0


def clip_terms(low, high, cap):
    """PPO's clipped objective, as a case distinction instead of a minimum."""

    def row(new, old, rollout, a):
        losses, slopes = [], []
        for n, o, s in zip(new, old, rollout, strict=True):
            r, w = math.exp(n - o), tis(o, s, cap)
            if a > 0 and r > 1 + high:
                losses.append(-w * (1 + high) * a)
                slopes.append(0.0)
            elif a < 0 and r < 1 - low:
                losses.append(-w * (1 - low) * a)
                slopes.append(0.0)
            else:
                losses.append(-w * r * a)
                slopes.append(-w * r * a)
        return losses, slopes

    return row


@pytest.mark.parametrize("cap", [0.0, 1.2, 2.0])
class TestPolicyLoss:
    def test_grpo(self, cap):
        check(grpo, grpo.Args(tis_cap=cap), per_response, clip_terms(0.2, 0.2, cap))

    def test_ppo(self, cap):
        check(ppo, ppo.Args(tis_cap=cap, clip_eps=0.3), per_token, clip_terms(0.3, 0.3, cap))

    def test_dr_grpo(self, cap):
        args = dr_grpo.Args(tis_cap=cap, max_response_tokens=50)
        check(dr_grpo, args, constant(50), clip_terms(0.2, 0.2, cap))

    def test_dapo(self, cap):
        check(dapo, dapo.Args(tis_cap=cap), per_token, clip_terms(0.2, 0.28, cap))

    def test_maxrl(self, cap):
        check(maxrl, maxrl.Args(tis_cap=cap), per_response_sum, clip_terms(0.2, 0.2, cap))

    @pytest.mark.parametrize("script", [reinforce, rloo])
    def test_score_function(self, script, cap):
        def row(new, old, rollout, a):
            weights = [tis(o, s, cap) for o, s in zip(old, rollout, strict=True)]
            return [-w * a * n for w, n in zip(weights, new, strict=True)], [-w * a for w in weights]

        check(script, script.Args(tis_cap=cap), per_response_sum, row)

    def test_cispo(self, cap):
        def row(new, old, rollout, a):
            losses, slopes = [], []
            for n, o, s in zip(new, old, rollout, strict=True):
                weight = min(math.exp(n - o), 1.1)
                losses.append(-tis(o, s, cap) * weight * a * n)
                slopes.append(-tis(o, s, cap) * weight * a)  # every token keeps a gradient
            return losses, slopes

        check(cispo, cispo.Args(tis_cap=cap, ratio_cap=1.1), per_token, row)

    @pytest.mark.parametrize("spread", [0.5, 3e-4])
    def test_gspo(self, cap, spread):
        def row(new, old, rollout, a):
            weights = [tis(o, s, cap) for o, s in zip(old, rollout, strict=True)]
            s_i = math.exp(sum(n - o for n, o in zip(new, old, strict=True)) / len(new))
            clipped = (a > 0 and s_i > 1 + 4e-4) or (a < 0 and s_i < 1 - 3e-4)
            value = (1 + 4e-4 if a > 0 else 1 - 3e-4) * a if clipped else s_i * a
            # The weighted row is -Σ_t w_t s_i A; each log-prob moves s_i by s_i / |o|.
            slope = 0.0 if clipped else -sum(weights) * s_i * a / len(new)
            return [-w * value for w in weights], [slope] * len(new)

        check(gspo, gspo.Args(tis_cap=cap), per_response, row, spread)

    def test_gmpo(self, cap):
        def row(new, old, rollout, a):
            weights = [tis(o, s, cap) for o, s in zip(old, rollout, strict=True)]
            terms, inside = [], []
            for n, o in zip(new, old, strict=True):
                d = n - o
                if a > 0:
                    terms.append(min(d, 0.4))
                    inside.append(d <= 0.4)
                else:
                    terms.append(max(d, -0.4))
                    inside.append(d >= -0.4)
            mean = math.exp(sum(terms) / len(terms))
            slopes = [-sum(weights) * mean * a / len(new) * ok for ok in inside]
            return [-w * mean * a for w in weights], slopes

        check(gmpo, gmpo.Args(tis_cap=cap), per_response, row)


@pytest.mark.parametrize("kind,delta", [("binary-tv", 0.1), ("binary-kl", 0.02)])
@pytest.mark.parametrize("cap", [math.inf, 1.3])
def test_dppo_binary(kind, delta, cap):
    def row(new, old, rollout, a):
        losses, slopes = [], []
        for n, s in zip(new, rollout, strict=True):
            pi, mu, r = math.exp(n), math.exp(s), math.exp(n - s)
            if kind == "binary-tv":
                distance = abs(mu - pi)
            else:
                distance = mu * math.log((mu + 1e-8) / (pi + 1e-8)) + (1 - mu) * math.log(
                    (1 - mu + 1e-8) / (1 - pi + 1e-8)
                )
            masked = distance > delta and ((a > 0 and r > 1) or (a < 0 and r < 1))
            slopes.append(0.0 if masked else -min(r, cap) * a)
            losses.append(slopes[-1] * n)
        return losses, slopes

    args = dppo.Args(divergence=kind, delta=delta, ratio_cap=cap, max_response_tokens=50)
    check(dppo, args, constant(50), row)


@pytest.mark.parametrize("kind", ["topk-tv", "topk-kl"])
@pytest.mark.parametrize("seed", SEEDS)
def test_dppo_top_k(kind, seed):
    """The K likeliest tokens, the sampled one if it is not among them, and the rest of a real softmax."""
    generator = torch.Generator().manual_seed(seed)
    V, K, B, delta = 9, 3, 6, 0.05
    mu = torch.randn(B, T, V, generator=generator, dtype=torch.float64).mul(1.5).log_softmax(-1)
    pi = (mu + torch.randn(B, T, V, generator=generator, dtype=torch.float64) * 0.4).log_softmax(-1)
    token = torch.randint(V, (B, T, 1), generator=generator)
    top_logp, top_ids = mu.topk(K)
    is_top = (top_ids == token).any(-1)
    advantages = torch.randn(B, T, generator=generator, dtype=torch.float64)
    mask = torch.ones(B, T, dtype=torch.bool)
    new, rollout = pi.gather(-1, token).squeeze(-1), mu.gather(-1, token).squeeze(-1)
    args = dppo.Args(divergence=kind, delta=delta)
    _, metrics = dppo.policy_loss(new, new, rollout, advantages, mask, args, (pi.gather(-1, top_ids), top_logp, is_top))
    seen = set()
    for i in range(B):
        for t in range(T):
            chosen = sorted(set(top_ids[i, t].tolist()) | {token[i, t].item()})
            p = [mu[i, t, v].exp().item() for v in chosen]
            q = [pi[i, t, v].exp().item() for v in chosen]
            p.append(1 - sum(p))
            q.append(1 - sum(q))
            if kind == "topk-tv":
                distance = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
            else:
                distance = sum(a * math.log((a + 1e-8) / (b + 1e-8)) for a, b in zip(p, q, strict=True))
            a, r = advantages[i, t].item(), math.exp(new[i, t] - rollout[i, t])
            expected = (distance > delta and a > 0 and r > 1, distance > delta and a < 0 and r < 1)
            assert (bool(metrics["clip_pos"][i, t]), bool(metrics["clip_neg"][i, t])) == expected
            seen.add(expected)
    assert len(seen) == 3, "the case must show both masks and none"


# Advantages


def random_rewards(seed, P=6, G=5):
    rng = random.Random(seed)
    rewards = [[float(rng.random() < 0.4) for _ in range(G)] for _ in range(P - 2)]
    return [*rewards, [0.0] * G, [1.0] * G]


def compare_advantages(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", SEEDS)
class TestAdvantages:
    @pytest.mark.parametrize("script", [grpo, dapo, cispo, gspo, gmpo])
    @pytest.mark.parametrize("ddof,std", [(1, stdev), (0, pstdev)])
    def test_z_score(self, seed, script, ddof, std):
        rewards = random_rewards(seed)
        expected = [[(r - sum(row) / len(row)) / (std(row) + 1e-6) for r in row] for row in rewards]
        actual = script.compute_advantages(torch.tensor(rewards, dtype=torch.float64), script.Args(ddof=ddof))
        compare_advantages(actual, expected)
        assert (actual[-2:] == 0).all(), "a group without signal has advantages"

    @pytest.mark.parametrize("script", [dr_grpo, dppo])
    def test_centered(self, seed, script):
        rewards = random_rewards(seed)
        expected = [[r - sum(row) / len(row) for r in row] for row in rewards]
        compare_advantages(
            script.compute_advantages(torch.tensor(rewards, dtype=torch.float64), script.Args()), expected
        )

    def test_rloo(self, seed):
        rewards = random_rewards(seed)
        expected = [[r - (sum(row) - r) / (len(row) - 1) for r in row] for row in rewards]
        compare_advantages(rloo.compute_advantages(torch.tensor(rewards, dtype=torch.float64), rloo.Args()), expected)

    def test_maxrl(self, seed):
        rewards = random_rewards(seed)
        expected = [[(r * len(row) / sum(row) - 1) if sum(row) else 0.0 for r in row] for row in rewards]
        compare_advantages(maxrl.compute_advantages(torch.tensor(rewards, dtype=torch.float64), maxrl.Args()), expected)

    @pytest.mark.parametrize("baseline", ["none", "batch", "ema"])
    def test_reinforce(self, seed, baseline):
        rewards = random_rewards(seed)
        everything = [r for row in rewards for r in row]
        b = {"none": 0.0, "batch": sum(everything) / len(everything), "ema": 0.37}[baseline]
        actual = reinforce.compute_advantages(
            torch.tensor(rewards, dtype=torch.float64), 0.37, reinforce.Args(baseline=baseline)
        )
        compare_advantages(actual, [[r - b for r in row] for row in rewards])


def test_maxrl_refuses_shaped_rewards():
    with pytest.raises(ValueError, match="rewards of 0 and 1"):
        maxrl.compute_advantages(torch.tensor([[1.0, -1.0]]), maxrl.Args())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("gamma,lam", [(1.0, 0.95), (1.0, 1.0), (0.9, 0.0), (0.9, 0.7)])
def test_gae(seed, gamma, lam):
    """Â_t = Σ_l (γλ)^l δ_{t+l}, summed forwards, with the value after the last token 0."""
    rng = random.Random(seed)
    lengths = [rng.randint(1, T) for _ in range(6)]
    rewards = [[rng.gauss(0, 1) for _ in range(n)] for n in lengths]
    values = [[rng.gauss(0, 1) for _ in range(n)] for n in lengths]

    def pad(rows, filler):
        return torch.tensor([row + [filler] * (T - len(row)) for row in rows], dtype=torch.float64)

    mask = pad([[1.0] * n for n in lengths], 0.0).bool()
    advantages, returns = ppo.compute_advantages(
        pad(rewards, 0.0), pad(values, 9.0), mask, ppo.Args(gamma=gamma, gae_lambda=lam)
    )
    for i, n in enumerate(lengths):
        after = [*values[i][1:], 0.0]
        delta = [rewards[i][t] + gamma * after[t] - values[i][t] for t in range(n)]
        for t in range(n):
            expected = sum((gamma * lam) ** k * delta[t + k] for k in range(n - t))
            assert advantages[i, t].item() == pytest.approx(expected, rel=1e-10)
            assert returns[i, t].item() == pytest.approx(expected + values[i][t], rel=1e-10)
    assert (advantages[~mask] == 0).all() and (returns[~mask] == 0).all()
    tokens = [x for i, n in enumerate(lengths) for x in advantages[i, :n].tolist()]
    mean, variance = sum(tokens) / len(tokens), stdev(tokens) ** 2
    whitened = ppo.whiten(advantages, mask)
    torch.testing.assert_close(
        whitened[mask], torch.tensor([(x - mean) / math.sqrt(variance + 1e-8) for x in tokens]).double()
    )
    assert (whitened[~mask] == 0).all()


def test_value_loss():
    """Far values in the clipped branch have no gradient, unless the plain error is the larger one."""
    args = ppo.Args(value_clip=0.2)
    old = torch.zeros(1, 4, dtype=torch.float64)
    values = torch.tensor([[0.1, 0.5, 0.5, -0.5]], dtype=torch.float64, requires_grad=True)
    returns = torch.tensor([[1.0, 1.0, 0.0, 1.0]], dtype=torch.float64)
    loss = ppo.value_loss(values, old, returns, args)
    # inside: plain; moved towards the return beyond the clip: clipped; past it or away: plain
    expected = [[0.5 * 0.9**2, 0.5 * 0.8**2, 0.5 * 0.5**2, 0.5 * 1.5**2]]
    torch.testing.assert_close(loss, torch.tensor(expected, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(loss.sum(), values)
    torch.testing.assert_close(gradient, torch.tensor([[-0.9, 0.0, 0.5, -1.5]], dtype=torch.float64))


# GRPO's clip, point by point: ratios of 0.5, 1 and 1.5 for both signs of the advantage


@pytest.mark.parametrize(
    "ratio,advantage,value,slope",
    [
        (0.5, 1.0, -0.5, -0.5),
        (1.0, 1.0, -1.0, -1.0),
        (1.5, 1.0, -1.2, 0.0),
        (0.5, -1.0, 0.8, 0.0),
        (1.0, -1.0, 1.0, 1.0),
        (1.5, -1.0, 1.5, 1.5),
    ],
)
def test_clip_is_one_sided(ratio, advantage, value, slope):
    logp = torch.tensor([[math.log(ratio) - 2]], dtype=torch.float64, requires_grad=True)
    old = torch.full_like(logp, -2.0)
    mask = torch.ones(1, 1, dtype=torch.bool)
    loss, metrics = grpo.policy_loss(logp, old, old, torch.full_like(logp, advantage).detach(), mask, grpo.Args())
    loss.sum().backward()
    assert loss.item() == pytest.approx(value)
    assert logp.grad.item() == pytest.approx(slope, abs=1e-12)
    assert metrics["clip_pos"].item() == float(ratio == 1.5 and advantage > 0)
    assert metrics["clip_neg"].item() == float(ratio == 0.5 and advantage < 0)


def test_overlong_penalty():
    """2503.14476, Eq. 13, with the paper's own lengths: free up to 16,384, -1 at 20,480."""
    args = dapo.Args(max_response_tokens=20480, overlong_cache=4096)
    lengths = torch.tensor([1.0, 16384.0, 18432.0, 20480.0])
    assert dapo.overlong_penalty(lengths, args).tolist() == [0.0, 0.0, -0.5, -1.0]
    assert dapo.overlong_penalty(lengths, dapo.Args(overlong_cache=0)).tolist() == [0.0] * 4


def test_doubling_a_length_leaves_dr_grpo_weights():
    """Under GRPO a longer response has less weight per token; under Dr. GRPO nothing changes."""
    short = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]).bool()
    long = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    args = dr_grpo.Args()
    assert dr_grpo.token_weights(short, args)[0, 0] == dr_grpo.token_weights(long, args)[0, 0]
    assert (dr_grpo.token_weights(short, args)[1] == dr_grpo.token_weights(long, args)[1]).all()
    assert grpo.token_weights(short, grpo.Args())[0, 0] == 2 * grpo.token_weights(long, grpo.Args())[0, 0]


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("script", [reinforce, rloo, grpo, ppo, dr_grpo, dapo, cispo, gspo, gmpo, dppo, maxrl])
def test_extreme_ratios_stay_finite(script, sign):
    """Log-ratios of ±80 to the old policy and to the sampler, in float32: value and gradient stay finite."""
    shift = torch.tensor([[80.0, -80.0, 0.0, 80.0], [-80.0, -80.0, -80.0, -80.0], [80.0, 80.0, 80.0, 80.0]])
    base = torch.full_like(shift, -81.0)
    for old, rollout in ((base, base), (base, base - 0.5), (base, base + shift / 2)):
        logp = (base + shift).requires_grad_()
        mask = torch.ones(shift.shape, dtype=torch.bool)
        loss, metrics = script.policy_loss(logp, old, rollout, torch.full_like(base, sign), mask, script.Args())
        total = (script.token_weights(mask, script.Args()) * loss).sum()
        (slope,) = torch.autograd.grad(total, logp)
        assert total.isfinite() and slope.isfinite().all(), (total, slope)
        assert all(value.isfinite().all() for value in metrics.values())
