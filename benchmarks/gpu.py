"""Everything that has to be measured on a GPU, in pieces that fit a machine that is available for minutes.

    python -m benchmarks.gpu --out gpu                 # what gpu/gpu.json lacks, for at most eight minutes; repeat
    python -m benchmarks.gpu --out gpu --only vllm oom # some stages
    python -m benchmarks.gpu --out gpu --tiny          # tiny sizes, on any machine, to try the commands

Stages: "learns" (the default run and every top-level script), "vllm" (engine against learner by precision, memory
asleep and awake, tokens/s), "real" (a pretrained model on sums and GSM8K; needs --model and --gsm8k), "speed" (random
weights: fraction of the matmul rate, memory of log-probs by vocabulary, a step against TRL if it is installed) and
"oom" (memory runs out, and the run resumes from its checkpoint). Each result is written at once, with command,
versions, device and date; a failed one is written with its error and tried again next time.
"""

import importlib.util
import json
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Literal

from benchmarks import smollm
from common.cli import fail
from common.folders import package_versions
from common.metrics import read_metrics
from tools.scripts import ROOT, command, parents, script_path

import torch
import tyro
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

Stage = Literal["learns", "vllm", "real", "speed", "oom"]
# Width, layers, MLP width, heads, key-value heads, tokens per micro-batch
SHAPES = {
    "0.5B": (896, 24, 4864, 14, 2, 8192),
    "1.5B": (1536, 28, 8960, 12, 2, 8192),
    "3B": (2048, 36, 11008, 16, 2, 4096),
}
TINY_SHAPES = {"tiny": (128, 2, 256, 4, 2, 2048)}
PRECISIONS = {
    "bf16": ["--rollout-precision", "bf16"],
    "fp8": ["--rollout-precision", "fp8"],
    "bf16, FP32 head": ["--rollout-precision", "bf16", "--fp32-lm-head"],
}


@dataclass
class Args:
    out: Path
    """Folder of gpu.json; results that it has are not measured again."""
    only: tuple[Stage, ...] = ("learns", "vllm", "real", "speed", "oom")
    """Stages to run."""
    names: tuple[str, ...] = ()
    """Results to measure, such as "grpo" and "rates of 0.5B"; all of the stages where none is named."""
    minutes: float = 8.0
    """Minutes after which everything stops."""
    model: Path | None = None
    """Folder that `python -m tools.smollm` made, for "real"."""
    gsm8k: Path | None = None
    """Folder with GSM8K's train.jsonl and test.jsonl, for "real"."""
    tiny: bool = False
    """Tiny sizes and the engine of transformers where vLLM is not installed."""


class Watch(threading.Thread):
    """GiB in use on the GPU by all processes, twice per second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.used: list[float] = []
        self.over = threading.Event()

    def __enter__(self) -> "Watch":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()

    def run(self) -> None:
        while torch.cuda.is_available() and not self.over.wait(0.5):
            free, total = torch.cuda.mem_get_info()
            self.used.append(round((total - free) / 2**30, 2))


class Session:
    """The measurements of one call, within the time that is left."""

    def __init__(self, args: Args, work: Path) -> None:
        self.args, self.work = args, work
        self.end = time.monotonic() + 60 * args.minutes
        self.engine = "vllm" if importlib.util.find_spec("vllm") else "transformers"

    def call(self, words: list[str], **kwargs: Any) -> str:
        """What a command prints; if it fails, an error with the end of its stderr."""
        seconds = self.end - time.monotonic()
        result = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=seconds, **kwargs)
        if result.returncode != 0:
            raise RuntimeError(f"exit status {result.returncode}: {result.stderr[-1000:]}")
        return result.stdout

    def train(self, script: str, *flags: str) -> dict:
        """Run a script; returns its log and the GPU's memory meanwhile."""
        folder = Path(tempfile.mkdtemp(dir=self.work)) / "run"
        small = ["--prompts-per-step", "4", "--eval-problems", "4", "--eval-samples", "1"] if self.args.tiny else []
        words = [*command(script_path(script)), "--save-every", "0", *flags, *small]
        start = time.perf_counter()
        with Watch() as watch:
            self.call([sys.executable, *words, "--run-dir", str(folder)])
        seconds = time.perf_counter() - start
        return {"command": words, "seconds": seconds, "used": watch.used, "log": read_metrics(folder)}

    def steps(self, number: int) -> list[str]:
        return ["--steps", str(2 if self.args.tiny else number)]

    def random_model(self, shape: str) -> Path:
        """A folder with a Qwen2 with random weights and the embedded model's tokenizer."""
        folder = self.work / shape
        if not folder.exists():
            width, layers, mlp, heads, kv_heads, _ = (SHAPES | TINY_SHAPES)[shape]
            tokenizer = AutoTokenizer.from_pretrained(ROOT / "worlds/sums/model")
            config = Qwen2Config(
                vocab_size=512 if self.args.tiny else 151_936,
                hidden_size=width,
                num_hidden_layers=layers,
                intermediate_size=mlp,
                num_attention_heads=heads,
                num_key_value_heads=kv_heads,
                tie_word_embeddings=True,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
            )
            with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
                model = Qwen2ForCausalLM(config).to(torch.bfloat16)
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            del model
            torch.cuda.empty_cache()  # later runs need it
        return folder


