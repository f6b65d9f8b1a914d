"""A page with the measurements of `benchmarks.gpu`: reports/gpu.json and gpu.md.

    python -m benchmarks.gpu_report gpu/gpu.json            # one or more files; later ones win
    python -m benchmarks.gpu_report reports/gpu.json        # only the page again

Runs with the transformers engine may have shared the GPU; the page says so and leaves out their memory. "Awake" is the
most memory in use, and "asleep" the least after vLLM's pool was first full.
"""

import json
import statistics
import sys
from pathlib import Path

from common.cli import fail, say
from tools.reports import REPORTS, heading, write_report

STAGES = ("sync", "generate", "logps", "train")


def memory(result: dict) -> str:
    """GiB in use while vLLM is awake and while it sleeps."""
    used = result["used"]
    if "vllm" not in result["command"] or not used:
        return ""
    most = max(used)
    full = next(i for i, value in enumerate(used) if value > 0.9 * most)
    return f"{most:.1f}, {min(used[full:]):.1f}"


def row(name: str, result: dict) -> str:
    """One line of the table of runs."""
    log = result["log"]
    steps = log[1:]
    seconds = (statistics.median(step[f"seconds/{stage}"] for step in steps) for stage in STAGES)
    words = dict(zip(result["command"], result["command"][1:], strict=False))
    cells = [
        name,
        f"{words['--engine']}, {Path(words.get('--model', 'embedded')).name}",
        str(len(steps)),
        f"{log[0]['eval/avg']:.3f} → {log[-1]['eval/avg']:.3f}",
        f"{statistics.mean(step['mismatch_mean'] for step in steps):.5f} "
        f"({max(step['mismatch_max'] for step in steps):.2f})",
        ", ".join(f"{value:.2f}" for value in seconds),
        memory(result),
        f"{result['seconds']:.0f}",
    ]
    return f"| {' | '.join(cells)} |"


def page(results: dict[str, dict]) -> str:
    """Table of the runs, and what the other measurements printed."""
    first = next(iter(results.values()))
    versions = ", ".join(f"{name} {version}" for name, version in first["versions"].items() if version)
    command = "python -m benchmarks.gpu --out gpu && python -m benchmarks.gpu_report gpu/gpu.json"
    lines = [
        heading("On a GPU", command, (result["date"] for result in results.values())),
        f"{first['device']}; {versions}. One seed each. Runs with the transformers engine "
        "may have shared the GPU, so their seconds cannot be compared.\n",
        "| run | engine, model | steps | held-out accuracy | mismatch, mean (max) \\|Δp\\| "
        "| median seconds of a step: sync, generate, logps, train | GiB in use: vLLM awake, asleep | seconds in all |",
        "|" + "---|" * 8,
        *(row(name, result) for name, result in results.items() if "log" in result),
    ]
    for name, result in results.items():
        if "printed" in result:
            command = " ".join(["python", *result["command"]])
            lines.append(f"\n{name}, by `{command}`:\n\n```\n{result['printed'].strip()}\n```")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    files = [Path(name) for name in sys.argv[1:] if not name.startswith("-")]
    if not files or len(files) < len(sys.argv) - 1:
        fail("pass the files to put together: python -m benchmarks.gpu_report gpu/gpu.json")
    results: dict[str, dict] = {}
    for file in files:
        if not file.is_file():
            fail(f"{file} is not there; `python -m benchmarks.gpu --out gpu` makes gpu/gpu.json.")
        results |= {name: result for name, result in json.loads(file.read_text()).items() if "error" not in result}
    if not results:
        fail(f"{', '.join(map(str, files))}: nothing was measured.")
    write_report("gpu", results)
    (REPORTS / "gpu.md").write_text(page(results))
    say("reports/gpu.md")
