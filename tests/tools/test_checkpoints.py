"""tools.checkpoints: a sharded checkpoint becomes a Hugging Face folder."""

import shutil

import grpo
from common.checkpoints import MODEL, PARTS, open_shards, read_rows
from tools import checkpoints

import pytest
import torch
from runs import assert_same_weights, ended, on_tiny, results, seal
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


@pytest.fixture
def sharded(tmp_path):
    """A checkpoint in parts of two processes, of which the first holds three of the five rows."""
    folder = tmp_path / "checkpoint-000001"
    (folder / PARTS).mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "state.pt").touch()
    weights = {"embed.weight": torch.randn(5, 3)}
    for number, rows in enumerate(weights["embed.weight"].split(3)):
        save_file(
            {f"{MODEL}embed.weight": rows, "0.exp_avg": rows.clone()}, folder / PARTS / f"{number:05d}.safetensors"
        )
    seal(folder)
    return folder, weights


def test_a_sharded_checkpoint_becomes_a_model(sharded, tmp_path):
    folder, weights = sharded
    checkpoints.main([str(folder), str(tmp_path / "model")])
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert_same_weights(found, weights)


@pytest.mark.parametrize("first,last", [(0, 5), (0, 2), (2, 4), (3, 5), (4, 4)])
def test_rows_of_several_files(first, last, sharded):
    """Each process reads its rows, however many processes wrote them."""
    folder, weights = sharded
    rows = read_rows(open_shards(folder / PARTS), f"{MODEL}embed.weight", first, last)
    assert torch.equal(rows, weights["embed.weight"][first:last])


def test_a_sharded_run_of_one_process(tiny_model, tmp_path):
    """It resumes to the bit, and its checkpoint becomes the model of a run without shards."""
    settings = on_tiny(tiny_model) | {"save_every": 1, "kl_beta": 0.1, "lr": 1e-2}
    grpo.main(grpo.Args(run_dir=tmp_path / "whole", **settings))
    grpo.main(grpo.Args(run_dir=tmp_path / "run", sharded_checkpoints=True, **settings))
    last = tmp_path / "run" / "checkpoint-000002"
    assert [path.name for path in last.glob("**/*.safetensors")] == ["00000.safetensors"]
    shutil.rmtree(last)
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    checkpoints.main([str(last), str(tmp_path / "model")])
    expected, _ = results(tmp_path / "whole")
    assert_same_weights(load_file(tmp_path / "model" / "model.safetensors"), expected)
    AutoModelForCausalLM.from_pretrained(tmp_path / "model")


def test_a_damaged_shard_is_named(sharded, tmp_path, capsys):
    folder, _ = sharded
    shard = folder / PARTS / "00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    error = ended(capsys, lambda: checkpoints.main([str(folder), str(tmp_path / "model")]))
    assert f"{folder} is damaged" in error and "00001.safetensors has changed" in error
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
