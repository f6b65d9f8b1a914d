"""Every checkpoint's model card says how its weights were made and reveals nothing about the machine."""

import json

import grpo
from common.card import model_card
from common.folders import write_config
from common.metrics import read_metrics

import pytest
from conftest import SMALL
from huggingface_hub import ModelCard
from runs import on_tiny


def test_a_checkpoint_has_a_card_with_its_last_evaluation(tiny_model, tmp_path):
    """The card has the evaluation after its checkpoint, and no paths of the machine."""
    grpo.main(
        grpo.Args(run_dir=tmp_path / "run", **on_tiny(tiny_model) | {"steps": 2, "save_every": 1, "eval_every": 2})
    )
    first, last = (ModelCard.load(tmp_path / "run" / f"checkpoint-00000{step}" / "README.md") for step in (1, 2))
    before, _, after = read_metrics(tmp_path / "run")
    rows = [f"| {row['step']} | {row['eval/avg']:.3f} (avg@{row['eval/n']})" for row in (before, after)]
    assert rows[0] in first.text and rows[1] not in first.text
    assert rows[0] in last.text and rows[1] in last.text and '"lr": 0.0001' in last.text
    assert str(tmp_path) not in last.content and str(tiny_model.parent) not in last.content
    assert last.data.tags == ["reinforcement-learning", "grpo"] and last.data.base_model is None


def test_names_and_settings_of_others_are_one_line_of_text(tmp_path):
    """Untrusted names and values from config.json are shown as plain text on one line; a commit may be missing."""
    names = "x\n---\nlicense: mit\n\x1b[2J\udcff"
    args = grpo.Args(**SMALL | {"model": str(tmp_path / names), "dataset": ("sums", names), "max_response_tokens": 8})
    write_config(tmp_path, "grpo", args)
    config = json.loads((tmp_path / "config.json").read_text())
    for commit in ({"commit": names}, {}):
        (tmp_path / "config.json").write_text(json.dumps({"method": "grpo", "args": config["args"]} | commit))
        text = ModelCard(model_card(tmp_path, args, {})).text
        text.encode()
        assert "license: mit" not in text.splitlines() and "\x1b" not in text
        assert ("commit unknown" in text) == (not commit)


@pytest.mark.parametrize("dataset,named", [("gsm8k", ["gsm8k"]), ("sums", None), (("sums", "a/b"), ["a/b"])])
def test_models_and_data_of_the_hub_are_linked(dataset, named, tmp_path):
    args = grpo.Args(**SMALL | {"model": "org/base", "dataset": dataset, "max_response_tokens": 8})
    write_config(tmp_path, "grpo", args)
    card = ModelCard(model_card(tmp_path, args, {}))
    assert card.data.base_model == "org/base" and card.data.datasets == named
