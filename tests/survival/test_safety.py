"""Nothing from outside is run, and nothing leaves the machine without a request."""

import io
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpo
from common import folders
from common.checkpoints import CHECKSUMS, PARTS
from common.folders import write_config
from recipes import r1
from tools import checkpoints, evaluate
from tools.scripts import ROOT, load

import pytest
import torch
from conftest import SMALL
from runs import ended, on_tiny, seal
from safetensors.torch import save_file


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


def model_with_code(tmp_path):
    """A model whose own code makes a file when it is imported."""
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "worlds/sums/model", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'HACKED')!r}, 'w')\nclass Own: ...\n")
    return folder


def test_pickled_weights_are_not_read(tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "worlds/sums/model", folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Bomb(tmp_path / "HACKED")}))
    with pytest.raises(SystemExit):
        grpo.main(grpo.Args(model=str(folder), run_dir=tmp_path / "run", **SMALL))
    assert "cannot be loaded" in capsys.readouterr().err
    assert not (tmp_path / "HACKED").exists()


def test_code_in_a_checkpoint_is_not_run(tiny_model, tmp_path, capsys):
    grpo.main(grpo.Args(run_dir=tmp_path / "run", save_every=1, **on_tiny(tiny_model)))
    newest = tmp_path / "run" / "checkpoint-000002"
    torch.save({"step": 2, "optimizer": Bomb(tmp_path / "HACKED")}, newest / "state.pt")
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    assert f"skipping the broken checkpoint {newest}" in capsys.readouterr().out
    assert not (tmp_path / "HACKED").exists()


@pytest.fixture
def pickled_shards(tiny_model, tmp_path):
    """A run whose newest checkpoint has pickled shards, which torch.distributed.checkpoint would load."""
    grpo.main(grpo.Args(run_dir=tmp_path / "run", save_every=1, **on_tiny(tiny_model)))
    newest = tmp_path / "run" / "checkpoint-000002"
    (newest / "model.safetensors").unlink()
    (newest / PARTS).mkdir()
    (newest / PARTS / ".metadata").write_bytes(pickle.dumps(Bomb(tmp_path / "HACKED")))
    seal(newest)
    return newest


@pytest.mark.parametrize("program", ["resume", "convert"])
@pytest.mark.parametrize("shards", [0, 1])
def test_pickled_shards_are_refused(program, shards, pickled_shards, tmp_path, capsys):
    """Neither --resume nor the converter loads pickled shards, even next to a valid shard."""
    if shards:
        save_file({"model.x": torch.ones(1)}, pickled_shards / PARTS / "00000.safetensors")
        seal(pickled_shards)
    capsys.readouterr()
    if program == "resume":
        error = ended(capsys, lambda: grpo.main(grpo.Args(resume=tmp_path / "run")))
    else:
        error = ended(capsys, lambda: checkpoints.main([str(pickled_shards), str(tmp_path / "model")]))
    assert not (tmp_path / "HACKED").exists()
    assert f"{pickled_shards / PARTS} must hold safetensors and nothing else" in error
    assert pickled_shards.exists() and not (tmp_path / "model").exists()


def test_a_file_without_a_checksum_is_not_read(tiny_model, tmp_path, capsys):
    grpo.main(grpo.Args(run_dir=tmp_path / "run", save_every=1, **on_tiny(tiny_model)))
    newest = tmp_path / "run" / "checkpoint-000002"
    (newest / CHECKSUMS).write_text("{}")
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    assert f"skipping the broken checkpoint {newest}" in (output := capsys.readouterr().out)
    assert "has no checksum" in output


