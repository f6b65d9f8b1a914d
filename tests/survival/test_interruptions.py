"""Interrupted, damaged or broken runs in this process: what is saved, and how --resume ends.

Tests that need separate processes are in test_survival.py.
"""

import json
import os
import shutil
import signal
from pathlib import Path

import grpo
import ppo
from common import evaluation
from common.ending import SIGNALS
from common.metrics import logged_rows, read_metrics
from common.models import load_model
from common.run import Run
from tools.scripts import load

import pytest
import torch
from runs import assert_same_weights, base_weights, on_tiny, results, run, without_times

RESUMED = [
    "ppo", "reinforce", "dapo", "dcpo", "adaptive_entropy", "vapo", "pipeline_rl", "scalerl", "curriculum",
    "process_rewards",
]  # fmt: skip


def checkpoint_names(folder):
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def settings_with_state(name, folder):
    """Settings with which a script keeps state between steps."""
    settings = {"steps": 4, "save_every": 2, "eval_every": 2}
    if name in ("grpo", "ppo", "vapo"):
        settings["kl_beta"] = 0.01
    if name == "reinforce":
        settings["baseline"] = "ema"
    if name == "adaptive_entropy":
        settings["target_entropy"] = 9.0
    if name in ("dcpo", "scalerl"):  # few problems, which repeat
        problems = [{"question": f"{i}+17-3=?", "answer": str(i + 14)} for i in range(6 if name == "dcpo" else 15)]
        (folder / "few.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
        settings["dataset"] = str(folder / "few.jsonl")
    if name == "curriculum":
        settings["pool"] = 5
    if name == "olmo3":
        settings["prompts_per_step"] = 8
    if name == "scalerl":
        settings["no_resampling_pass_rate"] = 0.25
    if name == "process_rewards":
        settings |= {"labeled_problems": 4, "reward_model_updates": 2}
    if name in ("pipeline_rl", "scalerl"):
        settings |= {"training_tokens": 8, "in_flight_prompts": 4, "staleness": 1}
    return settings


@pytest.mark.parametrize(
    "name",
    [
        "grpo",
        *(pytest.param(name, marks=pytest.mark.slow) for name in RESUMED),
        # It keeps no group of the first problems.
        pytest.param("olmo3", marks=[pytest.mark.slow, pytest.mark.all_problems]),
    ],
)
def test_resumed_run_ends_as_the_uninterrupted_one(name, tmp_path, capsys):
    """A run that broke off while writing its log and third checkpoint resumes from the second and ends the same."""
    folder = tmp_path / "run"
    weights, _ = run(name, folder, **settings_with_state(name, tmp_path))
    lines = without_times(logged_rows(folder))
    states = [torch.load(folder / f"checkpoint-00000{step}" / "state.pt", weights_only=True) for step in (2, 4)]
    if name == "olmo3":
        assert states[0]["kept"], "no group waits"
    if name == "curriculum":
        assert len(states[0]["posteriors"]) == 5 and states[0]["posteriors"] != states[1]["posteriors"]
    if name == "scalerl":
        assert states[0]["solved"] and states[1]["generator"]["position"] > 20, "no problem was left out"
    if name in ("pipeline_rl", "scalerl"):
        assert states[0]["generator"]["worker"]["paused"], "nothing is under way"
    for path in (folder / "checkpoint-000004").iterdir():
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])  # a broken checkpoint
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "accu')
    script = load(name)
    script.main(script.Args(resume=folder))
    output = capsys.readouterr().out
    assert "skipping the broken checkpoint" in output and "after step 2" in output
    assert_same_weights(weights, results(folder)[0])
    assert without_times(logged_rows(folder)) == lines, "the log has other lines"


