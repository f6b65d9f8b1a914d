"""The vLLM engine with a mixture of experts; collected only where vLLM is installed (see conftest.py)."""

import grpo
from common.batch import collate
from common.engines import Request
from common.experts import routed_shape
from common.logprobs import batch_logps
from common.models import load_model
from common.records import Problem
from common.vllm_engine import VLLMEngine

import numpy as np
import pytest
import torch


def test_a_mixture_of_experts_follows_every_update(monkeypatch, capsys):
    """Updates reach every expert's matrices, which vLLM names differently and packs on a CPU."""
    args = grpo.Args(model="sums-experts")
    model, tokenizer = load_model(args)
    engine, prompts = VLLMEngine(args, model, tokenizer, 256), [tokenizer("12+30-4=?\n")["input_ids"]]
    problems = [Problem("", "", "", prompts[0])]
    for update in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * update * torch.randn_like(parameter))
        engine.update(model.named_parameters())
        batch = collate(problems, engine.sample(Request(prompts, 16, [48], 1.0, [update])), "cpu")
        logp, _ = batch_logps(model, batch, args)
        torch.testing.assert_close(logp, batch.rollout_logp, rtol=0, atol=1e-4)
    # On a GPU, vLLM adds the experts that have read all tokens but the last; here the length replaces their numbers.
    engine.routed, step = routed_shape(model), engine.llm.llm_engine.step

    def step_with_experts():
        outputs = step()
        for output in outputs:
            for completion in output.outputs:
                n = len(completion.token_ids)
                completion.routed_experts = np.full((len(prompts[0]) + n - 1, *engine.routed), n, np.uint8)
        return outputs

    monkeypatch.setattr(engine.llm.llm_engine, "step", step_with_experts)
    rollouts = engine.sample(Request(prompts, 16, [48], 1.0, [3]))
    assert [experts.unique().tolist() for experts in rollouts.experts] == [[len(ids)] for ids in rollouts.tokens]
    assert collate(problems, rollouts, "cpu").experts.shape[2:] == (3, 2)
    engine.close()
    with pytest.raises(SystemExit):
        VLLMEngine(grpo.Args(model="sums-experts", replay_routing=True), model, tokenizer, 256)
    assert "error: --replay-routing: on a CPU vLLM does not report its experts." in capsys.readouterr().err
