"""Memory that GPUs need with the settings of docs/real-models.md and docs/scaling.md: computed, not measured on a GPU.

    python -m benchmarks.gpu_memory            # about a minute

Training holds weights, gradients and AdamW's two moments in fp32 (16 bytes per parameter, sharded over the GPUs), and
the tensors that each token of a micro-batch keeps for the backward pass. These are counted without allocating them:
every tensor that autograd saves in one layer of the model's shape, under the learner's autocast. With gradient
checkpointing a layer keeps only its input, and one layer at a time is recomputed. Every GPU also has whole bf16 copies:
of all weights, or with checkpointing of one layer, embedding and head; and with several GPUs, while they are used,
embedding and head with their gradient and three layers. While vLLM generates, weights and moments stay (12 bytes per
parameter, sharded) next to vLLM's fraction of the GPU. With LoRA only the adapters have gradients and moments, and the
layers that they adapt are already in bf16; what the adapters keep for the backward pass is not counted. Not included
are a few chunks of logits (512 MiB), gradients of the head before they are summed (on the CPU about 3 times the head,
see benchmarks.memory), and memory lost to fragmentation.
"""

from collections.abc import Callable
from typing import NamedTuple

import grpo
from common.logprobs import autocast

import torch
import tyro
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen3Config


class Case(NamedTuple):
    """A model's shape, as in its config.json, and how it is trained."""

    kind: type[Qwen2Config] | type[Qwen3Config]
    hidden: int
    layers: int
    mlp: int
    vocabulary: int
    tied: bool
    heads: int
    kv_heads: int
    micro_batch_tokens: int
    checkpointing: bool
    gpu_gb: int
    vllm_share: float
    gpus: int = 1
    lora_rank: int = 0
    precision: str = "bf16"


QWEN_7B = (Qwen2Config, 3584, 28, 18944, 152064, False, 28, 4)
QWEN_32B = (Qwen2Config, 5120, 64, 27648, 152064, False, 40, 8)
CASES = {
    "Qwen2.5-0.5B": Case(Qwen2Config, 896, 24, 4864, 151936, True, 14, 2, 4096, False, 24, 0.4),
    "Qwen2.5-1.5B": Case(Qwen2Config, 1536, 28, 8960, 151936, True, 12, 2, 8192, False, 80, 0.4),
    "Qwen3-1.7B": Case(Qwen3Config, 2048, 28, 6144, 151936, True, 16, 8, 16384, True, 48, 0.4),
    "Qwen2.5-3B": Case(Qwen2Config, 2048, 36, 11008, 151936, True, 16, 2, 8192, True, 80, 0.4),
    "Qwen2.5-7B": Case(*QWEN_7B, 4096, True, 141, 0.3),
    "Qwen2.5-0.5B, LoRA, fp32": Case(  # without vLLM: a copy of the weights generates
        Qwen2Config, 896, 24, 4864, 151936, True, 14, 2, 4096, True, 16, 0.125, 1, 16, "fp32"
    ),
    "Qwen2.5-3B, LoRA": Case(Qwen2Config, 2048, 36, 11008, 151936, True, 16, 2, 8192, True, 24, 0.45, 1, 16),
    "Qwen2.5-7B, LoRA, on 24 GB": Case(*QWEN_7B, 4096, True, 24, 0.7, 1, 16),
    "Qwen2.5-7B, LoRA": Case(*QWEN_7B, 8192, True, 48, 0.45, 1, 16),
    "Qwen2.5-7B on 8 GPUs": Case(*QWEN_7B, 16384, True, 80, 0.5, 8),
    "Qwen2.5-32B on 4 x 8 GPUs": Case(*QWEN_32B, 16384, True, 141, 0.7, 32),
}


def saved_bytes(forward: Callable[[], object], weights: set[int]) -> int:
    """Bytes that autograd keeps for the backward pass, counting each storage once and no `weights`."""
    storages = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = forward()
    total = sum(storage.nbytes() for storage in storages.values())
    del kept
    return total


def bytes_per_token(config: Qwen2Config | Qwen3Config, precision: str) -> float:
    """Bytes per token in one layer: the difference between two layers and one, and between 128 tokens and 64."""

    def saved(layers: int, tokens: int) -> int:
        small = type(config)(**config.to_dict() | {"num_hidden_layers": layers, "vocab_size": 64, "layer_types": None})
        model = AutoModelForCausalLM.from_config(small)
        weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
        ids = torch.zeros(4, tokens // 4, dtype=torch.long)
        with autocast(ids.device, grpo.Args(learner_precision=precision), cache=False):
            return saved_bytes(lambda: model.base_model(input_ids=ids, use_cache=False).last_hidden_state, weights)

    return ((saved(2, 128) - saved(2, 64)) - (saved(1, 128) - saved(1, 64))) / 64


def main() -> None:
    print("| model | parameters | per token | shared | whole | tokens | training | generating | GPU |")
    print("|" + "---|" * 9)
    for name, case in CASES.items():
        config = case.kind(
            hidden_size=case.hidden,
            num_hidden_layers=case.layers,
            intermediate_size=case.mlp,
            vocab_size=case.vocabulary,
            tie_word_embeddings=case.tied,
            num_attention_heads=case.heads,
            num_key_value_heads=case.kv_heads,
        )
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        parameters = model.num_parameters()
        of_layer = sum(weight.numel() for weight in model.model.layers[0].parameters())
        of_ends = parameters - case.layers * of_layer  # embedding and head
        with FakeTensorMode():  # tensors with a shape and no memory
            saved = bytes_per_token(config, case.precision)
        kept = 4 * case.hidden * case.layers + saved if case.checkpointing else case.layers * saved
        copies = of_layer + of_ends if case.checkpointing else parameters  # in bf16
        shared, idle = 16 * parameters, 12 * parameters  # while it trains, while vLLM generates
        if case.lora_rank:
            linear = [module for module in model.model.modules() if isinstance(module, nn.Linear)]
            frozen = sum(module.weight.numel() for module in linear)
            adapters = case.lora_rank * sum(module.in_features + module.out_features for module in linear)
            held = (2 if case.precision == "bf16" else 4) * frozen + 4 * (parameters - frozen)
            shared, idle, copies = held + 16 * adapters, held + 12 * adapters, of_ends
        whole = 2 * copies * (case.precision == "bf16") + (0 if case.gpus == 1 else 8 * of_ends + 12 * of_layer)
        parts = {
            "shared": shared / case.gpus,
            "whole": whole,
            "tokens": case.micro_batch_tokens * kept,
        }
        generating = idle / case.gpus / 1e9 + case.vllm_share * case.gpu_gb
        print(
            f"| {name} | {parameters / 1e9:.2f}B | {kept / 1e6:.2f} MB | "
            + " | ".join(f"{part / 1e9:.1f} GB" for part in parts.values())
            + f" | {sum(parts.values()) / 1e9:.0f} GB | {generating:.0f} GB | {case.gpu_gb} GB |"
        )


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
