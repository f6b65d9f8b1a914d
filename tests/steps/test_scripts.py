"""The scripts as a whole: how they differ, and that their runs are what they should be."""

import ast
import difflib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
from typing import get_type_hints

import common.batch
from common.metrics import read_metrics
from common.run import SIGNALS
from tools import compare
from tools.scripts import ROOT, command, docstring, load, parents, script_path

import pytest
import torch
from conftest import SMALL, needed
from safetensors.torch import load_file

SCRIPTS = list(parents())


def run(name, folder, **settings):
    """Run a script's main in this process; the weights of its last checkpoint and the rows of its log."""
    script = load(name)
    script.main(script.Args(run_dir=folder, **SMALL | needed(script) | settings))
    return results(folder)


def results(folder):
    last, rows = sorted(folder.glob("checkpoint-*"))[-1], read_metrics(folder)
    explained = set(re.findall(r"`([\w/]+)`", (ROOT / "docs/runs.md").read_text())) | {"eval/pass@k"}
    logged = {re.sub(r"pass@\d+", "pass@k", key) for row in rows for key in row}
    assert not logged - explained, f"docs/runs.md does not say what these are: {logged - explained}"
    return load_file(last / "model.safetensors"), rows


def without_times(rows):
    return [{k: v for k, v in row.items() if "second" not in k} for row in rows]


# The diff discipline

METHOD_TAG = r"    # ([\w. +-]+)"  # the method's name, in the comment above its own settings
SHARED_TAG = "    # The same in every script"


def sections(text):
    """(line, kind) of every line after the docstring; kinds: import, args, objective, check, loop, other.

    A setting that all scripts have, and its help, are of a kind of their own: its name.
    """
    tree, lines = ast.parse(text), text.splitlines()
    kinds = ["other"] * len(lines)
    for node in tree.body[1:]:
        start, end = node.lineno - 1, node.end_lineno
        if isinstance(node, ast.Import | ast.ImportFrom):
            kinds[start:end] = ["import"] * (end - start)
        elif isinstance(node, ast.ClassDef) and node.name == "Args":
            shared = next(i for i in range(start, end) if lines[i] == SHARED_TAG)
            kinds[start + 1 : shared] = ["args"] * (shared - start - 1)
            for field, help_text in itertools.pairwise(node.body):
                if isinstance(field, ast.AnnAssign) and field.lineno > shared:
                    kinds[field.lineno - 1 : help_text.end_lineno] = [field.target.id] * 2
        elif isinstance(node, ast.FunctionDef) and node.name == "main":
            begin = next(i for i in range(start, end) if lines[i].startswith("    with Run("))
            kinds[start + 1 : begin] = ["check"] * (begin - start - 1)
            kinds[begin:end] = ["loop"] * (end - begin)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign):
            kinds[start:end] = ["objective"] * (end - start)
    after = tree.body[0].end_lineno
    return list(zip(lines, kinds, strict=True))[after:]


def check_difference(old_text, new_text):
    """Outside the declared sections lines are identical; hunks of the loop carry a method's name in a comment.

    What such a hunk assigns may take another name's place elsewhere in the loop. Where all scripts have a setting but a
    method its own default, the setting stands among the method's own.
    """
    old, new = sections(old_text), sections(new_text)
    tags = [re.search(f"^{METHOD_TAG}$", text, re.M)[1] for text in (old_text, new_text)]
    names = set()  # that are assigned in declared hunks
    own = {line.split(":")[0].strip() for line, kind in new if kind == "args" and re.match(r"    \w+: ", line)}
    allowed = {"import", "args", "objective", "check", "loop"}
    matcher = difflib.SequenceMatcher(None, [x for x, _ in old], [x for x, _ in new], autojunk=False)
    for change, i1, i2, j1, j2 in matcher.get_opcodes():
        if change == "equal":
            continue
        hunk = old[i1:i2] + new[j1:j2]
        for line, kind in hunk:
            moved = kind in own and (line, kind) in old[i1:i2]
            assert kind in allowed or moved or not line.strip(), f"a difference outside the declared sections: {line}"
        if any(kind == "loop" for _, kind in hunk):
            around = [line for line, _ in hunk + new[max(0, j1 - 3) : j1]]
            declared = any(re.search(rf"#.*\b{re.escape(tag)}(?!\w)", line) for line in around for tag in tags)
            if declared:
                names |= {name for line, _ in hunk for name in re.findall(r"(\w+) = ", line)}
            a, b = (set(re.findall(r"\w+", " ".join(x for x, _ in side))) for side in (old[i1:i2], new[j1:j2]))
            assert declared or (b - a and b - a <= names), f"an undeclared difference in the loop: {hunk}"