@pytest.mark.parametrize("content", ["not a shard", {"model.other": torch.ones(1)}, {"other": torch.ones(1)}])
def test_shards_of_something_else_are_refused(content, tiny_model, tmp_path, capsys):
    grpo.main(grpo.Args(run_dir=tmp_path / "run", sharded_checkpoints=True, **on_tiny(tiny_model)))
    newest = tmp_path / "run" / "checkpoint-000002"
    shard = next((newest / PARTS).iterdir())
    shard.write_text(content) if isinstance(content, str) else save_file(content, shard)
    seal(newest)
    capsys.readouterr()
    error = ended(capsys, lambda: grpo.main(grpo.Args(resume=tmp_path / "run")))
    assert f"{newest} is not a checkpoint of this model" in error
    if isinstance(content, str):
        error = ended(capsys, lambda: checkpoints.main([str(newest), str(tmp_path / "model")]))
        assert f"{newest} is damaged" in error and not (tmp_path / "model").exists()


@pytest.mark.parametrize("state", [{"step": "two"}, {}])
def test_a_state_without_a_step_is_refused(state, tiny_model, tmp_path, capsys):
    grpo.main(grpo.Args(run_dir=tmp_path / "run", **on_tiny(tiny_model)))
    newest = tmp_path / "run" / "checkpoint-000002"
    torch.save(state, newest / "state.pt")
    seal(newest)
    capsys.readouterr()
    error = ended(capsys, lambda: grpo.main(grpo.Args(resume=tmp_path / "run")))
    assert error == f"error: {newest} is not a checkpoint of this model: ValueError: it names no step."


@pytest.fixture
def with_reward(tiny_model, tmp_path, monkeypatch, capsys):
    """A finished run whose reward function makes a file when it is loaded."""
    monkeypatch.setattr(folders, "trusted", set())
    (tmp_path / "r.py").write_text(
        f"open({str(tmp_path / 'HACKED')!r}, 'w')\ndef f(problem, text, tokens, truncated): return 1.0\n"
    )
    settings = on_tiny(tiny_model) | {"steps": 1, "reward": ("correct", f"{tmp_path / 'r.py'}:f=0.5")}
    grpo.main(grpo.Args(run_dir=tmp_path / "run", **settings))
    (tmp_path / "HACKED").unlink()
    capsys.readouterr()
    return tmp_path / "run"


def renamed_reward(folder, name):
    """Put another reward function into a run's settings."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"args": config["args"] | {"reward": [name]}}))


def test_the_reward_of_a_run_folder_is_not_run_unasked(with_reward, tmp_path, capsys, monkeypatch):
    """The error names the reward and a command that accepts and resumes; another reward is refused."""
    error = ended(capsys, lambda: grpo.main(grpo.Args(resume=with_reward)))
    assert f"reward functions, which run as code: {tmp_path / 'r.py'}:f=0.5" in error
    assert error.endswith(f"--resume {with_reward} --reward correct {tmp_path / 'r.py'}:f=0.5")
    error = ended(capsys, lambda: grpo.main(grpo.Args(resume=with_reward, reward=("correct",))))
    assert "leave out --reward" in error
    assert not (tmp_path / "HACKED").exists()
    monkeypatch.chdir(tmp_path)
    grpo.main(grpo.Args(resume=with_reward, reward=("correct", "r.py:f=0.5")))
    assert (tmp_path / "HACKED").exists()


@pytest.mark.parametrize("name", ["os:system", "correct=r.py:f", "./r.py:f"])
def test_rewards_that_are_code(name, with_reward, tmp_path, capsys):
    renamed_reward(with_reward, name)
    assert f"run as code: {name}." in ended(capsys, lambda: grpo.main(grpo.Args(resume=with_reward)))
    assert not (tmp_path / "HACKED").exists()


@pytest.mark.parametrize("name", ["{}/own.py:GAME", "python", "verifiers:wordle", "guessing", "retrieval"])
@pytest.mark.parametrize("method", ["agent", "gigpo"])
def test_the_environment_of_a_run_folder_is_not_run_unasked(method, name, tmp_path, capsys, monkeypatch):
    """An environment may be a file or run the model's code; naming it on the command line accepts it."""
    monkeypatch.setattr(folders, "trusted", set())
    args, name = load(method).Args, name.format(tmp_path)
    write_config(tmp_path, method, args(environment=name))
    if name in ("guessing", "retrieval"):
        assert folders.saved_settings(args(resume=tmp_path), method)[0].environment == name
        return
    error = ended(capsys, lambda: load(method).main(args(resume=tmp_path)))
    assert f"environments, which run as code: {name}. " in error
    assert error.endswith(f"--resume {tmp_path} --environment {name}")
    assert folders.saved_settings(args(resume=tmp_path, environment=name), method)[0].environment == name


