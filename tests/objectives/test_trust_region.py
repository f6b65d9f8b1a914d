"""TRPO's step: the natural gradient if the KL is quadratic, and otherwise never outside the trust region."""

import math

from methods import trpo
from methods.vectors import conjugate_gradient

import pytest
import torch
from runs import refused


def definite(n, seed):
    """A positive definite (n, n) matrix with eigenvalues from 1e-2 to 10, and a vector (n,)."""
    generator = torch.Generator().manual_seed(seed)
    axes, _ = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64))
    return axes * torch.logspace(-2, 1, n, dtype=torch.float64) @ axes.T, torch.randn(n, generator=generator).double()


@pytest.mark.parametrize("seed", range(3))
def test_the_natural_gradient_of_a_quadratic(seed):
    """With a linear loss and KL = ½ xᵀF x, the step is the best one on the boundary, √(2δ / gᵀF⁻¹g) F⁻¹(-g)."""
    F, g = definite(7, seed)
    torch.testing.assert_close(conjugate_gradient(F.matmul, g, 7), torch.linalg.solve(F, g), rtol=1e-5, atol=1e-5)
    args = trpo.Args(delta=0.03, cg_iterations=7)
    look = lambda x: torch.stack([g @ x, x @ F @ x / 2 * (1 - 1e-9)])  # noqa: E731 (rounding must not halve the step)
    step, numbers = trpo.natural_step(g, F.matmul, look, 1.0, args)
    natural = torch.linalg.solve(F, -g)
    torch.testing.assert_close(step, math.sqrt(2 * 0.03 / (-g @ natural).item()) * natural, rtol=1e-5, atol=1e-5)
    assert numbers["step_kl"] == pytest.approx(0.03) and numbers["step_fraction"] == 1
    steeper = lambda x: look(x) * torch.tensor([1, 3.0])  # noqa: E731 (three times the KL that F predicts)
    half, numbers = trpo.natural_step(g, F.matmul, steeper, 1.0, args)
    assert torch.equal(half, step / 2) and numbers["step_fraction"] == 0.5
    other = torch.randn(1000, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    other *= (0.06 / torch.einsum("ni,ij,nj->n", other, F, other)).sqrt()[:, None]  # on the same boundary
    assert (other @ g > step @ g).all(), "another step of the same KL is better"
    assert torch.allclose(
        trpo.natural_step(1e4 * g, F.matmul, lambda x: 1e4 * look(x) / torch.tensor([1, 1e4]), 1.0, args)[0], step
    )


@pytest.mark.parametrize("delta", [1e-3, 0.1, 2.0])
@pytest.mark.parametrize("seed", range(3))
def test_a_softmax_policy_stays_in_the_region(seed, delta):
    """With 6 actions, the first step follows the advantages, and no step leaves the region or lowers the surrogate."""
    generator = torch.Generator().manual_seed(seed)
    theta, values = torch.randn(2, 6, generator=generator, dtype=torch.float64)
    args, start = trpo.Args(delta=delta, cg_iterations=10), values @ theta.softmax(0)
    for number in range(50):
        old = theta.log_softmax(0)
        p = old.exp()
        F = torch.diag(p) - torch.outer(p, p)
        advantages = values - p @ values

        def look(x, theta=theta, old=old, advantages=advantages):
            new = (theta + x).log_softmax(0)
            return torch.stack([-(new.exp() * advantages).sum(), (old.exp() * (old - new)).sum()])

        step, numbers = trpo.natural_step(-p * advantages, lambda v, F=F: F @ v + 1e-6 * v, look, 1.0, args)
        assert look(step)[1] <= delta and look(step)[0] <= look(0 * step)[0]
        assert numbers["step_kl"] == pytest.approx(look(step)[1].item(), abs=1e-12)
        if number == 0:
            natural = advantages - advantages.mean()  # solves F x = p A, up to a constant in all logits
            assert torch.cosine_similarity(step - step.mean(), natural, 0) > 0.999
        theta = theta + step
    assert values @ theta.softmax(0) > start and (delta == 1e-3 or theta.softmax(0)[values.argmax()] > 0.9)


def test_nothing_to_learn_is_no_step():
    F, g = definite(4, 0)
    look = lambda x: torch.stack([g @ x, x @ F @ x / 2])  # noqa: E731
    uphill = lambda x: look(x) * torch.tensor([-1, 1.0])  # noqa: E731 (every step lowers the surrogate)
    outside = lambda x: look(x) + torch.tensor([0, 1.0]) * bool(x.any())  # noqa: E731
    for gradient, found in ((0 * g, look), (g, uphill), (g, outside)):
        step, numbers = trpo.natural_step(gradient, F.matmul, found, 1.0, trpo.Args())
        assert not step.any() and numbers == {"step_kl": 0.0, "step_fraction": 0.0}


def test_weight_decay_is_refused(capsys, tmp_path):
    assert "--weight-decay: TRPO's step has none" in refused(capsys, tmp_path, trpo, weight_decay=0.1)
