"""Scripts' runs are as specified: batch splitting, the seed, the log, the model, and the data."""

import json
import shutil

import common.batch
import dapo
import grpo
from common.run import Run
from common.schedule import learning_rate

import pytest
import torch
from runs import assert_same_rows, assert_same_weights, base_weights, differing, results, run

SPLIT_METRICS = ("loss", "entropy", "ratio", "ratio_max", "grad_norm", "tis", "clip_pos", "clip_neg")


def test_micro_batches_and_row_order_change_nothing(tmp_path, monkeypatch, capsys):
    """Two runs, one with single rows in another order, end with the same weights and metrics.

    For the other scripts, `test_every_update` compares each update from micro-batches with a sum row by row.
    """
    monkeypatch.setattr(Run, "evaluate", lambda *_: None)
    monkeypatch.setattr(Run, "summarize", lambda *_: None)
    weights, rows = run("grpo", tmp_path / "whole", micro_batch_tokens=10**6, lr=1e-3)
    micro_batches, generator = common.batch.micro_batches, torch.Generator().manual_seed(0)

    def shuffled(minibatch, of_tokens, *rest):
        order = torch.randperm(len(minibatch), generator=generator)
        return micro_batches(minibatch[order], of_tokens[order], *rest)

    monkeypatch.setattr(grpo, "micro_batches", shuffled)
    other, other_rows = run("grpo", tmp_path / "split", micro_batch_tokens=60, lr=1e-3)
    initial = base_weights()
    assert any((weights[key] - initial[key]).abs().max() > 5e-4 for key in weights), "nothing was learned"
    for key in weights:
        # AdamW divides by the gradient's size, so rounding shows in a few weights whose gradient is near 0.
        assert (weights[key] - other[key]).abs().mean() < 5e-6, f"{key} depends on the split"
    for a, b in zip(rows, other_rows, strict=True):
        for metric in SPLIT_METRICS if a["step"] else ():
            assert a[metric] == pytest.approx(b[metric], rel=2e-3, abs=2e-4), f"step {a['step']}: {metric}"


def test_same_seed_same_run_and_other_seed_other_run(tmp_path, capsys):
    """On the CPU, equal seeds give equal runs bit for bit, and another seed gives another run."""
    weights, rows = run("grpo", tmp_path / "a", steps=1)
    again, again_rows = run("grpo", tmp_path / "b", steps=1)
    other, _ = run("grpo", tmp_path / "c", steps=1, seed=2)
    assert_same_weights(weights, again)
    assert_same_rows(rows, again_rows)
    assert differing(weights, other), "another seed gave the same weights"


@pytest.mark.curves
def test_run_folder(tmp_path, capsys):
    """A run's folder and output are complete."""
    _, rows = run("grpo", tmp_path / "run", steps=3, eval_every=1)
    folder = tmp_path / "run"
    config = json.loads((folder / "config.json").read_text())
    assert config["args"]["prompts_per_step"] == 4 and config["versions"]["torch"] == torch.__version__
    assert config["method"] == "grpo" and config["commit"]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in sorted((folder / "samples").iterdir())] == [f"step-00000{i}.md" for i in range(4)]
    assert "boxed" in (folder / "samples" / "step-000003.md").read_text()
    assert not (folder / ".lock").exists() or not (folder / ".lock").read_text()
    output = capsys.readouterr().out
    for words in ("--- first prompt ---", "held-out accuracy", str(folder)):
        assert words in output, f"the run did not print {words!r}"
    for row in rows[1:]:
        assert row["reward"] == row["accuracy"]
        assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
        assert row["mismatch_max"] < 1e-4
        assert row["entropy"] > 0 and row["tokens_per_second/generate"] > 0


