"""Any settings whatever are refused with one sentence or have a meaning; which have one is written down here again."""

import math
from dataclasses import fields
from importlib import import_module

from common.compare import SCRIPTS

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

COUNTS = [-1, 0, 1, 2, 3, 4, 7, 8, 96, 1000, 2**20, 2**40]
NUMBERS = [-1.0, -1e-9, 0.0, 1e-9, 0.2, 0.9, 1.0, 1.5, 5.0, 1e9, math.inf, -math.inf, math.nan]
STRINGS = ["main", "test", "no-such-file.jsonl"]


def positive(value):
    return value > 0 and math.isfinite(value)


def not_negative(value):
    return value >= 0 and math.isfinite(value)


MEANINGFUL = {
    **dict.fromkeys(["steps", "prompts_per_step", "responses_per_prompt", "micro_batch_tokens"], lambda v: v > 0),
    **dict.fromkeys(["max_response_tokens", "eval_problems", "eval_samples", "num_minibatches"], lambda v: v > 0),
    **dict.fromkeys(["update_epochs", "max_rounds", "top_k"], lambda v: v > 0),
    **dict.fromkeys(["warmup_steps", "eval_every", "save_every", "overlong_cache", "kl_beta", "tis_cap"], not_negative),
    **dict.fromkeys(["temperature", "max_grad_norm", "clip_eps", "clip_eps_low", "clip_eps_high"], positive),
    **dict.fromkeys(["clip_log_eps", "delta", "value_clip"], positive),
    **dict.fromkeys(["lr", "critic_lr", "gamma"], lambda v: 0 < v <= 1),
    **dict.fromkeys(["weight_decay", "gae_lambda"], lambda v: 0 <= v <= 1),
    "ratio_cap": lambda v: v > 0,
    "ema_decay": lambda v: 0 <= v < 1,
    "gpu_memory_utilization": lambda v: 0 < v < 1,
    "ddof": lambda v: v in (0, 1),
    "seed": lambda v: 0 <= v < 2**32,
    **dict.fromkeys(["dataset_config", "eval_split", "eval_dataset"], lambda v: v is None),
}
IN_GROUPS = set(SCRIPTS) - {"reinforce", "ppo"}


def is_meaningful(name, args):
    if not all(ok(getattr(args, field)) for field, ok in MEANINGFUL.items() if hasattr(args, field)):
        return False
    P, G = args.prompts_per_step, args.responses_per_prompt
    return (
        P % args.num_minibatches == 0
        and P * G <= 2**20
        and args.eval_problems * args.eval_samples <= 2**20
        and not (name in IN_GROUPS and G == 1)
        and getattr(args, "overlong_cache", 0) <= args.max_response_tokens
    )


def values(field):
    if isinstance(field.default, bool):
        return st.booleans()
    if isinstance(field.default, int):
        return st.sampled_from(COUNTS) | st.integers()
    if isinstance(field.default, float):
        return st.sampled_from(NUMBERS) | st.floats()
    return st.none() | st.sampled_from(STRINGS)


def test_every_setting_with_a_number_has_a_range():
    for name in SCRIPTS:
        for field in fields(import_module(name).Args):
            known = field.name in MEANINGFUL or isinstance(field.default, bool)
            assert known or not isinstance(field.default, int | float), f"{name}.py: {field.name}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_any_settings(name, tmp_path, capsys):
    module = import_module(name)
    mutable = [f for f in fields(module.Args) if f.name in MEANINGFUL or isinstance(f.default, bool)]

    @settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data):
        changed = data.draw(st.lists(st.sampled_from(mutable), min_size=1, max_size=4, unique_by=lambda f: f.name))
        args = module.Args(**{f.name: data.draw(values(f), f.name) for f in changed})
        args.model, args.run_dir = "./no-such-model", tmp_path / "run"  # what is accepted ends there
        with pytest.raises(SystemExit) as stop:
            module.main(args)
        error = capsys.readouterr().err.strip()
        assert stop.value.code == 2 and error.startswith("error: ") and "\n" not in error
        assert ("no such model folder" in error) == is_meaningful(name, args), error

    check()
