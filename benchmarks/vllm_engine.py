"""Generation with our vLLM engine against vLLM alone, on the same prompts and weights.

    python -m benchmarks.vllm_engine                              # the embedded model
    python -m benchmarks.vllm_engine --model runs/smollm --precision bf16 --prompts 4 --repeats 5

"vLLM alone" is `LLM.generate` of the same object, with log-probs; only the number of tokens is read from its output. It
runs with a seed per prompt, as in the engine, and without seeds. Medians of interleaved repetitions.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import grpo
from common.data import make_prompt
from common.engines import Request, prompt_seeds
from common.models import load_model
from common.vllm_engine import VLLMEngine
from tools.reports import read_report, write_report

import torch
import tyro
import vllm


@dataclass
class Args:
    model: str = "sums"
    """"sums", or a local folder."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """What vLLM computes in."""
    prompts: int = 32
    """Sums to answer, 8 times each."""
    tokens: int = 96
    """Length limit of a response."""
    repeats: int = 21
    """Interleaved repetitions; medians are reported."""


def main(args: Args) -> None:
    settings = grpo.Args(model=args.model, rollout_precision=args.precision)
    model, tokenizer = load_model(settings)
    engine = VLLMEngine(settings, model, tokenizer, 256)
    prompts = [make_prompt(f"{7 + i}+{40 - i}-{i % 7}=?", None, tokenizer)[1] for i in range(args.prompts)]

    seeds, limits = prompt_seeds(len(prompts), 1), [args.tokens] * len(prompts)

    def alone(seeds: list[int | None]) -> int:
        params = [
            vllm.SamplingParams(
                n=8, max_tokens=args.tokens, temperature=1.0, stop_token_ids=engine.eos, logprobs=0, seed=seed,
                flat_logprobs=True, detokenize=False,
            )
            for seed in seeds
        ]  # fmt: skip
        torch.manual_seed(1)  # equal samples in each repetition
        outputs = engine.llm.generate([{"prompt_token_ids": p} for p in prompts], params, use_tqdm=False)
        return sum(len(completion.token_ids) for output in outputs for completion in output.outputs)

    def ours() -> int:
        return sum(map(len, engine.sample_shards(Request(prompts, 8, limits, 1.0, seeds)).tokens))

    work = {"alone": lambda: alone(seeds), "without seeds": lambda: alone([None] * len(prompts)), "ours": ours}
    rates: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(args.repeats + 1):
        for name, generate in work.items():
            start = time.perf_counter()
            rates[name].append(generate() / (time.perf_counter() - start))
    median = {name: statistics.median(values[1:]) for name, values in rates.items()}  # the first is a warm-up
    print(
        f"vLLM alone {median['alone']:.0f} tokens/s, through our engine {median['ours']:.0f}: "
        f"{median['ours'] / median['alone']:.1%} ({median['ours'] / median['without seeds']:.1%} of vLLM without seeds)"
    )
    known = read_report("vllm_engine", {})
    known[f"{Path(args.model).name}, {args.precision}"] = median
    write_report("vllm_engine", known)
    engine.close()


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
