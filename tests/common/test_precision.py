"""How lower precision changes the learner and the engine."""

import copy

import grpo
from common.batch import collate
from common.engines import rounded_to_fp8, rounded_to_int4, rounded_to_int8
from common.logprobs import batch_logps, logp_and_entropy, token_logps
from common.loss_scale import FIRST, LARGEST, LossScale
from common.metrics import mismatch_metrics, read_metrics
from common.models import load_model
from common.records import Problem

import pytest
import torch
from conftest import SMALL
from sampling import PROMPTS, make, sample


def test_fp32_head_under_bf16():
    """With an fp32 head, log-probs do not come from bf16 logits, and the learner agrees with the bf16 engine."""
    torch.manual_seed(0)
    plain = {"with_entropy": False, "entropy_gradient": False}
    head = torch.nn.Linear(64, 500, bias=False)
    hidden, targets = torch.randn(20, 64).bfloat16(), torch.randint(500, (20, 1))
    engine, _ = logp_and_entropy(hidden, targets, copy.deepcopy(head).bfloat16(), 1.0, True, **plain)
    with torch.autocast("cpu", torch.bfloat16):
        rounded, _ = logp_and_entropy(hidden, targets, head, 1.0, False, **plain)
        kept, _ = logp_and_entropy(hidden, targets, head, 1.0, True, **plain)
    torch.testing.assert_close(kept, engine)
    assert (rounded - engine).abs().max() > 1e-3
    unrounded, _ = logp_and_entropy(hidden.float(), targets, head, 1.0, False, **plain)
    assert (unrounded - engine).abs().max() > 1e-4


def test_learner_in_bf16(embedded, problems):
    """The learner's log-probs are those of bf16; its gradients are fp32 and point in fp32's direction."""
    model, _ = embedded
    rollouts = sample(make(embedded, rollout_precision="bf16"), problems)
    batch = collate(problems, rollouts, "cpu")

    def learner(**settings):
        model.zero_grad()
        logp = token_logps(model, batch, torch.arange(24), grpo.Args(**settings))
        logp.sum().backward()
        assert logp.dtype == torch.float32
        return logp.detach(), torch.cat([p.grad.flatten() for p in model.parameters()])

    exact, gradient = learner()
    rounded, rounded_gradient = learner(learner_precision="bf16")
    kept, _ = learner(learner_precision="bf16", fp32_lm_head=True)
    model.zero_grad()
    error = {name: (logp - exact).abs().mean() for name, logp in {"bf16": rounded, "fp32 head": kept}.items()}
    assert 1e-5 < error["fp32 head"] < error["bf16"] < 1e-2, error
    assert torch.equal(learner(learner_precision="fp32")[0], exact), "auto is fp32 on a CPU"
    model.zero_grad()
    assert rounded_gradient.dtype == torch.float32
    assert torch.cosine_similarity(rounded_gradient, gradient, dim=0) > 0.999


def test_rounding_to_fp8():
    """4 significant bits: the relative error is at most 1/16 in range, and each row's largest weight is exact."""
    torch.manual_seed(0)
    weight = torch.randn(50, 40) * torch.logspace(-6, 3, 50)[:, None]
    rounded = rounded_to_fp8(weight)
    inside = weight.abs() > weight.abs().amax(1, keepdim=True) * 2.0**-14
    assert ((rounded - weight).abs() / weight.abs())[inside].max() <= 1 / 16
    top = weight.abs().argmax(1, keepdim=True)
    torch.testing.assert_close(rounded.gather(1, top), weight.gather(1, top))
    torch.testing.assert_close(rounded_to_fp8(rounded), rounded)
    assert (rounded_to_fp8(torch.zeros(2, 3)) == 0).all()


