"""Make the base model of this world, from the weights of worlds/sums/model; under 45 minutes on one core.

It runs two schedules, the second from the weights of the first, with more writers who go in order. In the first, the
model learns to copy the numbers, to add up, and to go in order; the verdicts come last.

python -m worlds.search.pretrain    # writes worlds/search/model/
"""

from dataclasses import replace
from functools import partial

from worlds import MODELS
from worlds.pretrain import Corpus, PretrainSettings, Writer, make_tokenizer, pretrain
from worlds.search.writers import corpus_problem, solution

import torch
import tyro
from transformers import LlamaForCausalLM


def run_schedules(first: Writer, second: Writer, args: PretrainSettings) -> None:
    """Pretrain on what two kinds of writers write, one after the other, and save the model."""
    args = args.with_defaults(steps=2000, batch=96)
    torch.manual_seed(args.seed)
    model = LlamaForCausalLM.from_pretrained(MODELS["sums"].folder, max_position_embeddings=512)
    datasets = ("search", "search-hard")
    pretrain(model, make_tokenizer(), Corpus(corpus_problem, first, datasets), args)
    args = replace(args, steps=args.steps // 2, lr=args.lr * 2 / 3, seed=args.seed + 1)
    pretrain(model, make_tokenizer(), Corpus(corpus_problem, second, datasets), args)


if __name__ == "__main__":
    args = tyro.cli(PretrainSettings, description=__doc__).with_defaults(out=MODELS["search"].folder)
    run_schedules(partial(solution, in_order=0.2), solution, args)
