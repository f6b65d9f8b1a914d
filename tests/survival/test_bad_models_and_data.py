"""Models and data that are missing, damaged or of the wrong kind get one clear sentence and exit code 2."""

import json
import shutil
import signal
import socket

import grpo
from common import data
from common.models import load_model
from common.rows import read_dataset
from tools.scripts import ROOT

import pytest
import torch
from conftest import CHAT_TEMPLATE, SMALL
from runs import refused
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    MambaConfig,
)


def test_a_file_has_no_splits(capsys, tmp_path, gsm8k_file):
    for settings in ({"eval_split": "test"}, {"train_split": "test"}, {"dataset_config": "main"}):
        assert "is a file, without splits" in refused(capsys, tmp_path, dataset=str(gsm8k_file), **settings)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_data_sets(capsys, tmp_path, gsm8k_file):
    rows = [{"question": "1+1=?", "answer": "2"}] * 3
    assert "no column 'problem'" in refused(capsys, tmp_path, dataset=str(gsm8k_file), question_column="problem")
    assert "no column 'solution'" in refused(capsys, tmp_path, dataset=str(gsm8k_file), answer_column="solution")
    assert "must end in" in refused(capsys, tmp_path, dataset=str(ROOT / "README.md"))
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert "empty.jsonl" in refused(capsys, tmp_path, dataset=str(empty))
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"question": "1+1=?", "ans')
    assert "cannot be read" in refused(capsys, tmp_path, dataset=str(broken))
    blank = write(tmp_path / "blank.jsonl", [*rows, {"question": "", "answer": "2"}])
    assert "1 of 4 rows" in refused(capsys, tmp_path, dataset=blank)
    assert "too few" in refused(capsys, tmp_path, dataset=write(tmp_path / "few.jsonl", rows))
    bad = write(tmp_path / "bad.jsonl", [{"question": f"{i}?", "answer": "$$$"} for i in range(10)])
    assert "cannot be checked" in refused(capsys, tmp_path, dataset=bad)
    same = write(tmp_path / "same.jsonl", rows * 4)
    assert "also a held-out one" in refused(capsys, tmp_path, dataset=same)


def test_chat_messages_need_a_chat_template(capsys, tmp_path):
    rows = [{"question": [{"role": "user", "content": f"{i}?"}], "answer": "2", "answer_": "2"} for i in range(10)]
    data = write(tmp_path / "chat.jsonl", rows)
    assert "no chat template" in refused(capsys, tmp_path, dataset=data)
    assert "are chat messages: leave it out" in refused(capsys, tmp_path, dataset=data, prompt="{question} {answer_}")


def test_held_out_problems_whose_file_is_missing(capsys, tmp_path, gsm8k_file):
    error = refused(capsys, tmp_path, dataset=str(gsm8k_file), eval_dataset=str(tmp_path / "nowhere.jsonl"))
    assert error.startswith("error: --eval-dataset") and "nowhere.jsonl: no such file" in error


def test_a_tokenizer_without_an_end(capsys, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "worlds/sums/model", folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": None}))
    assert "no end-of-sequence token" in refused(capsys, tmp_path, model=str(folder))


@pytest.mark.parametrize("damage", ["cut", "missing"])
def test_corrupt_model(damage, capsys, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "worlds/sums/model", folder)
    weights = folder / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:5000])
    else:
        weights.unlink()
    assert "cannot be loaded" in refused(capsys, tmp_path, model=str(folder))


