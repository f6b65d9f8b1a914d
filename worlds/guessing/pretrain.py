"""Make the base model of this world, from the weights of worlds/sums/model.

python -m worlds.guessing.pretrain    # writes worlds/guessing/model/
"""

from worlds import MODELS
from worlds.guessing.problems import guessing_problem
from worlds.guessing.writers import solution
from worlds.pretrain import Corpus, PretrainSettings, make_tokenizer, pretrain

import tyro
from transformers import LlamaForCausalLM


def main(args: PretrainSettings) -> None:
    args = args.with_defaults(out=MODELS["guessing"].folder, steps=1000, batch=48)
    model = LlamaForCausalLM.from_pretrained(MODELS["sums"].folder)
    pretrain(model, make_tokenizer(), Corpus(guessing_problem, solution, ("guessing",)), args)


if __name__ == "__main__":
    main(tyro.cli(PretrainSettings, description=__doc__))