def test_an_evaluation_runs_no_reward_unasked(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(folders, "trusted", set())
    write_config(tmp_path, "evaluate", evaluate.Args(model="sums", reward=("os:system",)))
    error = ended(capsys, lambda: evaluate.main(evaluate.Args(resume=tmp_path)))
    assert "run as code: os:system." in error


def test_the_built_in_reward_needs_no_consent(with_reward, capsys):
    renamed_reward(with_reward, "correct=2")
    grpo.main(grpo.Args(resume=with_reward))
    assert "held-out accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("answer", ["y\n", "n\n", ""])
def test_a_person_is_asked(answer, with_reward, tmp_path, capsys, monkeypatch):
    """One program asks once for all starts of a run, and only a yes counts."""
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    if answer == "y\n":
        for _ in range(2):
            grpo.main(grpo.Args(resume=with_reward))
        assert capsys.readouterr().out.count("r.py:f=0.5. Run them? [y/N]") == 1
    else:
        ended(capsys, lambda: grpo.main(grpo.Args(resume=with_reward)))
    assert (tmp_path / "HACKED").exists() == (answer == "y\n")


def test_the_command_to_resume_names_the_reward(with_reward, tmp_path, capsys, monkeypatch):
    original = grpo.collate
    monkeypatch.setattr(grpo, "collate", lambda *args: (os.kill(os.getpid(), signal.SIGINT), original(*args))[1])
    grpo.main(grpo.Args(resume=with_reward, steps=3, reward=("correct", f"{tmp_path / 'r.py'}:f=0.5")))
    command = f"python grpo.py --resume {with_reward} --reward correct {tmp_path / 'r.py'}:f=0.5\n"
    assert command in capsys.readouterr().out


@pytest.mark.slow
def test_the_reward_of_a_stage_is_not_run_unasked(tiny_model, half_correct, tmp_path, capsys):
    """A stage's reward is not run without consent either: a stranger may have changed the stage's own settings."""
    settings = on_tiny(tiny_model) | {"steps": 1, "stages": ("rl", "rl")}
    r1.main(r1.Args(run_dir=tmp_path / "run", **settings))
    shutil.rmtree(next((tmp_path / "run" / "2-rl").glob("checkpoint-*")))
    (tmp_path / "run" / "2-rl" / "metrics.jsonl").unlink()
    renamed_reward(tmp_path / "run" / "2-rl", "os:system")
    capsys.readouterr()
    assert "run as code: os:system" in ended(capsys, lambda: r1.main(r1.Args(resume=tmp_path / "run")))


def test_code_beside_a_model_is_not_run(tmp_path):
    """transformers would ask at the terminal; here the model is refused without asking."""
    command = [sys.executable, "grpo.py", "--model", str(model_with_code(tmp_path)), "--run-dir", str(tmp_path / "run")]
    result = subprocess.run(command, cwd=ROOT, input="y\ny\ny\n", capture_output=True, text=True)
    assert result.returncode == 2 and "cannot be loaded" in result.stderr
    assert not (tmp_path / "HACKED").exists()


@pytest.mark.parametrize("data", [pytest.param("sums", marks=pytest.mark.slow), "local"])
def test_a_run_asks_nobody(data, tmp_path, monkeypatch, capsys, chat_model, gsm8k_file):
    """A run with local files makes no network access, not even a DNS lookup."""

    def refuse(*args, **kwargs):
        raise AssertionError(f"a connection or look-up: {args}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    local = {"model": str(chat_model), "dataset": str(gsm8k_file)} if data == "local" else {}
    grpo.main(grpo.Args(run_dir=tmp_path / "run", **SMALL, **local))
    assert "held-out accuracy" in capsys.readouterr().out