def source(name):
    return script_path(name).read_text()


@pytest.mark.parametrize("name", [name for name, above in parents().items() if above])
def test_differs_from_its_parent_in_the_method_only(name):
    check_difference(source(parents()[name]), source(name))


@pytest.mark.parametrize(
    "shared,drifted,message",
    [
        ("warmup_steps: CountOrZero = 5", "warmup_steps: CountOrZero = 6", "outside the declared sections"),
        ("engine samples with the weights", "engine samples with weights", "outside the declared sections"),
        ("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=True)", "undeclared difference in the loop"),
        ("# (b,) rows of whole groups", "# (b,) rows of groups", "undeclared difference in the loop"),
    ],
)
def test_the_discipline_finds_drift(shared, drifted, message):
    assert shared in source("cispo")
    with pytest.raises(AssertionError, match=message):
        check_difference(source("grpo"), source("cispo").replace(shared, drifted))


def test_every_script_has_its_place():
    assert [name for name, above in parents().items() if above is None] == ["reinforce"]
    top = {path.stem for path in ROOT.glob("*.py")}
    assert top == {
        "reinforce", "ppo", "grpo", "rloo", "dr_grpo", "dapo", "cispo", "gspo", "gmpo", "dppo", "maxrl"
    }  # fmt: skip
    for name in parents():
        path = script_path(name)
        usage = re.escape(f"python {' '.join(command(path))}")
        assert re.search(rf"^    {usage}( --.*)?$", docstring(path), re.MULTILINE), f"{name} does not say how it is run"


def test_every_number_has_a_range():
    """Beside its field: a number without one would take anything."""
    for name in parents():
        kinds = get_type_hints(load(name).Args, include_extras=True)
        for setting, kind in kinds.items():
            if kind in (int, float):
                pytest.fail(f"{name}.py: {setting} has no range")


def test_sync_carries_a_shared_line_into_all_scripts(tmp_path, monkeypatch, capsys):
    """A changed line that all have arrives everywhere; one in a place that a script has changed is reported."""
    for name in ("grpo", "cispo", "gspo"):
        (tmp_path / f"{name}.py").write_text(source(name))
    for git in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *git], cwd=tmp_path, check=True)
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    monkeypatch.setattr(compare, "script_path", lambda name: tmp_path / f"{name}.py")
    monkeypatch.setattr(compare, "parents", lambda: dict.fromkeys(["grpo", "cispo", "gspo"]))
    text = source("grpo").replace("warmup_steps: CountOrZero = 5", "warmup_steps: CountOrZero = 6")
    (tmp_path / "grpo.py").write_text(text)
    compare.main(["--sync", "grpo"])
    for name in ("cispo", "gspo"):
        expected = source(name).replace("warmup_steps: CountOrZero = 5", "warmup_steps: CountOrZero = 6")
        assert (tmp_path / f"{name}.py").read_text() == expected
    assert capsys.readouterr().out == "cispo: changed\ngspo: changed\n"
    (tmp_path / "grpo.py").write_text(source("grpo").replace("clip_eps: Positive = 0.2", "clip_eps: Positive = 0.3"))
    (tmp_path / "cispo.py").write_text(source("cispo"))
    compare.main(["--sync", "grpo"])
    assert "cispo: 1 hunks touch its own lines; nothing was changed there" in capsys.readouterr().out
    assert (tmp_path / "cispo.py").read_text() == source("cispo")
    (tmp_path / "gmpo.py").write_text(source("gmpo"))
    with pytest.raises(SystemExit):
        compare.main(["--sync", "gmpo"])
    assert "there is none of gmpo.py" in capsys.readouterr().err


def test_compare_shows_formulas_and_wraps_long_lines(monkeypatch, capsys):
    """At 120 columns every character of a differing line is there, in pieces."""
    monkeypatch.setenv("COLUMNS", "120")
    compare.main(["grpo", "gspo"])
    output = capsys.readouterr().out
    assert "1/G Σ_i 1/|o_i| Σ_t" in output and "min(s_i A_i, clip(s_i" in output
    assert all(len(line) <= 120 for line in output.splitlines()[8:])
    right = "".join(re.split("[│┃]", line)[-1].removeprefix(" ").removeprefix("    ") for line in output.splitlines())
    assert "1 + args.clip_eps_high" in re.sub("[«»]", "", right).replace("  ", " ")
    assert "«clip_eps_high»" in output


