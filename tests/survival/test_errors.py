"""A mistake in settings or flags gets one clear sentence and exit code 2, and changes nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import dapo
import dppo
import grpo
import ppo
import rloo
from recipes import rubrics
from tools.scripts import ROOT

import pytest
import torch
from runs import refused


@pytest.mark.parametrize(
    "settings,words",
    [
        ({"model": "./nowhere"}, "no such model folder"),
        ({"dataset": "./nowhere.jsonl"}, "no such file"),
        ({"dataset": "./nowhere"}, "no such file or folder"),
        ({"eval_dataset": "./nowhere.jsonl"}, "--eval-dataset needs a data set of your own"),
        ({"model": "~nobody-here/model"}, "~nobody-here/model: there is no such user"),
        ({"run_dir": Path("~nobody-here/run")}, "~nobody-here/run: there is no such user"),
        ({"model": "./" + "x" * 300}, "File name too long"),
        ({"responses_per_prompt": 1}, "greater than or equal to 2"),
        ({"num_minibatches": 3}, "does not divide"),
        ({"num_minibatches": 0}, "greater than or equal to 1"),
        ({"max_response_tokens": 1000}, "context of 256 tokens"),
        ({"temperature": 0.0}, "--temperature must be greater than 0"),
        ({"temperature": float("nan")}, "--temperature must be a finite number"),
        ({"lr": -1.0}, "--lr must be greater than 0"),
        ({"lr": float("inf")}, "--lr must be a finite number"),
        ({"max_grad_norm": 1e308}, "--max-grad-norm must be less than or equal to 1000000"),
        ({"steps": 0}, "--steps must be greater than or equal to 1"),
        ({"seed": -1}, "--seed must be greater than or equal to 0"),
        ({"weight_decay": 2.0}, "--weight-decay must be less than or equal to 1"),
        ({"clip_eps": 0.0}, "--clip-eps must be greater than 0"),
        ({"ddof": 2}, "0 or 1"),
        ({"ratio_anchor": "engine"}, "needs --tis-cap 0"),
        ({"prompts_per_step": 2**20}, "responses at once"),
        ({"eval_samples": 2**20}, "responses at once"),
        ({"eval_split": "test"}, "data set of your own"),
        ({"dataset_config": "main"}, "data set of your own"),
        ({"dataset": ()}, "--dataset needs a name"),
        ({"sharded_checkpoints": True, "save_dtype": "bf16"}, "cannot be combined"),
        ({"prompt": "no place for it"}, "{question}"),
        ({"prompt": "{Body}"}, "the problems of sums have none"),
        ({"dataset": "gsm8k", "eval_dataset": ("search", "math500"), "prompt": "{Body}"}, "of search have none"),
        ({"dataset": "gsm8k", "eval_dataset": ()}, "must name data sets that differ"),
        ({"dataset": "gsm8k", "eval_dataset": ("math500", None)}, "must name data sets that differ"),
        ({"dataset": "gsm8k", "eval_dataset": ("math500", "math500")}, "must name data sets that differ"),
    ],
)
def test_settings(settings, words, capsys, tmp_path):
    assert words in refused(capsys, tmp_path, **settings)


def test_group_of_one_in_rloo(capsys, tmp_path):
    assert "than or equal to 2" in refused(capsys, tmp_path, rloo, responses_per_prompt=1)


def test_settings_of_one_method(capsys, tmp_path):
    assert "--overlong-cache" in refused(capsys, tmp_path, dapo, overlong_cache=33)
    assert "give a length limit" in refused(
        capsys, tmp_path, dapo, max_response_tokens=None, model="a/b", dataset="gsm8k"
    )
    assert "needs a binary divergence" in refused(capsys, tmp_path, dppo, divergence="topk-tv", ratio_anchor="learner")
    assert "less than or equal to 1" in refused(capsys, tmp_path, ppo, gamma=1.5)
    assert "without a critic: take bf16" in refused(capsys, tmp_path, ppo, learner_precision="fp16")
    assert "the rubric is the only reward" in refused(capsys, tmp_path, rubrics, reward=("correct",))


def test_more_processes_than_gpus(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("common.run.local_world_size", lambda: 2)
    assert "--nproc-per-node 2: this machine has 1 GPUs" in refused(capsys, tmp_path)


@pytest.mark.parametrize("track", ["wandb", "tensorboard"])
def test_missing_tracker(track, capsys, tmp_path, monkeypatch):
    for name in ("wandb", "tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    assert f"pip install {track}" in refused(capsys, tmp_path, track=track)


def test_wandb_without_a_login(capsys, tmp_path, monkeypatch):
    """A missing login is found before the model loads; `wandb.login` raises where it cannot ask."""

    def login():
        raise ValueError("No API key configured.")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(login=login))
    monkeypatch.setattr(grpo, "load_model", None)
    assert "No API key configured. Run `wandb login`" in refused(capsys, tmp_path, track="wandb")


def test_vllm_that_is_not_installed(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "vLLM is not installed" in refused(capsys, tmp_path, engine="vllm")


HEAVY = ("transformers", "datasets", "matplotlib", "scipy")  # take seconds to import
COMMAND = """
import atexit, runpy, sys
atexit.register(lambda: print("imported:", *(name for name in heavy.split() if name in sys.modules)))
heavy = sys.argv[1]; del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    "flags,words",
    [
        (["--stepz", "3"], "--stepz"),
        pytest.param(["--steps", "many"], "steps", marks=pytest.mark.slow),
        pytest.param(["--engine", "magic"], "magic", marks=pytest.mark.slow),
        (["--lr", "-1"], "error: --lr must be greater than 0, not -1.0."),
        (["--prompts-per-step", "3"], "error: --num-minibatches 4 does not divide --prompts-per-step 3"),
        (["--model", "./nowhere"], "nowhere: no such model folder"),
        (["--help"], "--clip-eps"),
    ],
)
def test_command_line(flags, words):
    """Help and wrong flags are answered before slow imports."""
    command = [sys.executable, "-c", COMMAND, " ".join(HEAVY), "grpo.py", *flags]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == (0 if flags == ["--help"] else 2), result.stderr
    assert words in result.stdout + result.stderr and "Traceback" not in result.stderr, result.stderr
    assert re.search(r"^imported:$", result.stdout, re.M), f"grpo.py {' '.join(flags)} {result.stdout.splitlines()[-1]}"


def test_help_into_a_closed_pipe():
    """Help into a closed pipe, as with `| head -1`, ends without an error."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "tools.watch", "--help"]
    result = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert result.returncode == 0 and not result.stderr, result.stderr


def test_a_script_in_a_folder_runs_in_every_way(tmp_path):
    """A script runs as a file and as a module from the repository, and as a file from another folder."""
    of_methods = ["methods/sapo.py"], ["-m", "methods.sapo"], [str(ROOT / "methods/sapo.py")]
    for words in (*of_methods, [str(ROOT / "recipes/olmo3.py")]):
        folder = tmp_path if words[0].startswith("/") else ROOT
        result = subprocess.run([sys.executable, *words, "--help"], cwd=folder, capture_output=True, text=True)
        assert result.returncode == 0 and "--ddof" in result.stdout, f"python {' '.join(words)}: {result.stderr}"
