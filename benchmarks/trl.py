"""A whole step of `grpo.py` against TRL's GRPOTrainer: same model, prompts, batch, lengths, updates and precision.

    python3 -m venv .trl && .trl/bin/pip install torch==2.13.0 transformers==5.19.0 datasets==5.2.0 trl==1.16.0
    python -m benchmarks.trl --trl-python .trl/bin/python      # with nothing else on the machine

The two run alternately, each alone in its own process. A step is 32 prompts x 8 responses, log-probs and four updates,
timed from the end of one step to the end of the next. The learning rate is 1e-6, so that responses keep the base
model's length. Medians over all steps except each process's first two. TRL has the fastest settings found here: one
micro-batch per update, no KL, no logging of completions.
"""

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from common.metrics import read_metrics
from tools.reports import write_report
from tools.scripts import ROOT

import tyro

WORKER = """
import json, os, sys, time
os.environ.update(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="1000")  # as in common/__init__.py
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

model_path, problems, out, steps, folder = sys.argv[1:]
pairs = json.load(open(problems))
data = Dataset.from_list([{"prompt": q, "answer": a} for q, a in pairs])
tokenizer = AutoTokenizer.from_pretrained(model_path)
model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
lengths = []

def reward(completions, completion_ids, answer, **_):
    lengths.extend(len(ids) for ids in completion_ids)
    return [float(c.rsplit("boxed{", 1)[-1].split("}")[0] == a) for c, a in zip(completions, answer)]

class Clock(TrainerCallback):
    marks = []
    def on_step_end(self, args, state, control, **_):
        if state.global_step % 4 == 0:
            self.marks.append(time.perf_counter())

gpu = torch.cuda.is_available()
config = GRPOConfig(
    output_dir=folder, use_cpu=not gpu, bf16=gpu, per_device_train_batch_size=64, steps_per_generation=4,
    gradient_accumulation_steps=1, num_generations=8, max_completion_length=96, temperature=1.0, top_p=1.0, top_k=0,
    beta=0.0, learning_rate=1e-6, lr_scheduler_type="constant", max_steps=4 * int(steps), loss_type="grpo",
    logging_steps=10_000, save_strategy="no", report_to=[], disable_tqdm=True, gradient_checkpointing=False, seed=1,
    dataloader_num_workers=0, log_completions=False,
)
trainer = GRPOTrainer(model=model, reward_funcs=reward, args=config, train_dataset=data, processing_class=tokenizer,
                      callbacks=[Clock()])
trainer.train()
marks = Clock.marks
seconds = [b - a for a, b in zip(marks[1:], marks[2:])]
json.dump({"seconds": seconds, "length": sum(lengths) / len(lengths)}, open(out, "w"))
"""


@dataclass
class Args:
    trl_python: Path
    """Python of the environment with TRL."""
    steps: int = 10
    """Rollout batches of each process."""
    turns: int = 5
    """Processes of each kind, in turns."""


def ours(args: Args, folder: str) -> tuple[list[float], float]:
    command = [sys.executable, "grpo.py", "--engine", "transformers", "--lr", "1e-6", "--steps", str(args.steps)]
    command += ["--eval-every", "0", "--eval-problems", "8", "--eval-samples", "1", "--save-every", "0"]
    command += ["--micro-batch-tokens", "4096", "--run-dir", f"{folder}/run"]
    log, ends = Path(folder) / "run" / "metrics.jsonl", []
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    while process.poll() is None:  # one line for the base model, and one per step
        time.sleep(0.005)
        if log.exists() and log.read_bytes().count(b"\n") > len(ends):
            ends.append(time.perf_counter())
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with status {process.returncode}.")
    seconds = [b - a for a, b in itertools.pairwise(ends[2 : args.steps + 1])]
    return seconds, statistics.mean(row["length"] for row in read_metrics(log.parent)[1:])


def theirs(args: Args, folder: str) -> tuple[list[float], float]:
    from worlds import generated_problems

    problems = [[question + "\n", answer] for question, answer in generated_problems("sums", "train")[:2000]]
    (Path(folder) / "problems.json").write_text(json.dumps(problems))
    (Path(folder) / "worker.py").write_text(WORKER)
    command = [str(args.trl_python.absolute()), "worker.py", str(ROOT / "worlds/sums/model"), "problems.json"]
    command += ["out.json", str(args.steps), "trl"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    result = json.loads((Path(folder) / "out.json").read_text())
    return result["seconds"], result["length"]


def main(args: Args) -> None:
    results: dict[str, dict] = {"ours": {"seconds": [], "length": []}, "trl": {"seconds": [], "length": []}}
    for _ in range(args.turns):
        for name, work in (("ours", ours), ("trl", theirs)):
            with tempfile.TemporaryDirectory() as folder:
                seconds, length = work(args, folder)
            results[name]["seconds"] += seconds
            results[name]["length"].append(length)
            print(f"{name}: {statistics.median(seconds):.3f} s per step, mean length {length:.1f}", flush=True)
    medians = {name: statistics.median(result["seconds"]) for name, result in results.items()}
    for name, median in medians.items():
        print(f"{name}: {median:.3f} s, {256 / median:.0f} responses/s")
    print(f"ratio: {medians['trl'] / medians['ours']:.2f}")
    write_report("trl", results | {"ratio": medians["trl"] / medians["ours"]})


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
