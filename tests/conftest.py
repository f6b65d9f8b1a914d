import importlib.metadata
import importlib.util
import json
import os
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:  # xdist workers run best with one core each
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests compare with CPU results, even on a machine with a GPU.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import common  # noqa: F401  (sets what torch and transformers read when they load)
import worlds
from worlds.sums.pretrain import with_experts

import pytest
import torch
from judging import make_verifier
from packaging.version import Version
from pydantic import TypeAdapter
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

# Further installations, and the tests that need them.
NEEDED = {"vllm": ("test_vllm", "test_vllm_experts", "test_vllm_serve"), "verifiers": ("test_verifiers",)}
MISSING = {package for package in NEEDED if not importlib.util.find_spec(package)}
if "verifiers" not in MISSING and Version(importlib.metadata.version("verifiers")) < Version("0.4"):
    MISSING.add("verifiers")
collect_ignore = [f"common/{name}.py" for package in MISSING for name in NEEDED[package]]

CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Small sizes for runs that only need to execute every line.
SMALL = dict(
    steps=2, prompts_per_step=4, responses_per_prompt=4, eval_problems=4, eval_samples=2, max_response_tokens=32
)
LETTERS = f"{Path(__file__).with_name('letters.py')}:LETTERS"  # the tiny model's environment
PROBLEMS = 40  # problems in the tiny model's data set
FEW = 1_000  # training problems of a generated data set, for runs in the tests' own process

adapter_of = cache(TypeAdapter)  # for a script's settings; building one takes longer than the check
FOLDERS = []  # temporary folders of models, removed at the end


@cache
def teacher_of(folder):
    """A model that differs from the one in `folder`, with the same tokenizer."""
    FOLDERS.append(tempfile.TemporaryDirectory())
    model, noise = AutoModelForCausalLM.from_pretrained(folder), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * parameter.std() * torch.randn(parameter.shape, generator=noise)
    model.save_pretrained(FOLDERS[-1].name)
    AutoTokenizer.from_pretrained(folder).save_pretrained(FOLDERS[-1].name)
    return FOLDERS[-1].name


@cache
def experts_of(folder):
    """A mixture of four experts, two used per token, made from the dense model in `folder`."""
    FOLDERS.append(tempfile.TemporaryDirectory())
    dense, noise = LlamaForCausalLM.from_pretrained(folder), torch.Generator().manual_seed(1)
    model = with_experts(dense, 4)
    model.generation_config = dense.generation_config
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "mlp" in name:
                parameter += 0.5 * torch.randn(parameter.shape, generator=noise)
    for part in (model, AutoTokenizer.from_pretrained(folder)):
        part.save_pretrained(FOLDERS[-1].name)
    return FOLDERS[-1].name


def needed(script, model="worlds/sums/model"):
    """Settings that a script cannot run without."""
    found = {"teacher": teacher_of(str(model))} if hasattr(script.Args, "teacher") else {}
    if hasattr(script.Args, "environment") and model != "worlds/sums/model":  # its own model has its own environment
        found["environment"] = LETTERS
    if script.Args.model == "sums-experts" and model != "worlds/sums/model":
        found["model"] = experts_of(str(model))
    return found


@pytest.fixture(scope="session", autouse=True)
def every_problem():
    """The function that generates all problems of a data set; runs in this process get only the first few."""
    every = worlds.generated_problems
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worlds, "generated_problems", lambda *of: every(*of)[:FEW])
        yield every


@pytest.fixture(autouse=True)
def quick_runs(request, monkeypatch, every_problem):
    """Runs in the test process skip fsync, draw no curves and build few problems; marks undo the last two.

    A run's curves take a second to draw, and 20,000 prompts take a second to build.
    """
    monkeypatch.setattr(os, "fsync", lambda _: None)
    monkeypatch.setattr("common.settings.TypeAdapter", adapter_of)
    if "all_problems" in request.keywords:
        monkeypatch.setattr(worlds, "generated_problems", every_problem)
    if "curves" not in request.keywords:
        monkeypatch.setattr("tools.plots.draw_curves", lambda *_: None)


@pytest.fixture(scope="session")
def gsm8k_file(tmp_path_factory):
    """A local data set in GSM8K's format."""
    rng = random.Random(0)
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    with path.open("w") as file:
        for _ in range(60):
            a, b = rng.randint(1, 900), rng.randint(100, 900)
            question = f"Tom has {a} apples and buys {b} more. How many apples does he have?"
            answer = f"He has {a} + {b} = <<{a}+{b}={a + b}>>{a + b} apples.\n#### {a + b:,}"
            file.write(json.dumps({"question": question, "answer": answer}) + "\n")
    return path


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory, gsm8k_file):
    """A folder with a small Qwen3 and a sub-word tokenizer with a chat template; its pad token is its EOS."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train([str(gsm8k_file)], trainer)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|im_end|>")
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=fast.eos_token_id,
        bos_token_id=None,
        pad_token_id=fast.pad_token_id,
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A random Llama with a few thousand parameters and the embedded tokenizer; seven of its tokens end a response."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = AutoTokenizer.from_pretrained("worlds/sums/model")
    tokenizer.save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=64, tie_word_embeddings=False, initializer_range=0.4, bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = list(range(1, 8))
    model.save_pretrained(folder)
    rows = [{"question": f"{i}+{i}=?", "answer": str(2 * i), "solution": f"{i}+{i}={2 * i}"} for i in range(PROBLEMS)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="module")
def embedded():
    """The embedded model and its tokenizer."""
    import grpo
    from common.models import load_model

    return load_model(grpo.Args())


@pytest.fixture(scope="module")
def problems(embedded):
    """Three problems of the embedded model without answers."""
    from common.records import Problem

    from sampling import PROMPTS

    return [Problem(text, "", text, embedded[1](text)["input_ids"]) for text in PROMPTS]


@pytest.fixture
def half_correct(monkeypatch):
    """Make verdicts depend on the text's length, so that the tiny model gets correct and incorrect responses."""
    from common.verification import Verifier

    monkeypatch.setattr(Verifier, "judge", lambda self, responses, *_: [float(len(text) % 2) for text in responses])


@pytest.fixture(scope="session")
def browser():
    """Headless Chromium, for tests/site."""
    from playwright.sync_api import sync_playwright

    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert chromium, "These tests need Chromium: apt-get install -y chromium."
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def verifier():
    verifier = make_verifier()
    yield verifier
    verifier.close()
