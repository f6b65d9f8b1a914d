"""Run the silent bugs and their healthy twins, and write bugs.json. About 20 minutes on two cores.

python -m notebooks.exercises.make_bugs

Each bug is a change of one line in a copy of the repository. This file is the solution: it stays out of the handout.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from functools import lru_cache
from pathlib import Path

from common.plots import read_metrics
from common.run import package_versions
from notebooks.exercises.mistakes import CONSTANT, GRPO_LOSS, ROW_MEAN
from notebooks.exercises.silent_bugs import LOGS, PANELS, fingerprint

ROOT = Path(__file__).parent.parent.parent
FLAGS = ["--steps", "30", "--eval-every", "0", "--eval-problems", "64", "--eval-samples", "4", "--save-every", "0"]
FLAGS += ["--kl-beta", "0.05", "--lr", "2e-4", "--engine", "transformers"]
# What a run needs beyond these for its bug to show; the healthy twin has the same.
MORE_FLAGS = {"C": ("--update-epochs", "4"), "E": ("--overlong-cache", "80"), "F": ("--lr", "2e-5")}
# letter: (name, script, file, line, the line with the bug)
BUGS = {
    "A": ("top-p", "grpo", "common/engines.py",
          "            if temperature == 0:\n                token = logp.argmax(-1)",
          "            p, order = logp.exp().sort(-1, descending=True)\n"
          "            kept = torch.where(p.cumsum(-1) - p < 0.8, p, 0.0)\n"
          "            logp = torch.zeros_like(logp).scatter(1, order, kept / kept.sum(-1, keepdim=True)).log()\n"
          "            if temperature == 0:\n                token = logp.argmax(-1)"),
    "B": ("length-normalized", "dr_grpo", "dr_grpo.py", CONSTANT, ROW_MEAN),
    "C": ("inverted-clip", "grpo", "grpo.py", GRPO_LOSS,
          "loss = -torch.where(advantages > 0, torch.min(ratio * advantages, clipped_ratio * advantages), "
          "torch.max(ratio * advantages, clipped_ratio * advantages))"),
    "D": ("eos-masked", "grpo", "common/batch.py", "        mask=mask.to(device),",
          "        mask=(mask & (pad_sequence(responses, batch_first=True) != 1)).to(device),"),
    "E": ("shaped-filter", "dapo", "dapo.py", "(kept if 0 < row.mean() < 1 else spare)",
          "(kept if (2 * row - 1 + overlong_penalty(torch.tensor([len(t) for t in group.tokens]), args)).std() > 0 "
          "else spare)"),
    "F": ("bf16-weights", "grpo", "common/models.py", "dtype=torch.float32", "dtype=torch.bfloat16"),
    "G": ("k1-in-loss", "grpo", "grpo.py", "return torch.exp(ref_logp - logp) - (ref_logp - logp) - 1",
          "return logp - ref_logp"),
}  # fmt: skip


@lru_cache
def run(script: str, flags: tuple[str, ...], change: tuple[str, str, str] | None = None) -> list[dict]:
    """The log of a script, perhaps with a line of some file changed."""
    with tempfile.TemporaryDirectory() as work:
        for name in ("common", "models"):
            shutil.copytree(ROOT / name, Path(work) / name)
        shutil.copy(ROOT / f"{script}.py", work)
        if change:
            file, line, wrong_line = change
            text = (Path(work) / file).read_text()
            assert line in text, f"{file} has no line {line!r}"
            (Path(work) / file).write_text(text.replace(line, wrong_line))
        command = [sys.executable, f"{script}.py", *FLAGS, *flags, "--run-dir", "run"]
        subprocess.run(
            command, cwd=work, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        rows = read_metrics(Path(work) / "run")
    return [{k: row[k] for k in ("step", *PANELS) if row.get(k) is not None} for row in rows[1:]]


def main() -> None:
    runs = {}
    for letter, (name, script, *change) in BUGS.items():
        flags = MORE_FLAGS.get(letter, ())
        healthy, buggy = run(script, flags), run(script, flags, tuple(change))
        print(
            f"bug {letter}, {name}: accuracy {buggy[-1]['accuracy']:.3f}, healthy {healthy[-1]['accuracy']:.3f}",
            flush=True,
        )
        runs[letter] = {"script": script, "answer": fingerprint(letter, name), "healthy": healthy, "buggy": buggy}
    record = {"date": str(date.today()), "versions": package_versions(), "flags": FLAGS, "runs": runs}
    LOGS.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