def resumed_with_log(text, tiny_model, folder, capsys):
    """The output of a two-step run that is extended to a third step with this log."""
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": folder, "eval_every": 1}))
    log = folder / "metrics.jsonl"
    for name in ("step-000009.md", "step-abc.md"):
        (folder / "samples" / name).touch()
    log.unlink() if text is None else log.write_text(text(log.read_text().splitlines(keepends=True)))
    capsys.readouterr()
    grpo.main(grpo.Args(resume=folder, steps=3))
    return capsys.readouterr().out


DAMAGED = {
    "missing": None,
    "empty": lambda lines: "",
    "no row 0": lambda lines: "".join(lines[1:]),
    "no step 1": lambda lines: "".join(lines[:1] + lines[3:]),
    "null": lambda lines: "".join([lines[0].replace('"step": 0', '"step": null'), *lines[1:]]),
    "text": lambda lines: "".join([*lines[:1], lines[1].replace('"step": 1', '"step": "1"'), *lines[3:]]),
    "no object": lambda lines: "".join(["[3]\n", "7\n", *lines[1:]]),
    "no accuracy": lambda lines: "".join(['{"step": 0, "eval/avg": null, "eval/n": 2}\n', *lines[1:]]),
    "deep": lambda lines: "".join(["[" * 99999 + "\n", *lines[1:]]),
    "huge": lambda lines: "".join(['{"step": 0, "eval/avg": 1' + "0" * 999 + "}\n", *lines[1:]]),
    "a list": lambda lines: "".join(['{"step": 0, "eval/avg": [1]}\n', *lines[1:]]),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_log_is_named_and_the_run_goes_on(how, tiny_model, tmp_path, capsys):
    """A run with a damaged log continues to its end; only curves and summary lack the lost rows."""
    output = resumed_with_log(DAMAGED[how], tiny_model, tmp_path / "run", capsys)
    assert output.count(f"warning: {tmp_path / 'run' / 'metrics.jsonl'} was damaged") == 1
    assert ("held-out accuracy" in output) == (how in ("no step 1", "text")) and "checkpoint-000003" in output
    assert read_metrics(tmp_path / "run")[-1]["step"] == 3


def test_a_whole_log_is_not_called_damaged(tiny_model, tmp_path, capsys):
    output = resumed_with_log("".join, tiny_model, tmp_path / "run", capsys)
    assert "damaged" not in output and "held-out accuracy" in output
    samples = sorted(path.name for path in (tmp_path / "run" / "samples").iterdir())
    assert samples == [*(f"step-00000{step}.md" for step in range(4)), "step-abc.md"], "samples of lost steps"
    rows = logged_rows(tmp_path / "run")
    assert [(row["step"], "eval/avg" in row) for row in rows] == [
        (0, True), (1, False), (1, True), (2, False), (2, True), (3, False), (3, True)
    ]  # fmt: skip


def test_a_checkpoint_is_never_newer_than_the_log(tiny_model, tmp_path, monkeypatch):
    """The log and the checkpoint's files are on disk before the checkpoint is renamed to its final name."""
    events, fsync, rename = [], os.fsync, Path.rename

    def flushed(descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        events.append((path.name, path.read_bytes()))
        fsync(descriptor)

    def renamed(path, target):
        events.append((target.name, {file.name for file in path.iterdir()}))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "rename", renamed)
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": tmp_path / "run", "save_every": 1, "eval_every": 1}))
    names = [name for name, _ in events]
    for step in (1, 2):
        end = names.index(f"checkpoint-00000{step}")
        begin = max((i for i in range(end) if names[i].startswith("checkpoint-")), default=0)
        flushed_before = dict(events[begin:end])
        assert json.loads(flushed_before.pop("metrics.jsonl").splitlines()[-1])["step"] == step
        assert events[end][1] <= flushed_before.keys(), "files that are not on the disk"


def test_a_third_checkpoint_is_deleted_when_a_run_is_resumed(tiny_model, tmp_path):
    """Resuming deletes the third checkpoint that a kill between a save and the cleanup leaves."""
    folder = tmp_path / "run"
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": folder, "steps": 3, "save_every": 1}))
    shutil.copytree(folder / "checkpoint-000002", folder / "checkpoint-000001")
    grpo.main(grpo.Args(resume=folder))
    assert checkpoint_names(folder) == ["checkpoint-000002", "checkpoint-000003"]


@pytest.mark.parametrize("keep,kept", [(1, [3]), (3, [1, 2, 3])])
def test_as_many_checkpoints_are_kept_as_asked_for(keep, kept, tiny_model, tmp_path):
    grpo.main(
        grpo.Args(**on_tiny(tiny_model) | {"run_dir": tmp_path / "run", "steps": 3, "save_every": 1, "keep": keep})
    )
    assert checkpoint_names(tmp_path / "run") == [f"checkpoint-{step:06d}" for step in kept]


def test_a_run_folder_as_a_model_is_its_newest_checkpoint(tiny_model, tmp_path):
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": tmp_path / "run", "steps": 2, "save_every": 1}))
    args = grpo.Args(**on_tiny(tiny_model) | {"model": str(tmp_path / "run")}).checked()
    assert args.model == str(tmp_path / "run" / "checkpoint-000002") and load_model(args)


def test_broken_checkpoints_do_not_displace_new_ones(tiny_model, tmp_path):
    """If both checkpoints are broken, the run starts over, and its first save survives a kill."""
    folder = tmp_path / "run"
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": folder, "steps": 4, "save_every": 1}))
    for step in (3, 4):
        (folder / f"checkpoint-00000{step}" / "state.pt").write_bytes(b"broken")
    evaluate = Run.evaluate

    def stop(self, step):
        if step == 1:
            raise KeyboardInterrupt
        evaluate(self, step)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Run, "evaluate", stop)
        grpo.main(grpo.Args(resume=folder))
    assert checkpoint_names(folder)[0] == "checkpoint-000001"


