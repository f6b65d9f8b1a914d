import shutil

import grpo
from common.batch import collate
from common.engines import WeightHistory
from common.logprobs import batch_logps
from common.lora import named_weights
from common.models import load_model
from common.records import Problem
from common.transformers_engine import TransformersEngine

import pytest
import torch
from conftest import SMALL, experts_of
from peft import PeftModel
from runs import ended, on_tiny, results
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

PROBLEMS = [Problem("", "", "", ids) for ids in ([13, 20, 5], [9, 30, 22, 41])]
LORA = SMALL | {"lora_rank": 3, "lora_alpha": 6.0, "lr": 1e-2, "warmup_steps": 0, "eval_every": 0}


def trained(tiny_model, **more):
    """A model whose adapters differ from their initial values, its base, its tokenizer, and its settings."""
    args = grpo.Args(model=str(tiny_model), **LORA, **more).checked()
    model, tokenizer = load_model(args)
    base = AutoModelForCausalLM.from_pretrained(tiny_model)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel()))
    return model, base, tokenizer, args


def test_adapters_of_experts(tiny_model):
    """A layer's experts have one adapter per matrix, and the merged weights give the adapted model's logits."""
    model, base, _, _ = trained(experts_of(str(tiny_model)))
    tokens = torch.tensor([[13, 20, 5, 9]])
    own = dict(named_weights(model))
    assert own.keys() == dict(base.named_parameters()).keys()
    assert not torch.equal(own["model.layers.0.mlp.experts.down_proj"], base.model.layers[0].mlp.experts.down_proj)
    base.load_state_dict(own)
    with torch.no_grad():
        torch.testing.assert_close(base(tokens).logits, model(tokens).logits, rtol=1e-4, atol=1e-4)


def test_at_first_the_model_is_its_base(tiny_model):
    args = grpo.Args(model=str(tiny_model), **LORA).checked()
    model, base = load_model(args)[0], AutoModelForCausalLM.from_pretrained(tiny_model)
    assert type(model) is type(base)
    own = dict(named_weights(model))
    assert own.keys() == dict(base.named_parameters()).keys()
    assert all(torch.equal(own[name], weight) for name, weight in base.named_parameters())
    tokens = torch.tensor([PROBLEMS[1].prompt_ids])
    assert torch.equal(model(tokens).logits, base(tokens).logits)
    again = load_model(args)[0]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_adapters_stand_beside_every_linear_layer_but_the_head(tiny_model):
    model, base, _, _ = trained(tiny_model)
    linear = {name for name, module in base.named_modules() if isinstance(module, torch.nn.Linear)} - {"lm_head"}
    trainable = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    assert {name.split(".lora_")[0] for name in trainable} == linear
    for name in linear:
        layer = base.get_submodule(name)
        A, B = (trainable[f"{name}.lora_{x}.default.weight"] for x in "AB")
        assert A.shape == (3, layer.in_features) and B.shape == (layer.out_features, 3)
        merged = dict(named_weights(model))[f"{name}.weight"]
        torch.testing.assert_close(merged, layer.weight + 6.0 / 3 * B @ A)


