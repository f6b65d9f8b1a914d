"""Mixtures of experts: the experts that the engine reports, and a learner that replays them."""

import grpo
from common.batch import collate
from common.engines import ROUNDING, rounded
from common.experts import is_known, replay_routing, routers, watched
from common.logprobs import batch_experts, batch_logps, token_logps
from common.lora import named_weights
from common.models import load_model
from common.records import Problem
from methods import calculator, luffy, rspo, sdpo, spin
from methods.self_teacher import SelfTeacher
from recipes import pipeline_rl, r1

import pytest
import runs
import torch
from conftest import experts_of
from sampling import PROMPTS, make, sample
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

REPLAY = {"model": "sums-experts", "replay_routing": True}


@pytest.fixture(scope="module")
def mixture():
    return load_model(grpo.Args(**REPLAY))


@pytest.fixture
def rollouts(mixture):
    """Problems, and responses of an engine whose routers differ from the learner's."""
    model, tokenizer = mixture
    problems = [Problem(text, "", text, tokenizer(text)["input_ids"]) for text in PROMPTS]
    engine = make(mixture, max_rows=16, **REPLAY)  # two prompts at a time
    noise = torch.Generator().manual_seed(0)
    moved = [
        (name, weight + 0.3 * weight.std() * torch.randn(weight.shape, generator=noise) if ".gate." in name else weight)
        for name, weight in named_weights(model)
    ]
    engine.update(moved)
    return problems, sample(engine, problems), engine.model


