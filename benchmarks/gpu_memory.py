"""What a GPU must hold with the README's settings for real models: computed on a CPU, not measured on a GPU.

    python -m benchmarks.gpu_memory            # about a minute

Training holds weights, gradients and AdamW's two moments in fp32 (16 bytes per parameter), bf16 copies of the
weights for autocast (2), and what each token of a micro-batch leaves for the backward pass. That is counted: every
tensor that autograd saves in one layer of the model's shape, under the learner's autocast. With gradient checkpointing
a layer keeps its input only, and one layer at a time is computed again. While vLLM generates, weights and moments stay
(12 bytes per parameter) beside its own share of the GPU. A few chunks of logits (64 MiB) and what the allocator cannot
use come on top.
"""

from collections.abc import Callable

import grpo
from common.logprobs import autocast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config

# hidden size, layers, MLP, vocabulary, tied head, heads and key-value heads, as in each model's config.json;
# then tokens of a micro-batch, gradient checkpointing, GB of the GPU and vLLM's share of it
MODELS = {
    "Qwen2.5-0.5B": (Qwen2Config, 896, 24, 4864, 151936, True, 14, 2, 4096, False, 24, 0.4),
    "Qwen2.5-1.5B": (Qwen2Config, 1536, 28, 8960, 151936, True, 12, 2, 8192, False, 80, 0.4),
    "Qwen3-1.7B": (Qwen3Config, 2048, 28, 6144, 151936, True, 16, 8, 16384, True, 48, 0.4),
    "Qwen2.5-3B": (Qwen2Config, 2048, 36, 11008, 151936, True, 16, 2, 8192, True, 80, 0.4),
    "Qwen2.5-7B": (Qwen2Config, 3584, 28, 18944, 152064, False, 28, 4, 4096, True, 141, 0.3),
}


def saved_bytes(forward: Callable[[], object], weights: set[int]) -> int:
    """Bytes that autograd keeps for the backward pass, each storage once and none of `weights`."""
    storages = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = forward()
    total = sum(storage.nbytes() for storage in storages.values())
    del kept
    return total


def bytes_per_token(config: Qwen2Config | Qwen3Config) -> float:
    """Of one layer: what two layers save more than one, of 128 tokens more than of 64."""

    def saved(layers: int, tokens: int) -> int:
        small = type(config)(**config.to_dict() | {"num_hidden_layers": layers, "vocab_size": 64, "layer_types": None})
        model = AutoModelForCausalLM.from_config(small)
        weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        ids = torch.zeros(4, tokens // 4, dtype=torch.long)
        with autocast(ids.device, grpo.Args(learner_precision="bf16")):
            return saved_bytes(lambda: model.base_model(input_ids=ids, use_cache=False).last_hidden_state, weights)

    return ((saved(2, 128) - saved(2, 64)) - (saved(1, 128) - saved(1, 64))) / 64


def main() -> None:
    print("| model | parameters | kept per token of a micro-batch | training | generating | GPU |")
    print("|" + "---|" * 6)
    for name, (
        kind,
        hidden,
        layers,
        mlp,
        vocabulary,
        tied,
        heads,
        kv_heads,
        tokens,
        again,
        gpu,
        share,
    ) in MODELS.items():
        config = kind(
            hidden_size=hidden,
            num_hidden_layers=layers,
            intermediate_size=mlp,
            vocab_size=vocabulary,
            tie_word_embeddings=tied,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
        )
        with torch.device("meta"):
            parameters = AutoModelForCausalLM.from_config(config).num_parameters()
        layer = bytes_per_token(config)
        kept = 4 * hidden * layers + layer if again else layers * layer
        training = (18 * parameters + tokens * kept) / 1e9  # GB
        generating = 12 * parameters / 1e9 + share * gpu  # GB
        print(
            f"| {name} | {parameters / 1e9:.2f}B | {kept / 1e6:.2f} MB | {training:.0f} GB | {generating:.0f} GB "
            f"| {gpu} GB |"
        )


if __name__ == "__main__":
    main()
