"""The vLLM engine against the learner; collected only where vLLM is installed (see conftest.py)."""

import json

import grpo
from common.batch import collate, score
from common.models import load_model
from common.vllm_engine import VLLMEngine

import pytest
import torch
from conftest import SMALL


@pytest.fixture(scope="module")
def engine_and_model():
    args = grpo.Args()
    model, tokenizer = load_model(args)
    engine = VLLMEngine(args, model, tokenizer, 256)
    yield engine, model, tokenizer
    engine.close()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_log_probs_and_greedy_tokens_follow_every_update(engine_and_model, temperature):
    """After each change of the learner's weights: the same log-probs, and the same greedy response."""
    engine, model, tokenizer = engine_and_model
    prompts = [tokenizer(text)["input_ids"] for text in ("7+5=?\n", "12+30-4=?\n", "9+9+9+9=?\n")]
    for update in range(3):
        if update:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.01 * torch.randn_like(parameter))
        engine.load_weights(model)
        rollouts = engine.generate(prompts, 8, 48, temperature, seed=update)
        batch = collate(prompts, rollouts, "cpu")
        logp, _ = score(model, batch, grpo.Args(temperature=temperature))
        torch.testing.assert_close(logp, batch.rollout_logp, rtol=0, atol=1e-4)
        greedy = engine.generate(prompts, 1, 48, 0.0, seed=0)
        for prompt, response in zip(prompts, greedy.tokens, strict=True):
            output = model.generate(torch.tensor([prompt]), max_new_tokens=48, do_sample=False)
            assert output[0, len(prompt) :].tolist() == response


def test_top_k_and_ends(engine_and_model):
    engine, model, tokenizer = engine_and_model
    engine.load_weights(model)
    prompts = [tokenizer("12+30-4=?\n")["input_ids"]]
    rollouts = engine.generate(prompts, 16, 12, 1.0, seed=1, top_k=4)
    assert set(rollouts.truncated) == {True, False}
    for tokens, cut, ids, logps in zip(
        rollouts.tokens, rollouts.truncated, rollouts.top_ids, rollouts.top_logps, strict=True
    ):
        assert (tokens[-1] != tokenizer.eos_token_id) == cut
        assert ids.shape == logps.shape == (len(tokens), 4)
        assert (logps[:, :-1] >= logps[:, 1:]).all()


def test_a_run(tmp_path, capsys):
    grpo.main(grpo.Args(run_dir=tmp_path / "run", engine="vllm", **SMALL))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    assert "engine: vllm" in capsys.readouterr().out
    assert all(row["mismatch_max"] < 1e-3 for row in rows[1:])
