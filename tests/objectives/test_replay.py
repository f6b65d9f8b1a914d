"""Replay: hard prompts come back with a correct response, which joins a group that has none."""

from types import SimpleNamespace

from common.records import Rollouts
from methods import replay

import pytest
import torch
from runs import assert_same_rows, assert_same_weights, on_tiny, results, run

QUESTION = SimpleNamespace(prompt="1+1=?")
OTHER = SimpleNamespace(prompt="2+2=?")


def responses(verdicts, first=0):
    """A single-token response per verdict; the tokens are numbered starting at `first`."""
    rows = [[first + i] for i in range(len(verdicts))]
    return Rollouts(rows, [[-0.5]] * len(rows), [False] * len(rows), [[True]] * len(rows), correct=list(verdicts))


def buffer_after(steps, problems=(QUESTION,), **settings):
    """The buffer after some steps; each step has its number and, per problem, the verdicts of a group."""
    buffer, args = {}, replay.Args(**settings)
    for step, *groups in steps:
        flat = [verdict for group in groups for verdict in group]
        rewards = torch.tensor(groups, dtype=torch.float32)
        buffer = replay.updated(buffer, problems, responses(flat, 10 * step), rewards, step, args)
    return {prompt: kept["response"]["tokens"] for prompt, kept in buffer.items()}


def test_without_a_buffer_it_is_grpo(tiny_model, tmp_path, half_correct, capsys):
    """Without a buffer the run equals GRPO's bit for bit; with one, prompts are replayed."""
    settings = on_tiny(tiny_model) | {"responses_per_prompt": 2, "lr": 1e-2, "steps": 4}
    (theirs, rows), (ours, own), (_, replayed) = (
        run(name, tmp_path / f"{name}{more}", **settings | more)
        for name, more in (("grpo", {}), ("replay", {"buffer": 0}), ("replay", {}))
    )
    assert_same_weights(ours, theirs)
    assert_same_rows(own, rows, more=("replayed", "plain_accuracy"))
    assert sum(row["replayed"] for row in own[1:]) == 0 < sum(row["replayed"] for row in replayed[1:])


def test_the_buffer_survives_a_resume(tiny_model, tmp_path, half_correct, capsys):
    settings = on_tiny(tiny_model) | {"responses_per_prompt": 2, "lr": 1e-2, "steps": 4, "save_every": 2}
    settings["replay_fraction"] = 1.0
    weights, rows = run("replay", tmp_path / "run", **settings)
    state = torch.load(tmp_path / "run/checkpoint-000002/state.pt", weights_only=True)
    assert state["buffer"] and sum(row["replayed"] for row in rows[3:]) > 0
    for path in (tmp_path / "run/checkpoint-000004").iterdir():
        path.unlink()
    replay.main(replay.Args(resume=tmp_path / "run"))
    again, logged = results(tmp_path / "run")
    assert_same_weights(again, weights)
    assert_same_rows(logged, rows)


@pytest.mark.parametrize(
    "verdicts,kept",
    [([0, 0, 0, 0], {}), ([0, 1, 0, 0], {QUESTION.prompt: [[11]]}), ([0, 1, 1, 0], {QUESTION.prompt: [[11]]}),
     ([1, 1, 1, 0], {}), ([1, 1, 1, 1], {})],
)  # fmt: skip
def test_a_prompt_is_kept_if_it_is_hard_and_was_solved(verdicts, kept):
    assert buffer_after([(1, verdicts)], hard=0.5) == kept


def test_a_kept_response_is_renewed_dropped_or_stays():
    hard, failed, easy = [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]
    assert buffer_after([(1, hard), (2, failed)]) == {QUESTION.prompt: [[10]]}
    assert buffer_after([(1, hard), (2, hard)]) == {QUESTION.prompt: [[20]]}
    assert buffer_after([(1, hard), (2, easy)]) == {}
    assert buffer_after([(1, hard), (3, failed)], max_age=3) == {QUESTION.prompt: [[10]]}
    assert buffer_after([(1, hard), (4, failed)], max_age=3) == {}, "it would be four steps old in the next one"


def test_what_was_just_tried_waits_longest_and_the_oldest_give_way():
    hard, failed, both = [1, 0], [0, 0], (QUESTION, OTHER)
    assert [*buffer_after([(1, hard, hard)], both)] == [QUESTION.prompt, OTHER.prompt]
    assert [*buffer_after([(1, hard, hard), (2, failed, failed)], both[::-1])] == [OTHER.prompt, QUESTION.prompt]
    assert [*buffer_after([(1, hard, hard)], both, buffer=1)] == [OTHER.prompt]


def test_a_kept_response_joins_only_where_none_is_correct():
    """The kept response becomes the first one, with its own log-probs and reward."""
    kept = {"step": 1, "reward": 0.75, "response": vars(responses([1], first=90))}
    sampled, rewards = responses([0, 0, 0, 1]), torch.tensor([[0.0, 0.0], [0.0, 1.0]])
    buffer = {QUESTION.prompt: kept, OTHER.prompt: kept}
    joined, values = replay.join_groups(buffer, [QUESTION, OTHER], sampled, rewards)
    assert joined.tokens == [[90], [1], [2], [3]] and joined.correct == [1, 0, 0, 1]
    torch.testing.assert_close(values, torch.tensor([[0.75, 0.0], [0.0, 1.0]]))
    assert rewards.sum() == 1, "the verdicts have changed"
    assert replay.join_groups({}, [QUESTION, OTHER], sampled, rewards)[0].tokens == sampled.tokens


def test_old_responses_count_by_their_importance():
    """TIS weight times ratio is π_θ / π_past; where the TIS weight exceeds the cap C, it is C."""
    past, old, new = torch.tensor([[[-2.0, -2.0, -1.0]], [[-1.5, -0.5, -3.0]], [[-1.4, -0.4, -2.9]]])
    args, ones = replay.Args(tis_cap=2.0), torch.ones(1, 3)
    loss, _ = replay.policy_loss(new, old, ones, args)
    weighted = replay.tis_weight(old, past, args) * loss
    expected = -torch.cat([(new - past).exp()[:, :1], 2 * (new - old).exp()[:, 1:2], (new - past).exp()[:, 2:]], 1)
    torch.testing.assert_close(weighted, expected)
