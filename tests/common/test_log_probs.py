"""Log-probs and their batches: the learner computes the same log-probs as the engine reports."""

import grpo
from common.batch import collate, minibatches, split_rows
from common.logprobs import batch_logps, logps_and_entropies, token_logps, top_logps
from common.models import load_model
from common.records import Problem, Rollouts

import pytest
import torch
from sampling import make, sample


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_engine_log_probs_are_the_learners(embedded, problems, temperature):
    rollouts = sample(make(embedded), problems, temperature=temperature)
    batch = collate(problems, rollouts, "cpu")
    logp, _ = batch_logps(embedded[0], batch, grpo.Args(temperature=temperature))
    torch.testing.assert_close(logp, batch.rollout_logp, rtol=0, atol=1e-5)
    assert len({len(tokens) for tokens in rollouts.tokens}) > 3, "rows of different lengths are the point"


def test_greedy_log_probs_are_those_at_temperature_1(embedded, problems):
    rollouts = sample(make(embedded), problems, temperature=0.0)
    batch = collate(problems, rollouts, "cpu")
    logp, _ = batch_logps(embedded[0], batch, grpo.Args(temperature=1.0))
    torch.testing.assert_close(logp, batch.rollout_logp, rtol=0, atol=1e-5)


def test_log_probs_against_a_plain_computation_in_float64(embedded, problems):
    """Log-probs and entropies equal those from the model's own logits, row by row without padding."""
    model, _ = embedded
    rollouts = sample(make(embedded), problems, temperature=0.8)
    batch = collate(problems, rollouts, "cpu")
    logp, entropy = batch_logps(model, batch, grpo.Args(temperature=0.8, micro_batch_tokens=300))
    double = load_model(grpo.Args())[0].double()
    for i, response in enumerate(rollouts.tokens):
        prompt = problems[i // 8].prompt_ids
        with torch.no_grad():
            logits = double(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / 0.8
        expected = logits.log_softmax(-1)
        torch.testing.assert_close(
            logp[i, : len(response)].double(), expected[range(len(response)), response], rtol=0, atol=1e-5
        )
        torch.testing.assert_close(
            entropy[i, : len(response)].double(), -(expected.exp() * expected).sum(-1), rtol=0, atol=1e-5
        )
        assert (logp[i, len(response) :] == 0).all()


def test_chunked_head_has_the_same_gradient(embedded, problems, monkeypatch):
    """Splitting the (tokens, V) logits changes memory use, not the gradient."""
    model, _ = embedded
    rollouts = sample(make(embedded), problems)
    batch = collate(problems, rollouts, "cpu")

    def gradient():
        model.zero_grad()
        token_logps(model, batch, torch.arange(24), grpo.Args()).sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    whole = gradient()
    monkeypatch.setattr("common.logprobs.LOGITS_AT_ONCE", 1000)
    for a, b in zip(whole, gradient(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    model.zero_grad()


def test_entropies_have_a_gradient_only_if_asked(embedded, problems):
    batch = collate(problems, sample(make(embedded), problems), "cpu")
    for asked in (False, True):
        logp, entropy = logps_and_entropies(
            embedded[0], batch, torch.arange(2), grpo.Args(), **({"entropy_gradient": True} if asked else {})
        )
        assert logp.requires_grad and entropy.requires_grad == asked


def test_top_k(embedded, problems):
    """The engine's likeliest tokens are the learner's, with the same log-probs."""
    model, _ = embedded
    rollouts = sample(make(embedded), problems, top_k=5)
    batch = collate(problems, rollouts, "cpu")
    rows = torch.arange(24)
    learner = top_logps(model, batch, rows, grpo.Args())
    torch.testing.assert_close(learner, batch.top_logp, rtol=1e-4, atol=1e-4)
    assert (batch.top_logp[..., 0] >= batch.top_logp[..., 4]).all()
    for row in (*rollouts.top_ids, *rollouts.top_logps):
        assert row.untyped_storage().nbytes() == row.nbytes, "other processes get it with all rows"
    assert (batch.top_logp.exp().sum(-1)[batch.token_mask] <= 1 + 1e-5).all()


def test_mask_counts_the_eos_even_where_pad_is_eos():
    """Masks come from lengths: the final EOS is trained on, and padding with the same id is not."""
    eos = 0
    rollouts = Rollouts(
        [[5, eos], [6, 7, 8, eos], [9, 9, 9, 9]],
        [[-1.0] * 2, [-1.0] * 4, [-1.0] * 4],
        [False] * 3,
        [[True] * 2, [True, False, True, True], [True] * 4],
    )
    batch = collate([Problem("", "", "", ids) for ids in ([1], [2, 3], [4])], rollouts, "cpu")
    assert batch.token_mask.tolist() == [[True, True, False, False], [True] * 4, [True] * 4]
    assert batch.response_mask.tolist() == [[True, True, False, False], [True, False, True, True], [True] * 4]
    assert batch.tokens[0].tolist() == [1, 5, eos, 0, 0, 0]
    assert batch.response[0].tolist() == [5, eos, 0, 0]
    assert (batch.rollout_logp == -1.0 * batch.token_mask).all()


def test_micro_batches_hold_every_row_once(embedded, problems):
    rollouts = sample(make(embedded), problems)
    batch = collate(problems, rollouts, "cpu")
    rows = torch.tensor([5, 3, 11, 20, 2, 0])
    for budget in (1, 70, 150, 10**6):
        parts = list(split_rows(rows, batch, budget))
        assert sorted(torch.cat(parts).tolist()) == sorted(rows.tolist())
        for part in parts:
            assert len(part) == 1 or len(part) * batch.lengths[part].max() <= budget
    assert len(parts) == 1


@pytest.mark.parametrize(
    "budget,sizes", [(29, [2, 2, 2, 1]), (30, [3, 3, 1]), (39, [3, 3, 1]), (40, [4, 3]), (9, [1] * 7)]
)
def test_micro_batches_fill_their_budget_and_do_not_exceed_it(budget, sizes):
    """Seven rows of ten tokens are split into micro-batches as large as the budget allows."""
    prompts = [Problem("", "", "", [1] * 6) for _ in range(7)]
    rollouts = Rollouts([[2] * 4] * 7, [[-1.0] * 4] * 7, [False] * 7, [[True] * 4] * 7)
    batch = collate(prompts, rollouts, "cpu")
    assert [len(part) for part in split_rows(torch.arange(7), batch, budget)] == sizes


def test_minibatches_hold_whole_groups():
    args = grpo.Args(num_minibatches=3, update_epochs=2)
    parts = list(minibatches(6, 4, args))
    assert len(parts) == 6
    for part in parts:
        assert sorted((part // 4).tolist()) == sorted([g for g in set((part // 4).tolist()) for _ in range(4)])
    for epoch in (parts[:3], parts[3:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(24))


def test_gradient_checkpointing_changes_nothing(embedded, problems):
    """A batch's gradient is the same with kept and with recomputed activations."""
    gradients = []
    for again in (False, True):
        args = grpo.Args(gradient_checkpointing=again)
        model, _ = load_model(args)
        rollouts = sample(make(embedded), problems[:2], 4, seeds=(0, 1), limit=32)
        batch = collate(problems[:2], rollouts, "cpu")
        assert model.is_gradient_checkpointing == again
        token_logps(model, batch, torch.arange(8), args).sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)
