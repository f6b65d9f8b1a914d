"""Small parts that all scripts share: rollouts, batches, clocks, folders, seeds, rewards, and the help."""

import json
import time
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import grpo
from common import clock as clocks
from common.batch import collate, micro_batches
from common.engines import Engine
from common.folders import open_folder
from common.help import GROUPS, help_text
from common.records import Problem, Rollouts
from common.run import Run, seed_step
from common.verification import Verifier

import pytest
import torch
from filelock import FileLock
from runs import on_tiny

ROLLOUTS = Rollouts(
    [[1, 2, 3], [4, 5], [6, 7, 8, 9]], [[-0.1] * 3, [-0.2] * 2, [-0.3] * 4], [False, False, True],
    [[True] * 3, [True] * 2, [True] * 4],
)  # fmt: skip


def test_splice_and_replace():
    begun = ROLLOUTS.splice({2: (1, [20, 21]), 0: (2, [10, 11, 12])}, limit=4)
    assert begun.tokens == [[6, 20, 21], [1, 2, 10, 11]]
    assert begun.sampled == [[True, False, False], [True, True, False, False]]
    assert begun.logps == [[-0.3, 0.0, 0.0], [-0.1, -0.1, 0.0, 0.0]]
    replaced = ROLLOUTS.replace([2, 0], begun)
    assert replaced.tokens == [[1, 2, 10, 11], [4, 5], [6, 20, 21]]
    assert replaced.truncated == [True, False, True]


@pytest.mark.parametrize("judged", [(True, False), (False, True), (True, True)])
def test_replace_drops_verdicts_that_only_one_side_has(judged):
    """Either every row keeps its verdict or none does."""
    sides = replace(ROLLOUTS, correct=[True, True, False]), replace(ROLLOUTS.select([1]), correct=[False])
    before, others = (side if keep else replace(side, correct=[]) for side, keep in zip(sides, judged, strict=True))
    replaced = before.replace([0], others)
    assert replaced.correct == ([False, True, False] if all(judged) else [])
    assert replaced.tokens == [[4, 5], [4, 5], [6, 7, 8, 9]]


def test_inserted_tokens_are_not_in_the_response_mask():
    rollouts = ROLLOUTS.replace([0], ROLLOUTS.splice({0: (2, [10])}, limit=4))
    batch = collate([Problem("", "", "", [1])], rollouts, "cpu")
    assert batch.token_mask.int().tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch.response_mask.int().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]


def test_micro_batches_have_the_weights_of_their_rows():
    """Micro-batches keep each row's minibatch weights, for any order and split."""
    batch = collate([Problem("", "", "", [1])] * 3, ROLLOUTS, "cpu")
    minibatch = torch.tensor([2, 0])
    weights = torch.tensor([[20.0, 21, 22, 23], [0.0, 1, 2, 0]])  # (b, T)
    for max_tokens in (1, 1000):
        found = {}
        for rows, w in micro_batches(minibatch, weights, batch, SimpleNamespace(micro_batch_tokens=max_tokens)):
            found |= dict(zip(rows.tolist(), w.tolist(), strict=True))
        assert found == {2: weights[0].tolist(), 0: weights[1].tolist()}