def changed_model(folder, **changes):
    """A copy of the embedded model with another configuration."""
    shutil.copytree(ROOT / "worlds/sums/model", folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def save_random(folder, config):
    """A random model with the embedded tokenizer."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ROOT / "worlds/sums/model" / file, folder)
    return str(folder)


SIZES = dict(vocab_size=99, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2)


def test_models_that_change_their_logits_after_the_head(capsys, tmp_path):
    scaled = GraniteConfig(**SIZES, logits_scaling=4.0, eos_token_id=1, pad_token_id=0)
    assert "changes its logits after the head" in refused(capsys, tmp_path, model=save_random(tmp_path / "g", scaled))
    capped = Gemma2Config(**SIZES, head_dim=8, num_key_value_heads=2, final_logit_softcapping=30.0, eos_token_id=1)
    assert "changes its logits after the head" in refused(capsys, tmp_path, model=save_random(tmp_path / "c", capped))


def test_models_that_see_later_tokens(capsys, tmp_path):
    bert = BertConfig(**SIZES, is_decoder=False, eos_token_id=1)
    assert "is not causal" in refused(capsys, tmp_path, model=save_random(tmp_path / "bert", bert))


def test_models_without_keys_and_values(capsys, tmp_path):
    mamba = MambaConfig(vocab_size=99, hidden_size=16, num_hidden_layers=2, state_size=4, eos_token_id=1)
    words = refused(capsys, tmp_path, model=save_random(tmp_path / "mamba", mamba), engine="transformers")
    assert "standard KV cache" in words


@pytest.mark.parametrize("change", ["missing", "renamed"])
def test_weights_that_are_not_in_the_files(change, capsys, tmp_path):
    """Missing weights are refused, because they would be initialized at random."""
    folder = changed_model(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    tensor = weights.pop("model.layers.1.mlp.up_proj.weight")
    if change == "renamed":
        weights["model.layers.1.mlp.up.weight"] = tensor
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "no weights for model.layers.1.mlp.up_proj.weight" in refused(capsys, tmp_path, model=str(folder))


def test_a_head_that_the_config_denies(capsys, tmp_path, tiny_model):
    """An untied head despite tie_word_embeddings is refused: transformers would keep it, engines might not."""
    shutil.copytree(tiny_model, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    assert "set tie_word_embeddings to false" in refused(capsys, tmp_path, model=str(tmp_path / "model"))


def test_mistyped_paths_are_not_looked_up_elsewhere(capsys, tmp_path, monkeypatch):
    """A name that starts with an existing folder is a path and is not looked up on the network."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args: pytest.fail(f"a look-up of {args[0]}"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "smollm").mkdir(parents=True)
    error = refused(capsys, tmp_path, model="runs/smolm")
    assert "no such model folder" in error and "Did you mean" in error and "runs/smollm" in error
    assert "no such file or folder" in refused(capsys, tmp_path, dataset="runs/gsm8k")


def test_token_ids_beyond_the_embedding(capsys, tmp_path):
    small = LlamaConfig(**SIZES | {"vocab_size": 30}, eos_token_id=1)
    assert "the tokenizer uses token" in refused(capsys, tmp_path, model=save_random(tmp_path / "small", small))


def test_chat_template_that_refuses(capsys, tmp_path, chat_model):
    folder = tmp_path / "model"
    shutil.copytree(chat_model, folder)
    template = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}x"
    for file in folder.glob("chat_template*"):
        file.write_text(template)
    rows = [{"question": [{"role": "system", "content": "s"}, {"role": "user", "content": f"{i}?"}], "answer": "2"}
            for i in range(10)]  # fmt: skip
    data = write(tmp_path / "chat.jsonl", rows)
    error = refused(capsys, tmp_path, model=str(folder), dataset=data)
    assert "chat template refuses" in error and "no system role" in error


@pytest.mark.parametrize("loops", ["", "{% for a in range(9999) %}" * 4])
def test_chat_template_that_never_ends(loops, capsys, tmp_path, chat_model, gsm8k_file, monkeypatch):
    monkeypatch.setattr(data, "PROMPT_SECONDS", 0.3)
    folder = tmp_path / "model"
    shutil.copytree(chat_model, folder)
    for file in folder.glob("chat_template*"):
        file.write_text(f"{loops}{'{% endfor %}' * loops.count('for')}" + CHAT_TEMPLATE)
    settings = {"model": str(folder), "dataset": str(gsm8k_file)}
    if loops:
        error = refused(capsys, tmp_path, **settings)
        assert "chat template refuses" in error and "it takes more than 0.3 seconds" in error
    else:
        grpo.main(grpo.Args(run_dir=tmp_path / "run", **SMALL | settings | {"steps": 1}))
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) == signal.SIG_DFL