@pytest.mark.parametrize("name", ["grpo", *(pytest.param(name, marks=pytest.mark.slow) for name in ("ppo", "dppo"))])
def test_real_model_and_data(name, chat_model, gsm8k_file, tmp_path, capsys):
    """A local model of another architecture with a chat template trains on a file in GSM8K's format."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    settings = {"divergence": "topk-tv"} if name == "dppo" else {}
    folder = tmp_path / "run"
    run(name, folder, model=str(chat_model), dataset=str(gsm8k_file), kl_beta=0.01, fp32_lm_head=True, **settings)
    model = AutoModelForCausalLM.from_pretrained(folder / "checkpoint-000002")
    tokenizer = AutoTokenizer.from_pretrained(folder / "checkpoint-000002")
    assert model.config.model_type == "qwen3" and tokenizer.chat_template
    words = "Tom has 5 apples"
    assert tokenizer(words)["input_ids"] == AutoTokenizer.from_pretrained(chat_model)(words)["input_ids"]
    assert "<|im_start|>user\nTom has" in capsys.readouterr().out


def test_dynamic_sampling_keeps_groups_with_signal(tmp_path, monkeypatch, capsys):
    """Groups are kept by correctness alone: rewards that differ only by length do not save a group."""
    seen = []
    original = dapo.compute_advantages
    monkeypatch.setattr(
        dapo, "compute_advantages", lambda rewards, args: (seen.append(rewards), original(rewards, args))[1]
    )
    _, rows = run("dapo", tmp_path / "run", overlong_cache=31)
    for rewards, row in zip(seen, rows[1:], strict=True):
        assert row["kept_groups"] == 4 and row["sampled_prompts"] > 4
        assert ((rewards > 0).any(1) & (rewards < 0).any(1)).all(), f"step {row['step']}: a group without signal"


def test_dynamic_sampling_has_a_limit(tmp_path, monkeypatch, capsys):
    """If all answers are correct, groups without signal fill the batch, even if lengths differ."""
    monkeypatch.setattr(
        "common.verification.verifier.Verifier.judge", lambda self, responses, golds, cut: [1.0] * len(responses)
    )
    weights, rows = run("dapo", tmp_path / "run", max_rounds=3, overlong_cache=32)
    assert "only 0 of 12 groups have signal" in capsys.readouterr().out
    assert rows[1]["kept_groups"] == 0 and rows[1]["grad_norm"] == 0
    assert_same_weights(weights, base_weights())


def test_staleness_is_a_ring_of_weights(tmp_path, monkeypatch, capsys):
    """The engine generates with the weights from k steps ago, or the first ones, even after a resume."""
    generated, trained = [], []
    make_engine, log_step = grpo.make_engine, Run.log_step

    def watched(*args):
        engine = make_engine(*args)
        update = engine.update
        engine.update = lambda weights: update(map(seen, weights))
        return engine

    def seen(weight):
        if weight[0] == "model.norm.weight":
            generated.append(weight[1].detach().clone())
        return weight

    def logged(self, step):
        trained.append(dict(self.model.named_parameters())["model.norm.weight"].detach().clone())
        return log_step(self, step)

    monkeypatch.setattr(grpo, "make_engine", watched)
    monkeypatch.setattr(Run, "log_step", logged)
    weights, _ = run("grpo", tmp_path / "run", staleness=2, steps=5, lr=1e-3, eval_every=0, save_every=3)
    initial = base_weights()["model.norm.weight"]
    of_steps = generated[1:-1]  # the first and the last are evaluations
    expected = [initial, initial, initial, trained[0], trained[1]]
    assert len(of_steps) == 5 and all(torch.equal(a, b) for a, b in zip(of_steps, expected, strict=True))
    shutil.rmtree(tmp_path / "run" / "checkpoint-000005")
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    assert_same_weights(weights, results(tmp_path / "run")[0])


def test_learning_rate_schedules_are_those_of_transformers():
    """The schedules equal those of transformers shifted by one step, so no step has a rate of 0."""
    from transformers import get_scheduler

    for kind in ("linear", "cosine"):
        args = grpo.Args(lr_schedule=kind, steps=20, warmup_steps=5, lr=0.01)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
        theirs = get_scheduler(kind, optimizer, args.warmup_steps, args.steps)
        for step in range(1, 21):
            if step > args.warmup_steps:
                assert learning_rate(step, args) == pytest.approx(theirs.get_last_lr()[0]), f"{kind}, step {step}"
            else:
                assert learning_rate(step, args) == pytest.approx(0.01 * step / 5), f"{kind}, step {step}"
            theirs.step()
    assert learning_rate(20, grpo.Args(steps=20)) == grpo.Args().lr
    assert learning_rate(1, grpo.Args(warmup_steps=0)) == grpo.Args().lr


@pytest.mark.slow
def test_it_learns_to_search(tmp_path, capsys):
    """The base model mostly gives up after one attempt; after twelve steps it makes several and is more accurate."""
    _, rows = run(
        "grpo", tmp_path / "run", model="search", dataset="search", steps=12, prompts_per_step=16, eval_problems=64,
        responses_per_prompt=8, eval_samples=16, max_response_tokens=240, eval_every=0,
    )  # fmt: skip
    before, after = rows[0], rows[-1]
    assert 0.15 < before["eval/avg"] < 0.3 and before["eval/pass@16"] > 0.8
    assert before["eval/behavior/attempts"] < 1.5 and after["eval/behavior/attempts"] > 3
    assert after["eval/avg"] > before["eval/avg"] + 0.3
