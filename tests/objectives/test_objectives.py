"""Every discovered script's advantages, weights, loss and gradient against its oracle, in float64.

Each seed gives new inputs: rows of different lengths, both signs of the advantage, ratios on both sides of every
bound, and three different sets of log-probs. A script without an oracle fails here.
"""

import math
import random
from dataclasses import fields
from pathlib import Path

import dppo
import maxrl
from common.settings import Settings
from tools.scripts import call, load, parents

import pytest
import torch
from oracles import Row, oracle

SCRIPTS = list(parents())
SEEDS = range(5)
T = 7


def arguments(name, **settings):
    return load(name).Args(**{"max_response_tokens": 50} | settings)


def cases(name):
    """The settings under which a script is compared with its oracle, without those that only matter in a run."""
    kept = []
    for case in load_oracle_class(name).CASES:
        case = {key: value for key, value in case.items() if key not in {f.name for f in fields(Settings)}}
        case = {key: value for key, value in case.items() if not str(value).startswith(("topk", "full"))}
        if case not in kept:
            kept.append(case)
    return kept


def load_oracle_class(name):
    return type(oracle(name, arguments(name)))


def objective_cases():
    return [pytest.param(name, case, id=f"{name}-{i}") for name in SCRIPTS for i, case in enumerate(cases(name))]


def make_rows(seed, spread):
    """Random rows of 1 to T tokens, with log-probs below 0."""
    rng = random.Random(seed)
    rows = []
    for _ in range(8):
        new = [-rng.uniform(0.1, 2.5) for _ in range(rng.randint(1, T))]
        old = [min(-0.01, x + rng.gauss(0, spread)) for x in new]
        rollout = [min(-0.01, x + rng.gauss(0, 0.6 * spread)) for x in old]
        advantage = rng.choice((-1, 1)) * rng.uniform(0.2, 2)
        rows.append(Row(new, old, rollout, [advantage] * len(new)))
    return rows


def to_tensors(rows, width):
    """The rows as (B, T) tensors; padding has values that would show if they leaked."""

    def pad(values, filler):
        return torch.tensor([row + [filler] * (width - len(row)) for row in values], dtype=torch.float64)

    mask = pad([[1.0] * len(row.new) for row in rows], 0.0).bool()
    advantages = torch.tensor([row.advantages[0] for row in rows], dtype=torch.float64)[:, None].expand(mask.shape)
    logp = pad([row.new for row in rows], -0.3).requires_grad_()
    return logp, pad([row.old for row in rows], -1.7), pad([row.rollout for row in rows], -2.9), advantages, mask


def weighted_loss(name, logp, old, rollout, advantages, mask, args):
    """The scalar loss of a whole minibatch, as in the script's loop, and the metrics of `policy_loss`."""
    script = load(name)
    anchor = rollout if getattr(args, "ratio_anchor", "learner") == "engine" else old
    values = {"logp": logp, "rollout_logp": rollout, "advantages": advantages, "mask": mask, "args": args}
    loss, metrics = call(script.policy_loss, old_logp=anchor, **values)
    if hasattr(script, "tis_weight"):
        loss = call(script.tis_weight, old_logp=old, **values) * loss
    return (call(script.token_weights, mask=mask.to(logp.dtype), args=args) * loss).sum(), metrics


def total_loss(name, rows, args, width=T):
    """A whole minibatch's loss and its gradient (B, T)."""
    logp, old, rollout, advantages, mask = to_tensors(rows, width)
    total, _ = weighted_loss(name, logp, old, rollout, advantages, mask, args)
    (gradient,) = torch.autograd.grad(total, logp)
    leaked = (gradient * ~mask).nonzero().tolist()
    assert not leaked, f"{name}: padding has a gradient at (row, token) {leaked}"
    return total.item(), gradient


def expected_loss(name, rows, args):
    reference = oracle(name, args)
    lengths = [len(row.new) for row in rows]
    total, gradient = 0.0, torch.zeros(len(rows), T, dtype=torch.float64)
    for i, row in enumerate(rows):
        weight = reference.weight(lengths, i)
        losses, slopes = reference.row(row)
        total += weight * sum(losses)
        gradient[i, : len(slopes)] = weight * torch.tensor(slopes, dtype=torch.float64)
    return total, gradient


@pytest.mark.parametrize("spread", [0.5, 3e-4])
@pytest.mark.parametrize("name,case", objective_cases())
def test_loss_and_gradient(name, case, spread):
    args = arguments(name, **case)
    for seed in SEEDS:
        rows = make_rows(seed, spread)
        value, gradient = total_loss(name, rows, args)
        expected_value, expected_gradient = expected_loss(name, rows, args)
        assert value == pytest.approx(expected_value, rel=1e-10, abs=1e-12), f"loss, seed {seed}"
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-9, atol=1e-12)


