"""What each of several processes holds and receives, counted on a model of 42 million parameters.

    python -m benchmarks.sharding         # about a minute; writes reports/sharding.json

Training holds 16 bytes per parameter (weights, gradients, two moments): 1/n of them in each of n processes, and
temporarily the whole weights and gradients of one layer. Measured is the resident memory of each process above that of
a tiny learner, with a row of eight tokens, whose activations are negligible. In a pass with gradients a process
receives the other shards twice, and the sums for its own shard: 3 · (n - 1)/n · 4 bytes per parameter. A pass without
gradients, or new weights for the engine, needs the shards once.
"""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpo
from common import distributed
from common.batch import collate
from common.logprobs import batch_logps, token_logps
from common.lora import whole_weights
from common.records import Problem, Rollouts
from tools.reports import write_report
from tools.scripts import ROOT

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import Qwen3Config, Qwen3ForCausalLM

PROCESSES = (1, 2, 4)
PRECISIONS = {"fp32": {}, "bf16": {"learner_precision": "bf16", "gradient_checkpointing": True}}


class Traffic(TorchDispatchMode):
    """Counts the bytes that this process receives through tensor collectives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        name = function._schema.name
        if "c10d" in name and ("gather" in name or "reduce" in name):
            # The larger of input and output is the whole tensor.
            whole = max(t.nbytes for t in tree_leaves((args, kwargs, result)) if isinstance(t, torch.Tensor))
            self.bytes += whole * (distributed.world_size() - 1) // distributed.world_size()
        return result


def build(width: int = 512, layers: int = 11) -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=16 * width,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=width // 8,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


def resident(field: str) -> int:
    """Bytes of memory that this process uses now (VmRSS) or has used at most (VmHWM)."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) << 10


class Learner:
    """A model on this process, and an update with a row of eight tokens per process."""

    def __init__(self, model: Qwen3ForCausalLM, **settings: Any) -> None:
        self.args = grpo.Args(**settings)
        if self.args.gradient_checkpointing:
            model.gradient_checkpointing_enable()
            model.train()
        self.model = distributed.place(model)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        n = distributed.world_size()
        rollouts = Rollouts([[5] * 4] * n, [[0.0] * 4] * n, [False] * n, [[True] * 4] * n)
        self.batch = collate([Problem("", "", "", [1] * 4)] * n, rollouts, distributed.device())

    def gradients(self) -> None:
        token_logps(self.model, self.batch, torch.tensor([distributed.rank()]), self.args).sum().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


def work() -> None:
    """In each process, measure what it holds and receives."""
    distributed.start()
    small = Learner(build(width=64, layers=1))  # excludes memory of code and connections
    small.gradients()
    small.update()
    before = resident("VmRSS")
    counts = {}
    for precision, settings in PRECISIONS.items():
        learner = None  # frees the previous one
        gc.collect()
        learner = Learner(build(), **settings)
        learner.gradients()
        learner.update()
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
        batch_logps(learner.model, learner.batch, learner.args)
        counts[f"scoring, {precision}"] = resident("VmHWM") - before
        learner.gradients()
        counts[f"held, {precision}"] = resident("VmRSS") - before
        learner.update()
        counts[f"peak, {precision}"] = resident("VmHWM") - before
    stages = {
        "received in an update": learner.gradients,
        "received in scoring": lambda: batch_logps(learner.model, learner.batch, learner.args),
        "received as new weights": lambda: [None for _ in whole_weights(learner.model)],
    }
    for stage, function in stages.items():
        with Traffic() as traffic:
            function()
        counts[stage] = traffic.bytes
    everyone = distributed.gather(counts)
    if distributed.rank() == 0:
        print(json.dumps({key: max(c[key] for c in everyone) for key in counts}))
    distributed.close()


def measure(processes: int) -> dict[str, int]:
    """The largest counts of any process, in bytes."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    command = command if processes > 1 else [sys.executable]
    # Freed memory returns to the system at once.
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    run = [*command, "-m", "benchmarks.sharding", "--worker"]
    done = subprocess.run(run, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    model = build()
    size = 4 * model.num_parameters()
    results = {"parameters": model.num_parameters()} | {str(n): measure(n) for n in PROCESSES}
    memory, traffic = (lambda n: f"{n / 2**20:.0f} MiB"), (lambda n: f"{n / size:.2f} of the weights")
    columns = {name: traffic if name.startswith("received") else memory for name in results[str(PROCESSES[0])]}
    print("| processes | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for n in PROCESSES:
        print(f"| {n} | " + " | ".join(form(results[str(n)][name]) for name, form in columns.items()) + " |")
    write_report("sharding", results)


if __name__ == "__main__":
    work() if "--worker" in sys.argv else main()
