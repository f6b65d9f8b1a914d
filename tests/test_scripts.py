"""The scripts as a whole: how they differ, and that their runs are what they should be."""

import ast
import difflib
import importlib
import json
import re
from pathlib import Path

import common.batch
from common.compare import SCRIPTS, family_tree, parent, read

import pytest
import torch
from conftest import SMALL
from safetensors.torch import load_file

ROOT = Path(__file__).parent.parent


def run(name, folder, **settings):
    """Run a script's main in this process; the weights of its last checkpoint and the rows of its log."""
    script = importlib.import_module(name)
    script.main(script.Args(run_dir=folder, **SMALL | settings))
    return results(folder)


def results(folder):
    last = sorted(folder.glob("checkpoint-*"))[-1]
    return load_file(last / "model.safetensors"), [json.loads(x) for x in (folder / "metrics.jsonl").open()]


def without_times(rows):
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


# The diff discipline


def sections(text):
    """(line, kind) of every line after the docstring; kinds: import, args, objective, check, loop, other."""
    tree, lines = ast.parse(text), text.splitlines()
    kinds = ["other"] * len(lines)
    for node in tree.body:
        start, end = node.lineno - 1, node.end_lineno
        if isinstance(node, ast.Import | ast.ImportFrom):
            kinds[start:end] = ["import"] * (end - start)
        elif isinstance(node, ast.ClassDef) and node.name == "Args":
            method = next(i for i in range(start, end) if re.fullmatch(METHOD_TAG, lines[i]))
            kinds[method:end] = ["args"] * (end - method)
        elif isinstance(node, ast.FunctionDef) and node.name == "main":
            begin = next(i for i in range(start, end) if lines[i].startswith("    run = Run("))
            kinds[start + 1 : begin] = ["check"] * (begin - start - 1)
            kinds[begin:end] = ["loop"] * (end - begin)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            kinds[start:end] = ["objective"] * (end - start)
    after = tree.body[0].end_lineno
    return list(zip(lines, kinds, strict=True))[after:]


METHOD_TAG = r"    # ([\w. ]+)"  # the method's name, in the comment above its own settings


def check_difference(old_text, new_text):
    """Outside the declared sections lines are identical; hunks of the loop carry a method's name in a comment."""
    old, new = sections(old_text), sections(new_text)
    tags = [re.search(f"^{METHOD_TAG}$", text, re.M)[1] for text in (old_text, new_text)]
    matcher = difflib.SequenceMatcher(None, [x for x, _ in old], [x for x, _ in new], autojunk=False)
    for change, i1, i2, j1, j2 in matcher.get_opcodes():
        if change == "equal":
            continue
        hunk = old[i1:i2] + new[j1:j2]
        for line, kind in hunk:
            assert kind != "other" or not line.strip(), f"a difference outside the declared sections: {line}"
        if any(kind == "loop" for _, kind in hunk):
            around = [line for line, _ in hunk + new[max(0, j1 - 3) : j1]]
            declared = any(re.search(rf"#.*\b{re.escape(tag)}\b", line) for line in around for tag in tags)
            assert declared, f"an undeclared difference in the loop: {hunk}"


def source(name):
    return (ROOT / f"{name}.py").read_text()


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "reinforce"])
def test_differs_from_its_parent_in_the_method_only(name):
    check_difference(source(parent(name)), source(name))


@pytest.mark.parametrize(
    "shared,drifted,message",
    [
        ("warmup_steps: int = 5", "warmup_steps: int = 6", "outside the declared sections"),
        ("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=True)", "undeclared difference in the loop"),
        ("# (b,) rows of whole groups", "# (b,) rows of groups", "undeclared difference in the loop"),
    ],
)
def test_the_discipline_finds_drift(shared, drifted, message):
    assert shared in source("cispo")
    with pytest.raises(AssertionError, match=message):
        check_difference(source("grpo"), source("cispo").replace(shared, drifted))


def test_every_script_names_its_place():
    assert [name for name in SCRIPTS if parent(name) is None] == ["reinforce"]
    assert {parent(n) for n in ["dr_grpo", "dapo", "cispo", "gspo", "gmpo", "dppo", "maxrl", "ppo"]} == {"grpo"}
    assert parent("rloo") == parent("grpo") == "reinforce"
    for name in SCRIPTS:
        assert f"    python {name}.py\n" in read(name)[0] + "\n"


def test_readme_shows_the_family_tree_as_it_is():
    assert family_tree() in (ROOT / "README.md").read_text()


# Runs


