"""A sampling loop over a Hugging Face model."""

import copy
from typing import Any

from common.cli import fail, first_line
from common.distributed import has_bf16
from common.engines import Engine, InFlight, Weights, rounded
from common.logprobs import distribution
from common.lora import whole_weights
from common.models import eos_ids
from common.records import Rollouts
from common.settings import ModelSettings

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor
from transformers import AutoModelForCausalLM, Cache, DynamicLayer
from transformers.initialization import no_init_weights

MAX_ROWS = 1024  # that the engine here computes at a time: bounds the memory of keys and values


class PreallocatedLayer(DynamicLayer):
    """`DynamicLayer` copies a layer's keys and values anew for every token; this writes in place."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if start == 0:
            self.all_keys = key_states.new_zeros(*key_states.shape[:2], self.length, key_states.shape[-1])
            self.all_values = value_states.new_zeros(*value_states.shape[:2], self.length, value_states.shape[-1])
            self.is_initialized = True
        self.all_keys[:, :, start:end] = key_states
        self.all_values[:, :, start:end] = value_states
        self.keys, self.values = self.all_keys[:, :, :end], self.all_values[:, :, :end]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        end = self.get_seq_length()
        self.all_keys, self.all_values = self.all_keys[indices], self.all_values[indices]
        self.keys, self.values = self.all_keys[:, :, :end], self.all_values[:, :, :end]


class StopStrings:
    """Whether a response has come to a stop string, token by token, decoded behind its prompt as vLLM does it."""

    def __init__(self, stop: tuple[str, ...], tokenizer: Any, prompt_ids: list[int]) -> None:
        self.stop, self.longest = stop, max(map(len, stop))
        self.tokenizer = tokenizer.backend_tokenizer
        self.stream = DecodeStream(ids=prompt_ids, skip_special_tokens=True)
        self.end = ""  # of the text so far

    def complete(self, token: int) -> bool:
        """Take the next token: whether a stop string is complete with it."""
        # Within a character of several tokens the stream gives nothing.
        text = self.end + (self.stream.step(self.tokenizer, token) or "")
        self.end = text[-self.longest :]
        return any(string in text for string in self.stop)


class TransformersEngine(Engine):
    """A sampling loop over a Hugging Face model: the prompt is read once per group, rows leave as they end."""

    def __init__(self, args: ModelSettings, model: Any, tokenizer: Any, max_rows: int = MAX_ROWS) -> None:
        super().__init__(args)
        precision, fp32_lm_head, stop = args.rollout_precision, args.fp32_lm_head, args.stop
        if precision == "auto":
            precision = "bf16" if has_bf16(model.device) else "fp32"
        self.precision = precision
        dtype = torch.float32 if precision == "fp32" else torch.bfloat16
        with no_init_weights():
            self.model = AutoModelForCausalLM.from_config(copy.deepcopy(model.config), dtype=dtype)
        self.model.tie_weights()
        self.model.to(model.device).requires_grad_(False).eval()
        self.eos = torch.tensor(eos_ids(model, tokenizer), device=model.device)
        self.fp32_lm_head = fp32_lm_head
        self.max_rows = max_rows
        self.stop, self.tokenizer = stop, tokenizer
        self.update(whole_weights(model))
        self.check_cache()

    @torch.inference_mode()
    def check_cache(self) -> None:
        """End the program if the model computes something else from its keys and values than from the whole text."""
        tokens = torch.arange(2, 8, device=self.model.device)[None] % self.model.config.get_text_config().vocab_size
        cache = self.make_cache(6)
        try:
            whole = self.model.base_model(input_ids=tokens, use_cache=False).last_hidden_state[:, -1]
            for part in (tokens[:, :4], tokens[:, 4:5], tokens[:, 5:]):
                hidden = self.model.base_model(input_ids=part, past_key_values=cache, use_cache=True).last_hidden_state
            difference = (hidden[:, -1] - whole).abs().max() / whole.abs().max()
        except Exception as error:  # recurrent and encoder-decoder models have other caches, or none
            difference, reason = torch.inf, f" ({first_line(error)})"
        else:
            reason = ""
        if difference > 0.05:
            fail(f"--engine transformers needs a model with a standard KV cache{reason}.")

    def make_cache(self, length: int) -> Cache:
        layers = self.model.config.get_text_config().num_hidden_layers
        return Cache(layers=[PreallocatedLayer(length) for _ in range(layers)])

    def update(self, weights: Weights) -> None:
        mine = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, learned in rounded(weights, self.precision):
                mine.pop(name).copy_(learned)
        assert not mine, f"no weights for {', '.join(mine)}"

    def sleep(self) -> None:
        pass  # between two calls it holds nothing but its copy of the weights

    def close(self) -> None:
        del self.model

    @torch.inference_mode()
    def sample(
        self,
        prompt_ids: list[list[int]],
        n: int,
        limits: list[int],
        temperature: float,
        seeds: list[int],
        top_k: int = 0,
        in_flight: InFlight | None = None,
    ) -> Rollouts:
        at_once = max(1, self.max_rows // n)
        parts = [slice(i, i + at_once) for i in range(0, len(prompt_ids), at_once)]
        return Rollouts.join(
            self.sample_part(prompt_ids[part], n, limits[part], temperature, seeds[part], top_k, in_flight)
            for part in parts
        )

    def sample_part(
        self,
        prompt_ids: list[list[int]],
        n: int,
        limits: list[int],
        temperature: float,
        seeds: list[int],
        top_k: int,
        in_flight: InFlight | None,
    ) -> Rollouts:
        device, P, B, T = self.model.device, len(prompt_ids), len(prompt_ids) * n, max(limits)
        W = max(map(len, prompt_ids))
        tokens = torch.zeros(P, W, dtype=torch.long, device=device)  # (P, W), padded on the left
        seen = torch.zeros(P, W + T, dtype=torch.long, device=device)  # (P, W + T)
        for i, ids in enumerate(prompt_ids):
            tokens[i, W - len(ids) :] = torch.tensor(ids)
            seen[i, W - len(ids) :] = 1
        prompts, position = tokens, (seen[:, :W].cumsum(1) - 1).clamp(min=0)  # (P, W), (P, W)
        cache, head = self.make_cache(W + T), self.model.get_output_embeddings()
        random = torch.ones(P, n, T)  # in (0, 1], for each token its own
        for i, (seed, end) in enumerate(zip(seeds, limits, strict=True)):
            random[i, :, :end] = 1 - torch.rand(n, end, generator=torch.Generator().manual_seed(seed))
        random = random.view(B, T).to(device)  # (B, T)

        rows = torch.arange(B, device=device)  # (b,) the rows that are still computed
        limit = torch.tensor(limits, device=device).repeat_interleave(n)  # (B,)
        sampled = torch.zeros(B, T, dtype=torch.long, device=device)  # (B, T)
        logps = torch.zeros(B, T, device=device)  # (B, T)
        top_ids = torch.zeros(B, T, top_k, dtype=torch.long, device=device)  # (B, T, K)
        top_logps = torch.zeros(B, T, top_k, device=device)  # (B, T, K)
        lengths = limit.clone()  # (B,)
        finished = torch.zeros(B, dtype=torch.bool, device=device)  # (B,) by EOS or a stop string
        stops = [StopStrings(self.stop, self.tokenizer, ids) for ids in prompt_ids for _ in range(n) if self.stop]
        for t in range(T):
            if in_flight and t % in_flight.every == 0 and t // in_flight.every < len(in_flight.versions):
                self.update(in_flight.versions[t // in_flight.every])
                if t > 0 and not in_flight.keep:
                    tokens = torch.cat([prompts[rows // n], sampled[rows, :t]], 1)  # (b, W + t)
                    position = (seen[:, : W + t].cumsum(1) - 1).clamp(min=0)  # (b, W + t)
                    cache = self.make_cache(W + T)
            hidden = self.model.base_model(
                input_ids=tokens,
                attention_mask=seen[:, : W + t],
                position_ids=position,
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state[:, -1]  # (b, D)
            if t == 0:  # the prompt was read once, and every response of its group continues from it
                copies = torch.arange(P, device=device).repeat_interleave(n)  # (B,)
                hidden, seen, position = hidden[copies], seen[copies], position[copies, -1:]
                for layer in cache.layers:
                    layer.batch_select_indices(copies)
            logp = distribution(hidden, head, temperature or 1.0, self.fp32_lm_head)  # (b, V)
            if logp.isnan().any():
                fail("the model computes no finite probabilities: its weights are broken, or --lr is too high.", code=1)
            if temperature == 0:
                token = logp.argmax(-1)  # (b,)
            else:  # the token in whose part of [0, 1] the random number falls
                cumulative = logp.exp().cumsum(-1)  # (b, V)
                token = torch.searchsorted(cumulative, random[rows, t, None] * cumulative[:, -1:]).squeeze(1)  # (b,)
            sampled[rows, t] = token
            logps[rows, t] = logp.gather(1, token[:, None]).squeeze(1)
            if top_k:
                top_logps[rows, t], top_ids[rows, t] = logp.topk(top_k)

            ended = torch.isin(token, self.eos)  # (b,)
            if stops:
                pairs = zip(rows.tolist(), token.tolist(), strict=True)
                ended |= torch.tensor([stops[row].complete(one) for row, one in pairs], device=device)  # (b,)
            ended &= ~finished[rows] & (t < limit[rows])  # (b,)
            lengths[rows[ended]] = t + 1
            finished[rows[ended]] = True
            alive = ~finished[rows] & (t + 1 < limit[rows])  # (b,)
            if not alive.any():
                break
            tokens, position = token[:, None], position[:, -1:] + 1  # (b, 1), (b, 1)
            # Dropping rows copies the cache, so it waits until an eighth of them has ended.
            if alive.sum() <= 0.875 * len(rows):
                keep = alive.nonzero().squeeze(1)
                rows, tokens, seen, position = rows[keep], tokens[keep], seen[keep], position[keep]
                for layer in cache.layers:
                    layer.batch_select_indices(keep)
        ends = lengths.tolist()
        return Rollouts(
            [row[:end] for row, end in zip(sampled.tolist(), ends, strict=True)],
            [row[:end] for row, end in zip(logps.tolist(), ends, strict=True)],
            (~finished).tolist(),
            [[True] * end for end in ends],
            # Copies: other processes get a row's whole storage.
            [row[:end].clone() for row, end in zip(top_ids.cpu(), ends, strict=True)] if top_k else [],
            [row[:end].clone() for row, end in zip(top_logps.cpu(), ends, strict=True)] if top_k else [],
        )
