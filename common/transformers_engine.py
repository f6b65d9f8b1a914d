"""An engine that samples from a Hugging Face model: it needs nothing but transformers and is meant for small models."""

import copy
from typing import Any

from common.cache import make_cache
from common.cli import fail, first_line
from common.distributed import has_bf16
from common.engines import MAX_ROWS, Engine, Request, Weights, rounded
from common.experts import routed_shape
from common.lora import whole_weights
from common.models import context_length, eos_ids
from common.records import Rollouts
from common.settings import ModelSettings
from common.stream import Stream

import torch
from transformers import AutoModelForCausalLM
from transformers.initialization import no_init_weights


class TransformersEngine(Engine):
    """A sampling loop over a Hugging Face model: a prompt is read once for its group, and rows leave when they end."""

    def __init__(self, args: ModelSettings, model: Any, tokenizer: Any, max_rows: int = MAX_ROWS) -> None:
        super().__init__(args)
        self.context = context_length(model)
        auto = "bf16" if has_bf16(model.device) else "fp32"
        self.precision = auto if args.rollout_precision == "auto" else args.rollout_precision
        dtype = {"fp32": torch.float32, "fp16": torch.float16}.get(self.precision, torch.bfloat16)
        with no_init_weights():
            self.model = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=dtype)
        self.model.tie_weights()
        self.model.to(model.device).requires_grad_(False).eval()
        self.eos = torch.tensor(eos_ids(model, tokenizer), device=model.device)
        self.tokenizer, self.max_rows = tokenizer, max_rows
        self.update(whole_weights(model))
        self.check_cache()
        if getattr(args, "replay_routing", False):
            self.routed = routed_shape(self.model)

    @torch.inference_mode()
    def check_cache(self) -> None:
        """End the program if the model computes different results with and without the cache."""
        tokens = torch.arange(2, 8, device=self.model.device)[None] % self.model.config.get_text_config().vocab_size
        cache, reason = make_cache(self.model), ""
        try:
            whole = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state[:, -1]
            for part in (tokens[:, :4], tokens[:, 4:5], tokens[:, 5:]):
                hidden = self.model.base_model(input_ids=part, past_key_values=cache, use_cache=True).last_hidden_state
            difference = (hidden[:, -1] - whole).abs().max() / whole.abs().max()
        except Exception as error:  # recurrent and encoder-decoder models have other caches, or none
            difference, reason = torch.inf, f" ({first_line(error)})"
        if difference > 0.05:
            fail(f"--engine transformers needs a model with a standard KV cache{reason}. Take another --model.")

    def update(self, weights: Weights) -> None:
        """Load the learner's weights, rounded to the engine's precision."""
        mine = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, learned in rounded(weights, self.precision):
                mine.pop(name).copy_(learned)
        assert not mine, f"no weights for {', '.join(mine)}"

    def close(self) -> None:
        del self.model

    def sample(self, request: Request) -> Rollouts:
        """`Engine.sample`, at most `max_rows` responses at a time."""
        if len(request.prompts) > (at_once := max(1, self.max_rows // request.n)):
            parts = [slice(i, i + at_once) for i in range(0, len(request.prompts), at_once)]
            return Rollouts.join(self.sample(request.part(part)) for part in parts)
        stream = Stream(self, max(request.limits), request.temperature, request.top_k, request.stop)
        stream.join(range(len(request.prompts)), request)
        while stream.rows:
            stream.step()
        return Rollouts.join(stream.take().values())

    def stream(self) -> Stream:
        """A stream with the run's length limit and temperature."""
        return Stream(self, self.args.max_response_tokens, self.args.temperature)