def test_code_counts_neither_docstrings_nor_comments():
    assert compare.count("grpo", "dr_grpo") == 7
    assert not any('"""' in line or "#" in line for line in compare.code("grpo"))


def test_readme_shows_the_family_tree_as_it_is():
    assert compare.family_tree() in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", list(parents()))
def test_every_script_has_a_row_in_the_readme(name):
    path = script_path(name).relative_to(ROOT)
    assert re.search(rf"^\| `{re.escape(str(path))}` \|", (ROOT / "README.md").read_text(), re.M)


# Runs


@pytest.mark.parametrize("name", SCRIPTS)
def test_micro_batches_and_row_order_change_nothing(name, tmp_path, monkeypatch, capsys):
    """Two whole runs, one in single rows and in another order, end with the same weights and metrics."""
    same = {"lr": 1e-3} | ({"max_response_tokens": 64} if name == "scalerl" else {})  # it ends responses before that
    weights, rows = run(name, tmp_path / "whole", micro_batch_tokens=10**6, **same)
    micro_batches, generator = common.batch.micro_batches, torch.Generator().manual_seed(0)

    def shuffled(rows, *rest):
        return micro_batches(rows[torch.randperm(len(rows), generator=generator)], *rest)

    monkeypatch.setattr(load(name), "micro_batches", shuffled)
    other, other_rows = run(name, tmp_path / "split", micro_batch_tokens=60, **same)
    initial = load_file(ROOT / "worlds/sums/model/model.safetensors")
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


@pytest.mark.parametrize(
    "name", ["grpo", "ppo", "reinforce", "dapo", "dcpo", "entropy", "vapo", "olmo3", "pipeline_rl", "scalerl"]
)
def test_resumed_run_ends_as_the_uninterrupted_one(name, tmp_path, capsys):
    """A run that stopped after its second checkpoint, in the middle of writing logs and a third."""
    settings = {"steps": 4, "save_every": 2, "eval_every": 2}
    if name in ("grpo", "ppo", "vapo"):
        settings["kl_beta"] = 0.01
    if name == "reinforce":
        settings["baseline"] = "ema"
    if name == "entropy":
        settings |= {"control": "adaptive", "target_entropy": 9.0, "entropy_coef": 0.1}
    if name in ("dcpo", "scalerl"):  # few problems, which come back
        problems = [{"question": f"{i}+17-3=?", "answer": str(i + 14)} for i in range(6 if name == "dcpo" else 15)]
        (tmp_path / "few.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
        settings["dataset"] = str(tmp_path / "few.jsonl")
    if name == "olmo3":
        settings["prompts_per_step"] = 8
    if name == "scalerl":
        settings["no_resampling_pass_rate"] = 0.5
    if name == "pipeline_rl":
        settings["in_flight_every"] = 8
    weights, rows = run(name, tmp_path / "whole", **settings)
    folder = tmp_path / "cut"
    run(name, folder, **settings)
    if name == "olmo3":
        assert torch.load(folder / "checkpoint-000002" / "state.pt", weights_only=True)["kept"], "no group waits"
    if name == "scalerl":
        solved, drawn = (
            [torch.load(folder / f"checkpoint-00000{step}" / "state.pt", weights_only=True)[key] for step in (2, 4)]
            for key in ("solved", "drawn")
        )
        assert solved[0] and drawn[0] == 8 and drawn[1] > 16, "no problem was left out"
    for path in (folder / "checkpoint-000004").iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])  # a broken checkpoint
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "accu')
    script = load(name)
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
    assert [path.name for path in sorted((folder / "samples").iterdir())] == [f"step-00000{i}.md" for i in range(4)]
    assert "boxed" in (folder / "samples" / "step-000003.md").read_text()
    assert not (folder / ".lock").exists() or not (folder / ".lock").read_text()
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
    """A model that is always right: groups without signal fill the batch, their lengths are none, and it says so."""
    monkeypatch.setattr("common.verification.verifier.Verifier.judge", lambda self, responses, golds, cut: [True] * len(responses))
    weights, rows = run("dapo", tmp_path / "run", max_rounds=3, overlong_cache=32)
    assert "only 0 of 12 groups have signal" in capsys.readouterr().out
    assert rows[1]["kept_groups"] == 0 and rows[1]["grad_norm"] == 0
    initial = load_file(ROOT / "worlds/sums/model/model.safetensors")
    assert all(torch.equal(weights[key], initial[key]) for key in weights)