@pytest.mark.parametrize(
    "what,named",
    [
        ("loss", "loss"),
        ("engine_logp", "rollout_logp"),
        pytest.param("learner_logp", "old_logp", marks=pytest.mark.slow),
        pytest.param("advantages", "loss", marks=pytest.mark.slow),
    ],
)
def test_nothing_that_is_not_finite_reaches_the_weights(what, named, tmp_path, monkeypatch, capsys):
    """Non-finite values are caught and named where they arise, and the weights from before are saved."""
    loss, scores, collated, advantages = grpo.policy_loss, grpo.batch_logps, grpo.collate, grpo.compute_advantages

    def poisoned_batch(*args):
        batch = collated(*args)
        batch.rollout_logp[0, 0] = float("-inf")
        return batch

    poison = {
        "loss": ("policy_loss", lambda *args: (loss(*args)[0] * float("nan"), loss(*args)[1])),
        "learner_logp": ("batch_logps", lambda *args: (scores(*args)[0] + float("inf"), scores(*args)[1])),
        "engine_logp": ("collate", poisoned_batch),
        "advantages": ("compute_advantages", lambda *args: advantages(*args) / 0),
    }
    monkeypatch.setattr(grpo, *poison[what])
    with pytest.raises(SystemExit) as stop:
        run("grpo", tmp_path / "run", eval_problems=1, eval_samples=1)
    assert stop.value.code == 1
    error = capsys.readouterr().err
    assert f"step 1: not finite: {named}" in error and "--model" in error, error
    assert_same_weights(results(tmp_path / "run", "nonfinite-step-000001")[0], base_weights())


def test_critic_that_is_not_finite_stops_the_run(tmp_path, monkeypatch, capsys):
    original = ppo.value_loss
    monkeypatch.setattr(ppo, "value_loss", lambda *args: original(*args) * float("inf"))
    with pytest.raises(SystemExit):
        run("ppo", tmp_path / "run", eval_problems=1, eval_samples=1)
    assert "critic_grad_norm" in capsys.readouterr().err


