"""Tokens per second of generation and training, as fractions of the machine's matrix-product rate.

    python -m benchmarks.throughput
    python -m benchmarks.throughput --model Qwen/Qwen2.5-1.5B-Instruct --dataset openai/gsm8k --dataset-config main \\
        --max-response-tokens 1024 --micro-batch-tokens 8192       # all flags of grpo.py, on the GPU if there is one

The rate is measured in the same process and in the learner's precision, on the model's own shapes (its MLP's first
product over all tokens of a batch) and on large square matrices, interleaved with the rest. Results are medians.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import grpo
from common.batch import collate, split_rows
from common.data import load_problems
from common.engines import make_engine
from common.logprobs import autocast, batch_logps, token_logps
from common.models import load_model
from common.records import Rollouts
from tools.reports import read_report, write_report

import torch
import tyro

PRODUCTS = 20  # timed together, because one is too short to measure


@dataclass
class Args(grpo.Args):
    repeats: int = 7
    """Interleaved repetitions; medians are reported."""
    square: int = 2048
    """Side of the large matrices; 8192 on a GPU."""


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def main(args: Args) -> None:
    model, tokenizer = load_model(args)
    problems, _ = load_problems(args, model, tokenizer)
    problems = problems[: args.prompts_per_step]
    engine = make_engine(args, model, tokenizer, problems)

    def generate() -> Rollouts:
        return engine.generate(problems, args.responses_per_prompt)

    batch = collate(problems, generate(), model.device)
    rows = torch.arange(len(batch.tokens))
    response_tokens, real = int(batch.response_mask.sum()), int(batch.lengths.sum())
    parts = list(split_rows(rows, batch, args.micro_batch_tokens))
    padded = sum(len(part) * int(batch.lengths[part].max()) for part in parts)

    def train_pass() -> None:
        for part in parts:
            token_logps(model, batch, part, args).sum().backward()
        model.zero_grad()

    with autocast(model.device, args, cache=False):  # gives products the learner's precision
        dtype = torch.mm(torch.ones(1, 1, device=model.device), torch.ones(1, 1, device=model.device)).dtype

    def product(rows: int, inner: int, columns: int) -> Callable[[], None]:
        a = torch.randn(rows, inner, device=model.device, dtype=dtype)
        b = torch.randn(inner, columns, device=model.device, dtype=dtype)

        def products() -> None:
            for _ in range(PRODUCTS):
                torch.mm(a, b)

        return products

    D, F, N = model.config.hidden_size, model.config.intermediate_size, args.square
    work = {
        "generate": generate,
        "logps": lambda: batch_logps(model, batch, args),
        "train": train_pass,
        "small": product(real, D, F),
        "large": product(N, N, N),
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(args.repeats + 1):
        for name, function in work.items():
            times[name].append(seconds(function))
    median = {name: statistics.median(values[1:]) for name, values in times.items()}  # the first is a warm-up

    # 2 operations per parameter and token in the forward pass, 6 with the backward pass. The head runs only on response
    # tokens, the input embedding is a look-up, and attention's own products are not counted.
    parameters = sum(p.numel() for p in model.parameters())
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    body = parameters - sum(weight.numel() for weight in {head, embedding})
    forward = 2 * (body * real + head.numel() * response_tokens)
    small_rate = PRODUCTS * 2 * real * D * F / median["small"]
    large_rate = PRODUCTS * 2 * N**3 / median["large"]
    rates = {
        "generate": (
            response_tokens / median["generate"],
            2 * (body + head.numel()) * response_tokens / median["generate"],
        ),
        "logps": (real / median["logps"], forward / median["logps"]),
        "train": (real / median["train"], 3 * forward / median["train"]),
    }
    print(f"{parameters:,} parameters, {len(rows)} rows, {response_tokens} response tokens, {real} with prompts")
    print(f"real tokens among padded ones: {real / padded:.1%}")
    print(f"products in {dtype}: {large_rate / 1e9:.0f} GFLOP/s at {N}, {small_rate / 1e9:.0f} at the model's shapes")
    for name, (tokens, flops) in rates.items():
        print(
            f"{name:9s} {tokens:8.0f} tokens/s   {flops / large_rate:5.1%} of the rate at {N}, "
            f"{flops / small_rate:5.1%} at the model's shapes"
        )
    if torch.cuda.is_available():
        print(f"peak of this process's memory on the GPU: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    known = read_report("throughput", {})
    known[f"{Path(args.model).name}, {type(engine).__name__}, learner {dtype}, {model.device.type}"] = {
        "date": str(date.today()),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "parameters": parameters,
        "rows": len(rows),
        "response_tokens": response_tokens,
        "tokens": real,
        "padded_tokens": padded,
        "median_seconds": median,
        "tokens_per_second": {name: tokens for name, (tokens, _) in rates.items()},
        "products_per_second": {"square": large_rate, "model": small_rate},
    }
    write_report("throughput", known)
    engine.close()


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
