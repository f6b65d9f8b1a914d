"""Every script on a device that is not the CPU: no tensor is left behind, and what is learned is the same."""

import subprocess
import sys

from tools.scripts import ROOT, load, parents

import pytest
import torch
import tyro
from conftest import needed
from safetensors.torch import load_file

FLAGS = [
    *("--engine", "transformers", "--steps", "2", "--prompts-per-step", "4", "--responses-per-prompt", "4"),
    *("--max-response-tokens", "10", "--eval-problems", "2", "--eval-samples", "2", "--eval-every", "0"),
    *("--lr", "1e-2", "--micro-batch-tokens", "60", "--learner-precision", "fp32", "--rollout-precision", "fp32"),
]


def weights(folder):
    return load_file(next(folder.glob("checkpoint-000002/model.safetensors")))


QUICK = {"grpo"}  # the others are minutes


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else (pytest.mark.slow,)) for name in parents()]
)
def test_nothing_is_left_on_the_cpu(name, tiny_model, tmp_path, capsys):
    Args = load(name).Args
    flags = [*FLAGS, "--model", str(tiny_model), "--dataset", str(tiny_model / "problems.jsonl")]
    flags += ["--kl-beta", "0.1"] if hasattr(Args, "kl_beta") else []
    flags += ["--staleness", "1", *(("--overlong-cache", "4") if hasattr(Args, "overlong_cache") else ())]
    # With a smaller fraction, rounding decides between tokens of equal entropy.
    flags += ["--top-fraction", "1"] if hasattr(Args, "top_fraction") else []
    flags += ["--interrupt-from", "1"] if hasattr(Args, "interrupt_from") else []
    (tmp_path / "own.py").write_text("def even(problem, response, tokens, truncated): return len(response) % 2 == 0\n")
    flags += ["--reward", f"{tmp_path / 'own.py'}:even"]
    for setting, value in needed(load(name), tiny_model).items():
        flags += [f"--{setting}", str(value)]
    load(name).main(tyro.cli(Args, args=[*flags, "--run-dir", str(tmp_path / "cpu")]))
    command = [sys.executable, "-m", "tests.common.fake_device", name, *flags, "--run-dir", str(tmp_path / "device")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    for weight, expected in weights(tmp_path / "cpu").items():
        torch.testing.assert_close(weights(tmp_path / "device")[weight], expected, rtol=1e-4, atol=1e-5, msg=weight)