def learns(session: Session) -> dict[str, Callable[[], dict]]:
    measured = {"the default run": lambda: session.train("grpo", "--engine", "transformers", *session.steps(100))}
    short = [*session.steps(10), "--engine", "transformers", "--eval-every", "0"]
    for name in parents():
        if script_path(name).parent == ROOT:
            measured[name] = lambda name=name: session.train(name, *short)
    return measured


def vllm(session: Session) -> dict[str, Callable[[], dict]]:
    flags = ["--engine", session.engine, *session.steps(20), "--eval-every", "0"]
    measured = {name: lambda own=own: session.train("grpo", *flags, *own) for name, own in PRECISIONS.items()}

    def tokens() -> dict:
        repeats = "1" if session.args.tiny else "9"
        words = ["-m", "benchmarks.vllm_engine", "--precision", "bf16", "--repeats", repeats]
        return {"command": words, "printed": session.call([sys.executable, *words])}

    return measured | ({"tokens/s": tokens} if session.engine == "vllm" else {})


def real(session: Session) -> dict[str, Callable[[], dict]]:
    model, gsm8k = session.args.model, session.args.gsm8k
    measured = {}
    if model:
        data = ["--dataset", str(model / "train.jsonl"), "--eval-dataset", str(model / "held-out.jsonl")]
        flags = [*smollm.FLAGS, "--engine", session.engine, "--num-minibatches", "2", *session.steps(15)]
        measured["sums"] = lambda: session.train("grpo", "--model", str(model), *data, *flags)
    if model and gsm8k:
        words = [
            "--dataset",
            str(gsm8k / "train.jsonl"),
            "--eval-dataset",
            str(gsm8k / "test.jsonl"),
            *session.steps(10),
        ]
        words += ["--max-response-tokens", "512", "--eval-problems", "64", "--eval-samples", "4", "--lr", "3e-6"]
        measured["GSM8K"] = lambda: session.train("grpo", "--model", str(model), "--engine", session.engine, *words)
    return measured


def speed(session: Session) -> dict[str, Callable[[], dict]]:
    tiny = session.args.tiny

    def rates(shape: str) -> dict:
        sizes = ["--max-response-tokens", "8", "--square", "256"] if tiny else ["--max-response-tokens", "512"]
        words = ["-m", "benchmarks.throughput", "--model", str(session.random_model(shape)), "--engine", session.engine]
        words += [
            "--micro-batch-tokens",
            str((SHAPES | TINY_SHAPES)[shape][-1]),
            "--repeats",
            "3",
            "--square",
            "8192",
            *sizes,
        ]
        if shape == "3B":
            words.append("--gradient-checkpointing")
        with Watch() as watch:
            printed = session.call([sys.executable, *words])
        return {"command": words, "printed": printed, "used": watch.used}

    def stages(shape: str) -> dict:
        flags = ["--model", str(session.random_model(shape)), "--engine", session.engine, *session.steps(3)]
        flags += ["--micro-batch-tokens", str((SHAPES | TINY_SHAPES)[shape][-1]), "--eval-problems", "4"]
        flags += ["--gradient-checkpointing"] if shape == "3B" else []
        return session.train("grpo", *flags, "--eval-samples", "1", "--max-response-tokens", "8" if tiny else "512")

    def logprobs() -> dict:
        """Peak memory by vocabulary size, each measured in its own process."""
        vocabularies, tokens = ([512, 1024], 64) if tiny else ([32_768, 65_536, 151_936], 8192)
        words = [sys.executable, "-m", "benchmarks.memory", "--kind", "chunks", "--tokens", str(tokens)]
        peaks = {size: float(session.call([*words, "--vocabulary", str(size)]).split()[-1]) for size in vocabularies}
        return {"command": words[1:], "tokens": tokens, "peak_mib": peaks}

    def trl() -> dict:
        sizes = ["--steps", "4", "--turns", "1"] if tiny else ["--turns", "2"]
        words = ["-m", "benchmarks.trl", "--trl-python", sys.executable, *sizes]
        return {"command": words, "printed": session.call([sys.executable, *words])}

    shapes = TINY_SHAPES if tiny else SHAPES
    measured: dict[str, Callable[[], dict]] = {"memory of log-probs": logprobs}
    for shape in shapes:
        measured[f"rates of {shape}"] = lambda shape=shape: rates(shape)
        measured[f"stages of {shape}"] = lambda shape=shape: stages(shape)
    return measured | ({"a step against TRL": trl} if importlib.util.find_spec("trl") else {})


