"""A thousand steps of the default run: does memory grow, and do processes or files remain?

python -m benchmarks.soak                 # about 30 minutes on two cores; writes reports/soak.json

While `grpo.py --steps 1000` runs, its resident memory, open files, child processes and run folder are read every 5
seconds. The slope of memory comes from a least-squares line through the second half of the run, because in the first
half lengths and buffers still grow.
"""

import json
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

from common.folders import package_versions
from common.metrics import read_metrics
from tools.reports import write_report
from tools.scripts import ROOT

import numpy as np
import tyro

STEPS = 1000


def reading(pid: int, folder: Path) -> dict[str, float]:
    """What a process uses now (memory, threads, files), and the size of its run folder."""
    proc = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    log = folder / "metrics.jsonl"
    return {
        "step": sum(1 for _ in log.open()) - 1 if log.exists() else -1,
        "memory_mib": int(status["VmRSS"].split()[0]) / 1024,
        "open_files": len(list((proc / "fd").iterdir())),
        "threads": int(status["Threads"]),
        "children": len((proc / "task" / str(pid) / "children").read_text().split()),
        "folder_mib": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20,
    }


def main() -> None:
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "run"
        command = [sys.executable, "grpo.py", "--steps", str(STEPS), "--run-dir", str(folder)]
        readings = []
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        while process.poll() is None:
            try:
                readings.append(reading(process.pid, folder))
            except (FileNotFoundError, ProcessLookupError):  # a file was replaced, or the process has ended
                continue
            time.sleep(5)
        assert process.returncode == 0, "the run failed"
        rows = read_metrics(folder)
        late = [r for r in readings if r["step"] >= STEPS // 2]
        steps, memory = np.array([r["step"] for r in late]), np.array([r["memory_mib"] for r in late])
        result = {
            "date": str(date.today()),
            "versions": package_versions(),
            "steps": STEPS,
            "readings": len(readings),
            "memory_mib_at_step_500": float(memory[0]),
            "memory_mib_at_the_end": float(memory[-1]),
            "memory_mib_most": max(r["memory_mib"] for r in readings),
            "memory_slope_kib_per_step": float(np.polyfit(steps, memory, 1)[0] * 1024),
            "open_files": [late[0]["open_files"], late[-1]["open_files"]],
            "threads": [late[0]["threads"], late[-1]["threads"]],
            "children_most": max(r["children"] for r in readings),
            "folder_mib_most": max(r["folder_mib"] for r in readings),
            "log_kib_per_step": (folder / "metrics.jsonl").stat().st_size / 1024 / STEPS,
            "files_at_the_end": sorted(p.name for p in folder.iterdir()),
            "held_out": [rows[0]["eval/avg"], rows[-1]["eval/avg"]],
        }
    write_report("soak", result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
