"""Any settings either work or are refused with one sentence; the ranges are written here a second time."""

import math
from dataclasses import fields

from tools.scripts import load, parents

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import at_least, oracle, positive

QUICK = {"grpo", "ppo", "dapo"}
COUNTS = [-1, 0, 1, 2, 3, 4, 7, 8, 96, 1000, 2**20, 2**40]
NUMBERS = [-1.0, -1e-9, 0.0, 1e-9, 0.2, 0.9, 1.0, 1.5, 5.0, 1e9, 1e308, math.inf, -math.inf, math.nan]
STRINGS = ["main", "test", "no-such-file.jsonl"]

# Ranges of the settings that scripts share; each oracle has those of its method.
SHARED = {
    **dict.fromkeys(["steps", "prompts_per_step", "micro_batch_tokens", "max_response_tokens"], at_least(1)),
    **dict.fromkeys(
        ["keep", "reward_workers", "eval_problems", "eval_samples", "num_minibatches", "update_epochs"], at_least(1)
    ),
    **dict.fromkeys(["warmup_steps", "eval_every", "save_every", "staleness", "lora_rank"], at_least(0)),
    **dict.fromkeys(["temperature", "max_grad_norm", "lora_alpha", "reward_timeout"], positive),
    "lr": lambda v: 0 < v <= 1,
    "weight_decay": lambda v: 0 <= v <= 1,
    "gpu_memory_utilization": lambda v: 0 < v < 1,
    "tolerance": lambda v: 0 <= v < 1,
    **dict.fromkeys(["seed", "eval_seed"], lambda v: 0 <= v < 2**32),
    **dict.fromkeys(["dataset_config", "eval_split", "eval_dataset"], lambda v: v is None),
}


def ranges(name):
    return SHARED | type(oracle(name, None)).RANGES


def is_meaningful(name, args):
    if not all(ok(getattr(args, field)) for field, ok in ranges(name).items()):
        return False
    P, G = args.prompts_per_step, args.responses_per_prompt
    return (
        P % args.num_minibatches == 0
        and P * G <= 2**20
        and args.eval_problems * args.eval_samples <= 2**20
        and not (getattr(args, "ratio_anchor", "learner") == "engine" and getattr(args, "tis_cap", 0) > 0)
        and not (args.lora_rank and args.sharded_checkpoints)
        and not (args.replay_routing and (hasattr(args, "in_flight_prompts") or name in ("luffy", "spin")))
        and oracle(name, args).settings_fit()
    )


def values(field):
    if isinstance(field.default, bool):
        return st.booleans()
    if isinstance(field.default, int) or field.name == "max_response_tokens":  # None means the model's own limit
        return st.sampled_from(COUNTS) | st.integers()
    if isinstance(field.default, float):
        return st.sampled_from(NUMBERS) | st.floats()
    if field.name == "ratio_anchor":
        return st.sampled_from(["learner", "engine"])
    return st.none() | st.sampled_from(STRINGS)


@pytest.mark.parametrize("name", list(parents()))
def test_every_setting_with_a_number_has_a_range(name):
    for field in fields(load(name).Args):
        number = isinstance(field.default, int | float) and not isinstance(field.default, bool)
        assert (field.name in ranges(name)) >= number, f"{name}.py: the oracle has no range for {field.name}"


def test_a_range_belongs_to_a_setting():
    for name in parents():
        unknown = set(ranges(name)) - {field.name for field in fields(load(name).Args)}
        assert not unknown, f"the oracle of {name} has ranges for settings that {name}.py does not have: {unknown}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in parents()]
)
def test_any_settings(name, tmp_path, capsys):
    module = load(name)
    known = {*ranges(name), "ratio_anchor"}
    mutable = [f for f in fields(module.Args) if f.name in known or isinstance(f.default, bool)]

    @settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data):
        changed = data.draw(st.lists(st.sampled_from(mutable), min_size=1, max_size=4, unique_by=lambda f: f.name))
        args = module.Args(**{f.name: data.draw(values(f), f.name) for f in changed})
        args.model, args.run_dir = "./no-such-model", tmp_path / "run"  # accepted settings fail here
        if hasattr(args, "teacher"):
            args.teacher = "sums"
        with pytest.raises(SystemExit) as stop:
            module.main(args)
        error = capsys.readouterr().err.strip()
        assert stop.value.code == 2 and error.startswith("error: ") and "\n" not in error, error
        assert ("no such model folder" in error) == is_meaningful(name, args), error
        assert not (tmp_path / "run").exists(), "a refused run left its folder behind"

    check()
