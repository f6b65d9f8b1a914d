"""Tokens per second of generation and training, as shares of the machine's matrix-product rate.

    python -m benchmarks.throughput

The rate is measured in the same process, on the very shapes of the model (its MLP's first product
over all tokens of a batch) and on large square matrices, interleaved with the rest; medians.
"""

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import grpo
from common.batch import collate, micro_batches, score, token_logps
from common.data import load_problems
from common.engines import TransformersEngine
from common.models import context_length, load_model

import torch
import tyro


@dataclass
class Args:
    repeats: int = 7
    """Interleaved repetitions; medians are reported."""


def seconds(work) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(args: Args) -> None:
    settings = grpo.Args()
    model, tokenizer = load_model(settings)
    train, _ = load_problems(settings, tokenizer, context_length(model))
    prompts = [p.prompt_ids for p in train[: settings.prompts_per_step]]
    engine = TransformersEngine(model, tokenizer)
    G = settings.responses_per_prompt
    rollouts = engine.generate(prompts, G, settings.max_response_tokens, 1.0, 0)
    batch = collate(prompts, rollouts, model.device)
    rows = torch.arange(len(batch.tokens))
    response_tokens, real = int(batch.mask.sum()), int(batch.lengths.sum())
    parts = list(micro_batches(rows, batch, settings.micro_batch_tokens))
    padded = sum(len(part) * int(batch.lengths[part].max()) for part in parts)

    def train_pass() -> None:
        for part in parts:
            token_logps(model, batch, part, settings)[0].sum().backward()
        model.zero_grad()

    config = model.config
    small = torch.randn(real, config.hidden_size), torch.randn(config.hidden_size, config.intermediate_size)
    large = torch.randn(2048, 2048), torch.randn(2048, 2048)
    work = {
        "generate": lambda: engine.generate(prompts, G, settings.max_response_tokens, 1.0, 0),
        "score": lambda: score(model, batch, settings),
        "train": train_pass,
        "small": lambda: [torch.mm(*small) for _ in range(20)],
        "large": lambda: torch.mm(*large),
    }
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(args.repeats + 1):
        for name, function in work.items():
            times[name].append(seconds(function))
    median = {name: statistics.median(values[1:]) for name, values in times.items()}  # the first warms up

    # 2 operations per parameter and token forwards, 6 with the backward pass; attention's own products come on top
    # and are left out, as is the embedding, which is a look-up (the tied head is not).
    parameters = sum(p.numel() for p in model.parameters())
    small_rate = 20 * 2 * real * config.hidden_size * config.intermediate_size / median["small"]
    large_rate = 2 * 2048**3 / median["large"]
    rates = {
        "generate": (response_tokens / median["generate"], 2 * parameters * response_tokens / median["generate"]),
        "score": (real / median["score"], 2 * parameters * real / median["score"]),
        "train": (real / median["train"], 6 * parameters * real / median["train"]),
    }
    print(f"{parameters:,} parameters, {len(rows)} rows, {response_tokens} response tokens, {real} with prompts")
    print(f"real tokens among padded ones: {real / padded:.1%}")
    print(f"matrix products: {large_rate / 1e9:.0f} GFLOP/s at 2048, {small_rate / 1e9:.0f} at the model's shapes")
    for name, (tokens, flops) in rates.items():
        print(
            f"{name:9s} {tokens:8.0f} tokens/s   {flops / large_rate:5.1%} of the rate at 2048, "
            f"{flops / small_rate:5.1%} at the model's shapes"
        )
    result = {"threads": torch.get_num_threads(), "torch": torch.__version__, "median_seconds": median}
    (Path(__file__).parent / "throughput.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Args))