def test_rounding_to_int4():
    """Each group of 128 weights has 16 levels, errors are at most half a step, and groups are independent."""
    torch.manual_seed(0)
    weight = torch.randn(20, 300) * torch.logspace(-6, 3, 20)[:, None]
    rounded = rounded_to_int4(weight)
    for start in (0, 128, 256):
        group, levels = weight[:, start : start + 128], rounded[:, start : start + 128]
        step = group.abs().amax(1, keepdim=True) / 7.5
        assert ((levels - group).abs() <= 0.5001 * step).all()
        whole = levels / step
        torch.testing.assert_close(whole, whole.round(), rtol=0, atol=1e-4)
        assert {len(set(row)) for row in whole.round().tolist()} <= set(range(9, 17))
        assert whole.min() > -8.001 and whole.max() < 7.001
        torch.testing.assert_close(rounded_to_int4(group), levels)
    assert (rounded_to_int4(torch.zeros(2, 3)) == 0).all()


def test_int4_engine_of_the_embedded_model(embedded):
    """The engine has 16 levels per group in matrices other than the embeddings, and bf16 elsewhere."""
    model, _ = embedded
    mine = dict(make(embedded, rollout_precision="int4").model.named_parameters())
    for name, learned in model.named_parameters():
        groups = [len(group.unique()) for row in mine[name] for group in row.split(128)] if learned.ndim == 2 else []
        if learned.ndim == 2 and "embed" not in name:
            assert max(groups) <= 16, name
        else:
            torch.testing.assert_close(mine[name], learned.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["fp8", "int4"])
def test_embeddings_and_head_are_not_rounded(precision, tiny_model):
    """In a model with an untied head, only the matrices between embeddings and head are rounded."""
    model, tokenizer = load_model(grpo.Args(model=str(tiny_model)))
    engine = make((model, tokenizer), model=str(tiny_model), rollout_precision=precision)
    mine, learned = (dict(m.named_parameters()) for m in (engine.model, model))
    whole = {"model.embed_tokens.weight", "lm_head.weight", *(name for name in learned if learned[name].ndim == 1)}
    for name, weight in learned.items():
        rounded = not torch.equal(mine[name], weight.bfloat16())
        assert rounded == (name not in whole), name


@pytest.mark.slow
@pytest.mark.all_problems
def test_tis_sees_an_int4_engine(tmp_path):
    """With an int4 engine a run has a mismatch and truncated TIS weights, which never occur in fp32."""
    rows = {}
    for precision in ("fp32", "int4"):
        grpo.main(grpo.Args(run_dir=tmp_path / precision, rollout_precision=precision, **SMALL | {"tis_cap": 1.2}))
        rows[precision] = [row for row in read_metrics(tmp_path / precision) if "tis_truncated" in row]
    assert all(row["tis_truncated"] == 0 and abs(row["tis_weight"] - 1) < 1e-4 for row in rows["fp32"])
    assert all(row["tis_truncated"] > 0.003 and row["mismatch_mean"] > 0.002 for row in rows["int4"]), rows["int4"]


def test_mismatch_grows_as_the_engine_loses_precision(embedded, problems):
    means = []
    for precision, head in (("fp32", False), ("bf16", True), ("bf16", False), ("fp8", False), ("int4", False)):
        engine = make(embedded, fp32_lm_head=head, rollout_precision=precision)
        batch = collate(problems, sample(engine, problems, 64), "cpu")
        old_logp, _ = batch_logps(embedded[0], batch, grpo.Args())
        means.append(mismatch_metrics(old_logp, batch.rollout_logp, batch.token_mask)["mismatch_mean"])
    assert means[0] < 1e-6 and means == sorted(means), means


def test_rounding_to_int8():
    """Each row has 255 levels, errors are at most half a step, and rounding twice changes nothing."""
    torch.manual_seed(0)
    weight = torch.randn(20, 300) * torch.logspace(-6, 3, 20)[:, None]
    rounded, step = rounded_to_int8(weight), weight.abs().amax(1, keepdim=True) / 127
    assert ((rounded - weight).abs() <= 0.5001 * step).all()
    whole = rounded / step
    torch.testing.assert_close(whole, whole.round(), rtol=0, atol=1e-4)
    assert whole.abs().max() < 127.001 and len(set(whole.round().flatten().tolist())) > 200
    torch.testing.assert_close(rounded_to_int8(rounded), rounded)
    assert (rounded_to_int8(torch.zeros(2, 3)) == 0).all()