@pytest.mark.parametrize("what", ["loss", "learner_logp", "sampler_logp", "advantage"])
def test_nothing_that_is_not_finite_reaches_the_weights(what, tmp_path, monkeypatch, capsys):
    """Caught where it arises and named; the weights before it are saved."""
    import grpo

    loss, scores, collated, advantages = grpo.policy_loss, grpo.batch_logps, grpo.collate, grpo.compute_advantages

    def poisoned_batch(*args):
        batch = collated(*args)
        batch.rollout_logp[0, 0] = float("-inf")
        return batch

    poison = {
        "loss": ("policy_loss", lambda *args: (loss(*args)[0] * float("nan"), loss(*args)[1])),
        "learner_logp": ("batch_logps", lambda *args: (scores(*args)[0] + float("inf"), scores(*args)[1])),
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
    initial = load_file(ROOT / "worlds/sums/model/model.safetensors")
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
    import grpo

    weights, _ = run("grpo", tmp_path / "whole", steps=3)
    original = grpo.collate
    monkeypatch.setattr(grpo, "collate", lambda *args: (os.kill(os.getpid(), signal.SIGINT), original(*args))[1])
    run("grpo", tmp_path / "run", steps=3)
    assert "--resume" in capsys.readouterr().out
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-000001"]
    monkeypatch.setattr(grpo, "collate", original)
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    again, rows = results(tmp_path / "run")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(torch.equal(weights[key], again[key]) for key in weights)


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGHUP])
def test_requests_to_end_are_heard(kind, tmp_path, monkeypatch, capsys):
    """As Ctrl-C: the step is finished and saved. Afterwards the signals are whose they were."""
    import grpo

    before = {number: signal.getsignal(number) for number in SIGNALS}
    original = grpo.collate
    monkeypatch.setattr(grpo, "collate", lambda *args: (os.kill(os.getpid(), kind), original(*args))[1])
    run("grpo", tmp_path / "run", steps=3)
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-000001"]
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_second_ctrl_c_stops_at_once(tmp_path, monkeypatch, capsys):
    """In the evaluation after a step nothing is lost: the step was saved before. One sentence, exit code 130."""
    from common import run as run_module

    def stop(*args):
        if (tmp_path / "run" / "checkpoint-000001").exists():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(*args)

    evaluate = run_module.evaluate
    monkeypatch.setattr(run_module, "evaluate", stop)
    with pytest.raises(SystemExit) as end:
        run("grpo", tmp_path / "run", steps=2, save_every=1, eval_every=1)
    assert end.value.code == 130
    assert "stopped. All up to checkpoint-000001 is safe" in capsys.readouterr().err
    monkeypatch.setattr(run_module, "evaluate", evaluate)
    import grpo

    grpo.main(grpo.Args(resume=tmp_path / "run"))
    rows = read_metrics(tmp_path / "run")
    assert [row["step"] for row in rows if "eval/avg" in row] == [0, 1, 2]


def test_weights_broken_by_the_last_update_are_not_saved(tmp_path, monkeypatch, capsys):
    """The checkpoint before stays the newest, and --resume finds it."""
    step, calls = torch.optim.AdamW.step, []

    def breaks(optimizer, *args):
        step(optimizer, *args)
        calls.append(1)
        if len(calls) == 8:  # the last update of the second step
            with torch.no_grad():
                optimizer.param_groups[0]["params"][0][0, 0] = float("nan")

    monkeypatch.setattr(torch.optim.AdamW, "step", breaks)
    with pytest.raises(SystemExit) as end:
        run("grpo", tmp_path / "run", steps=3, save_every=1)
    assert end.value.code == 1
    error = capsys.readouterr().err
    assert "step 2: its updates left weights that are not finite" in error and "checkpoint-000001 is safe" in error
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-000001"]


