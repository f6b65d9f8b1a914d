"""Run folders: nothing is overwritten, shared or resumed wrongly, and a run whose folder fails says so."""

import contextlib
import functools
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import grpo
import rloo
from common import evaluation
from common.folders import LOCK
from common.run import Run
from tools.scripts import ROOT

import kills
import pytest
from runs import on_tiny, refused


def test_nothing_is_overwritten(capsys, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    assert "nothing is overwritten" in refused(capsys, tmp_path, run_dir=tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]


def test_unwritable_run_folder(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(capsys, tmp_path, run_dir=tmp_path / "file" / "run")


@pytest.mark.curves
def test_resume(capsys, tmp_path, tiny_model):
    assert "is not a run folder" in refused(capsys, tmp_path, resume=tmp_path / "nowhere")
    run = tmp_path / "finished"
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": run, "steps": 1}))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        rloo.main(rloo.Args(resume=run))
    assert "is a run of grpo.py" in capsys.readouterr().err
    (run / "curves.png").unlink()
    grpo.main(grpo.Args(resume=run))  # a finished run only redraws its picture and prints its summary
    assert "held-out accuracy" in capsys.readouterr().out and (run / "curves.png").exists()
    with pytest.raises(SystemExit):
        grpo.main(grpo.Args(resume=run, lr=1.0))
    assert "leave out --lr" in capsys.readouterr().err


def test_runs_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *args: "20260101-000000")
    monkeypatch.setattr(Run, "summarize", lambda self: (self.dir / "x").touch())
    folders = []
    for _ in range(3):
        with Run(grpo.Args(), str(ROOT / "grpo.py")) as run:
            folders.append(run.dir)
    assert len(set(folders)) == 3 and all(folder.is_dir() for folder in folders)


@pytest.mark.parametrize("flag", ["run_dir", pytest.param("resume", marks=pytest.mark.slow)])
def test_a_folder_in_use(flag, tiny_model, tmp_path, monkeypatch, capsys):
    """While a run uses a folder, a second start there is refused."""
    monkeypatch.setattr(Run, "summarize", lambda self: None)
    folder = tmp_path / "run"
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": folder, "steps": 1}))
    if flag == "run_dir":
        folder = tmp_path / "new"
    with Run(grpo.Args(**{flag: folder}), str(ROOT / "grpo.py")):
        code = "import sys, grpo\nfrom pathlib import Path\ngrpo.main(grpo.Args(**{sys.argv[1]: Path(sys.argv[2])}))"
        command = [sys.executable, "-c", code, flag, str(folder)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2 and "is in use by another run" in result.stderr, result.stderr


def second_start(folder, seen):
    """Start a run in a folder that may be in use, and record how it ended."""
    try:
        with Run(grpo.Args(run_dir=folder), str(ROOT / "grpo.py")):
            seen.append("begun")
    except SystemExit as end:
        seen.append(end.code)


def test_second_starts_at_every_stage(tiny_model, tmp_path, monkeypatch, capsys):
    """While a run loads, and before each of its file events, a second start is refused and changes nothing."""
    monkeypatch.setattr(Run, "summarize", lambda self: None)
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": tmp_path / "alone", "save_every": 1}))
    folder, seen = tmp_path / "run", []
    stages = [(grpo, name) for name in ("load_model", "load_problems", "Verifier", "make_engine", "batch_logps")]
    for module, name in (*stages, (evaluation, "evaluate")):
        original = getattr(module, name)
        started_before = functools.partial(lambda call, *args: (second_start(folder, seen), call(*args))[1], original)
        monkeypatch.setattr(module, name, started_before)
    with kills.at_events_of(folder, lambda: (folder / LOCK).exists() and second_start(folder, seen)):
        grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": folder, "save_every": 1}))
    assert set(seen) == {2} and len(seen) > 50
    assert kills.snapshot(folder).keys() == kills.snapshot(tmp_path / "alone").keys()
    assert all("is in use by another run" in line for line in capsys.readouterr().err.splitlines())


@pytest.mark.parametrize("event", range(6))
def test_a_start_that_ends_while_another_one_starts(event, tmp_path, monkeypatch):
    """If a first start removes its folder again, the second one starts in a new folder."""
    monkeypatch.setattr(Run, "summarize", lambda self: None)
    folder, count, seen = tmp_path / "run", itertools.count(), []
    with kills.at_events_of(folder, lambda: next(count) == event and second_start(folder, seen)):
        with contextlib.suppress(SystemExit), Run(grpo.Args(run_dir=folder), str(ROOT / "grpo.py")) as run:
            run.write_config()
        assert (folder / "config.json").exists()
    assert len(seen) == 1


@pytest.mark.parametrize("event", range(16))
def test_a_start_while_another_one_fails(event, tmp_path, monkeypatch, capsys):
    """A run without a model removes its folder, unless another run has started in it meanwhile."""
    monkeypatch.setattr(Run, "summarize", lambda self: None)
    folder, seen, second = tmp_path / "run", [], Run(grpo.Args(run_dir=tmp_path / "run"), str(ROOT / "grpo.py"))

    def begin():
        seen.append("refused")
        if len(seen) > event and second not in seen:
            with contextlib.suppress(SystemExit):
                second.__enter__()
                seen.append(second)

    with kills.at_events_of(folder, begin), pytest.raises(SystemExit) as stop:
        grpo.main(grpo.Args(run_dir=folder, model=str(tmp_path / "no-model")))
    assert stop.value.code == 2
    if second in seen:
        second.write_config()
        second.__exit__(None, None, None)
        assert (folder / "config.json").exists()
    assert folder.exists() == (second in seen)


def test_config_that_was_changed(capsys, tiny_model, tmp_path):
    run = tmp_path / "finished"
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": run, "steps": 1}))
    config = json.loads((run / "config.json").read_text())
    for name, value, words in (("steps", "many", "--steps"), ("lr", [1], "--lr"), ("nonsense", 1, "--nonsense")):
        changed = config | {"args": config["args"] | {name: value}}
        (run / "config.json").write_text(json.dumps(changed))
        error = refused(capsys, tmp_path, resume=run, run_dir=None)
        assert "its config.json was changed" in error and words in error
    for text in ("[]", '{"method": "grpo", "args": 3}', "{"):
        (run / "config.json").write_text(text)
        assert "missing or damaged" in refused(capsys, tmp_path, resume=run, run_dir=None)


def test_home_folder_and_relative_data(capsys, tiny_model, tmp_path, monkeypatch):
    """`~` is the home folder, and a run with a relative --dataset resumes from any folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copy(tiny_model / "problems.jsonl", tmp_path / "data.jsonl")
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": Path("~/x"), "dataset": "data.jsonl", "steps": 1}))
    assert (tmp_path / "x" / "config.json").exists() and not (tmp_path / "~").exists()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "x" / "checkpoint-000001")
    grpo.main(grpo.Args(resume=Path("~/x")))
    assert "held-out accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["deleted", "read-only"])
def test_run_folder_that_vanishes(how, tiny_model, tmp_path, monkeypatch, capsys):
    """If the folder fails during a run, one sentence says so, without a traceback."""
    original = grpo.collate

    def vanish(*args):
        folder = tmp_path / "run"
        if how == "deleted":
            shutil.rmtree(folder)
        else:  # root may write anywhere, but not into a folder in the file's place
            (folder / "metrics.jsonl").unlink()
            (folder / "metrics.jsonl").mkdir()
        return original(*args)

    monkeypatch.setattr(grpo, "collate", vanish)
    with pytest.raises(SystemExit) as stop:
        grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": tmp_path / "run"}))
    assert stop.value.code == 1
    assert "was moved, deleted or made read-only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("torch.save", "[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0"),
        (
            "transformers.modeling_utils.safe_save_file",
            "I/O error: No space left on device (os error 28)",
        ),
    ],
)
def test_a_full_disk_is_named(function, words, tiny_model, tmp_path, monkeypatch, capsys):
    def full(*args, **kwargs):
        raise RuntimeError(words)

    monkeypatch.setattr(function, full)
    with pytest.raises(SystemExit):
        grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": tmp_path / "run"}))
    error = capsys.readouterr().err
    assert "cannot be written: the disk is full" in error and words not in error