@pytest.mark.parametrize("file", ["README.md", ".huggingface.yaml"])
@pytest.mark.parametrize(
    "config",
    [
        {"data_files": "https://example.org/x.jsonl"},
        {"data_files": "/etc/x.jsonl"},
        {"data_files": "in/../../secret.jsonl"},
        {"data_files": ["data.jsonl", {"split": "train", "path": ["../secret.jsonl"]}]},
        {"data_files": {"train": "file:///etc/x.jsonl"}},
        {"data_dir": ".."},
    ],
)
def test_a_data_folder_reads_nothing_else(config, file, capsys, tmp_path, monkeypatch):
    """A data folder whose description names files or addresses outside is refused, and nothing there is read."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args: pytest.fail(f"a look-up of {args[0]}"))
    rows = [{"question": f"{i}+1=?", "answer": str(i + 1)} for i in range(40)]
    for name in ("folder/data.jsonl", "secret.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write(tmp_path / name, rows)
    text = json.dumps({"configs": [{"config_name": "default", **config}]})  # JSON is YAML
    (tmp_path / "folder" / file).write_text(f"---\n{text}\n---\n" if file == "README.md" else text)
    error = refused(capsys, tmp_path, dataset=str(tmp_path / "folder"))
    assert "names data outside the folder" in error


def test_a_data_folder_describes_its_files(tmp_path):
    rows = [{"question": f"{i}+1=?", "answer": str(i + 1)} for i in range(40)]
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts" / "a.jsonl", rows)
    write(tmp_path / "other.jsonl", rows[:1])
    config = {"config_name": "mine", "data_files": [{"split": "train", "path": "parts/*.jsonl"}], "sep": "::"}
    (tmp_path / "README.md").write_text(f"---\n{json.dumps({'configs': [config]})}\n---\nSums.\n")
    assert len(read_dataset(str(tmp_path), "mine", "train")) == 40


@pytest.mark.parametrize(
    "change",
    [
        {"attn_implementation": "someone/kernel"},
        {"_attn_implementation": "someone/kernel"},
        {"_experts_implementation": "someone/kernel"},
        {"fusion_config": {"someone/kernel": True}},
        {"transformers_weights": "other.safetensors"},
    ],
)
def test_what_a_config_names_is_ignored(change, tmp_path, monkeypatch):
    """Kernels, patches and files named in a config are ignored, and the model is the usual one."""
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args: pytest.fail(f"a look-up of {args[0]}"))
    given = str(changed_model(tmp_path / "model", **change))
    model, _ = load_model(grpo.Args(model=given))
    usual, _ = load_model(grpo.Args())
    assert model.config._attn_implementation == usual.config._attn_implementation
    tokens = torch.arange(8)[None]  # (1, 8)
    assert torch.equal(model(input_ids=tokens).logits, usual(input_ids=tokens).logits)


def test_quantized_models_and_adapters(capsys, tmp_path):
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    folder = changed_model(tmp_path / "quantized", quantization_config=config)
    assert "is quantized (quantization_config)" in refused(capsys, tmp_path, model=str(folder))
    folder = tmp_path / "adapter"
    folder.mkdir()
    for text, words in (
        ("{}", "is damaged"),
        ('{"peft_type": "IA3", "base_model_name_or_path": "sums"}', "must be a LoRA adapter"),
        ('{"peft_type": "LORA", "base_model_name_or_path": "sums"}', "with its weights in adapter_model.safetensors"),
    ):
        (folder / "adapter_config.json").write_text(text)
        assert words in refused(capsys, tmp_path, model=str(folder))
    (folder / "adapter_model.safetensors").write_text("no weights")
    assert "cannot be loaded" in refused(capsys, tmp_path, model=str(folder))


def test_broken_text_and_numbers_as_questions(capsys, tmp_path):
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "caf\xe9?", "answer": "1"}\n' * 20)
    assert "not UTF-8" in refused(capsys, tmp_path, dataset=str(tmp_path / "latin.jsonl"))
    rows = [{"question": i, "answer": str(i)} for i in range(40)]
    grpo.main(
        grpo.Args(**SMALL | {"dataset": write(tmp_path / "n.jsonl", rows), "run_dir": tmp_path / "run", "steps": 1})
    )
    assert "held-out accuracy" in capsys.readouterr().out
