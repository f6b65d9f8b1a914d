"""What can be checked without a GPU: GPU measurements, the notebook for a hosted T4, and the Dockerfile."""

import ast
import re
import shlex
from pathlib import Path

import grpo
from benchmarks.gpu_report import memory, page
from common.distributed import has_bf16
from tools.reports import REPORTS, read_report

import nbformat
import pytest
import torch
import tyro

ROOT = Path(__file__).parents[2]
CELLS = nbformat.read(ROOT / "notebooks" / "gpu_t4.ipynb", as_version=4).cells
SHELL = ("!", "%")


def commands():
    """The shell commands in the notebook's cells, with continued lines joined."""
    sources = [cell.source.replace("\\\n", " ") for cell in CELLS if cell.cell_type == "code"]
    return [line[1:] for source in sources for line in source.splitlines() if line.startswith(SHELL)]


def test_the_cells_parse_and_nothing_in_them_was_run():
    for cell in CELLS:
        if cell.cell_type == "code":
            lines = cell.source.replace("\\\n", " ").splitlines()
            ast.parse("\n".join(line for line in lines if not line.startswith(SHELL)))
            assert cell.outputs == [] and cell.execution_count is None
    assert "has not been run" in CELLS[0].source


def test_the_script_accepts_the_commands_flags(tmp_path):
    (command,) = [line for line in commands() if "grpo.py" in line]
    python, script, *flags = shlex.split(command)
    assert (python, script) == ("python", "grpo.py")
    args = tyro.cli(grpo.Args, args=flags).checked()
    assert args.lora_rank > 0 and args.engine == "transformers" and args.learner_precision == "auto"
    # The run folder has a name, and later cells read from it.
    assert sum(f'"{args.run_dir}' in cell.source for cell in CELLS) == 2, f"cells that read {args.run_dir}"
    for name in re.findall(r"-r (\S+)", " ".join(commands())):
        assert (ROOT / name).exists(), f"gpu_t4.ipynb installs {name}, which is missing"


@pytest.mark.parametrize("capability,bf16", [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 0), True)])
def test_auto_is_bf16_where_the_hardware_is_made_for_it(capability, bf16, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert has_bf16(torch.device("cuda")) is bf16
    assert not has_bf16(torch.device("cpu")) and not has_bf16(torch.device("mps"))


def test_the_image_has_the_versions_of_the_requirements():
    """The image installs the common requirements files and pins no other Python package."""
    text = (ROOT / "Dockerfile").read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.startswith("#")]
    (install,) = [line for line in lines if "pip install" in line]
    assert install.endswith("-r requirements-vllm.txt") and "==" not in install
    (copied,) = [line for line in lines if line.startswith("COPY") and "requirements" in line]
    needed = re.findall(r"^-r (\S+)", (ROOT / "requirements-vllm.txt").read_text(), re.M)
    assert needed == ["requirements.txt"] and {*needed, "requirements-vllm.txt"} <= set(copied.split())
    assert lines.index(copied) < lines.index(install) < lines.index("COPY . .")


def test_the_page_is_that_of_the_measurements():
    assert (REPORTS / "gpu.md").read_text() == page(read_report("gpu"))


def test_memory_asleep_is_counted_after_the_pool_was_full():
    run = {"command": ["grpo.py", "--engine", "vllm"], "used": [0.5, 1.0, 57.0, 58.2, 2.5, 57.9, 2.25, 57.9]}
    assert memory(run) == "58.2, 2.2"
    assert memory(run | {"command": ["grpo.py", "--engine", "transformers"]}) == ""
