"""What Weights & Biases and TensorBoard receive; neither is installed, so recording doubles replace them."""

import sys
from types import SimpleNamespace

import grpo
from common.metrics import read_metrics

import pytest
from runs import on_tiny, results, run


class Double:
    """Stands in for a package and its writer: records every call and returns itself."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.calls.append((name, args, kwargs))
            return SimpleNamespace(args=args) if name == "Table" else self

        return call

    def of(self, name):
        return [(args, kwargs) for called, args, kwargs in self.calls if called == name]


@pytest.fixture
def wandb(monkeypatch):
    double = Double()
    monkeypatch.setitem(sys.modules, "wandb", double)
    return double


def test_a_resumed_run_is_the_same_run(wandb, tiny_model, tmp_path):
    """Every start of a run uses the same id, and another folder gets another id."""
    settings = on_tiny(tiny_model) | {"track": "wandb"}
    run("grpo", tmp_path / "a", **settings, save_every=1)
    grpo.main(grpo.Args(resume=tmp_path / "a", steps=3))
    run("grpo", tmp_path / "b", **settings)
    starts = [kwargs for _, kwargs in wandb.of("init")]
    ids = [start["id"] for start in starts]
    assert ids[0] == ids[1] != ids[2] and {start["resume"] for start in starts} == {"allow"}
    assert ids[0] == (tmp_path / "a" / "wandb-id").read_text()


def test_numbers_and_samples_reach_wandb(wandb, tiny_model, tmp_path):
    """W&B gets every row of the log at its step, and the samples of each evaluation."""
    run("grpo", tmp_path / "run", **on_tiny(tiny_model) | {"track": "wandb", "eval_problems": 6})
    _, log = results(tmp_path / "run")
    sent = {row["step"]: {"step": row["step"]} for row in log}
    tables = {}
    for (numbers,), kwargs in wandb.of("log"):
        sent[kwargs["step"]] |= {name: value for name, value in numbers.items() if name != "samples"}
        if "samples" in numbers:
            tables[kwargs["step"]] = numbers["samples"].args
    assert [{name: v for name, v in row.items() if v is not None} for row in log] == list(sent.values())
    assert sorted(tables) == [0, 2]
    for step, (columns, rows) in tables.items():
        text = (tmp_path / "run" / "samples" / f"step-{step:06d}.md").read_text()
        assert columns == ["prompt", "response", "answer", "reward"] and len(rows) == 4
        for prompt, _, answer, reward in rows:
            assert prompt in text and f"\n{answer}\n" in text and f"reward {reward:g}" in text


def test_samples_reach_tensorboard(monkeypatch, tiny_model, tmp_path):
    """TensorBoard gets the samples as the Markdown of their file."""
    double = Double()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", double)
    run("grpo", tmp_path / "run", **on_tiny(tiny_model) | {"track": "tensorboard"})
    for (name, text, step), _ in double.of("add_text"):
        assert name == "samples" and text == (tmp_path / "run" / "samples" / f"step-{step:06d}.md").read_text()
    assert [args[2] for args, _ in double.of("add_text")] == [0, 2]
    steps = {args[2] for args, _ in double.of("add_scalar")}
    assert steps == {row["step"] for row in read_metrics(tmp_path / "run")}
