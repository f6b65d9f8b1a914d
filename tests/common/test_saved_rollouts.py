"""Saved responses are those that the step trained on, with the numbers it used."""

import re

import grpo
from common.metrics import cut_logs
from tools.scripts import load

import pytest
import torch
from datasets import load_dataset
from runs import on_tiny, run

SAVED = {"save_rollouts": 1, "save_tokens": True}


def saved(folder, cache):
    """The rows of all files, by step, as a reader would load them."""
    files = sorted(map(str, (folder / "rollouts").glob("*.jsonl.gz")))
    steps = {}
    for row in load_dataset("json", data_files=files, split="train", cache_dir=str(cache)):
        steps.setdefault(row["step"], []).append(row)
    return steps


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def token_mean(rows, name):
    """A token value's mean with GRPO's weights: every response counts the same."""
    return mean(mean(row["tokens"][name]) for row in rows)


def test_they_explain_the_log(tiny_model, half_correct, tmp_path):
    """Every logged mean follows from the file, even with several passes over the batch."""
    settings = on_tiny(tiny_model) | SAVED | {"update_epochs": 2, "num_minibatches": 2, "lr": 0.01}
    _, log = run("grpo", tmp_path / "run", **settings)
    steps = saved(tmp_path / "run", tmp_path)
    assert sorted(steps) == [1, 2]
    for step, rows in steps.items():
        logged = next(row for row in log if row["step"] == step)
        assert [row["group"] for row in rows] == [i // 4 for i in range(16)]
        assert len({row["prompt"] for row in rows}) == 4 == len({(row["prompt"], row["answer"]) for row in rows})
        for name in ("reward", "length", "truncated"):
            assert mean(row[name] for row in rows) == pytest.approx(logged[name]), name
        assert mean(row["correct"] for row in rows) == logged["accuracy"]
        rewards = torch.tensor([row["reward"] for row in rows]).view(4, 4)
        advantages = grpo.compute_advantages(rewards, grpo.Args()).flatten().tolist()
        assert [row["advantage"] for row in rows] == pytest.approx(advantages, abs=1e-6)
        assert set(rows[0]["tokens"]) == {
            "text", "advantage", "old_logp", "rollout_logp", "entropy", "tis_weight", "ratio", "clip_pos", "clip_neg"
        }  # fmt: skip
        for name in ("entropy", "tis_weight", "ratio", "clip_pos", "clip_neg"):
            assert token_mean(rows, name) == pytest.approx(logged[name], rel=1e-3, abs=1e-6), name
        assert logged["ratio_min"] < 0.99 and logged["clip_pos"] + logged["clip_neg"] > 0, "no token was clipped"
        for row in rows:
            assert {len(values) for values in row["tokens"].values()} == {row["length"]}
            assert row["tokens"]["advantage"] == pytest.approx([row["advantage"]] * row["length"], abs=1e-3)
            assert re.sub(r"<\w+>", "", "".join(row["tokens"]["text"])) == row["text"], "more than special tokens"


def test_which_steps(tiny_model, tmp_path):
    """Every N-th step is saved; by default every step with an embedded model and none with another."""
    for number, names in ((2, ["step-000002.jsonl.gz"]), (None, [])):
        folder = tmp_path / str(number)
        run("grpo", folder, **on_tiny(tiny_model) | {"save_rollouts": number, "steps": 3})
        assert [path.name for path in folder.glob("rollouts/*")] == names
    assert grpo.Args().save_rollouts == 1 and grpo.Args(model="search").save_rollouts == 1
    assert grpo.Args(model="org/model").save_rollouts == 0 == grpo.Args(save_rollouts=0).save_rollouts


def test_without_tokens_they_are_small(tiny_model, tmp_path):
    run("grpo", tmp_path / "run", **on_tiny(tiny_model), save_rollouts=1)
    for rows in saved(tmp_path / "run", tmp_path).values():
        assert all("tokens" not in row and "rewards" not in row for row in rows)


def test_each_reward(tiny_model, tmp_path):
    """The file has each function's value and the verifier's verdict."""
    (tmp_path / "own.py").write_text("def words(problem, text, tokens, truncated): return len(tokens) / 4\n")
    reward = (f"{tmp_path}/own.py:words=0.5", "correct=2")
    run("grpo", tmp_path / "run", **on_tiny(tiny_model), save_rollouts=1, reward=reward)
    for rows in saved(tmp_path / "run", tmp_path).values():
        for row in rows:
            assert row["rewards"] == {"words": row["length"] / 4, "correct": float(row["correct"])}
            assert row["reward"] == pytest.approx(0.5 * row["rewards"]["words"] + 2 * row["rewards"]["correct"])


def test_feedback(tiny_model, tmp_path):
    source = "def f(problem, text, tokens, truncated): return 0, 'even' * (len(tokens) % 2 == 0)"
    (tmp_path / "own.py").write_text(source)
    run("grpo", tmp_path / "run", **on_tiny(tiny_model), save_rollouts=1, reward=("correct", f"{tmp_path}/own.py:f"))
    rows = [row for of_step in saved(tmp_path / "run", tmp_path).values() for row in of_step]
    assert all(row.get("feedback") == (None if row["length"] % 2 else "even") for row in rows)
    assert len({row["length"] % 2 for row in rows}) == 2


def test_a_run_with_the_verdict_alone_as_its_reward(tiny_model, tmp_path):
    run("grpo", tmp_path / "run", **on_tiny(tiny_model), save_rollouts=1, reward=("correct=2",))
    for rows in saved(tmp_path / "run", tmp_path).values():
        assert all("feedback" not in row and row["reward"] == 2 * row["correct"] for row in rows)


@pytest.mark.parametrize("name", ["spin", "dpo"])
def test_scripts_without_advantages(name, tiny_model, half_correct, tmp_path):
    """Saved rows have no advantages, and SPIN's leave out the data set's solutions."""
    G = 2 if name == "dpo" else load(name).Args().responses_per_prompt
    run(name, tmp_path / "run", **on_tiny(tiny_model) | {"responses_per_prompt": G}, **SAVED)
    for rows in saved(tmp_path / "run", tmp_path).values():
        assert len(rows) == 4 * (G if name == "dpo" else G - 1)
        for row in rows:
            assert row["advantage"] is None and "advantage" not in row["tokens"]
            assert row["tokens"]["old_logp"] == pytest.approx(row["tokens"]["rollout_logp"], abs=1e-3)
            assert min(row["tokens"]["rollout_logp"]) < 0


def test_those_of_lost_steps_are_removed(tmp_path):
    """Resuming removes the responses of steps after the checkpoint."""
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {step}}}\n' for step in range(4)))
    for name in ("step-000002.jsonl.gz", "step-000003.jsonl.gz", "step-abc.jsonl.gz"):
        (tmp_path / "rollouts" / name).touch()
    cut_logs(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.glob("rollouts/*")) == ["step-000002.jsonl.gz", "step-abc.jsonl.gz"]
