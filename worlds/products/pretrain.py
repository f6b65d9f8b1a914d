"""Make the base model of this world, from the weights of worlds/sums/model.

python -m worlds.products.pretrain    # writes worlds/products/model/
"""

import math
from dataclasses import dataclass

from worlds import MODELS
from worlds.pretrain import TEXTBOOK, Corpus, PretrainSettings, make_tokenizer, pretrain
from worlds.products.problems import product_problem
from worlds.products.writers import solution

import tyro
from transformers import LlamaForCausalLM


@dataclass
class Args(PretrainSettings):
    lr: float = 8e-3
    """Peak learning rate: linear warm-up over the first 5 % of the schedule, then linear decay to zero."""


def main(args: Args) -> None:
    args = args.with_defaults(out=MODELS["products"].folder, steps=10_000, batch=64)
    model = LlamaForCausalLM.from_pretrained(MODELS["sums"].folder)
    corpus = Corpus(product_problem, lambda rng, question, textbook: solution(rng, question), ("products",))
    pretrain(model, make_tokenizer(), corpus, args, math.ceil(TEXTBOOK * args.steps))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
