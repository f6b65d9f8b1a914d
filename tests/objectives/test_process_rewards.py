"""Process rewards: advantages in closed form, labels on an enumerated policy, and GRPO as a special case."""

import grpo
from common.engines import Request, prompt_seeds
from common.records import Problem
from methods import process_rewards

import pytest
import torch
from runs import assert_same_rows, assert_same_weights, differing, on_tiny, run
from test_critics import Chain

OWN = ("process_reward", "reward_model_accuracy", "response_steps")


def test_advantages_by_hand():
    """Two responses, with two steps and one: rewards 0.2, 0.8 and 0.5 have mean 0.5 and sample std 0.3."""
    rewards = torch.tensor([[0.0, 0.2, 0.0, 0.8], [0.0, 0.5, 0.0, 0.0]])
    last = torch.tensor([[0.0, 1, 0, 1], [0, 1, 0, 0]]) > 0
    args = process_rewards.Args(responses_per_prompt=2)
    expected = torch.tensor([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(process_rewards.compute_advantages(rewards, last, args), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("ddof", [0, 1])
def test_with_one_step_they_are_grpos_advantages(ddof):
    rewards, ends = torch.rand(6, 4, dtype=torch.float64), torch.randint(1, 9, (24,))
    last = torch.zeros(24, 9, dtype=torch.bool)
    last[torch.arange(24), ends - 1] = True
    args = process_rewards.Args(responses_per_prompt=4, ddof=ddof)
    found = process_rewards.compute_advantages(rewards.view(-1, 1) * last, last, args)
    of_grpo = grpo.compute_advantages(rewards, grpo.Args(ddof=ddof)).view(-1, 1)
    tokens = (torch.arange(9) < ends[:, None]).double()
    torch.testing.assert_close(found, of_grpo * tokens)


def test_a_reward_model_that_knows_the_verdict_gives_grpo(tiny_model, tmp_path, monkeypatch, capsys):
    """With one step per response and a model that knows the verdict it is GRPO; with the trained model it is not."""
    settings = on_tiny(tiny_model) | {"lr": 1e-2}
    monkeypatch.setattr(  # texts of an odd length are correct, if they end
        "common.verification.Verifier.judge",
        lambda self, texts, golds, cut: [float(len(t) % 2 and not c) for t, c in zip(texts, cut, strict=True)],
    )
    theirs, of_grpo = run("grpo", tmp_path / "grpo", **settings)
    own = settings | {"step_ends": "", "labeled_problems": 2, "reward_model_updates": 2}
    learned, _ = run("process_rewards", tmp_path / "learned", **own)
    verdicts = []

    class Watched(process_rewards.Verifier):
        def __call__(self, problems, rollouts):
            rewards = super().__call__(problems, rollouts)
            verdicts.append(rewards.view(-1, 1))
            return rewards

    def knowing(function, batch, args):  # a logit of ±50 means a probability of 1 or 0
        return (100 * verdicts[-1] - 50).expand(batch.token_mask.shape)

    monkeypatch.setattr(process_rewards, "Verifier", Watched)
    monkeypatch.setattr(process_rewards, "in_micro_batches", knowing)
    ours, rows = run("process_rewards", tmp_path / "known", **own)
    assert_same_weights(ours, theirs)
    assert_same_rows(rows, of_grpo, more=OWN)
    assert all(row["reward_model_accuracy"] == 1 and row["response_steps"] == 1 for row in rows[1:-1])
    assert differing(learned, theirs)


@pytest.mark.parametrize("labels", ["soft", "hard"])
def test_labels_are_the_chances_of_a_policy_that_is_enumerated(labels):
    """Soft labels are within five standard errors (4,000 continuations); hard ones are 1 if an ending is correct."""
    args = process_rewards.Args(label_samples=4000, labels=labels, responses_per_prompt=2)
    chain, problems = Chain(args), [Problem("a", "1", "a", [7])] * 3
    rollouts = chain.sample_shards(Request([[7]] * 3, 1, [9] * 3, 1.0, prompt_seeds(3, 1)))
    steps = [process_rewards.split_steps(tokens, {3}) for tokens in rollouts.tokens]
    assert steps == [[2, 4, 7]] * 3
    last = process_rewards.last_tokens(steps, torch.ones(3, 7, dtype=torch.bool))
    found = process_rewards.label_steps(problems, rollouts, steps, last, chain, chain.verify, 1, args)
    assert last.nonzero()[:, 1].tolist() == [1, 3, 6] * 3 and not found[~last].any()
    for tokens, of_steps in zip(rollouts.tokens, found[last].view(3, 3).tolist(), strict=True):
        exact = [chain.value(tokens[:t]) for t in (2, 4, 6)]
        expected = exact if labels == "soft" else [float(v > 0) for v in exact]
        assert of_steps == pytest.approx(expected, abs=5 * 0.5 / 4000**0.5)


def test_labels_are_verdicts_whatever_the_rewards():
    """Rewards such as 0.2 for a form change no label: a label is a chance."""
    args = process_rewards.Args(label_samples=3, responses_per_prompt=2)
    chain, problems = Chain(args), [Problem("a", "1", "a", [7])] * 3
    rollouts = chain.sample_shards(Request([[7]] * 3, 1, [9] * 3, 1.0, prompt_seeds(3, 1)))
    steps = [process_rewards.split_steps(tokens, {3}) for tokens in rollouts.tokens]
    last = process_rewards.last_tokens(steps, torch.ones(3, 7, dtype=torch.bool))

    def label(scale):
        def verifier(problems, rollouts):
            return scale * chain.verify(problems, rollouts) + 0.2

        return process_rewards.label_steps(problems, rollouts, steps, last, chain, verifier, 1, args)

    assert torch.equal(label(1.0), label(-3.0)) and label(1.0).max() == 1


def test_a_step_holds_what_begins_in_it():
    """The end of a line belongs to the step before it, and EOS to the last step."""
    assert process_rewards.split_steps([5, 3, 5, 5, 3, 5, 1], {3}) == [2, 5, 7]
    assert process_rewards.split_steps([5, 3, 5, 3, 1], {3}) == [2, 5]
    assert process_rewards.split_steps([3], {3}) == [1]
