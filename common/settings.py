"""Settings that every script has in common, and the check of all settings before anything expensive starts.

A script's `Args` inherits from `Settings` and adds what decides what is learned: the method's own settings, prompts and
responses per step, learning rate, updates. The range of a setting stands beside its field, as its annotation.
"""

import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from common.cli import fail, flag

from annotated_types import Ge, Interval
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

MOST_RESPONSES = 1 << 20  # in one rollout batch or evaluation
EMBEDDED_MODELS = ("arithmetic", "arithmetic-rambling")
GENERATED_DATA = ("arithmetic", "arithmetic-hard", "countdown")
DATA_FILES = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}  # and what reads them

# Ranges. Numbers must be finite unless a range says otherwise.
Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]
GroupSize = Annotated[int, Ge(2)]  # of methods that compare the responses of a group
Positive = Annotated[float, Interval(gt=0, le=1e6)]
NonNegative = Annotated[float, Interval(ge=0, le=1e6)]
Share = Annotated[float, Interval(ge=0, le=1)]
Rate = Annotated[float, Interval(gt=0, le=1)]
Cap = Annotated[float, Interval(gt=0, le=math.inf), Field(allow_inf_nan=True)]


@dataclass(kw_only=True)
class Settings:
    """Data, engine, evaluation and logging; the line under each field is its help on the command line."""

    __pydantic_config__ = ConfigDict(allow_inf_nan=False, extra="forbid")

    # What every script sets for itself
    steps: Count
    prompts_per_step: Count
    responses_per_prompt: Count
    num_minibatches: Count
    update_epochs: Count
    max_response_tokens: Count
    temperature: Positive
    lr: Rate
    lr_schedule: Literal["constant", "linear", "cosine"]
    warmup_steps: CountOrZero
    staleness: CountOrZero

    # Model and data
    model: str = "arithmetic"
    """A model on the hub, a local folder, or one of this repository: "arithmetic", "arithmetic-rambling"."""
    dataset: str = "arithmetic"
    """A data set on the hub, a local .jsonl, .json, .parquet or .csv file, or a generated one: "arithmetic" (sums of 2
    to 6 terms), "arithmetic-hard" (5 to 8), "countdown" (an expression that makes a number of some others)."""
    dataset_config: str | None = None
    """Configuration of a data set on the hub, for example "main" for openai/gsm8k."""
    question_column: str = "question"
    """Column with the question, as text or as chat messages; a dot reaches into a nested column."""
    answer_column: str = "answer"
    """Column with the right answer; GSM8K's `#### 42` and MATH's boxed solutions are understood."""
    train_split: str = "train"
    """Split to train on."""
    eval_split: str | None = None
    """Split to evaluate on; without it, rows of the training split are held out."""
    eval_dataset: str | None = None
    """Data set to evaluate on, if it is another one."""
    prompt: str | None = None
    """Template with {question} in it; by default a chat model is also asked to reason and to box its answer."""
    system_prompt: str | None = None
    """System message before each question, for chat models."""
    max_prompt_tokens: Count | None = None
    """Problems with longer prompts are left out, and counted; without it a prompt that is too long ends the run."""
    answer_format: Literal["boxed", "last-number"] = "boxed"
    """Where the answer stands: in the last \\boxed{}, or the last number, for models too weak to write a box."""
    tolerance: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """How far a decimal answer may be from the right one, as a share of it."""

    reward: tuple[str, ...] = ()
    """Rewards of your own, with weights: "a.py:f=1 correct=0.5"; a function is file.py:name or package.module:name, and
    "correct" what the verifier says, the only reward by default. See docs/rewards.md."""

    # Engine and learner
    engine: Literal["auto", "vllm", "transformers"] = "auto"
    """What generates the responses; auto takes vLLM where it is installed."""
    gpu_memory_utilization: Annotated[float, Interval(gt=0, lt=1)] = 0.4
    """Share of a GPU's memory that vLLM holds while it generates, beside the learner's weights and moments."""
    rollout_precision: Literal["auto", "fp32", "bf16", "fp8", "int4"] = "auto"
    """What the engine computes in: auto is bf16 on a GPU and fp32 elsewhere; fp8 is bf16 with 8-bit weights, in vLLM
    with 8-bit activations too (compute capability 8.9 or more); int4 is bf16 with weights rounded to 4 bits, in both
    engines: a 4-bit sampler's mismatch without its speed."""
    learner_precision: Literal["auto", "fp32", "bf16"] = "auto"
    """What the learner computes in, over weights in fp32: auto is bf16 on a GPU and fp32 elsewhere."""
    fp32_lm_head: bool = False
    """Run the output layer in fp32 on both sides: less mismatch between sampler and learner under bf16."""
    micro_batch_tokens: Count = 4096
    """Padded tokens in one forward and backward pass: a matter of memory and speed, not of the result. GPU: 8192."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass: much less memory, about a third more time in training."""

    # Evaluation, checkpoints, logging
    eval_every: CountOrZero = 20
    """Steps between evaluations on held-out problems; 0 for only before and after."""
    eval_problems: Count = 256
    """Held-out problems."""
    eval_samples: Count = 16
    """n of avg@n and pass@k before and after; a quarter as many during the run."""
    save_every: CountOrZero = 50
    """Steps between checkpoints; 0 for only the last."""
    sharded_checkpoints: bool = False
    """Each process saves its own part, for models that do not fit the memory of one (see common/checkpoints.py)."""
    seed: Annotated[int, Interval(ge=0, lt=1 << 32)] = 1
    """Seed of everything random. On a CPU the same seed gives the same run, to the bit."""
    run_dir: Path | None = None
    """Folder for logs and checkpoints; by default a new one under runs/."""
    resume: Path | None = None
    """Run folder to go on with after an interruption."""
    track: Literal["none", "wandb", "tensorboard"] = "none"
    """Also send the metrics to Weights & Biases or TensorBoard."""

    def checked(self) -> Self:
        """These settings with the types that they are declared with, or the end of the program with one sentence.

        These are the checks that every script needs; a script checks what its own method needs.
        """
        args = validated(type(self), {f.name: getattr(self, f.name) for f in fields(self)})
        if args.prompts_per_step % args.num_minibatches:
            fail(
                f"--num-minibatches {args.num_minibatches} does not divide --prompts-per-step "
                f"{args.prompts_per_step}: every minibatch holds the same number of whole groups."
            )
        for a, b in (("prompts_per_step", "responses_per_prompt"), ("eval_problems", "eval_samples")):
            if getattr(args, a) * getattr(args, b) > MOST_RESPONSES:
                fail(f"{flag(a)} times {flag(b)} is more than {MOST_RESPONSES} responses at once: lower one of them.")
        if getattr(args, "ratio_anchor", None) == "sampler" and getattr(args, "tis_cap", 0) > 0:
            fail("--ratio-anchor sampler needs --tis-cap 0: a ratio to the sampler corrects for its numerics already.")
        if args.dataset in GENERATED_DATA:
            for name in ("dataset_config", "eval_split", "eval_dataset"):
                if getattr(args, name) is not None:
                    fail(f"{flag(name)} belongs to a data set of your own: name it with --dataset.")
        if args.dataset == "countdown" and args.model in EMBEDDED_MODELS:
            fail(f"--dataset countdown is for real models: the embedded {args.model} has learned sums only.")
        named = ("model", "teacher", "student", "dataset", "eval_dataset", "cold_start")
        for name in named:  # a resumed run may start in another folder
            value = getattr(args, name, None)
            if value not in (None, *EMBEDDED_MODELS, *GENERATED_DATA) and local_path(value):
                setattr(args, name, str(local_path(value)))
        args.reward = tuple(
            re.sub(r"^.+\.py(?=:)", lambda file: str(Path(file[0]).expanduser().absolute()), name)
            for name in args.reward
        )
        for name in ("run_dir", "resume"):
            if path := getattr(args, name):
                setattr(args, name, path.expanduser())
        return args


def local_path(name: str) -> Path | None:
    """The path that a name of a model or data set stands for, or None where it can only be a name on the hub."""
    path = Path(name).expanduser()
    is_path = name.startswith((".", "/", "~")) or path.suffix in DATA_FILES or len(path.parts) > 2
    # In runs/smolm, where a folder runs/ lies, a path is meant, mistyped as it may be.
    in_folder = len(path.parts) == 2 and Path(path.parts[0]).is_dir()
    return path.absolute() if is_path or in_folder or path.exists() else None


def validated(kind: type, values: dict[str, Any], where: str = "") -> Any:
    """An instance of the dataclass `kind`; a value outside its range or of another type ends the program."""
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].replace("Input should be", "must be", 1)
        fail(f"{where}{flag(str(first['loc'][0]))} {reason}, not {first['input']!r}.")
