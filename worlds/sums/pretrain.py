"""Make the base models of this world from scratch; the first takes under 20 minutes on two cores.

    python -m worlds.sums.pretrain             # writes worlds/sums/model/, the default model
    python -m worlds.sums.pretrain --filler    # writes worlds/sums/filler/, from the weights of the first
    python -m worlds.sums.pretrain --experts 16    # writes worlds/sums/experts/, from the weights of the first

With --experts, the first model's weights become a mixture of experts (sparse upcycling, 2212.05055), saved in bf16.
"""

import math
from dataclasses import dataclass
from functools import partial

from common.cli import fail
from worlds import MODELS
from worlds.pretrain import TEXTBOOK, Corpus, PretrainSettings, make_model, make_tokenizer, pretrain
from worlds.sums.problems import sum_problem
from worlds.sums.writers import solution

import torch
import tyro
from transformers import LlamaForCausalLM, MixtralConfig, MixtralForCausalLM


@dataclass
class Args(PretrainSettings):
    filler: bool = False
    """Writers may repeat the result before the box."""
    experts: int = 0
    """Experts in place of each MLP, two of them used for each token. Any number but 16 needs --out."""


def with_experts(dense: LlamaForCausalLM, experts: int) -> MixtralForCausalLM:
    """A mixture of experts, each a copy of the dense model's MLP; the routers are random."""
    config = {key: value for key, value in dense.config.to_dict().items() if key not in ("model_type", "architectures")}
    model = MixtralForCausalLM(MixtralConfig(**config, num_local_experts=experts, num_experts_per_tok=2))
    model.load_state_dict(dense.state_dict(), strict=False)
    for layer, source in zip(model.model.layers, dense.model.layers, strict=True):
        both = torch.cat([source.mlp.gate_proj.weight, source.mlp.up_proj.weight])
        layer.mlp.experts.gate_up_proj.data.copy_(both)
        layer.mlp.experts.down_proj.data.copy_(source.mlp.down_proj.weight)
    return model


def main(args: Args) -> None:
    if args.experts and (args.experts < 2 or args.filler):
        fail("--experts must be at least 2, without --filler.")
    if args.experts not in (0, 16) and args.out is None:
        fail(f"--experts {args.experts} needs --out, a folder for the model: worlds/sums/experts/ has 16.")
    out = MODELS["sums-experts" if args.experts else "sums-filler" if args.filler else "sums"].folder
    continues = args.filler or args.experts > 0
    args = args.with_defaults(out=out, steps=1390 if continues else 2300, batch=64 if continues else 256)
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer()
    start, model = 0, make_model(tokenizer)
    if continues:  # the textbook part is done
        start, model = math.ceil(TEXTBOOK * args.steps), LlamaForCausalLM.from_pretrained(MODELS["sums"].folder)
    if args.experts:
        model = with_experts(model, args.experts)
    corpus = Corpus(sum_problem, partial(solution, filler=args.filler), ("sums", "sums-hard"))
    pretrain(model, tokenizer, corpus, args, start, torch.bfloat16 if args.experts else torch.float32)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
