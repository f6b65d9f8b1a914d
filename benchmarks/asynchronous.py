"""Generation with a queue against generation in batches, with responses of 1 to 32 times the shortest length.

    python -m benchmarks.asynchronous          # some minutes on a quiet machine; writes reports/asynchronous.json

Measured with the embedded model and no EOS: tokens per second of the transformers engine if each batch waits for its
longest response, and if a new prompt starts as soon as another ends; and the idle fraction, that of rows without
anything to sample. The logarithm of the lengths is uniform.

Measured with two processes, by `recipes/pipeline_rl.py --overlap` on sums, on search, and on search with a reference,
where training takes longer: the fraction of the generator's time that is hidden because the learner trains meanwhile.

Calculated for 8 to 4,096 GPUs with 64 responses each per step: a token for r rows takes a + b r seconds and training
takes c seconds per token, as measured here. Synchronous: all GPUs generate their part, wait for the longest response,
and train together. Asynchronous: the best number of GPUs always generates with full batches, and the others train.
Neither counts the network.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import grpo
from common.batch import collate, split_rows
from common.data import load_problems
from common.engines import Request, prompt_seeds
from common.logprobs import token_logps
from common.metrics import read_metrics
from common.models import load_model
from common.transformers_engine import TransformersEngine
from tools.reports import today, write_report
from tools.scripts import ROOT

import numpy as np
import torch
import tyro

SPREAD = 32  # ratio of the longest to the shortest response
GPUS = [8 << i for i in range(10)]
ROWS = 64  # responses per GPU in the calculation
SEARCH = "--model search --dataset search"
OVERLAP = {"sums": "", "search": SEARCH, "search, with a reference": f"{SEARCH} --kl-beta 0.001"}


@dataclass
class Args(grpo.Args):
    max_response_tokens: int = 192
    """The longest response."""
    batches: int = 8
    """Batches of --prompts-per-step prompts that are generated each way."""
    steps: int = 24
    """Steps of the run with two processes."""
    turns: int = 5
    """Repetitions of each way, interleaved; the median counts."""


def timed(work: Callable[[], object]) -> tuple[float, object]:
    start = time.perf_counter()
    result = work()
    return time.perf_counter() - start, result


def lengths(count: int, longest: int, rng: np.random.Generator) -> list[int]:
    """Lengths from a 32nd of the longest to the longest, uniform in their logarithm."""
    return [max(1, round(longest * SPREAD ** -float(x))) for x in rng.random(count)]


def in_batches(engine: TransformersEngine, batches: list[Request]) -> int:
    """Generate one batch after the other; return the steps times the rows that were reserved."""
    for batch in batches:
        engine.sample(batch)
    return sum(max(batch.limits) * len(batch.prompts) * batch.n for batch in batches)


def in_a_stream(engine: TransformersEngine, batches: list[Request]) -> int:
    """Generate the same prompts with as many at a time as in a batch; return the same product."""
    waiting = [batch.part(slice(i, i + 1)) for batch in batches for i in range(len(batch.prompts))]
    stream, most, steps, key = engine.stream(), len(batches[0].prompts), 0, 0
    while waiting or stream.groups:
        free = most - len(stream.groups)
        if waiting and free >= most // 8:
            some, waiting = waiting[:free], waiting[free:]
            columns = (
                [value for one in some for value in getattr(one, name)] for name in ("prompts", "limits", "seeds")
            )
            prompts, limits, seeds = columns
            stream.join(range(key, key + len(some)), replace(some[0], prompts=prompts, limits=limits, seeds=seeds))
            key += len(some)
        stream.step()
        stream.take()
        steps += 1
    return steps * most * batches[0].n


WAYS = {"batches": in_batches, "stream": in_a_stream}


def on_paper(gpus: int, costs: tuple[float, float, float], longest: int) -> dict[str, float]:
    """Calculated tokens per second and idle fraction of the GPUs, both ways; `costs` are a, b and c."""
    a, b, c = costs
    each = np.sort(np.array(lengths(gpus * ROWS, longest, np.random.default_rng(0))).reshape(gpus, ROWS), 1)
    tokens = each.sum()
    # Until its i-th shortest response ends, a GPU computes ROWS - i rows.
    steps = np.diff(each, axis=1, prepend=0)  # (gpus, ROWS)
    busy = (steps * (a + b * np.arange(ROWS, 0, -1))).sum(1)  # (gpus,) seconds
    synchronous = busy.max() + c * tokens / gpus
    needed = (a + b * ROWS) / ROWS  # seconds per token on a GPU with full rows
    rate, generate = max((min(n / needed, (gpus - n) / c), n) for n in range(1, gpus))
    used = rate * (needed + c) / gpus
    return {
        "gpus": gpus,
        "synchronous": tokens / synchronous,
        "synchronous_idle": float(1 - (busy.mean() + c * tokens / gpus) / synchronous),
        "asynchronous": rate,
        "asynchronous_idle": 1 - used,
        "generating": generate,
    }


def hidden(flags: str, args: Args) -> dict[str, float]:
    """The fraction of generation that a run with --overlap hides, after its first steps."""
    flags += f" --overlap --steps {args.steps} --eval-every 0 --save-every 0"
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "recipes/pipeline_rl.py", *flags.split(), "--run-dir", f"{folder}/run"]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        rows = read_metrics(Path(folder) / "run")[4:-1]
    stages = [{key: value for key, value in row.items() if key.startswith("seconds/")} for row in rows]
    waited = sum(row["seconds/generate"] for row in stages)
    generated = sum((1 - row["generator_idle"]) * sum(of.values()) for row, of in zip(rows, stages, strict=True))
    trained = sum(sum(of.values()) for of in stages) - waited
    return {"hidden": 1 - waited / generated, "generated": generated, "trained": trained, "waited": waited}


def main(args: Args) -> None:
    model, tokenizer = load_model(args)
    problems = load_problems(args, model, tokenizer)[0][: args.prompts_per_step * args.batches]
    engine = TransformersEngine(args, model, tokenizer)
    rng, P, T, G = np.random.default_rng(args.seed), args.prompts_per_step, args.max_response_tokens, 1
    engine.eos = torch.full_like(engine.eos, -1)  # only the limit ends a response
    batches = [
        Request([p.prompt_ids for p in problems[i : i + P]], G, lengths(P, T, rng), 1.0, prompt_seeds(P, args.seed, i))
        for i in range(0, P * args.batches, P)
    ]
    tokens = sum(sum(batch.limits) for batch in batches)
    engine.sample(batches[0])  # warms up
    turns = [{name: timed(partial(way, engine, batches)) for name, way in WAYS.items()} for _ in range(args.turns)]
    found = {}
    for name in WAYS:
        seconds, rows = statistics.median(turn[name][0] for turn in turns), turns[0][name][1]
        found[name] = {"tokens_per_second": tokens / seconds, "idle": 1 - tokens / rows}
    # Costs: a token for 1 row and for 64 rows, and training.
    per_step = [
        timed(lambda n=n: engine.sample(Request([problems[0].prompt_ids], n, [T], 1.0, [1])))[0] / T for n in (1, ROWS)
    ]
    b = (per_step[1] - per_step[0]) / (ROWS - 1)
    rollouts = engine.sample(replace(batches[0], limits=[T] * P))
    batch = collate(problems[:P], rollouts, model.device)

    def train() -> None:
        for part in split_rows(torch.arange(P), batch, args.micro_batch_tokens):
            token_logps(model, batch, part, args).sum().backward()

    costs = (per_step[0] - b, b, timed(train)[0] / (P * T))
    paper = [on_paper(gpus, costs, T) for gpus in GPUS]
    for name, numbers in found.items():
        print(f"{name:8s} {numbers['tokens_per_second']:9.0f} tokens/s   idle {numbers['idle']:.1%}")
    print("seconds: a {:.2e}, b {:.2e}, c {:.2e}".format(*costs))
    for row in paper:
        print(
            f"{row['gpus']:5d} GPUs: {row['synchronous']:11.0f} tokens/s, idle {row['synchronous_idle']:.1%}; "
            f"asynchronous {row['asynchronous']:11.0f} tokens/s, idle {row['asynchronous_idle']:.1%}, "
            f"{row['generating']} generating"
        )
    overlap = {name: hidden(flags, args) for name, flags in OVERLAP.items()}
    for name, numbers in overlap.items():
        print(f"seconds with two processes, {name}: " + ", ".join(f"{k} {value:.2f}" for k, value in numbers.items()))
    content = {"date": today(), "measured": found, "overlap": overlap, "costs": costs, "paper": paper}
    write_report("asynchronous", content)


if __name__ == "__main__":
    main(tyro.cli(Args))
