"""Estimates of the KL on a softmax over four tokens, by enumeration."""

import grpo

import pytest
import torch
from test_identities import close


def test_k3_against_the_exact_kl():
    """As a value, k3 is an unbiased estimate of KL(π‖ref); as a loss, it has the gradient of KL(ref‖π)."""
    logits = torch.tensor([0.3, -0.5, 1.1, 0.2], dtype=torch.float64, requires_grad=True)
    logp = logits.log_softmax(0)
    ref = torch.tensor([0.1, 0.4, -0.3, 0.9], dtype=torch.float64).log_softmax(0)
    k3 = grpo.kl_penalty(logp, ref)
    assert (k3 >= 0).all()
    exact = (logp.exp() * (logp - ref)).sum()
    assert (logp.exp() * k3).sum().item() == pytest.approx(exact.item())
    (in_loss,) = torch.autograd.grad((logp.exp().detach() * k3).sum(), logits, retain_graph=True)
    forward = (ref.exp() * (ref - logp)).sum()
    (forward_gradient,) = torch.autograd.grad(forward, logits, retain_graph=True)
    (reverse_gradient,) = torch.autograd.grad(exact, logits)
    close(in_loss, forward_gradient)
    assert not torch.allclose(in_loss, reverse_gradient, rtol=0.05)


def test_k1_belongs_in_the_reward():
    """E[k1 ∇log π] is ∇KL(π‖ref), as used in REINFORCE, RLOO and PPO; as a loss, k1 has expected gradient 0."""
    logits = torch.tensor([0.3, -0.5, 1.1, 0.2], dtype=torch.float64, requires_grad=True)
    logp = logits.log_softmax(0)
    ref = torch.tensor([0.1, 0.4, -0.3, 0.9], dtype=torch.float64).log_softmax(0)
    p, k1 = logp.exp().detach(), logp - ref
    (exact,) = torch.autograd.grad((logp.exp() * k1).sum(), logits, retain_graph=True)
    (in_reward,) = torch.autograd.grad((p * k1.detach() * logp).sum(), logits, retain_graph=True)
    (in_loss,) = torch.autograd.grad((p * k1).sum(), logits)
    close(in_reward, exact)
    assert in_loss.abs().max() < 1e-12
