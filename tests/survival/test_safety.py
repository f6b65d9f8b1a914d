"""Nothing that comes from outside is run, and nothing leaves the machine unasked."""

import json
import pickle
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import grpo
from tools.scripts import ROOT

import pytest
import torch
from conftest import SMALL
from runs import on_tiny


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


def test_code_beside_a_model_is_not_run(tmp_path, capsys):
    folder = model_with_code(tmp_path)
    with pytest.raises(SystemExit):
        grpo.main(grpo.Args(model=str(folder), run_dir=tmp_path / "run", **SMALL))
    assert "cannot be loaded" in capsys.readouterr().err
    assert not (tmp_path / "HACKED").exists()


def test_pickled_weights_are_not_read(tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "worlds/sums/model", folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Bomb(tmp_path / "HACKED")}))
    with pytest.raises(SystemExit):
        grpo.main(grpo.Args(model=str(folder), run_dir=tmp_path / "run", **SMALL))
    assert not (tmp_path / "HACKED").exists()


def test_code_in_a_checkpoint_is_not_run(tiny_model, tmp_path, capsys):
    grpo.main(grpo.Args(run_dir=tmp_path / "run", save_every=1, **on_tiny(tiny_model)))
    newest = tmp_path / "run" / "checkpoint-000002"
    torch.save({"step": 2, "optimizer": Bomb(tmp_path / "HACKED")}, newest / "state.pt")
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    assert f"skipping the broken checkpoint {newest}" in capsys.readouterr().out
    assert not (tmp_path / "HACKED").exists()


def test_code_beside_a_model_is_not_run_for_a_yes(tmp_path):
    """transformers asks at the terminal; here it must not ask."""
    command = [sys.executable, "grpo.py", "--model", str(model_with_code(tmp_path)), "--run-dir", str(tmp_path / "run")]
    result = subprocess.run(command, cwd=ROOT, input="y\ny\ny\n", capture_output=True, text=True)
    assert result.returncode == 2 and "cannot be loaded" in result.stderr
    assert not (tmp_path / "HACKED").exists()


@pytest.mark.parametrize("data", [pytest.param("sums", marks=pytest.mark.slow), "local"])
def test_a_run_asks_nobody(data, tmp_path, monkeypatch, capsys, chat_model, gsm8k_file):
    """Not even for an address: what is here is read here."""

    def refuse(*args, **kwargs):
        raise AssertionError(f"a connection or look-up: {args}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    local = {"model": str(chat_model), "dataset": str(gsm8k_file)} if data == "local" else {}
    grpo.main(grpo.Args(run_dir=tmp_path / "run", **SMALL, **local))
    assert "held-out accuracy" in capsys.readouterr().out
