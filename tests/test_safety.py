"""Nothing that comes from outside is run, and nothing leaves the machine unasked."""

import json
import pickle
import shutil
import socket
from pathlib import Path

import grpo

import pytest
import torch
from conftest import SMALL

ROOT = Path(__file__).parent.parent


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


def test_code_beside_a_model_is_not_run(tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "models/arithmetic", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(tmp_path / 'HACKED')!r}, 'w')\nclass Own: ...\n")
    with pytest.raises(SystemExit):
        grpo.main(grpo.Args(model=str(folder), run_dir=tmp_path / "run", **SMALL))
    assert "cannot be loaded" in capsys.readouterr().err
    assert not (tmp_path / "HACKED").exists()


def test_pickled_weights_are_not_read(tmp_path, capsys):
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "models/arithmetic", folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": Bomb(tmp_path / "HACKED")}))
    with pytest.raises(SystemExit):
        grpo.main(grpo.Args(model=str(folder), run_dir=tmp_path / "run", **SMALL))
    assert not (tmp_path / "HACKED").exists()


def test_code_in_a_checkpoint_is_not_run(tmp_path, capsys):
    grpo.main(grpo.Args(run_dir=tmp_path / "run", save_every=1, **SMALL))
    newest = tmp_path / "run" / "checkpoint-000002"
    torch.save({"step": 2, "optimizer": Bomb(tmp_path / "HACKED")}, newest / "state.pt")
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    assert f"skipping the broken checkpoint {newest}" in capsys.readouterr().out
    assert not (tmp_path / "HACKED").exists()


def test_a_run_connects_to_nothing(tmp_path, monkeypatch, capsys):
    def refuse(self, address):
        raise AssertionError(f"a connection to {address}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    grpo.main(grpo.Args(run_dir=tmp_path / "run", **SMALL))
    assert "held-out accuracy" in capsys.readouterr().out
