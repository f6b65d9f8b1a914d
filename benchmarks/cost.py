"""How the cost of a step grows with the tokens in a batch, the model's size, and the group size.

    python -m benchmarks.cost                 # about five minutes on two idle cores
    python -m benchmarks.cost --redraw        # only table and picture again, from cost.json

A step is generation, the learner's log-probs, and a forward and a backward pass for each of four minibatches, by the
scripts' own functions. Batches and groups use the embedded model; larger models have its architecture with random
weights, so their responses reach the length limit. Medians of interleaved repetitions.
"""

import statistics
import time
from dataclasses import dataclass
from typing import Any

import grpo
from common.batch import collate, minibatches, split_rows
from common.data import load_problems
from common.logprobs import batch_logps, token_logps
from common.models import load_model
from common.records import Problem
from common.transformers_engine import TransformersEngine
from tools.plots import BLUE, GREEN, ORANGE, panel
from tools.reports import REPORTS, read_report, write_report

import tyro
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter
from transformers import LlamaConfig, LlamaForCausalLM


@dataclass
class Args:
    repeats: int = 3
    """Interleaved repetitions; medians are reported."""
    redraw: bool = False
    """Only draw the table and the picture again."""


def step(model: Any, engine: TransformersEngine, problems: list[Problem], G: int, seed: int) -> dict[str, float]:
    """Seconds per stage of one step, and the tokens in its batch."""
    args = grpo.Args(prompts_per_step=len(problems), responses_per_prompt=G)
    seconds = {}
    start = time.perf_counter()
    batch = collate(problems, engine.generate(problems, G, seed), model.device)
    seconds["generate"] = time.perf_counter() - start
    start = time.perf_counter()
    batch_logps(model, batch, args)
    seconds["logps"] = time.perf_counter() - start
    start = time.perf_counter()
    for minibatch in minibatches(len(problems), G, args):
        for rows in split_rows(minibatch, batch, args.micro_batch_tokens):
            token_logps(model, batch, rows, args).sum().backward()
        model.zero_grad()
    seconds["train"] = time.perf_counter() - start
    return seconds | {"tokens": int(batch.lengths.sum())}


def measure(args: Args) -> list[dict]:
    settings = grpo.Args()
    embedded, tokenizer = load_model(settings)
    problems, _ = load_problems(settings, embedded, tokenizer)
    models = [embedded]
    for width, layers in ((192, 4), (384, 6), (576, 8)):
        config = LlamaConfig(**embedded.config.to_dict() | {
            "hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": layers, "head_dim": 32,
            "num_attention_heads": width // 32, "num_key_value_heads": width // 32,
        })  # fmt: skip
        models.append(LlamaForCausalLM(config).to(embedded.device).eval())
    cases = [("tokens", embedded, P, 8) for P in (8, 16, 32, 64, 128)]
    cases += [("group", embedded, 256 // G, G) for G in (1, 2, 4, 8, 16, 32, 64)]
    cases += [("model", model, 8, 8) for model in models]
    engines = {id(model): TransformersEngine(settings, model, tokenizer) for model in models}
    times: list[list[dict]] = [[] for _ in cases]
    for repeat in range(args.repeats):
        for k, (_, model, P, G) in enumerate(cases):
            times[k].append(step(model, engines[id(model)], problems[:P], G, repeat))
    results = []
    for (kind, model, P, G), measured in zip(cases, times, strict=True):
        medians = {key: statistics.median(m[key] for m in measured) for key in measured[0]}
        results.append({"kind": kind, "parameters": model.num_parameters(), "P": P, "G": G, **medians})
    return results


def table(results: list[dict]) -> str:
    lines = [
        "| varied | parameters | prompts x responses | tokens | generate | logps | train | seconds per step |",
        "|" + "---|" * 8,
    ]
    names = {"tokens": "batch", "group": "group, at 256 responses", "model": "model"}
    for r in results:
        total = r["generate"] + r["logps"] + r["train"]
        lines.append(
            f"| {names[r['kind']]} | {r['parameters'] / 1e6:.2f}M | {r['P']} x {r['G']} | {r['tokens']:,.0f} "
            f"| {r['generate']:.2f} | {r['logps']:.2f} | {r['train']:.2f} | {total:.2f} |"
        )
    return "\n".join(lines)


def draw(results: list[dict]) -> None:
    figure = Figure(figsize=(14, 4), layout="constrained")
    panels = (
        ("tokens", "tokens", "tokens of the batch", "Proportional to the tokens of large batches"),
        ("model", "parameters", "parameters of the model", "Nearly proportional to the parameters"),
        ("group", "G", "responses per prompt, at 256 in all", "Independent of the group size"),
    )
    for axes, (kind, x, label, title) in zip(figure.subplots(1, 3), panels, strict=True):
        rows = [r for r in results if r["kind"] == kind]
        for stage, color in (("generate", BLUE), ("logps", ORANGE), ("train", GREEN)):
            axes.loglog([r[x] for r in rows], [r[stage] for r in rows], marker="o", color=color, label=stage)
        if kind == "group":
            axes.set_ylim(0.01, 1)
        panel(axes, title, label, "seconds per step")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(EngFormatter(sep=""))
            axis.set_minor_formatter(NullFormatter())
    axes.legend()
    figure.savefig(REPORTS / "cost.png", dpi=100)


def main(args: Args) -> None:
    if not args.redraw:
        write_report("cost", measure(args))
    results = read_report("cost")
    draw(results)
    print(table(results))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
