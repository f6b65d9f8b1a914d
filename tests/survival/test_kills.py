"""A run that is killed at any file event and resumed leaves the same files as one that was not killed."""

import json

from common.checkpoints import CHECKSUMS, PARTS
from tools.scripts import load, parents, script_path

import kills
import pytest
import torch
from conftest import needed
from runs import on_tiny, without_times
from safetensors.torch import load_file

SAVES = dict.fromkeys(("save_every", "eval_every", "eval_samples", "save_rollouts", "save_tokens"), 1)
SAVES |= {"keep": 1, "responses_per_prompt": 2}
SAVED = "in run.steps(model, tokenizer, optimizer, engine, verifier, held_out):"  # GRPO's
SETTINGS = {  # make a script keep more state, or fit the tiny model
    "adaptive_entropy": {"target_entropy": 9.0},
    "dapo": {"overlong_cache": 4},
    "process_rewards": {"labeled_problems": 3, "label_samples": 2, "reward_model_updates": 2},
    "prorl": {"overlong_cache": 4, "renew_every": 1},
    "pass_at_k": {"responses_per_prompt": 3},
    "pipeline_rl": {"training_tokens": 3, "in_flight_prompts": 3},
    "ppo": {"kl_beta": 0.1},
    "r1": {"stages": ("rl", "rejection", "distill"), "rejection_prompts": 4, "steps": 1, "sft_epochs": 1},
    "reinforce": {"baseline": "ema"},
    "rloo": {"sharded_checkpoints": True},
    "scalerl": {"no_resampling_pass_rate": 0.5, "interrupt_from": 1.0, "training_tokens": 3, "staleness": 2},
}


def plain(value):
    """A state with its tensors as lists, so that it can be compared."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value


def contents(folder):
    """The bytes of every file by path, without times; pickled files are loaded, because their bytes may vary."""
    found = {}
    for name, content in kills.snapshot(folder).items():
        path = folder / name
        if name.endswith("metrics.jsonl"):
            content = without_times(map(json.loads, content.splitlines()))
        if path.name == "state.pt":
            content = plain(torch.load(path, weights_only=True))
        if path.parent.name == PARTS:  # torch.distributed.checkpoint writes tensors in any order
            content = plain(load_file(path))
        if path.name in (CHECKSUMS, "config.json"):
            content = json.loads(content) | {"state.pt": "", "commit": ""}
            content = {key: value for key, value in content.items() if not key.startswith(f"{PARTS}/")}
        found[name] = content
    return found


def killed(name, tiny_model, folder, some=slice(None)):
    """Run a script in `folder`, resume from each (or `some`) of the states that a kill could leave, and compare."""
    script = load(name)
    settings = on_tiny(tiny_model) | SAVES | needed(script, tiny_model) | SETTINGS.get(name, {})
    settings |= {"student": str(tiny_model)} if name == "r1" else {}
    with kills.states_during(folder) as states:
        script.main(script.Args(run_dir=folder, **settings))
    end = contents(folder)
    for number, state in list(enumerate(states))[some]:
        kills.restore(folder, state)
        named = {key: value for key, value in settings.items() if key == "environment"}  # code must be named again
        given = {"resume": folder, **named} if "config.json" in state else {"run_dir": folder, **settings}
        script.main(script.Args(**given))
        again = contents(folder)
        differ = [path for path in end.keys() | again.keys() if end.get(path, 0) != again.get(path, 0)]
        assert not differ, f"killed at event {number} of {len(states)} with {sorted(state)}: these differ: {differ}"


def test_killed_at_some_file_events(tiny_model, half_correct, tmp_path):
    killed("grpo", tiny_model, tmp_path / "run", slice(None, None, 6))


@pytest.mark.slow
@pytest.mark.parametrize("name", parents())
def test_killed_at_file_events(name, tiny_model, half_correct, tmp_path):
    """GRPO is killed at every event, scripts that save more than GRPO at every fourth one, and the others, whose loops
    save with the same lines, at every eighth one; scripts start at different events, so that each event is tested."""
    code = script_path(name).read_text()
    more = name in SETTINGS or "run.state[" in code or SAVED not in code
    every = 1 if name == "grpo" else 4 if more else 8
    killed(name, tiny_model, tmp_path / "run", slice(list(parents()).index(name) % every, None, every))