def test_the_engine_has_the_learners_log_probs(tiny_model):
    model, _, tokenizer, args = trained(tiny_model)
    engine = TransformersEngine(args, model, tokenizer)
    engine.load_weights(model)
    rollouts = engine.generate(PROBLEMS, 8, 0)
    batch = collate(PROBLEMS, rollouts, "cpu")
    learner, _ = batch_logps(model, batch, args)
    assert (learner - batch.rollout_logp).abs().max() < 1e-4
    # The base alone has other log-probs: the adapters matter.
    unadapted, _ = batch_logps(load_model(args)[0], batch, args)
    assert (unadapted - batch.rollout_logp).abs().max() > 1e-2


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of the embedded model with every feature that touches weights, and its final adapter weights."""
    folder = tmp_path_factory.mktemp("lora") / "run"
    more = {"staleness": 1, "kl_beta": 0.1, "gradient_checkpointing": True, "save_every": 1}
    args = grpo.Args(run_dir=folder, **LORA, **more)
    grpo.main(args)
    return args.checked(), torch.load(folder / "checkpoint-000002/state.pt", weights_only=True)


def test_frozen_weights_do_not_move_and_the_saved_model_is_merged(run):
    args, state = run
    learner, tokenizer = load_model(args)
    trainable = [name for name, weight in learner.named_parameters() if weight.requires_grad]
    assert sorted(state["adapters"]) == sorted(trainable)
    assert len(state["optimizer"]["state"]) == len(trainable)
    learner.load_state_dict(state["adapters"], strict=False)
    saved, base = (
        AutoModelForCausalLM.from_pretrained(path) for path in (args.run_dir / "checkpoint-000002", "worlds/sums/model")
    )
    tokens = tokenizer("12+7-5=?\n12+7=19\n", return_tensors="pt")["input_ids"]
    torch.testing.assert_close(saved(tokens).logits, learner(tokens).logits, atol=1e-4, rtol=1e-4)
    for (name, weight), (_, before) in zip(saved.named_parameters(), base.named_parameters(), strict=True):
        assert torch.equal(weight, before) != ("proj" in name), name


def test_a_resumed_run_has_the_same_weights(run, tmp_path):
    args, state = run
    parts = tmp_path / "parts"
    shutil.copytree(args.run_dir, parts)
    shutil.rmtree(parts / "checkpoint-000002")
    grpo.main(grpo.Args(resume=parts))
    again = torch.load(parts / "checkpoint-000002/state.pt", weights_only=True)
    assert all(torch.equal(again["adapters"][name], weight) for name, weight in state["adapters"].items())
    files = [folder / "checkpoint-000002/model.safetensors" for folder in (args.run_dir, parts)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_stale_weights_are_merged_ones(tiny_model):
    model, *_ = trained(tiny_model)
    history = WeightHistory(1)
    first = {name: weight.clone() for name, weight in history.oldest(model)}
    history.record(model)
    assert first.keys() == dict(named_weights(model)).keys()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight *= 2
    older = dict(history.oldest(model))
    assert all(torch.equal(first[name], weight) for name, weight in older.items())
    assert not all(torch.equal(first[name], weight) for name, weight in named_weights(model))


def test_frozen_layers_are_in_bf16_if_the_learner_computes_in_it(tiny_model):
    model, base, _, _ = trained(tiny_model, learner_precision="bf16")
    kinds = {
        name.rpartition(".base_layer.")[0] != "": w.dtype for name, w in model.named_parameters() if not w.requires_grad
    }
    assert kinds == {True: torch.bfloat16, False: torch.float32}
    for name, weight in named_weights(model):
        assert weight.dtype == torch.float32
        if "proj" in name:
            layer = model.get_submodule(name.removesuffix(".weight"))
            expected = base.get_parameter(name).bfloat16().float() + layer.get_delta_weight("default")
            assert torch.equal(weight, expected)


def test_a_saved_adapter_is_a_model(run):
    """Base plus saved adapter, merged by us or by peft, is the checkpoint's merged model."""
    args, _ = run
    folder = args.run_dir / "checkpoint-000002"
    base = AutoModelForCausalLM.from_pretrained("worlds/sums/model")
    by_peft = PeftModel.from_pretrained(base, folder / "adapter").merge_and_unload().state_dict()
    here = load_model(grpo.Args(model=str(folder / "adapter")).checked())[0].state_dict()
    saved = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    assert here.keys() == by_peft.keys() == saved.keys()
    for name, weight in saved.items():
        assert torch.equal(here[name], by_peft[name]), name
        torch.testing.assert_close(here[name], weight, atol=1e-6, rtol=1e-6)


def test_training_goes_on_from_an_adapter(tiny_model, tmp_path):
    """A run that starts from an adapter trains all weights of the merged model."""
    grpo.main(grpo.Args(run_dir=tmp_path / "first", lora_rank=2, **on_tiny(tiny_model)))
    adapter = str(tmp_path / "first" / "checkpoint-000002" / "adapter")
    settings = on_tiny(tiny_model) | {"model": adapter, "weight_decay": 0.5}
    grpo.main(grpo.Args(run_dir=tmp_path / "second", **settings))
    before, after = load_model(grpo.Args(model=adapter).checked())[0], results(tmp_path / "second")[0]
    assert all(weight.requires_grad and not torch.equal(weight, after[n]) for n, weight in before.named_parameters())


@pytest.mark.parametrize("change", ["renamed", "missing", "more"])
def test_an_adapter_that_does_not_fit_its_settings(change, tiny_model, tmp_path, capsys):
    """An adapter with missing, extra or renamed weights is refused; peft would silently ignore them."""
    grpo.main(grpo.Args(run_dir=tmp_path / "run", lora_rank=2, **on_tiny(tiny_model)))
    folder = tmp_path / "run" / "checkpoint-000002" / "adapter"
    weights = load_file(folder / "adapter_model.safetensors")
    name = next(iter(weights))
    weights[name.replace("proj", "other")] = weights[name] if change == "more" else weights.pop(name)
    if change == "missing":
        weights.popitem()
    save_file({name: weight.clone() for name, weight in weights.items()}, folder / "adapter_model.safetensors")
    capsys.readouterr()
    words = "adapter_config.json and adapter_model.safetensors differ in base_model.model.model"
    assert words in ended(capsys, lambda: load_model(grpo.Args(model=str(folder)).checked()))


def test_adapters_of_some_layers(tiny_model, capsys):
    args = grpo.Args(model=str(tiny_model), **LORA, lora_targets=("q_proj", "v_proj")).checked()
    names = [name for name, weight in load_model(args)[0].named_parameters() if weight.requires_grad]
    assert names and all(".q_proj.lora_" in name or ".v_proj.lora_" in name for name in names)
    with pytest.raises(SystemExit):
        load_model(grpo.Args(model=str(tiny_model), **LORA, lora_targets=("attention",)).checked())
    assert "--lora-targets attention: this model's linear layers are down_proj, gate_proj" in capsys.readouterr().err
