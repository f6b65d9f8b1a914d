"""Settings that every script has in common, and the check of all settings before anything expensive starts.

A script's `Args` inherits from `Settings` and adds what determines learning: the method's own settings, prompts and
responses per step, learning rate, updates. Tools that only sample from a model inherit from `ModelSettings` or
`DataSettings`. A field's annotation gives its range, the string under it its help, and GROUP its heading in `--help`.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from common.cli import expanded, fail, flag
from common.distributed import world_size
from worlds import DATASETS, MODELS, check_dataset, is_generated, length_limit

import tyro
from annotated_types import Ge, Interval
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

MOST_RESPONSES = 1 << 20  # in one rollout batch or evaluation
STANDARD_DATA = ("gsm8k", "math500", "aime24")  # on the hub, under longer names
COLUMN = r"(?<!\\boxed)\{(\w[\w.]*)\}"  # in a prompt template
DATA_FILES = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}  # and what reads them

SAVED = ("show_rewards", "save_rollouts", "save_tokens", "save_dtype", "track")
MEMORY = ("micro_batch_tokens", "gradient_checkpointing", "gpu_memory_utilization")
SAME_RESULT = (*MEMORY, "reward_timeout", "reward_workers", *SAVED)  # except for rounding and late rewards
MODEL_SETTINGS = ("model", "teacher", "student")  # which may name local folders
DATA_SETTINGS = ("dataset", "eval_dataset", "few_shot", "cold_start")  # which may name local files
OF_EACH_DATASET = ("dataset_config", "question_column", "answer_column", "train_split", "eval_split", "eval_dataset")

# Ranges. Numbers must be finite unless a range says otherwise.
Count = Annotated[int, Ge(1)]
CountOrZero = Annotated[int, Ge(0)]
GroupSize = Annotated[int, Ge(2)]  # for methods that compare the responses of a group
Positive = Annotated[float, Interval(gt=0, le=1e6)]
NonNegative = Annotated[float, Interval(ge=0, le=1e6)]
Fraction = Annotated[float, Interval(ge=0, le=1)]
Rate = Annotated[float, Interval(gt=0, le=1)]
Seed = Annotated[int, Interval(ge=0, lt=1 << 32)]
Names = str | tuple[str, ...]
OrNone = str | tuple[str | None, ...] | None
Reward = str | Annotated[Callable[..., Any], tyro.conf.Suppress]  # a name, or a Python function
Cap = Annotated[float, Interval(gt=0, le=math.inf), Field(allow_inf_nan=True)]


@dataclass(kw_only=True)
class ModelSettings:
    """A model, its prompts, and the engine."""

    GROUP = "Model and engine"
    __pydantic_config__ = ConfigDict(allow_inf_nan=False, extra="forbid")

    # Set by every program and script
    max_response_tokens: Count | None
    temperature: NonNegative
    seed: Seed

    model: str = "sums"
    """A model on the hub, a local folder, a run folder (its newest checkpoint), or an embedded one: "sums",
    "sums-filler" (repeats results before the box), "sums-experts" (a mixture of experts), "products" (calls a
    calculator), "search" (tries several expressions), or for environments "guessing", "retrieval" or "python"."""
    prompt: str | None = None
    """Template with {question}, columns of the data set, or both: "{context} {question}"; by default a chat model is
    also asked to reason and to box its answer."""
    system_prompt: str | None = None
    """System message before each question, for chat models."""
    stop: tuple[str, ...] = ()
    """Strings that end a response and remain part of it; for base models, which go on to write another question."""
    engine: Literal["auto", "vllm", "transformers"] = "auto"
    """Program that generates the responses; auto uses vLLM if it is installed."""
    gpu_memory_utilization: Annotated[float, Interval(gt=0, lt=1)] = 0.4
    """Fraction of a GPU's memory that vLLM holds while it generates; the learner's weights and optimizer are extra."""
    rollout_precision: Literal["auto", "fp32", "fp16", "bf16", "fp8", "int8", "int4"] = "auto"
    """Precision of the engine. auto: bf16 on a GPU with bf16 hardware, else fp32. fp8: bf16 with 8-bit weights, in vLLM
    with 8-bit activations too (compute capability 8.9 or more). int8, int4: weights rounded to 8 or 4 bits,
    computed in bf16, with the mismatch of a quantized engine but not its speed."""
    fp32_lm_head: bool = False
    """Run the output layer in fp32 on both sides: less mismatch between engine and learner under bf16."""

    def __post_init__(self) -> None:
        if self.max_response_tokens is None:
            self.max_response_tokens = length_limit(self.model, getattr(self, "dataset", ""))

    def checked(self) -> Self:
        """These settings, converted to their declared types; ends the program with one sentence if one is wrong."""
        args = validated(type(self), {f.name: getattr(self, f.name) for f in fields(self)})
        if args.max_response_tokens is None:
            fail(f"--max-response-tokens: give a length limit for --model {args.model}, for example 512 for GSM8K.")
        for name in (*MODEL_SETTINGS, *DATA_SETTINGS):  # a resumed run may be started from another folder
            if value := getattr(args, name, None):
                setattr(args, name, tuple(map(absolute, value)) if isinstance(value, tuple) else absolute(value))
        for name in ("run_dir", "resume"):
            if path := getattr(args, name, None):
                setattr(args, name, expanded(path))
        columns = isinstance(args, DataSettings) and columns_in(args.prompt)
        if args.prompt is not None and "{question}" not in args.prompt and not columns:
            fail("--prompt must contain {question}, where the question goes, or names of columns in braces.")
        if "" in args.stop:
            fail("--stop: an empty string would end every response at once.")
        return args


@dataclass(kw_only=True)
class DataSettings(ModelSettings):
    """Problems and rewards."""

    GROUP = "Data and rewards"

    dataset: Names = "sums"
    """A data set on the hub; a local .jsonl, .json, .parquet or .csv file; a generated one: "sums" (2 to 6 terms),
    "sums-hard" (5 to 8), "products" (sums with products), "search" (plus and minus between 4 numbers for a given
    value), "search-hard" (5 or 6), "countdown" (any expression with a given value), "guessing", "retrieval" or "python"
    (for environments), or ADAPTER:TASK for another package's task (docs/tasks.md); "gsm8k", whose splits and columns
    are known; or, for evaluation only, "math500" and "aime24". Several data sets are mixed."""
    mix: tuple[Positive, ...] = ()
    """Mixing weights of several data sets: their average proportions in a rollout batch; equal by default."""
    dataset_config: OrNone = None
    """Configuration of a data set on the hub, for example "main" for openai/gsm8k. For several data sets, this and the
    settings down to --eval-dataset take one value for all or one for each."""
    question_column: Names = "question"
    """Column with the question, as text or as chat messages; a dot reaches into a nested column."""
    answer_column: Names = "answer"
    """Column with the correct answer; GSM8K's `#### 42` and MATH's boxed solutions are understood."""
    train_split: Names = "train"
    """Split to train on."""
    eval_split: OrNone = None
    """Split to evaluate on; without it, rows of the training split are held out."""
    eval_dataset: OrNone = None
    """Data set to evaluate on; by default --dataset. Several are allowed with one --dataset; each has its own score."""
    eval_seed: Seed = 0
    """Decides the held-out problems and the seeds of their samples; runs with the same value are comparable."""
    few_shot: str | None = None
    """File of examples (columns question and answer) to put before each question, mainly for base models."""
    max_prompt_tokens: Count | None = None
    """Problems with longer prompts are left out and counted; by default a prompt that is too long ends the run."""
    answer_format: Literal["boxed", "last-number"] = "boxed"
    """Which part of a response is the answer: the last \\boxed{}, or the last number, for models too weak for boxes."""
    tolerance: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """How far a decimal answer may be from the correct one, as a fraction of it."""

    reward: tuple[Reward, ...] = ()
    """Your own reward functions, with weights: "a.py:f=1 correct=0.5". A function is file.py:name or
    package.module:name; "correct" is the verifier's verdict and the only reward by default. See docs/rewards.md."""
    reward_timeout: Positive = 30.0
    """Seconds that a reward function may take; a late reward is 0, and too many of them end the run."""
    reward_workers: Count = 2
    """Worker processes for each reward function, and for answers that math-verify compares."""

    def checked(self) -> Self:
        args = super().checked()
        check_datasets(args)
        args.reward = tuple(
            re.sub(r"^.+\.py(?=:)", lambda file: str(expanded(Path(file[0])).absolute()), reward)
            if isinstance(reward, str)
            else reward
            for reward in args.reward
        )
        return args