def own_settings(name):
    """A method's settings that not all scripts have, with their defaults."""
    shared = set.intersection(*({f.name for f in fields(load(other).Args)} for other in SCRIPTS))
    return {f.name: f.default for f in fields(load(name).Args) if f.name not in shared}


@pytest.mark.parametrize("name", SCRIPTS)
def test_defaults_are_those_written_down(name):
    """Every own setting's default is the oracle's, which is the paper's where it gives one."""
    written = load_oracle_class(name).DEFAULTS
    missing = set(own_settings(name)) - set(written)
    assert not missing, f"DEFAULTS in tests/oracles/{name}.py lacks {sorted(missing)}"
    for key, value in written.items():
        actual = getattr(load(name).Args(), key)
        assert actual == value, f"{name}.py: default of {key} is {actual}, in its oracle {value}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_setting_of_the_method_is_varied(name):
    """The oracle's cases give every own setting a value other than its default."""
    defaults = own_settings(name)
    own = defaults.keys() - load_oracle_class(name).ELSEWHERE
    varied = {
        key for case in load_oracle_class(name).CASES for key, value in case.items() if value != defaults.get(key)
    }
    assert own <= varied, f"no case in tests/oracles/{name}.py gives these another value: {sorted(own - varied)}"


def test_a_script_without_an_oracle_is_noticed():
    """`oracles/` has exactly one file per discovered script."""
    found = {path.stem for path in (Path(__file__).parents[1] / "oracles").glob("*.py")} - {"__init__"}
    assert not set(SCRIPTS) - found, f"scripts without an oracle: {sorted(set(SCRIPTS) - found)}"
    assert not found - set(SCRIPTS), f"oracles without a script: {sorted(found - set(SCRIPTS))}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_padding_width_changes_nothing(name):
    for seed in SEEDS:
        rows, args = make_rows(seed, 0.5), arguments(name)
        value, gradient = total_loss(name, rows, args)
        wider_value, wider_gradient = total_loss(name, rows, args, width=T + 5)
        assert value == pytest.approx(wider_value, rel=1e-12), f"loss, seed {seed}"
        torch.testing.assert_close(gradient, wider_gradient[:, :T], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", SCRIPTS)
def test_extreme_ratios_stay_finite(name, sign):
    """With log-ratios of ±80 to the old policy and to the engine, value and gradient stay finite in float32."""
    args = arguments(name)
    shift = torch.tensor([[80.0, -80.0, 0.0, 80.0], [-80.0, -80.0, -80.0, -80.0], [80.0, 80.0, 80.0, 80.0]])
    shift = shift.repeat(8, 1)  # whole groups
    base = torch.full_like(shift, -81.0)
    for old, rollout in ((base, base), (base, base - 0.5), (base, base + shift / 2)):
        logp = (base + shift).requires_grad_()
        mask = torch.ones(shift.shape, dtype=torch.bool)
        total, metrics = weighted_loss(name, logp, old, rollout, torch.full_like(base, sign), mask, args)
        (slope,) = torch.autograd.grad(total, logp)
        assert total.isfinite() and slope.isfinite().all(), f"loss {total}, gradient {slope}"
        broken = [key for key, value in metrics.items() if not value.isfinite().all()]
        assert not broken, f"these metrics are not finite: {broken}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_no_rows_are_no_loss(name):
    """A process without rows in a micro-batch stays in step: its loss sums to 0 and has a gradient."""
    empty = torch.zeros(0, T, dtype=torch.float64)
    logp = empty.clone().requires_grad_()
    values = {"logp": logp, "old_logp": empty, "rollout_logp": empty, "advantages": empty, "mask": empty.bool()}
    loss, _ = call(load(name).policy_loss, **values, args=arguments(name))
    loss.sum().backward()
    assert loss.shape == logp.grad.shape == (0, T)


# Advantages


def random_rewards(seed, P=6, G=5):
    rng = random.Random(seed)
    rewards = [[float(rng.random() < 0.4) for _ in range(G)] for _ in range(P - 2)]
    return [*rewards, [0.0] * G, [1.0] * G]


def advantage_cases():
    """Cases of scripts whose advantages come from rewards alone; the other scripts have their own tests."""
    of_tokens = {name for name in SCRIPTS if hasattr(load_oracle_class(name), "token_advantages")}
    return [param for param in objective_cases() if param.values[0] not in of_tokens]


@pytest.mark.parametrize("name,case", advantage_cases())
def test_advantages(name, case):
    for seed in SEEDS:
        reference = oracle(name, arguments(name, **case))
        actual, expected = reference.both_advantages(load(name), random_rewards(seed))
        expected = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def test_maxrl_refuses_shaped_rewards():
    with pytest.raises(ValueError, match="rewards of 0 and 1"):
        maxrl.compute_advantages(torch.tensor([[1.0, -1.0]]))


@pytest.mark.parametrize("kind", ["topk-tv", "topk-kl"])
@pytest.mark.parametrize("seed", SEEDS)
def test_dppo_top_k(kind, seed):
    """The divergence is over the K likeliest tokens, the sampled one if it is another, and the rest of a softmax."""
    generator = torch.Generator().manual_seed(seed)
    V, K, B = 9, 3, 6
    mu = torch.randn(B, T, V, generator=generator, dtype=torch.float64).mul(1.5).log_softmax(-1)
    pi = (mu + torch.randn(B, T, V, generator=generator, dtype=torch.float64) * 0.4).log_softmax(-1)
    token = torch.randint(V, (B, T, 1), generator=generator)
    top_logp, top_ids = mu.topk(K)
    is_top = (top_ids == token).any(-1)
    advantages = torch.randn(B, T, generator=generator, dtype=torch.float64)
    new, rollout = pi.gather(-1, token).squeeze(-1), mu.gather(-1, token).squeeze(-1)
    args = dppo.Args(divergence=kind, delta=0.05)
    top = (pi.gather(-1, top_ids), top_logp, is_top)
    _, metrics = dppo.policy_loss(new, rollout, advantages, args, top)
    for i in range(B):
        row = Row(
            new[i].tolist(),
            new[i].tolist(),
            rollout[i].tolist(),
            advantages[i].tolist(),
            tokens=token[i, :, 0].tolist(),
        )
        for t in range(T):
            row.top_new.append({v: pi[i, t, v].item() for v in top_ids[i, t].tolist()})
            row.top_rollout.append({v: mu[i, t, v].item() for v in top_ids[i, t].tolist()})
        _, slopes = oracle("dppo", args).row(row)
        masked = metrics["clip_pos"][i] + metrics["clip_neg"][i]
        assert [slope == 0.0 for slope in slopes] == masked.bool().tolist()
    assert metrics["clip_pos"].sum() > 0 and metrics["clip_neg"].sum() > 0 and is_top.any() and not is_top.all()


def test_dr_grpo_has_no_length_bias():
    """A longer response changes no token's weight in Dr. GRPO, but does in GRPO."""
    dr_grpo, grpo = load("dr_grpo"), load("grpo")
    short = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 0]]).bool()
    long = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    of_short, of_long = (dr_grpo.token_weights(mask, dr_grpo.Args()) for mask in (short, long))
    assert of_short[0, 0] == of_long[0, 0] and torch.equal(of_short[1], of_long[1])
    assert grpo.token_weights(short)[0, 0] == 2 * grpo.token_weights(long)[0, 0]