@pytest.mark.parametrize("name", SCRIPTS)
def test_micro_batches_and_row_order_change_nothing(name, tmp_path, monkeypatch, capsys):
    """Two whole runs, one in single rows and in another order, end with the same weights and metrics."""
    weights, rows = run(name, tmp_path / "whole", micro_batch_tokens=10**6, lr=1e-3)
    micro_batches, generator = common.batch.micro_batches, torch.Generator().manual_seed(0)

    def shuffled(rows, *rest):
        return micro_batches(rows[torch.randperm(len(rows), generator=generator)], *rest)

    monkeypatch.setattr(importlib.import_module(name), "micro_batches", shuffled)
    other, other_rows = run(name, tmp_path / "split", micro_batch_tokens=60, lr=1e-3)
    initial = load_file(ROOT / "models/arithmetic/model.safetensors")
    assert any((weights[key] - initial[key]).abs().max() > 5e-4 for key in weights), "nothing was learned"
    for key in weights:
        # AdamW divides by the gradient's size, so rounding shows in single weights whose gradient is near 0.
        assert (weights[key] - other[key]).abs().mean() < 2e-6, key
    for a, b in zip(rows, other_rows, strict=True):
        for metric in (
            "loss",
            "entropy",
            "ratio",
            "ratio_max",
            "grad_norm",
            "tis",
            "clip_pos",
            "clip_neg",
            "value_loss",
        ):
            if metric in a:
                assert a[metric] == pytest.approx(b[metric], rel=2e-3, abs=2e-4), metric


def test_same_seed_same_run_and_other_seed_other_run(tmp_path, capsys):
    """To the bit, on the CPU."""
    weights, rows = run("grpo", tmp_path / "a")
    again, again_rows = run("grpo", tmp_path / "b")
    other, _ = run("grpo", tmp_path / "c", seed=2)
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    assert without_times(rows) == without_times(again_rows)
    assert any(not torch.equal(weights[key], other[key]) for key in weights)


@pytest.mark.parametrize("name", ["grpo", "ppo", "reinforce", "dapo"])
def test_resumed_run_ends_as_the_uninterrupted_one(name, tmp_path, capsys):
    """A run that stopped after its second checkpoint, in the middle of writing logs and a third."""
    settings = {"steps": 4, "save_every": 2, "eval_every": 2}
    if name in ("grpo", "ppo"):
        settings["kl_beta"] = 0.01
    if name == "reinforce":
        settings["baseline"] = "ema"
    weights, rows = run(name, tmp_path / "whole", **settings)
    folder = tmp_path / "cut"
    run(name, folder, **settings)
    for path in (folder / "checkpoint-000004").iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])  # a broken checkpoint
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "accu')
    script = importlib.import_module(name)
    script.main(script.Args(resume=folder))
    output = capsys.readouterr().out
    assert "skipping the broken checkpoint" in output and "after step 2" in output
    again, again_rows = results(folder)
    assert all(torch.equal(weights[key], again[key]) for key in weights)
    assert without_times(rows) == without_times(again_rows)


def test_run_folder(tmp_path, capsys):
    """Everything that a run leaves behind."""
    _, rows = run("grpo", tmp_path / "run", steps=3, eval_every=1)
    folder = tmp_path / "run"
    config = json.loads((folder / "config.json").read_text())
    assert config["args"]["prompts_per_step"] == 4 and config["versions"]["torch"] == torch.__version__
    assert config["method"] == "grpo" and config["commit"]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    samples = (folder / "samples.md").read_text()
    assert samples.count("## Step") == 4 and "boxed" in samples
    output = capsys.readouterr().out
    assert "--- first prompt ---" in output and "held-out accuracy" in output and str(folder) in output
    for row in rows[1:]:
        assert row["reward"] == row["accuracy"]
        assert row["ratio_min"] <= row["ratio"] <= row["ratio_max"]
        assert row["mismatch_max"] < 1e-4
        assert row["entropy"] > 0 and row["tokens_per_second/generate"] > 0


