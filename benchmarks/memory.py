"""Memory of log-probs over a large vocabulary: 151,936 tokens in the vocabulary, 8,192 tokens in a micro-batch.

python -m benchmarks.memory               # about five minutes; writes reports/memory.json

A one-layer Llama with the head of a 0.5B model (width 896). Each case runs in its own process and counts its peak
memory above what the process held before: `logps_and_entropies` with its backward pass, and the same with all logits
in memory, which is measured at 1,024 tokens and grows in proportion.
"""

import subprocess
import sys
from pathlib import Path
from typing import Literal

import grpo
from common.batch import collate
from common.distributed import device
from common.logprobs import LOGITS_AT_ONCE, logps_and_entropies
from common.records import Problem, Rollouts
from tools.reports import write_report
from tools.scripts import ROOT

import torch
import tyro
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, WIDTH = 151_936, 896
CASES = [("chunks", 8192), ("chunks", 1024), ("whole", 1024)]


def held_mib() -> float:
    """MiB held now, by the GPU if there is one, else by this process; resets the peak."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated() / 2**20
    Path("/proc/self/clear_refs").write_text("5")
    return status_mib("VmRSS")


def peak_mib() -> float:
    """Peak MiB since the last `held_mib`."""
    return torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else status_mib("VmHWM")


def status_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def measure(kind: str, tokens: int, vocabulary: int) -> float:
    """Peak MiB above model, gradients and inputs."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=WIDTH, intermediate_size=WIDTH, num_hidden_layers=1, num_attention_heads=14
    )
    model = LlamaForCausalLM(config).to(device()).eval()
    rows = 8
    responses = torch.randint(vocabulary, (rows, tokens // rows)).tolist()
    rollouts = Rollouts(
        responses, [[0.0] * len(r) for r in responses], [False] * rows, [[True] * len(r) for r in responses]
    )
    problem = Problem("", "", "", [1])
    batch = collate([problem] * rows, rollouts, device())
    args = grpo.Args()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    one = collate([problem], rollouts.split(1)[0], device())
    logps_and_entropies(model, one, torch.tensor([0]), args)[0][:, :1].sum().backward()
    before = held_mib()
    if kind == "chunks":
        logp, _ = logps_and_entropies(model, batch, torch.arange(rows), args)
    else:
        logits = model(batch.tokens).logits[:, :-1].float()  # (B, T, V)
        logps = logits.log_softmax(-1)
        entropy = -(logps.exp() * logps).sum(-1)
        logp = logps.gather(-1, batch.response[..., None])[..., 0] + 0 * entropy.detach()
    logp.sum().backward()
    return peak_mib() - before


def main(kind: Literal["chunks", "whole"] | None = None, tokens: int = 8192, vocabulary: int = VOCABULARY) -> None:
    """Measure all cases, or only one, which prints its peak in MiB."""
    if kind:
        print(measure(kind, tokens, vocabulary))
        return
    results = []
    for kind, tokens in CASES:
        command = [sys.executable, "-m", "benchmarks.memory", "--kind", kind, "--tokens", str(tokens)]
        output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        results.append({"kind": kind, "tokens": tokens, "peak_mib": float(output.split()[-1])})
        print(results[-1], flush=True)
    logits = 8192 * VOCABULARY * 4 / 2**20
    print(f"the logits alone, whole, at 8,192 tokens: {logits:,.0f} MiB; a chunk: {LOGITS_AT_ONCE * 4 / 2**20:.0f} MiB")
    write_report("memory", results)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