def oom(session: Session) -> dict[str, Callable[[], dict]]:
    def runs_out() -> dict:
        """A run is stopped, resumed with too little memory, and resumed again with enough."""
        folder = session.work / "oom"
        shape = "tiny" if session.args.tiny else "0.5B"
        words = [sys.executable, "grpo.py", "--model", str(session.random_model(shape)), "--engine", "transformers"]
        words += [
            "--steps",
            "6" if session.args.tiny else "3",  # each step saves 6 GB
            "--save-every",
            "1",
            "--eval-every",
            "0",
            "--eval-problems",
            "2",
            "--eval-samples",
            "1",
        ]
        words += ["--max-response-tokens", "16", "--prompts-per-step", "4", "--run-dir", str(folder)]
        with (session.work / "oom.log").open("w+") as log:
            process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=log)
            while not (folder / "checkpoint-000001").exists():
                if process.poll() is not None or time.monotonic() > session.end:
                    process.kill()
                    log.seek(0)
                    raise RuntimeError(f"no checkpoint to go on from: {log.read()[-1000:]}")
                time.sleep(0.1)
            address_space = peak_address_space(process.pid)
            process.send_signal(signal.SIGINT)
            process.wait(60)
        again = [sys.executable, "grpo.py", "--resume", str(folder)]
        with little_memory(address_space) as short:
            seconds = session.end - time.monotonic()
            lacking = subprocess.run(again, cwd=ROOT, capture_output=True, text=True, timeout=seconds, **short)
        session.call(again)
        last = [line for line in lacking.stderr.splitlines() if line.strip()]
        return {
            "command": words[1:],
            "code": lacking.returncode,
            "printed": last,
            "steps": read_metrics(folder)[-1]["step"],
        }

    return {"memory runs out": runs_out}


def peak_address_space(pid: int) -> int:
    """The largest address space, in bytes, that a process of this machine has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmPeak"))


@contextmanager
def little_memory(address_space: int) -> Iterator[dict]:
    """Arguments that start a process with too little memory: 3 GiB of the GPU, or a small address space."""
    if torch.cuda.is_available():
        taken = torch.empty(torch.cuda.mem_get_info()[0] - (3 << 30), dtype=torch.uint8, device="cuda")
        yield {}
        del taken
        torch.cuda.empty_cache()
    else:
        limit = int(0.8 * address_space)
        yield {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))}


def main(args: Args) -> None:
    if not torch.cuda.is_available() and not args.tiny:
        fail("this machine has no GPU that torch can use; --tiny tries the commands without one.")
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "gpu.json"
    results: dict[str, dict] = json.loads(file.read_text()) if file.exists() else {}
    stages = {"learns": learns, "vllm": vllm, "real": real, "speed": speed, "oom": oom}
    versions = package_versions()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as work:
        session = Session(args, Path(work))
        for stage in args.only:
            for name, measure in stages[stage](session).items():
                key = f"{stage}: {name}"
                known = "error" not in results.get(key, {"error": "not measured"})
                if known or (args.names and name not in args.names):
                    continue
                if time.monotonic() > session.end:
                    print("time is up; the same command goes on")
                    return
                try:
                    result = measure()
                except subprocess.TimeoutExpired:
                    print(f"{key}: cut off, time is up; the same command goes on")
                    return
                except (RuntimeError, OSError) as error:
                    result = {"error": str(error)}
                results[key] = result | {"versions": versions, "device": device, "date": str(date.today())}
                file.write_text(json.dumps(results, indent=1).replace(f"{work}/", "") + "\n")
                print(f"{key}: {'FAILED ' + result['error'] if 'error' in result else 'measured'}", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