@pytest.mark.parametrize("name", ["grpo", "ppo", "dppo"])
def test_real_model_and_data(name, chat_model, gsm8k_file, tmp_path, capsys):
    """A local folder of another architecture with a chat template, and a file in GSM8K's format, end to end."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    settings = {"divergence": "topk-tv"} if name == "dppo" else {}
    folder = tmp_path / "run"
    run(name, folder, model=str(chat_model), dataset=str(gsm8k_file), kl_beta=0.01, fp32_lm_head=True, **settings)
    model = AutoModelForCausalLM.from_pretrained(folder / "checkpoint-000002")
    tokenizer = AutoTokenizer.from_pretrained(folder / "checkpoint-000002")
    assert model.config.model_type == "qwen3" and tokenizer.chat_template
    assert (
        tokenizer("Tom has 5 apples")["input_ids"]
        == AutoTokenizer.from_pretrained(chat_model)("Tom has 5 apples")["input_ids"]
    )
    assert "<|im_start|>user\nTom has" in capsys.readouterr().out


def test_metrics_are_those_of_the_loss(tmp_path, monkeypatch, capsys):
    """The logged loss is the mean over the updates of the losses that were differentiated, not the last one."""
    import grpo

    losses = []
    backward = torch.Tensor.backward
    monkeypatch.setattr(torch.Tensor, "backward", lambda self, *a, **k: (losses.append(self.item()), backward(self))[1])
    _, rows = run("grpo", tmp_path / "run", steps=1, micro_batch_tokens=60)
    assert len(losses) > grpo.Args().num_minibatches
    assert rows[1]["loss"] == pytest.approx(sum(losses) / grpo.Args().num_minibatches, abs=1e-7)


def test_dynamic_sampling_keeps_groups_with_signal(tmp_path, monkeypatch, capsys):
    """What counts is whether answers are right: rewards that differ by length alone do not save a group."""
    import dapo

    seen = []
    original = dapo.compute_advantages
    monkeypatch.setattr(
        dapo, "compute_advantages", lambda rewards, args: (seen.append(rewards), original(rewards, args))[1]
    )
    _, rows = run("dapo", tmp_path / "run", overlong_cache=31)
    for rewards, row in zip(seen, rows[1:], strict=True):
        assert row["kept_groups"] == 4 and row["sampled_prompts"] > 4
        assert ((rewards > 0).any(1) & (rewards < 0).any(1)).all()


def test_dynamic_sampling_has_a_limit(tmp_path, monkeypatch, capsys):
    """A model that is never right: the batch is filled with groups without signal, and says so."""
    monkeypatch.setattr("common.verify.Verifier.judge", lambda self, responses, golds, cut: [False] * len(responses))
    weights, rows = run("dapo", tmp_path / "run", max_rounds=3, overlong_cache=0)
    assert "only 0 of 12 groups have signal" in capsys.readouterr().out
    assert rows[1]["kept_groups"] == 0 and rows[1]["grad_norm"] == 0
    initial = load_file(ROOT / "models/arithmetic/model.safetensors")
    assert all(torch.equal(weights[key], initial[key]) for key in weights)


@pytest.mark.parametrize("what", ["loss", "learner_logp", "sampler_logp", "advantage"])
def test_nothing_that_is_not_finite_reaches_the_weights(what, tmp_path, monkeypatch, capsys):
    """Caught where it arises and named; the weights before it are saved."""
    import grpo

    loss, scores, collated, advantages = grpo.policy_loss, grpo.score, grpo.collate, grpo.compute_advantages

    def poisoned_batch(*args):
        batch = collated(*args)
        batch.rollout_logp[0, 0] = float("-inf")
        return batch

    poison = {
        "loss": ("policy_loss", lambda *args: (loss(*args)[0] * float("nan"), loss(*args)[1])),
        "learner_logp": ("score", lambda *args: (scores(*args)[0] + float("inf"), scores(*args)[1])),
        "sampler_logp": ("collate", poisoned_batch),
        "advantage": ("compute_advantages", lambda *args: advantages(*args) / 0),
    }
    monkeypatch.setattr(grpo, *poison[what])
    with pytest.raises(SystemExit) as stop:
        run("grpo", tmp_path / "run")
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert "step 1: not finite:" in error and what in error and "--model" in error
    saved = load_file(tmp_path / "run" / "nonfinite-step-000001" / "model.safetensors")
    initial = load_file(ROOT / "models/arithmetic/model.safetensors")
    assert all(torch.equal(saved[key], initial[key]) for key in saved)


def test_critic_that_is_not_finite_stops_the_run(tmp_path, monkeypatch, capsys):
    import ppo

    original = ppo.value_loss
    monkeypatch.setattr(ppo, "value_loss", lambda *args: original(*args) * float("inf"))
    with pytest.raises(SystemExit):
        run("ppo", tmp_path / "run")
    assert "critic_gradient" in capsys.readouterr().err


def test_interrupted_run_saves_and_can_go_on(tmp_path, monkeypatch, capsys):
    """Ctrl-C during the first step: the step is finished, the state saved, and the rest can follow."""
    import os
    import signal

    import grpo

    weights, _ = run("grpo", tmp_path / "whole", steps=3)
    original = grpo.collate
    monkeypatch.setattr(grpo, "collate", lambda *args: (os.kill(os.getpid(), signal.SIGINT), original(*args))[1])
    run("grpo", tmp_path / "run", steps=3)
    output = capsys.readouterr().out
    assert "interrupted" in output and "--resume" in output
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-000001"]
    monkeypatch.setattr(grpo, "collate", original)
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    again, rows = results(tmp_path / "run")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(torch.equal(weights[key], again[key]) for key in weights)


def test_it_learns(tmp_path, capsys):
    """Forty steps of GRPO: held-out accuracy rises by at least 0.3 and responses become longer."""
    _, rows = run(
        "grpo", tmp_path / "run", steps=40, prompts_per_step=32, responses_per_prompt=8, eval_problems=100,
        eval_samples=4, max_response_tokens=96, eval_every=0,
    )  # fmt: skip
    assert rows[0]["eval/avg"] < 0.45 and rows[0]["eval/greedy"] < 0.5
    assert rows[-1]["eval/avg"] > rows[0]["eval/avg"] + 0.3
    assert rows[-1]["length"] > rows[1]["length"] + 5
