"""Measure an embedded base model: accuracy, pass@k, and its styles of answering.

python -m benchmarks.base_model                                # or --model sums-filler
"""

import re
from collections import defaultdict
from dataclasses import dataclass

import grpo
from common.data import load_problems
from common.engines import Request, prompt_seeds
from common.evaluation import evaluate
from common.models import load_model
from common.transformers_engine import TransformersEngine
from common.verification import Verifier

import tyro


@dataclass
class Args:
    model: str = "sums"
    """An embedded model, or the folder of a checkpoint trained from it."""
    samples: int = 16
    """Responses to each of the 512 held-out problems."""


def style(question: str, response: str) -> str:
    """A response's style: a guess at once, some steps and a guess, or all steps."""
    if "wait" in response:
        return "corrects itself (wait)"
    operations, steps = len(question.replace("-", "+").split("+")) - 1, response.count("=")
    return "guess at once" if steps == 0 else "all steps" if steps >= operations else "some steps, then a guess"


def main(args: Args) -> None:
    settings = grpo.Args(model=args.model, eval_problems=512)
    model, tokenizer = load_model(settings)
    train, held_out = load_problems(settings, model, tokenizer)
    verifier = Verifier(settings, tokenizer, train + held_out)
    engine = TransformersEngine(settings, model, tokenizer)
    metrics, _ = evaluate(engine, verifier, held_out, args.samples, settings)
    for name, value in metrics.items():
        print(f"{name:24s} {value:.3f}")

    prompts, limits = [p.prompt_ids for p in held_out], [settings.max_response_tokens] * 512
    rollouts = engine.sample_shards(Request(prompts, args.samples, limits, 1.0, prompt_seeds(512, 0)))
    verifier(held_out, rollouts)
    texts = tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
    questions = [p.question for p in held_out for _ in range(args.samples)]
    groups = defaultdict(list)
    for question, text, ok, tokens in zip(questions, texts, rollouts.correct, rollouts.tokens, strict=True):
        groups[style(question, text)].append((ok, len(tokens)))
        terms = len(question.replace("-", "+").split("+"))
        groups[f"{terms} terms"].append((ok, len(tokens)))
        filler = len(re.findall("^(?:so|hm|ok|er) ", text, re.MULTILINE))
        name = "no filler line" if filler == 0 else "1 or 2 filler lines" if filler < 3 else "3 or more"
        groups[name].append((ok, len(tokens)))
    print(f"\n{'':26s} fraction  correct  tokens")
    for name, rows in sorted(groups.items()):
        fraction, accuracy = len(rows) / len(texts), sum(ok for ok, _ in rows) / len(rows)
        print(f"{name:26s} {fraction:8.3f}  {accuracy:7.3f}  {sum(n for _, n in rows) / len(rows):6.1f}")
    verifier.close()


if __name__ == "__main__":
    main(tyro.cli(Args))
