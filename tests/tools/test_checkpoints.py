"""tools.checkpoints: a sharded checkpoint becomes a Hugging Face folder."""

import shutil

import grpo
from common.checkpoints import PARTS, save_shards
from tools import checkpoints

import pytest
import torch
from conftest import SMALL, experts_of
from runs import assert_same_weights, ended, on_tiny, results, seal
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig


@pytest.fixture
def sharded(tmp_path):
    """A sharded checkpoint of one process."""
    folder = tmp_path / "checkpoint-000001"
    folder.mkdir()
    LlamaConfig().save_pretrained(folder)
    (folder / "state.pt").touch()
    weights = {"embed.weight": torch.randn(5, 3)}
    save_shards(folder / PARTS, weights, torch.optim.AdamW([torch.zeros(1)]))
    seal(folder)
    return folder, weights


def test_a_sharded_checkpoint_becomes_a_model(sharded, tmp_path):
    folder, weights = sharded
    checkpoints.main([str(folder), str(tmp_path / "model")])
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert_same_weights(found, weights)


@pytest.mark.parametrize("experts", [False, True])
def test_a_sharded_run_of_one_process(experts, tiny_model, tmp_path):
    """A sharded run resumes bit for bit, and its checkpoint converts to the model of an unsharded run."""
    settings = on_tiny(tiny_model) | {"save_every": 1, "kl_beta": 0.1, "lr": 1e-2}
    if experts:  # their names in a Hugging Face folder differ from those in the model
        settings["model"] = experts_of(str(tiny_model))
    grpo.main(grpo.Args(run_dir=tmp_path / "whole", **settings))
    grpo.main(grpo.Args(run_dir=tmp_path / "run", sharded_checkpoints=True, **settings))
    last = tmp_path / "run" / "checkpoint-000002"
    assert [path.parent.name for path in last.glob("**/*.safetensors")] == [PARTS]
    shutil.rmtree(last)
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    checkpoints.main([str(last), str(tmp_path / "model")])
    expected, _ = results(tmp_path / "whole")
    assert_same_weights(load_file(tmp_path / "model" / "model.safetensors"), expected)
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")


def test_a_damaged_shard_is_named(sharded, tmp_path, capsys):
    folder, _ = sharded
    shard = next((folder / PARTS).iterdir())
    shard.write_bytes(shard.read_bytes()[:-1])
    error = ended(capsys, lambda: checkpoints.main([str(folder), str(tmp_path / "model")]))
    assert f"{folder} is damaged" in error and f"{shard.name} has changed" in error
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "arguments,words",
    [
        ([], "name a sharded checkpoint and a new folder"),
        (["none", "model"], "none is not a sharded checkpoint"),
        (["checkpoint-000001", "."], "exists and is not overwritten"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, words, sharded, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        checkpoints.main(arguments)
    message = capsys.readouterr().err
    assert ended.value.code == 2 and words in message and message.count("\n") == 1, message


@pytest.mark.slow
def test_weights_in_bf16(tmp_path):
    """Checkpoints are in bf16, as their config says, and a resumed run ends like one in fp32."""
    grpo.main(grpo.Args(run_dir=tmp_path / "whole", **SMALL))
    grpo.main(grpo.Args(run_dir=tmp_path / "run", save_dtype="bf16", **SMALL | {"steps": 1}))
    grpo.main(grpo.Args(resume=tmp_path / "run", steps=2))
    exact = load_file(tmp_path / "whole/checkpoint-000002/model.safetensors")
    folder = tmp_path / "run/checkpoint-000002"
    rounded = load_file(folder / "model.safetensors")
    assert all(torch.equal(rounded[name], exact[name].bfloat16()) for name in exact.keys() | rounded.keys())
    assert AutoModelForCausalLM.from_pretrained(folder, dtype="auto").dtype == torch.bfloat16
    master = torch.load(folder / "state.pt")["master_weights"]
    assert all(torch.equal(master[name], exact[name]) for name in exact)
    grpo.main(grpo.Args(resume=tmp_path / "whole", steps=3, save_dtype="bf16"))
    later = load_file(tmp_path / "whole/checkpoint-000003/model.safetensors")
    assert {weight.dtype for weight in later.values()} == {torch.bfloat16}, "a resumed run may change it"
