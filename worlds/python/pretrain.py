"""Make the base model of this world, from the weights of worlds/sums/model.

python -m worlds.python.pretrain    # writes worlds/python/model/
"""

from worlds import MODELS
from worlds.pretrain import Corpus, PretrainSettings, make_tokenizer, pretrain
from worlds.python.problems import python_problem
from worlds.python.writers import solution

import tyro
from transformers import LlamaForCausalLM


def main(args: PretrainSettings) -> None:
    args = args.with_defaults(out=MODELS["python"].folder, steps=1500, batch=48)
    model = LlamaForCausalLM.from_pretrained(MODELS["sums"].folder)
    pretrain(model, make_tokenizer(), Corpus(python_problem, solution, ("python",)), args)


if __name__ == "__main__":
    main(tyro.cli(PretrainSettings, description=__doc__))
