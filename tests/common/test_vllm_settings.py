"""How vLLM is started on a CPU and on a GPU, tested with a stand-in: the settings, not the results."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import grpo
from common.engines import make_engine
from common.records import Problem
from recipes import agent

import pytest


class Stop(Exception):
    """Raised instead of starting vLLM."""


@pytest.mark.parametrize("gpu", [False, True])
def test_how_vllm_is_started(gpu, embedded, monkeypatch):
    def start(**settings):
        raise Stop(settings)

    vllm, executor, registry = ModuleType("vllm"), ModuleType("vllm.model_executor"), SimpleNamespace()
    models, sampling = ModuleType("vllm.model_executor.models"), ModuleType("vllm.sampling_params")
    vllm.LLM, vllm.__version__, vllm.EngineArgs = start, "0.32.0", SimpleNamespace(__dataclass_fields__={})
    models.registry, sampling.RequestOutputKind, vllm.SamplingParams = registry, SimpleNamespace(), SimpleNamespace
    for module in (vllm, executor, models, sampling):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, "common.vllm_engine", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpu)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (0, 80 << 30))
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "TORCH_COMPILE_DISABLE"):
        monkeypatch.setenv(name, "")
    engine = importlib.import_module("common.vllm_engine")
    with pytest.raises(Stop) as stop:
        engine.VLLMEngine(grpo.Args(seed=7), *embedded, longest=10_000)
    settings = stop.value.args[0]
    assert settings["enforce_eager"] == (not gpu) and settings["enable_sleep_mode"] == gpu
    assert ("gpu_memory_utilization" in settings) == gpu and ("kv_cache_memory_bytes" in settings) == (not gpu)
    assert hasattr(registry, "_run_in_subprocess") == (not gpu)
    assert settings["logprobs_mode"] == "processed_logprobs" and settings["dtype"] == "float32"
    assert settings["max_model_len"] == settings["max_num_batched_tokens"] == 10_000 and settings["seed"] == 7
    monkeypatch.delitem(sys.modules, "common.vllm_engine")


@pytest.mark.parametrize("environment,length,longest", [(None, 40, 45), ("guessing", 40, 85), ("guessing", 200, 256)])
def test_vllms_context(monkeypatch, embedded, environment, length, longest):
    """The longest prompt and response; where an opponent may be asked, a response more, but not above the model's."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
    engine = SimpleNamespace(VLLMEngine=lambda args, model, tokenizer, longest: longest)
    monkeypatch.setitem(sys.modules, "common.vllm_engine", engine)
    args = agent.Args(environment=environment or "", max_response_tokens=length)
    problems = [Problem("?", "", "?", [1] * size) for size in (5, 2)]
    assert make_engine(args, *embedded, problems) == longest
