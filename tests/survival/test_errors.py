"""Every mistake of a user gets one clear sentence and exit code 2, and changes nothing."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import dapo
import dppo
import grpo
import ppo
import rloo
from common.records import Problem
from common.run import Run
from common.terminal import Terminal, write_samples
from recipes import pipeline_rl
from tools.scripts import ROOT

import pytest
import runs
import torch
from conftest import SMALL
from runs import on_tiny
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    Gemma2Config,
    GraniteConfig,
    LlamaConfig,
    MambaConfig,
)


def refused(capsys, tmp_path, script=grpo, **settings):
    return runs.refused(capsys, tmp_path, script, **settings)


@pytest.mark.parametrize(
    "settings,words",
    [
        ({"model": "./nowhere"}, "no such model folder"),
        ({"dataset": "./nowhere.jsonl"}, "no such file"),
        ({"dataset": "./nowhere"}, "no such file or folder"),
        ({"eval_dataset": "./nowhere.jsonl"}, "--eval-dataset"),
        ({"model": "~nobody-here/model"}, "~nobody-here/model: there is no such user"),
        ({"run_dir": Path("~nobody-here/run")}, "~nobody-here/run: there is no such user"),
        ({"model": "./" + "x" * 300}, "File name too long"),
        ({"responses_per_prompt": 1}, "greater than or equal to 2"),
        ({"num_minibatches": 3}, "does not divide"),
        ({"num_minibatches": 0}, "greater than or equal to 1"),
        ({"max_response_tokens": 1000}, "context of 256 tokens"),
        ({"temperature": 0.0}, "--temperature must be greater than 0"),
        ({"temperature": float("nan")}, "--temperature must be a finite number"),
        ({"lr": -1.0}, "--lr must be greater than 0"),
        ({"lr": float("inf")}, "--lr must be a finite number"),
        ({"max_grad_norm": 1e308}, "--max-grad-norm must be less than or equal to 1000000"),
        ({"steps": 0}, "--steps must be greater than or equal to 1"),
        ({"seed": -1}, "--seed must be greater than or equal to 0"),
        ({"weight_decay": 2.0}, "--weight-decay must be less than or equal to 1"),
        ({"clip_eps": 0.0}, "--clip-eps must be greater than 0"),
        ({"ddof": 2}, "0 or 1"),
        ({"ratio_anchor": "engine"}, "needs --tis-cap 0"),
        ({"prompts_per_step": 2**20}, "responses at once"),
        ({"eval_samples": 2**20}, "responses at once"),
        ({"eval_split": "test"}, "data set of your own"),
        ({"dataset_config": "main"}, "data set of your own"),
        ({"prompt": "no place for it"}, "{question}"),
    ],
)
def test_settings(settings, words, capsys, tmp_path):
    assert words in refused(capsys, tmp_path, **settings)


def test_group_of_one_in_rloo(capsys, tmp_path):
    assert "than or equal to 2" in refused(capsys, tmp_path, rloo, responses_per_prompt=1)


def test_settings_of_one_method(capsys, tmp_path):
    assert "--overlong-cache" in refused(capsys, tmp_path, dapo, overlong_cache=33)
    assert "needs a binary divergence" in refused(capsys, tmp_path, dppo, divergence="topk-tv", ratio_anchor="learner")
    assert "less than or equal to 1" in refused(capsys, tmp_path, ppo, gamma=1.5)
    assert "set --in-flight-every 0" in refused(capsys, tmp_path, pipeline_rl, staleness=0)
    on_policy = {"staleness": 0, "in_flight_every": 0}
    assert "leave out --overlap" in refused(capsys, tmp_path, pipeline_rl, overlap=True, **on_policy)


def test_a_file_has_no_splits(capsys, tmp_path, gsm8k_file):
    for settings in ({"eval_split": "test"}, {"train_split": "test"}, {"dataset_config": "main"}):
        assert "is a file, without splits" in refused(capsys, tmp_path, dataset=str(gsm8k_file), **settings)


@pytest.mark.parametrize("track", ["wandb", "tensorboard"])
def test_missing_tracker(track, capsys, tmp_path, monkeypatch):
    for name in ("wandb", "tensorboard", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    assert f"pip install {track}" in refused(capsys, tmp_path, track=track)


def test_vllm_that_is_not_installed(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "vLLM is not installed" in refused(capsys, tmp_path, engine="vllm")


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
    rows = [{"question": [{"role": "user", "content": f"{i}?"}], "answer": "2"} for i in range(10)]
    assert "no chat template" in refused(capsys, tmp_path, dataset=write(tmp_path / "chat.jsonl", rows))


@pytest.mark.parametrize("damage", ["cut", "missing", "pickle"])
def test_corrupt_model(damage, capsys, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "worlds/sums/model", folder)
    weights = folder / "model.safetensors"
    if damage == "cut":
        weights.write_bytes(weights.read_bytes()[:5000])
    else:
        weights.unlink()
    if damage == "pickle":  # which could run code when it is read
        (folder / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    assert "cannot be loaded" in refused(capsys, tmp_path, model=str(folder))


def test_nothing_is_overwritten(capsys, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    assert "nothing is overwritten" in refused(capsys, tmp_path, run_dir=tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]


def test_unwritable_run_folder(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written" in refused(capsys, tmp_path, run_dir=tmp_path / "file" / "run")


def test_resume(capsys, tmp_path, tiny_model):
    assert "is not a run folder" in refused(capsys, tmp_path, resume=tmp_path / "nowhere")
    run = tmp_path / "finished"
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": run, "steps": 1}))
    capsys.readouterr()
    with pytest.raises(SystemExit):
        rloo.main(rloo.Args(resume=run))
    assert "is a run of grpo.py" in capsys.readouterr().err
    (run / "curves.png").unlink()
    grpo.main(grpo.Args(resume=run))  # a finished run only draws its picture and prints its summary
    assert "held-out accuracy" in capsys.readouterr().out and (run / "curves.png").exists()
    with pytest.raises(SystemExit):
        grpo.main(grpo.Args(resume=run, lr=1.0))
    assert "leave out --lr" in capsys.readouterr().err


HEAVY = ("transformers", "datasets", "matplotlib", "scipy")  # they take seconds to import
COMMAND = """
import atexit, runpy, sys
atexit.register(lambda: print("imported:", *(name for name in heavy.split() if name in sys.modules)))
heavy = sys.argv[1]; del sys.argv[:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    "flags,words",
    [
        (["--stepz", "3"], "--stepz"),
        pytest.param(["--steps", "many"], "steps", marks=pytest.mark.slow),
        pytest.param(["--engine", "magic"], "magic", marks=pytest.mark.slow),
        (["--lr", "-1"], "error: --lr must be greater than 0, not -1.0."),
        (["--prompts-per-step", "3"], "error: --num-minibatches 4 does not divide --prompts-per-step 3"),
        (["--help"], "--clip-eps"),
    ],
)
def test_command_line(flags, words):
    """Answered before what takes seconds is imported."""
    command = [sys.executable, "-c", COMMAND, " ".join(HEAVY), "grpo.py", *flags]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == (0 if flags == ["--help"] else 2), result.stderr
    assert words in result.stdout + result.stderr and "Traceback" not in result.stderr, result.stderr
    assert re.search(r"^imported:$", result.stdout, re.M), f"grpo.py {' '.join(flags)} {result.stdout.splitlines()[-1]}"


