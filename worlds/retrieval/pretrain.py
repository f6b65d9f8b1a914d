"""Make the base model of this world, from the weights of worlds/sums/model.

python -m worlds.retrieval.pretrain    # writes worlds/retrieval/model/
"""

from worlds import MODELS
from worlds.pretrain import Corpus, PretrainSettings, make_tokenizer, pretrain
from worlds.retrieval.writers import corpus_question, solution

import tyro
from transformers import LlamaForCausalLM


def main(args: PretrainSettings) -> None:
    args = args.with_defaults(out=MODELS["retrieval"].folder, steps=2000, batch=48)
    model = LlamaForCausalLM.from_pretrained(MODELS["sums"].folder)
    pretrain(model, make_tokenizer(), Corpus(corpus_question, solution, ("retrieval",)), args)


if __name__ == "__main__":
    main(tyro.cli(PretrainSettings, description=__doc__))
