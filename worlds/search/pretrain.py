"""Make the base model of this world, from the weights of worlds/sums/model; under 45 minutes on two cores.

python -m worlds.search.pretrain    # writes worlds/search/model/
"""

from dataclasses import dataclass

from worlds import MODELS
from worlds.pretrain import Corpus, PretrainSettings, make_tokenizer, pretrain
from worlds.search.writers import corpus_problem, solution

import torch
import tyro
from transformers import LlamaForCausalLM


@dataclass
class Args(PretrainSettings):
    pass


def main(args: Args) -> None:
    args = args.with_defaults(out=MODELS["search"].folder, steps=2000, batch=96)
    torch.manual_seed(args.seed)
    model = LlamaForCausalLM.from_pretrained(MODELS["sums"].folder, max_position_embeddings=512)
    pretrain(model, make_tokenizer(), Corpus(corpus_problem, solution, ("search", "search-hard")), args)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