def test_a_script_in_a_folder_runs_in_every_way(tmp_path):
    """As a file and as a module from the repository, and as a file from another folder."""
    of_methods = ["methods/sapo.py"], ["-m", "methods.sapo"], [str(ROOT / "methods/sapo.py")]
    for words in (*of_methods, [str(ROOT / "recipes/olmo3.py")]):
        folder = tmp_path if words[0].startswith("/") else ROOT
        result = subprocess.run([sys.executable, *words, "--help"], cwd=folder, capture_output=True, text=True)
        assert result.returncode == 0 and "--ddof" in result.stdout, f"python {' '.join(words)}: {result.stderr}"


# Models and data that are not what they seem


def changed_model(folder, **changes):
    """A copy of the embedded model with another configuration."""
    shutil.copytree(ROOT / "worlds/sums/model", folder)
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def save_random(folder, config):
    """A random model of some architecture with the embedded tokenizer."""
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
    assert "standard KV cache" in words or "is not built as a causal language model" in words


@pytest.mark.parametrize("change", ["missing", "renamed"])
def test_weights_that_are_not_in_the_files(change, capsys, tmp_path):
    """They would be initialized at random."""
    folder = changed_model(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    tensor = weights.pop("model.layers.1.mlp.up_proj.weight")
    if change == "renamed":
        weights["model.layers.1.mlp.up.weight"] = tensor
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert "no weights for model.layers.1.mlp.up_proj.weight" in refused(capsys, tmp_path, model=str(folder))


def test_mistyped_paths_are_not_looked_up_elsewhere(capsys, tmp_path, monkeypatch):
    """In a folder that is here, a name is a path."""
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


def test_broken_text_and_numbers_as_questions(capsys, tmp_path):
    (tmp_path / "latin.jsonl").write_bytes(b'{"question": "caf\xe9?", "answer": "1"}\n' * 20)
    assert "not UTF-8" in refused(capsys, tmp_path, dataset=str(tmp_path / "latin.jsonl"))
    rows = [{"question": i, "answer": str(i)} for i in range(40)]
    grpo.main(
        grpo.Args(**SMALL | {"dataset": write(tmp_path / "n.jsonl", rows), "run_dir": tmp_path / "run", "steps": 1})
    )
    assert "held-out accuracy" in capsys.readouterr().out


# Run folders


def test_runs_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda *args: "20260101-000000")
    monkeypatch.setattr(Run, "summarize", lambda self: (self.dir / "x").touch())
    folders = []
    for _ in range(3):
        with Run(grpo.Args(), str(ROOT / "grpo.py")) as run:
            folders.append(run.dir)
    assert len(set(folders)) == 3 and all(folder.is_dir() for folder in folders)