def test_the_engine_reports_the_experts_that_read_each_token(rollouts):
    """The reported experts are those of a single pass over prompt and response."""
    problems, found, model = rollouts
    lengths = set(map(len, found.tokens))
    assert len(lengths) > 3, "all responses end together"
    for row, tokens in enumerate(found.tokens):
        read = torch.tensor([problems[row // 8].prompt_ids + tokens[:-1]])
        with torch.no_grad(), watched(model) as outputs:
            model(read)
        expected = torch.stack([experts for _, _, experts in outputs], 1)  # (S - 1, L, K)
        assert torch.equal(found.experts[row].long().sort().values, expected.sort().values), f"row {row}"


def test_the_learner_uses_the_engines_experts(mixture, rollouts):
    """The learner replays the engine's experts with its own router's logits, and its own choice without them."""
    (model, _), (problems, found, _), args = mixture, rollouts, grpo.Args(**REPLAY)
    batch = collate(problems, found, "cpu")
    experts, logps = batch_experts(model, batch, args)  # (B, T, L, K) at the token before
    of_engine = torch.stack([batch.experts[i, n - 1 :][: experts.shape[1]] for i, n in enumerate(batch.prompt_lengths)])
    mask = batch.token_mask
    assert torch.equal(experts[mask], of_engine[mask].long()) and (of_engine[mask] >= 0).all()
    batch.experts = torch.full_like(batch.experts, -1)
    own, own_logps = batch_experts(model, batch, args)
    others = (own.sort().values != experts.sort().values).any(-1)[mask]
    assert 0.05 < others.float().mean() < 0.95, "engine and learner should choose differently now and then"
    # The first router's input does not depend on experts, so its own choice is the likeliest one.
    assert (own_logps.sum(-1) >= logps.sum(-1) - 1e-5)[mask][:, 0].all()


@pytest.mark.parametrize("normalize", [True, False])
def test_weights_of_replayed_experts(normalize):
    """A layer's output weighs its experts by the router's softmax, over the K experts or over all."""
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=4,
        moe_intermediate_size=8, num_experts=5, num_experts_per_tok=2, norm_topk_prob=normalize, initializer_range=0.5,
    )  # fmt: skip
    model = Qwen3MoeForCausalLM(config).eval()
    replay_routing(model)
    block, x = model.model.layers[0].mlp, torch.randn(1, 3, 8)
    model.engine_experts = torch.tensor([[4, 0], [1, 3], [-1, -1]])[None, :, None]  # (1, 3, 1, 2)
    with torch.no_grad():
        output, chances = block(x)[0], (x[0] @ block.gate.weight.T).softmax(-1)  # (3, 8), (3, 5)
    for t, chosen in enumerate([[4, 0], [1, 3], chances[2].topk(2).indices.tolist()]):
        total, expected = chances[t, chosen].sum() if normalize else 1.0, 0.0
        for e in chosen:
            gate, up = (block.experts.gate_up_proj[e] @ x[0, t]).chunk(2)
            of_expert = block.experts.down_proj[e] @ (torch.nn.functional.silu(gate) * up)
            expected = expected + chances[t, e] / total * of_expert
        torch.testing.assert_close(output[t], expected, rtol=1e-5, atol=1e-6)


def test_a_backward_pass_that_computes_again_replays_too(rollouts):
    problems, found, _ = rollouts
    batch, gradients = collate(problems, found, "cpu"), []
    for again in (False, True):
        args = grpo.Args(**REPLAY, gradient_checkpointing=again)
        other = load_model(args)[0]
        token_logps(other, batch, torch.arange(4), args).sum().backward()
        gradients.append([parameter.grad for parameter in other.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_replay_brings_a_rounded_engine_nearer(mixture):
    """With 4-bit weights, replay brings the learner's token probabilities closer to the engine's."""
    model, tokenizer = mixture
    problems = [Problem(text, "", text, tokenizer(text)["input_ids"]) for text in PROMPTS]
    found = sample(make(mixture, rollout_precision="int4", **REPLAY), problems, n=64, seeds=(4, 5, 6))
    batch, args = collate(problems, found, "cpu"), grpo.Args(**REPLAY)

    def mismatch():
        logp = batch_logps(model, batch, args)[0]
        return (logp.exp() - batch.rollout_logp.exp()).abs()[batch.token_mask].mean().item()

    replayed = mismatch()
    batch.experts = torch.full_like(batch.experts, -1)
    assert replayed < 0.97 * mismatch()


def test_each_experts_matrix_is_rounded_by_itself(mixture):
    """Each expert's matrix is rounded separately, as in a quantized engine; routers are not rounded."""
    weights = dict(named_weights(mixture[0]))
    changed = dict(rounded(weights.items(), "int4"))
    name = "model.layers.1.mlp.experts.down_proj"
    for own, expert in zip(changed[name], weights[name], strict=True):
        assert torch.equal(own, ROUNDING["int4"](expert))
    gates = [name for name in weights if ".gate." in name]
    assert len(gates) == len(routers(mixture[0])) and all(torch.equal(changed[n], weights[n]) for n in gates)


def test_nothing_stays_behind():
    """Hooks on the routers are removed, and a teacher chooses its own experts."""
    model, tokenizer = load_model(rspo.Args())
    with watched(model) as outputs:
        model(torch.tensor([[5, 6]]))
    assert len(outputs) == len(routers(model)) and not any(router._forward_hooks for router in routers(model))
    teacher = SelfTeacher(sdpo.Args(**REPLAY), model, tokenizer).model
    assert not hasattr(teacher, "engine_experts"), "it reads other prompts than the engine"


def test_known_routers():
    """A supported router returns weights in proportion to the softmax, in the order (logits, weights, experts)."""
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    chances, experts = logits.softmax(-1).topk(2)
    assert is_known(logits, chances, experts) and is_known(logits, chances / chances.sum(1, keepdim=True), experts)
    assert not is_known(logits, logits.sigmoid().gather(1, experts), experts)
    assert not is_known(experts, chances, logits)


def test_bad_input_gets_one_sentence(tmp_path, capsys):
    def error(script, **settings):
        with pytest.raises(SystemExit) as stop:
            script.main(script.Args(run_dir=tmp_path / "run", steps=1, engine="transformers", **settings))
        assert stop.value.code == 2
        return capsys.readouterr().err

    for script, settings in ((grpo, {"replay_routing": True}), (rspo, {"model": "sums"})):
        assert "error: --model sums is not a mixture of experts" in error(script, **settings)
    assert "one version of the weights in each response" in error(pipeline_rl, **REPLAY)
    for script in (luffy, spin):
        assert "trains on solutions, whose experts no engine reports" in error(script, dataset="sums", **REPLAY)
    assert "--replay-routing is for --stages rl" in error(r1, stages=("rl", "rejection"), **REPLAY)
    assert "--replay-routing is not for episodes" in error(calculator, dataset="sums", **REPLAY)


def test_a_run_resumes(tiny_model, tmp_path, capsys):
    """A resumed run ends the same bit for bit, though the weight file's names differ from the model's."""
    settings = runs.on_tiny(tiny_model) | {"model": experts_of(str(tiny_model)), "save_every": 1, "lr": 1e-2}
    weights, _ = runs.run("grpo", tmp_path / "run", replay_routing=True, rollout_precision="int4", **settings)
    (tmp_path / "run" / "checkpoint-000002").rename(tmp_path / "last")
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    runs.assert_same_weights(weights, runs.results(tmp_path / "run")[0])