def test_the_best_weights_are_kept_and_a_collapse_is_named(tmp_path, monkeypatch, capsys):
    from common import run as run_module

    accuracies = iter([0.3, 0.8, 0.5, 0.1])
    evaluate = run_module.evaluate

    def scripted(*args):
        metrics, samples = evaluate(*args)
        return metrics | {"eval/avg": next(accuracies)}, samples

    monkeypatch.setattr(run_module, "evaluate", scripted)
    run("grpo", tmp_path / "run", steps=3, save_every=1, eval_every=1)
    best = load_file(tmp_path / "run" / "best" / "model.safetensors")
    monkeypatch.setattr(run_module, "evaluate", evaluate)
    assert not (tmp_path / "run" / "checkpoint-000001").exists()
    again, _ = run("grpo", tmp_path / "one", steps=1)
    assert all(torch.equal(best[key], again[key]) for key in best)
    output = capsys.readouterr().out
    assert "accuracy has collapsed; it was 0.800 at step 1" in output and str(tmp_path / "run" / "best") in output


def test_a_flipped_bit_in_a_checkpoint_is_noticed(tmp_path, capsys):
    run("grpo", tmp_path / "run", save_every=1)
    weights = tmp_path / "run" / "checkpoint-000002" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.write_bytes(data)
    import grpo

    grpo.main(grpo.Args(resume=tmp_path / "run"))
    output = capsys.readouterr().out
    assert "skipping the broken checkpoint" in output and "has changed since it was written" in output


def test_staleness_is_a_ring_of_weights(tmp_path, monkeypatch, capsys):
    """The engine generates with the weights before step s - k, or the first ones, and resumes with the same."""
    import grpo

    generated, trained = [], []
    make_engine, log = grpo.make_engine, grpo.Run.log

    def watched(*args):
        engine = make_engine(*args)
        load = engine.load_weights
        engine.load_weights = lambda weights: load([(n, w.detach().clone()) for n, w in weights if keep(n, w)])

        def keep(name, weight):
            if name == "model.norm.weight":
                generated.append(weight.detach().clone())
            return True

        return engine

    def logged(self, step, metrics):
        trained.append(dict(self.model.named_parameters())["model.norm.weight"].detach().clone())
        return log(self, step, metrics)

    monkeypatch.setattr(grpo, "make_engine", watched)
    monkeypatch.setattr(grpo.Run, "log", logged)
    settings = dict(staleness=2, steps=5, lr=1e-3, eval_every=0, save_every=3)
    weights, _ = run("grpo", tmp_path / "run", **settings)
    initial = load_file(ROOT / "worlds/sums/model/model.safetensors")["model.norm.weight"]
    of_steps = generated[1:-1]  # the first and the last were for evaluations
    expected = [initial, initial, initial, trained[0], trained[1]]
    assert len(of_steps) == 5 and all(torch.equal(a, b) for a, b in zip(of_steps, expected, strict=True))
    run("grpo", tmp_path / "cut", **settings)
    shutil.rmtree(tmp_path / "cut" / "checkpoint-000005")
    grpo.main(grpo.Args(resume=tmp_path / "cut"))
    again, _ = results(tmp_path / "cut")
    assert all(torch.equal(weights[key], again[key]) for key in weights)


def test_learning_rate_schedules_are_those_of_transformers():
    """One rollout batch ahead, so that no step has a rate of 0."""
    import grpo
    from common.schedule import learning_rate

    from transformers import get_scheduler

    for kind in ("linear", "cosine"):
        args = grpo.Args(lr_schedule=kind, steps=20, warmup_steps=5, lr=0.01)
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.01)
        theirs = get_scheduler(kind, optimizer, args.warmup_steps, args.steps)
        for step in range(1, 21):
            if step > args.warmup_steps:
                assert learning_rate(step, args) == pytest.approx(theirs.get_last_lr()[0])
            else:
                assert learning_rate(step, args) == pytest.approx(0.01 * step / 5)
            theirs.step()
    assert learning_rate(20, grpo.Args(steps=20)) == grpo.Args().lr
    assert learning_rate(1, grpo.Args(warmup_steps=0)) == grpo.Args().lr


@pytest.mark.slow  # .ci/run does it with the README's own command
def test_it_learns(tmp_path, capsys):
    """Fifteen steps of GRPO: held-out accuracy rises by at least 0.3 and responses become longer."""
    _, rows = run(
        "grpo", tmp_path / "run", steps=15, prompts_per_step=32, responses_per_prompt=8, eval_problems=100,
        eval_samples=4, max_response_tokens=96, eval_every=0,
    )  # fmt: skip
    assert rows[0]["eval/avg"] < 0.45 and rows[0]["eval/greedy"] < 0.5
    assert rows[-1]["eval/avg"] > rows[0]["eval/avg"] + 0.3
    assert rows[-1]["length"] > rows[1]["length"] + 5