def test_loss_scaling_keeps_small_gradients():
    """With a loss of 1e-7, fp16 gradients vanish without a scale and equal fp32's with it."""
    batch, found = None, {}
    for precision, scale in (("fp32", 0), ("fp16", FIRST), ("fp16", 1.0)):
        args = grpo.Args(learner_precision=precision)
        model, tokenizer = load_model(args)
        if scale:
            model.loss_scale.value = scale
        if batch is None:
            prompts = [Problem(text, "", text, tokenizer(text)["input_ids"]) for text in PROMPTS]
            batch = collate(prompts, sample(make((model, tokenizer)), prompts), "cpu")
        logp = token_logps(model, batch, torch.arange(24), args)
        (1e-7 * logp.mean()).backward()
        found[scale] = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert torch.cosine_similarity(found[FIRST], found[0], dim=0) > 0.99
    assert found[FIRST].norm() / found[0].norm() == pytest.approx(1, abs=0.02)
    assert found[1.0].norm() < 0.5 * found[0].norm()


def test_an_overflow_skips_the_update_and_halves_the_scale(tmp_path, monkeypatch):
    """An overflow leaves weights and moments alone; a resumed run continues with the halved scale."""
    run, scales = tmp_path / "run", []
    monkeypatch.setattr("common.loss_scale.FIRST", 2.0**40)  # overflows at once
    fp16 = {"learner_precision": "fp16", "rollout_precision": "fp16", "num_minibatches": 1}
    for steps, begin in ((1, {"run_dir": run, **SMALL | fp16 | {"lr": 1e-3}}), (2, {"resume": run})):
        grpo.main(grpo.Args(**begin | {"steps": steps}))
        state = torch.load(run / f"checkpoint-{steps:06d}/state.pt")
        scales.append(state["loss_scale"]["value"])
        assert not state["optimizer"]["state"]
    assert scales == [2.0**39, 2.0**38]
    assert [row["skipped_updates"] for row in read_metrics(run) if "grad_norm" in row] == [1.0, 1.0]


def test_the_scale_doubles_after_many_good_updates(monkeypatch):
    """An overflow halves the scale and restarts the count; the scale never exceeds its bound."""
    monkeypatch.setattr("common.loss_scale.GROWS_AFTER", 2)
    scale = LossScale(torch.nn.Linear(1, 1))
    scale.value, values = LARGEST / 8, []
    for norm in (1.0, 1.0, 1.0, torch.inf, 1.0, 1.0, *[1.0] * 8):
        scale.after_gradients(grad_norm=norm)
        values.append(scale.value / LARGEST)
    assert values == [1 / 8, 1 / 4, 1 / 4, 1 / 8, 1 / 8, 1 / 4, 1 / 4, 1 / 2, 1 / 2, *[1.0] * 5]


@pytest.mark.slow
def test_fp16_has_less_mismatch_than_bf16(tmp_path):
    """In runs, fp16 has at most a quarter of bf16's mismatch, as in claims/fp16_removes_the_mismatch.py, and learns."""
    rows = {}
    for precision in ("fp16", "bf16"):
        flags = {"rollout_precision": precision, "learner_precision": precision}
        grpo.main(grpo.Args(run_dir=tmp_path / precision, **SMALL | flags))
        rows[precision] = read_metrics(tmp_path / precision)[1]
    assert 1e-6 < rows["fp16"]["mismatch_mean"] < rows["bf16"]["mismatch_mean"] / 4
    assert rows["fp16"]["skipped_updates"] == 0 and rows["fp16"]["grad_norm"] > 0  # nothing overflows