@pytest.mark.parametrize("name", [name for name in SCRIPTS if hasattr(load(name), "tis_weight")])
def test_tis_is_off_at_zero(name):
    old, rollout, mask = torch.randn(3, 4), torch.randn(3, 4), torch.ones(3, 4, dtype=torch.bool)
    args = arguments(name, tis_cap=0.0)
    weight = call(load(name).tis_weight, old_logp=old, rollout_logp=rollout, mask=mask, args=args)
    assert torch.equal(weight, torch.ones(3, 4)), f"weights with --tis-cap 0: {weight}"


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
    grpo = load("grpo")
    logp = torch.tensor([[math.log(ratio) - 2]], dtype=torch.float64, requires_grad=True)
    old = torch.full_like(logp, -2.0)
    loss, metrics = grpo.policy_loss(logp, old, torch.full_like(logp, advantage).detach(), grpo.Args())
    loss.sum().backward()
    assert loss.item() == pytest.approx(value)
    assert logp.grad.item() == pytest.approx(slope, abs=1e-12)
    assert metrics["clip_pos"].item() == float(ratio == 1.5 and advantage > 0)
    assert metrics["clip_neg"].item() == float(ratio == 0.5 and advantage < 0)


def test_overlong_penalty():
    """2503.14476, Eq. 13, with the paper's lengths: no penalty up to 16,384 tokens, -1 at 20,480."""
    dapo = load("dapo")
    args = dapo.Args(max_response_tokens=20480, overlong_cache=4096)
    lengths = torch.tensor([1.0, 16384.0, 18432.0, 20480.0])
    assert dapo.overlong_penalty(lengths, args).tolist() == [0.0, 0.0, -0.5, -1.0]
    assert dapo.overlong_penalty(lengths, dapo.Args(overlong_cache=0)).tolist() == [0.0] * 4
