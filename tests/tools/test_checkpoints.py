"""tools.checkpoints: a sharded checkpoint becomes a Hugging Face folder."""

import json

from common.checkpoints import PARTS
from tools import checkpoints

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file


@pytest.fixture
def sharded(tmp_path):
    """A checkpoint in parts, as one process writes it, of a model with tied embeddings."""
    folder = tmp_path / "checkpoint-000001"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    (folder / "state.pt").touch()
    weights = {"embed.weight": torch.randn(5, 3), "lm_head.weight": torch.randn(5, 3)}
    dcp.save({"model": weights, "optimizer": {"step": torch.ones(1)}}, checkpoint_id=folder / PARTS, no_dist=True)
    return folder, weights


def test_a_sharded_checkpoint_becomes_a_model(sharded, tmp_path):
    folder, weights = sharded
    checkpoints.main([str(folder), str(tmp_path / "model")])
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["config.json", "model.safetensors"]
    found = load_file(tmp_path / "model" / "model.safetensors")
    assert list(found) == ["embed.weight"], "tied weights are stored once"
    assert torch.equal(found["embed.weight"], weights["embed.weight"])


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
