"""Every mistake of a user gets one clear sentence, exit code 2, and leaves everything as it was."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import dapo
import dppo
import grpo
import ppo
import rloo

import pytest
from conftest import SMALL

ROOT = Path(__file__).parent.parent


def refused(capsys, tmp_path, script=grpo, **settings):
    """The sentence that a run with these settings ends with."""
    with pytest.raises(SystemExit) as stop:
        script.main(script.Args(**SMALL | {"run_dir": tmp_path / "run"} | settings))
    assert stop.value.code == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ") and "\n" not in error and "Traceback" not in error
    folder = tmp_path / "run"
    assert not folder.exists() or not any(folder.iterdir()), "a refused run left files behind"
    return error


@pytest.mark.parametrize(
    "settings,words",
    [
        ({"model": "./nowhere"}, "no such model folder"),
        ({"dataset": "./nowhere.jsonl"}, "no such file"),
        ({"dataset": "./nowhere"}, "no such file or folder"),
        ({"responses_per_prompt": 1}, "at least 2"),
        ({"num_minibatches": 3}, "does not divide"),
        ({"num_minibatches": 0}, "at least 1"),
        ({"max_response_tokens": 1000}, "context of 256 tokens"),
        ({"temperature": 0.0}, "above 0"),
        ({"temperature": float("nan")}, "above 0"),
        ({"lr": -1.0}, "above 0"),
        ({"lr": float("inf")}, "above 0"),
        ({"steps": 0}, "at least 1"),
        ({"seed": -1}, "between 0 and 4294967295"),
        ({"weight_decay": 2.0}, "between 0 and 1"),
        ({"clip_eps": 0.0}, "above 0"),
        ({"ddof": 2}, "0 or 1"),
        ({"prompts_per_step": 2**20}, "responses at once"),
        ({"eval_samples": 2**20}, "responses at once"),
        ({"eval_split": "test"}, "data set of your own"),
        ({"dataset_config": "main"}, "data set of your own"),
        ({"prompt": "no place for it"}, "{question}"),
    ],
)
def test_settings(settings, words, capsys, tmp_path):
    assert words in refused(capsys, tmp_path, **settings)


def test_group_of_one_in_rloo(capsys, tmp_path):
    assert "at least 2" in refused(capsys, tmp_path, rloo, responses_per_prompt=1)


def test_settings_of_one_method(capsys, tmp_path):
    assert "--overlong-cache" in refused(capsys, tmp_path, dapo, overlong_cache=33)
    assert "vocabulary of" in refused(capsys, tmp_path, dppo, divergence="topk-tv", top_k=1000)
    assert "at most 1" in refused(capsys, tmp_path, ppo, gamma=1.5)


def test_a_file_has_no_splits(capsys, tmp_path, gsm8k_file):
    for settings in ({"eval_split": "test"}, {"train_split": "test"}, {"dataset_config": "main"}):
        assert "is a file, without splits" in refused(capsys, tmp_path, dataset=str(gsm8k_file), **settings)


@pytest.mark.parametrize("track", ["wandb", "tensorboard"])
def test_missing_tracker(track, capsys, tmp_path, monkeypatch):
    for name in ("wandb", "tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    assert f"pip install {track}" in refused(capsys, tmp_path, track=track)


def test_vllm_that_is_not_installed(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "vLLM is not installed" in refused(capsys, tmp_path, engine="vllm")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_data_sets(capsys, tmp_path, gsm8k_file):
    rows = [{"question": "1+1=?", "answer": "2"}] * 3
    assert "no column 'problem'" in refused(capsys, tmp_path, dataset=str(gsm8k_file), question_column="problem")
    assert "no column 'solution'" in refused(capsys, tmp_path, dataset=str(gsm8k_file), answer_column="solution")
    assert "must end in" in refused(capsys, tmp_path, dataset=str(ROOT / "README.md"))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert "empty.jsonl" in refused(capsys, tmp_path, dataset=str(empty))
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"question": "1+1=?", "ans')
    assert "cannot be read" in refused(capsys, tmp_path, dataset=str(broken))
    blank = write(tmp_path / "blank.jsonl", [*rows, {"question": "", "answer": "2"}])
    assert "1 of 4 rows" in refused(capsys, tmp_path, dataset=blank)
    assert "too few" in refused(capsys, tmp_path, dataset=write(tmp_path / "few.jsonl", rows))
    bad = write(tmp_path / "bad.jsonl", [{"question": f"{i}?", "answer": "$$$"} for i in range(10)])
    assert "cannot be checked" in refused(capsys, tmp_path, dataset=bad)
    same = write(tmp_path / "same.jsonl", rows * 4)
    assert "also a held-out one" in refused(capsys, tmp_path, dataset=same)


def test_chat_messages_need_a_chat_template(capsys, tmp_path):
    rows = [{"question": [{"role": "user", "content": f"{i}?"}], "answer": "2"} for i in range(10)]
    assert "no chat template" in refused(capsys, tmp_path, dataset=write(tmp_path / "chat.jsonl", rows))


@pytest.mark.parametrize("damage", ["cut", "missing", "pickle"])
def test_corrupt_model(damage, capsys, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "models/arithmetic", folder)
    weights = folder / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:5000])
    else:
        weights.unlink()
    if damage == "pickle":  # which could run code when it is read
        (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert "cannot be loaded" in refused(capsys, tmp_path, model=str(folder))


def test_nothing_is_overwritten(capsys, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    assert "nothing is overwritten" in refused(capsys, tmp_path, run_dir=tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]


def test_unwritable_run_folder(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(capsys, tmp_path, run_dir=tmp_path / "file" / "run")


def test_resume(capsys, tmp_path):
    assert "no run folder" in refused(capsys, tmp_path, resume=tmp_path / "nowhere")
    run = tmp_path / "finished"
    grpo.main(grpo.Args(**SMALL | {"run_dir": run, "steps": 1}))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        rloo.main(rloo.Args(resume=run))
    assert "is a run of grpo.py" in capsys.readouterr().err
    (run / "curves.png").unlink()
    grpo.main(grpo.Args(resume=run))  # a finished run has nothing left to do but its picture and summary
    assert "held-out accuracy" in capsys.readouterr().out and (run / "curves.png").exists()
    with pytest.raises(SystemExit):
        grpo.main(grpo.Args(resume=run, lr=1.0))
    assert "leave out --lr" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags,words", [(["--stepz", "3"], "--stepz"), (["--steps", "many"], "steps"), (["--engine", "magic"], "magic")]
)
def test_command_line(flags, words):
    result = subprocess.run([sys.executable, "grpo.py", *flags], cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2
    assert words in result.stdout + result.stderr and "Traceback" not in result.stderr