@dataclass(kw_only=True)
class LearnerSettings(DataSettings):
    """The learner."""

    GROUP = "Training"

    # Set by every script
    steps: Count
    prompts_per_step: Count
    responses_per_prompt: Count
    num_minibatches: Count
    update_epochs: Count
    temperature: Positive
    lr: Rate
    lr_schedule: Literal["constant", "linear", "cosine"]
    warmup_steps: CountOrZero
    weight_decay: Fraction
    max_grad_norm: Positive
    staleness: CountOrZero

    learner_precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of the learner, with weights in fp32. auto: bf16 on GPUs made for it. fp16 scales the loss."""
    micro_batch_tokens: Count = 4096
    """Padded tokens per forward and backward pass. Changes memory use and speed, not the result. GPU: 8192."""
    replay_routing: bool = False
    """For mixtures of experts: the learner uses the experts that the engine used for each token (R3, 2510.11370)."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: much less memory, about a third more time in training."""
    lora_rank: CountOrZero = 0
    """r: train adapters of this rank in every linear layer but the head, with frozen weights (LoRA); 0 trains all
    weights. Usual 8 to 64, with about ten times the learning rate."""
    lora_targets: tuple[str, ...] = ()
    """Names of the linear layers with adapters, such as q_proj v_proj; by default all but the head."""
    lora_alpha: Positive = 32.0
    """α: the product of an adapter's two matrices is scaled by α / r. Usual 32, or 2 r."""