@pytest.mark.slow
def test_interrupted_run_saves_and_can_be_resumed(tmp_path, monkeypatch, capsys):
    """After Ctrl-C in the first step, that step is finished and saved, and the run can resume."""
    weights, _ = run("grpo", tmp_path / "whole", steps=3)
    original = grpo.collate
    monkeypatch.setattr(grpo, "collate", lambda *args: (os.kill(os.getpid(), signal.SIGINT), original(*args))[1])
    run("grpo", tmp_path / "run", steps=3)
    assert "--resume" in capsys.readouterr().out
    assert checkpoint_names(tmp_path / "run") == ["checkpoint-000001"]
    monkeypatch.setattr(grpo, "collate", original)
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    again, rows = results(tmp_path / "run")
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert_same_weights(weights, again)


@pytest.mark.parametrize("kind", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=pytest.mark.slow)])
def test_requests_to_end_are_heard(kind, tmp_path, monkeypatch, capsys):
    """These signals act like Ctrl-C: the step is finished and saved, and the old handlers are restored."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    original = grpo.collate
    monkeypatch.setattr(grpo, "collate", lambda *args: (os.kill(os.getpid(), kind), original(*args))[1])
    run("grpo", tmp_path / "run", steps=3, eval_problems=1, eval_samples=1)
    assert checkpoint_names(tmp_path / "run") == ["checkpoint-000001"]
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def test_second_ctrl_c_stops_at_once(tmp_path, monkeypatch, capsys):
    """During an evaluation nothing is lost, because the step was saved before; one sentence, exit code 130."""
    saved = []

    def stop(*args):
        saved.append((tmp_path / "run" / "checkpoint-000001").exists())
        if saved[-1]:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(*args)

    evaluate = evaluation.evaluate
    monkeypatch.setattr(evaluation, "evaluate", stop)
    with pytest.raises(SystemExit) as end:
        run("grpo", tmp_path / "run", save_every=1, eval_every=1)
    assert end.value.code == 130 and saved == [False, True]
    assert "stopped. Everything up to checkpoint-000001 is saved" in capsys.readouterr().err
    monkeypatch.setattr(evaluation, "evaluate", evaluate)
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    assert [row["step"] for row in read_metrics(tmp_path / "run") if "eval/avg" in row] == [0, 1, 2]


def test_weights_broken_by_the_last_update_are_not_saved(tmp_path, monkeypatch, capsys):
    """If a step's last update breaks the weights, the previous checkpoint stays the newest."""
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
    assert "step 2: its updates left weights that are not finite" in error, error
    assert "Everything up to checkpoint-000001 is saved" in error, error
    assert checkpoint_names(tmp_path / "run") == ["checkpoint-000001"]


def test_the_best_weights_are_kept_and_a_collapse_is_named(tmp_path, monkeypatch, capsys):
    accuracies, first = iter([0.3, 0.8, 0.5, 0.1]), []
    evaluate = evaluation.evaluate

    def scripted(engine, *args):
        metrics, samples = evaluate(engine, *args)
        first.append({name: weight.clone() for name, weight in engine.model.named_parameters()})
        return metrics | {"eval/avg": next(accuracies)}, samples

    monkeypatch.setattr(evaluation, "evaluate", scripted)
    run("grpo", tmp_path / "run", steps=3, save_every=1, eval_every=1)
    best, _ = results(tmp_path / "run", "best")
    assert not (tmp_path / "run" / "checkpoint-000001").exists()
    assert_same_weights(best, {name: first[1][name] for name in best})
    output = capsys.readouterr().out
    assert "accuracy has collapsed; it was 0.800 at step 1" in output and str(tmp_path / "run" / "best") in output


def test_a_flipped_bit_in_a_checkpoint_is_noticed(tmp_path, capsys):
    run("grpo", tmp_path / "run", save_every=1, eval_every=0)
    weights = tmp_path / "run" / "checkpoint-000002" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-100] ^= 1
    weights.write_bytes(data)
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    output = capsys.readouterr().out
    assert "skipping the broken checkpoint" in output and "has changed since it was written" in output
