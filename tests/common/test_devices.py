"""Every script works on a device other than the CPU: no tensor stays behind, and training gives the same weights."""

from common.run import Run
from tools.scripts import load, parents

import fake_device
import pytest
import torch
import tyro
from conftest import needed
from runs import PROCESSES
from safetensors.torch import load_file

FLAGS = [
    *("--engine", "transformers", "--steps", "2", "--prompts-per-step", "4", "--responses-per-prompt", "4"),
    *("--max-response-tokens", "10", "--eval-problems", "2", "--eval-samples", "2", "--eval-every", "0"),
    *("--lr", "1e-2", "--micro-batch-tokens", "60", "--learner-precision", "fp32", "--rollout-precision", "fp32"),
]


def weights(folder):
    return load_file(next(folder.glob("checkpoint-000002/model.safetensors")))


# Some of their groups have no signal: the KL's first gradient is 0, and AdamW turns its rounding error into an update.
WITHOUT_KL = {"agent", "gigpo", "pass_at_k", "rspo", "self_reward", "ttrl"}
QUICK = {"grpo"}  # the others take minutes


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else (pytest.mark.slow,)) for name in parents()]
)
def test_nothing_is_left_on_the_cpu(name, tiny_model, tmp_path, monkeypatch, capsys):
    """A run on the device succeeds and ends with the CPU's weights; only GRPO evaluates, for all scripts."""
    if name not in QUICK:
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        monkeypatch.setattr(Run, "summarize", lambda *_: None)
    Args = load(name).Args
    flags = [*FLAGS, "--model", str(tiny_model), "--dataset", str(tiny_model / "problems.jsonl")]
    flags += ["--kl-beta", "0.1"] if hasattr(Args, "kl_beta") and name not in WITHOUT_KL else []
    flags += ["--staleness", "1", *(("--overlong-cache", "4") if hasattr(Args, "overlong_cache") else ())]
    # With a smaller fraction, rounding decides between tokens of equal entropy.
    flags += ["--top-fraction", "1"] if hasattr(Args, "top_fraction") else []
    # With less, ten conjugate gradients make rounding larger than this test allows.
    flags += ["--damping", "0.1"] if hasattr(Args, "damping") else []
    flags += ["--labeled-problems", "8", "--reward-model-updates", "10"] if hasattr(Args, "labeled_problems") else []
    flags += ["--interrupt-from", "1"] if hasattr(Args, "interrupt_from") else []
    (tmp_path / "own.py").write_text("def even(problem, response, tokens, truncated): return len(response) % 2 == 0\n")
    reward = ["--reward", f"{tmp_path / 'own.py'}:even"]
    own = {  # their rewards come from the majority answer, a rubric, and the model's own judgement
        "ttrl": ["--answer-format", "last-number"],
        "rubrics": ["--persistent", "\n.*[0-4]", "[a-z]"],
        "self_reward": ["--answer-format", "last-number", "--accepts", "[a-m]"],
    }
    flags += own.get(name, reward)
    for setting, value in needed(load(name), tiny_model).items():
        flags += [f"--{setting}", str(value)]
    load(name).main(tyro.cli(Args, args=[*flags, "--run-dir", str(tmp_path / "cpu")]))
    log, flags = tmp_path / "log", [*flags, "--run-dir", str(tmp_path / "device")]
    process = PROCESSES.Process(target=fake_device.run, args=(name, flags, str(log), name in QUICK))
    process.start()
    process.join()
    assert process.exitcode == 0, log.read_text()[-3000:]
    for weight, expected in weights(tmp_path / "cpu").items():
        torch.testing.assert_close(weights(tmp_path / "device")[weight], expected, rtol=1e-4, atol=1e-5, msg=weight)