@dataclass(kw_only=True)
class Settings(LearnerSettings):
    """Evaluation, checkpoints and logging."""

    GROUP = "Evaluation and logging"

    eval_every: CountOrZero = 20
    """Steps between evaluations on held-out problems; 0: only before and after the run."""
    eval_problems: Count = 256
    """Held-out problems."""
    eval_samples: Count = 16
    """Samples per problem for avg@n and pass@k; evaluations during training use a quarter."""
    save_every: CountOrZero = 50
    """Steps between checkpoints; 0: only the last."""
    keep: Count = 2
    """Newest checkpoints to keep."""
    save_dtype: Literal["fp32", "bf16"] = "fp32"
    """Precision of the weights in checkpoints; with bf16, state.pt has them in fp32, to resume."""
    sharded_checkpoints: bool = False
    """Each process saves its own shard, for models that do not fit one process's memory (common/checkpoints.py)."""
    seed: Seed = 1
    """Random seed. On a CPU the same seed gives the same run, to the bit."""
    run_dir: Path | None = None
    """Folder for logs and checkpoints; by default a new one under runs/."""
    resume: Path | None = None
    """Run folder to resume."""
    show_rewards: bool = False
    """Show the mean of each reward function in the line of a step, in place of less important numbers."""
    save_rollouts: CountOrZero | None = None
    """Steps between rollout batches saved in rollouts/; 0: none. By default 1 for embedded models, 0 for others."""
    save_tokens: bool = False
    """Save their tokens too, with advantage, log-probs, entropy and ratio of each: about ten times the size."""
    track: Literal["none", "wandb", "tensorboard"] = "none"
    """Also send metrics and samples to Weights & Biases or TensorBoard."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.save_rollouts is None:
            self.save_rollouts = int(self.model in MODELS)

    def checked(self) -> Self:
        """The checks that every script needs; a script adds those of its own method."""
        args = super().checked()
        if args.prompts_per_step % args.num_minibatches:
            fail(
                f"--num-minibatches {args.num_minibatches} does not divide --prompts-per-step "
                f"{args.prompts_per_step}: every minibatch must hold the same number of whole groups."
            )
        for a, b in (("prompts_per_step", "responses_per_prompt"), ("eval_problems", "eval_samples")):
            if getattr(args, a) * getattr(args, b) > MOST_RESPONSES:
                fail(f"{flag(a)} times {flag(b)} is more than {MOST_RESPONSES} responses at once: lower one of them.")
        if getattr(args, "ratio_anchor", None) == "engine" and getattr(args, "tis_cap", 0) > 0:
            fail("--ratio-anchor engine needs --tis-cap 0: a ratio to the engine already corrects for its rounding.")
        tests = len(args.eval_dataset) if isinstance(args.eval_dataset, tuple) else len(dataset_names(args))
        if args.eval_problems < tests:
            fail(f"--eval-problems {args.eval_problems} leaves some of {tests} data sets without any: raise it.")
        if args.learner_precision == "fp16" and (world_size() > 1 or hasattr(args, "critic_lr")):
            fail("--learner-precision fp16 is for one process and methods without a critic: take bf16.")
        if args.replay_routing and hasattr(args, "in_flight_prompts"):
            fail("--replay-routing is for scripts whose engine has one version of the weights in each response.")
        if args.sharded_checkpoints and (args.lora_rank or args.save_dtype == "bf16"):
            fail("--sharded-checkpoints cannot be combined with --lora-rank or --save-dtype bf16.")
        return args


def columns_in(template: str | None) -> list[str]:
    """The names in a prompt template, if it has any besides {question}."""
    names = re.findall(COLUMN, template or "")
    return names if {*names} - {"question"} else []


def dataset_names(args: DataSettings) -> tuple[str, ...]:
    return args.dataset if isinstance(args.dataset, tuple) else (args.dataset,)


def check_datasets(args: DataSettings) -> None:
    """End the program if the data settings contradict each other."""
    names = dataset_names(args)
    if not names:
        fail("--dataset needs a name.")
    if twice := [name for name in names if names.count(name) > 1]:
        fail(f"--dataset names {twice[0]} twice: name it once, with a larger weight in --mix.")
    if args.mix and len(args.mix) != len(names):
        fail(f"--mix has {len(args.mix)} weights, but --dataset names {len(names)} data sets: give one for each.")
    for name in OF_EACH_DATASET:
        value = getattr(args, name)
        several_tests = name == "eval_dataset" and len(names) == 1
        if isinstance(value, tuple) and len(value) != len(names) and not several_tests:
            fail(f"{flag(name)} has {len(value)} values for {len(names)} data sets: give one for all, or one for each.")
    tests = args.eval_dataset if isinstance(args.eval_dataset, tuple) else (args.eval_dataset,)
    if args.eval_dataset is not None and len(names) == 1 and len({*tests} - {None}) < max(1, len(tests)):
        fail("--eval-dataset must name data sets that differ.")
    if columns_in(args.prompt):
        for name in filter(is_generated, filter(None, (*names, *tests))):
            fail(f"--prompt names columns, and the problems of {name} have none: use {{question}}.")
    if all(map(is_generated, names)):
        for name in ("dataset_config", "eval_split", "eval_dataset"):
            if getattr(args, name) is not None:
                fail(f"{flag(name)} needs a data set of your own: name it with --dataset.")
    if all(name in STANDARD_DATA for name in names) and args.eval_dataset in (None, *DATASETS, *STANDARD_DATA):
        for name in ("dataset_config", "question_column", "answer_column", "train_split", "eval_split"):
            if getattr(args, name) != getattr(DataSettings, name):
                fail(f"{flag(name)} is fixed for --dataset {names[0]}: leave it out.")
    for name in names:
        if is_generated(name):
            check_dataset(args.model, name)


def absolute(name: str | None) -> str | None:
    """A local file or folder by its absolute path, a run folder as its newest checkpoint; any other name as it is."""
    known = name is None or name in (*MODELS, *STANDARD_DATA) or is_generated(name)
    if known or not (path := local_path(name)):
        return name
    return str(max(path.glob("checkpoint-" + "[0-9]" * 6), default=path))


def local_path(name: str) -> Path | None:
    """The local path that a model or data set name refers to, or None if it can only be a name on the hub."""
    path = expanded(Path(name))
    is_path = name.startswith((".", "/", "~")) or path.suffix in DATA_FILES or len(path.parts) > 2
    # If a folder runs/ exists, runs/smolm is a path, even if mistyped.
    in_folder = len(path.parts) == 2 and Path(path.parts[0]).is_dir()
    return path.absolute() if is_path or in_folder or path.exists() else None


def validated(kind: type, values: dict[str, Any], where: str = "") -> Any:
    """An instance of the dataclass `kind`; a value outside its range or of the wrong type ends the program."""
    try:
        return TypeAdapter(kind).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        reason = first["msg"].replace("Input should be", "must be", 1)
        fail(f"{where}{flag(str(first['loc'][0]))} {reason}, not {first['input']!r}.")