def test_stages_are_timed_once(monkeypatch):
    """A nested clock adds nothing, training gets the remaining time, and each step starts at 0."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    watch = clocks.Stopwatch()
    monkeypatch.setattr(clocks, "stopwatch", watch)
    with clocks.clock("outer"):
        now[0] += 1
        with clocks.clock("inner"):
            now[0] += 2
    now[0] += 4
    with pytest.raises(ValueError), clocks.clock("failing"):
        now[0] += 8
        raise ValueError
    with clocks.clock("after"):
        now[0] += 16
    expected = {"seconds/outer": 3, "seconds/failing": 8, "seconds/after": 16, "seconds/train": 4}
    assert {name: value for name, value in watch.result().items() if name.startswith("seconds")} == expected
    watch.restart()
    now[0] += 1
    assert watch.result()["seconds/train"] == 1 and len(watch.seconds) == 1


def test_a_step_has_the_seed_of_its_number():
    def numbers(seed, step):
        seed_step(seed, step)
        return torch.rand(3).tolist()

    assert numbers(1, 2) == numbers(1, 2)
    assert len({tuple(numbers(seed, step)) for seed in (1, 2) for step in (1, 2)}) == 4


def test_a_steps_responses_depend_on_its_number():
    engine, seen = Engine(grpo.Args()), []
    engine.sample_shards = lambda request: seen.append(request.seeds)
    problems = [Problem("", "", "", [1])] * 2
    for key in ((1,), (2,), (1, 1)):
        engine.generate(problems, 2, *key)
    assert len({seed for seeds in seen for seed in seeds}) == 6


def test_rewards_belong_to_their_responses():
    """Rewards have one row per problem of the batch, and new verdicts replace old ones."""
    tokenizer = SimpleNamespace(batch_decode=lambda rows, **_: ["".join(map(chr, row)) for row in rows])
    verifier = Verifier(
        SimpleNamespace(answer_format="boxed", tolerance=0.0, reward=(), reward_workers=2), tokenizer, []
    )
    problems = [Problem("", "1", "", []), Problem("", "2", "", [])]
    for answers, rewards in (("112", "222"), [[1, 1, 0], [1, 1, 1]]), (("212", "131"), [[0, 1, 0], [0, 0, 0]]):
        rollouts = Rollouts([list(map(ord, f"\\boxed{{{a}}}")) for row in answers for a in row], truncated=[False] * 6)
        rollouts.correct = [True] * 6
        assert verifier(problems, rollouts).tolist() == rewards
        assert rollouts.correct == [bool(value) for row in rewards for value in row]
    verifier.close()


def test_a_refused_start_leaves_the_folder(tmp_path):
    """A folder that another run has just locked stays, even if it is otherwise empty."""
    with FileLock(tmp_path / ".lock", blocking=False):
        with pytest.raises(SystemExit), ExitStack() as stack:
            open_folder(SimpleNamespace(resume=None, run_dir=tmp_path), "name", stack)
        assert (tmp_path / ".lock").exists()


def test_a_resumed_run_has_its_state(tiny_model, tmp_path, monkeypatch, capsys):
    """The method's state comes from the checkpoint, and later rows of the log are removed."""
    monkeypatch.setattr(Run, "summarize", lambda self: None)
    monkeypatch.setattr(Run, "evaluate", lambda self, step: None)
    folder, kept = tmp_path / "run", []
    log_step = Run.log_step

    def counted(self, step):
        self.state["steps"] = [*self.state.get("steps", []), step]
        kept.append(self.state["steps"])
        log_step(self, step)

    monkeypatch.setattr(Run, "log_step", counted)
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": folder, "steps": 2}))
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "accuracy": 9}\n')
    grpo.main(grpo.Args(resume=folder, steps=3))
    assert kept == [[1], [1, 2], [1, 2, 3]]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3] and rows[2]["accuracy"] <= 1


def test_the_help_has_groups_with_the_methods_own_first():
    lines = help_text(grpo.Args, "What it does.").splitlines()
    titles = [line for line in lines if line and not line.startswith(" ")][1:]
    assert titles[0] == "GRPO" and tuple(titles[1:]) == GROUPS[-len(titles) + 1 :], titles

    def group(flag):
        place = next(i for i, line in enumerate(lines) if line.startswith(f"  {flag}"))
        return next(line for line in lines[place::-1] if line in titles), lines[place + 1]

    title, text = group("--clip-eps")
    assert title == "GRPO" and text.strip().startswith("ε: "), text
    assert "Default: 0.2" in " ".join(lines[lines.index(text) :][:3]), "no default of --clip-eps"
    assert group("--seed")[0] != "GRPO" and group("--dataset")[0] == "Data and rewards"