@pytest.mark.parametrize("flag", ["run_dir", pytest.param("resume", marks=pytest.mark.slow)])
def test_a_folder_in_use(flag, tiny_model, tmp_path, monkeypatch, capsys):
    """A second start with the same folder is refused while the first one runs, and does not change it."""
    monkeypatch.setattr(Run, "summarize", lambda self: None)
    folder = tmp_path / "run"
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": folder, "steps": 1}))
    if flag == "run_dir":
        folder = tmp_path / "new"
    with Run(grpo.Args(**{flag: folder}), str(ROOT / "grpo.py")):
        code = "import sys, grpo\nfrom pathlib import Path\ngrpo.main(grpo.Args(**{sys.argv[1]: Path(sys.argv[2])}))"
        command = [sys.executable, "-c", code, flag, str(folder)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 2 and "is in use by another run" in result.stderr, result.stderr


def test_config_that_was_changed(capsys, tiny_model, tmp_path):
    run = tmp_path / "finished"
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": run, "steps": 1}))
    config = json.loads((run / "config.json").read_text())
    for name, value, words in (("steps", "many", "--steps"), ("lr", [1], "--lr"), ("nonsense", 1, "--nonsense")):
        changed = config | {"args": config["args"] | {name: value}}
        (run / "config.json").write_text(json.dumps(changed))
        error = refused(capsys, tmp_path, resume=run, run_dir=None)
        assert "its config.json was changed" in error and words in error
    for text in ("[]", '{"method": "grpo", "args": 3}', "{"):
        (run / "config.json").write_text(text)
        assert "missing or damaged" in refused(capsys, tmp_path, resume=run, run_dir=None)


def test_home_folder_and_relative_data(capsys, tiny_model, tmp_path, monkeypatch):
    """`~` is the home folder, and a run with a relative --dataset resumes from any folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copy(tiny_model / "problems.jsonl", tmp_path / "data.jsonl")
    grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": Path("~/x"), "dataset": "data.jsonl", "steps": 1}))
    assert (tmp_path / "x" / "config.json").exists() and not (tmp_path / "~").exists()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "x" / "checkpoint-000001")
    grpo.main(grpo.Args(resume=Path("~/x")))
    assert "held-out accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("how", ["deleted", "read-only"])
def test_run_folder_that_vanishes(how, tiny_model, tmp_path, monkeypatch, capsys):
    """In the middle of a run: one sentence, no traceback."""
    original = grpo.collate

    def vanish(*args):
        folder = tmp_path / "run"
        if how == "deleted":
            shutil.rmtree(folder)
        else:  # root may write anywhere: a folder in the file's place refuses everybody
            (folder / "metrics.jsonl").unlink()
            (folder / "metrics.jsonl").mkdir()
        return original(*args)

    monkeypatch.setattr(grpo, "collate", vanish)
    with pytest.raises(SystemExit) as stop:
        grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": tmp_path / "run"}))
    assert stop.value.code == 1
    assert "was moved, deleted or made read-only" in capsys.readouterr().err


def test_a_full_disk_is_named_where_torch_does_not(tiny_model, tmp_path, monkeypatch, capsys):
    def full(*args, **kwargs):
        raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")

    monkeypatch.setattr("torch.save", full)
    with pytest.raises(SystemExit):
        grpo.main(grpo.Args(**on_tiny(tiny_model) | {"run_dir": tmp_path / "run"}))
    error = capsys.readouterr().err
    assert "cannot be written: the disk is full" in error and "enforce" not in error


# Terminals


@pytest.mark.slow
def test_stdout_that_is_closed(tiny_model, tmp_path):
    """As with `| head -1`: the step under way is finished and saved, and no traceback follows."""
    flags = runs.flags(on_tiny(tiny_model) | {"steps": 200, "run_dir": tmp_path / "run"})
    process = subprocess.Popen(
        [sys.executable, "grpo.py", *flags], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if line.startswith("step    1"):
            break
    process.stdout.close()
    error = process.stderr.read()
    process.wait(60)
    assert "Traceback" not in error and "BrokenPipe" not in error, error
    (checkpoint,) = (tmp_path / "run").glob("checkpoint-*")
    assert int(checkpoint.name.removeprefix("checkpoint-")) < 200


@pytest.mark.slow
def test_ascii_terminal(tiny_model, tmp_path):
    flags = runs.flags(on_tiny(tiny_model) | {"steps": 1, "run_dir": tmp_path / "run"})
    result = subprocess.run(
        [sys.executable, "grpo.py", *flags], cwd=ROOT, capture_output=True,
        text=True, env=os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "held-out accuracy" in result.stdout and "?" in result.stdout


def test_what_a_model_writes_does_not_steer_the_terminal(tmp_path, capsys):
    problem = Problem("q", "4\x07", "\x1b[2J sum", [1])
    sample = (problem, "```\n<script>alert(1)</script>\n## Step 1: \x1b[31mred\x9b \u202e", True)
    Terminal(lambda: None).print_first_sample(sample)
    output = capsys.readouterr().out
    assert "\x1b" not in output and "\x07" not in output and "\x9b" not in output and "\u202e" not in output
    assert "\\x1b[2J sum" in output
    write_samples(tmp_path / "s" / "step-000001.md", [sample])
    text = (tmp_path / "s" / "step-000001.md").read_text()
    assert "\x1b" not in text and "\n````text\n```\n<script>" in text and text.count("````") == 2
