"""ProRL is DAPO with a KL to a reference that the policy repeatedly replaces; R1 has such a reference too."""

from recipes import prorl, r1
from tools.scripts import components

import pytest
import torch
from runs import assert_same_rows, assert_same_weights, differing, on_tiny, refused, results, run, settings_of
from safetensors.torch import load_file

STEPS = {"steps": 4, "lr": 3e-2, "warmup_steps": 0, "overlong_cache": 4}


def test_without_its_components_it_is_dapo(tiny_model, tmp_path, half_correct, capsys):
    """Without its components the run equals DAPO's bit for bit; removing any one component changes it."""
    plain = settings_of(prorl, components("prorl").values())
    assert plain == {"kl_beta": 0.0, "renew_every": 0, "reset_optimizer": False, "clip_eps_high": 0.28}
    settings = on_tiny(tiny_model) | STEPS
    (theirs, of_dapo), (ours, own) = (
        run(name, tmp_path / name, **settings | more) for name, more in (("dapo", {}), ("prorl", plain))
    )
    assert_same_weights(ours, theirs)
    assert_same_rows(own, of_dapo)
    alone = run("prorl", tmp_path / "alone", **settings | plain | {"renew_every": 2, "reset_optimizer": True})[0]
    assert_same_weights(alone, theirs)  # without a reference there is nothing to renew
    often = {"renew_every": 2, "kl_beta": 0.3}
    whole, _ = run("prorl", tmp_path / "whole", **settings | often)
    for name, value in plain.items():
        assert differing(run("prorl", tmp_path / f"no {name}", **settings | often | {name: value})[0], whole), name


def test_the_policy_becomes_the_reference(tiny_model, tmp_path, half_correct, capsys):
    """After each renewal the KL is 0 until the first update, and checkpoints have their step's reference."""
    once = {"num_minibatches": 1, "renew_every": 2, "save_every": 1, "keep": 9, "kl_beta": 0.1}
    _, rows = run("prorl", tmp_path / "run", **on_tiny(tiny_model) | STEPS | once)
    kl = {row["step"]: row["kl"] for row in rows if "kl" in row}
    assert max(kl[1], kl[3]) < 1e-6 < min(kl[2], kl[4])
    saved = {
        step: torch.load(tmp_path / f"run/checkpoint-00000{step}/state.pt", weights_only=True)["reference"]
        for step in (2, 3, 4)
    }
    then = load_file(tmp_path / "run/checkpoint-000002/model.safetensors")
    assert not differing({name: saved[3][name] for name in then}, then) and not differing(saved[4], saved[3])
    assert differing(saved[3], saved[2])


def test_the_policy_becomes_the_reference_where_the_kl_has_reached_a_limit(tiny_model, tmp_path, half_correct, capsys):
    """The initial model is the reference until the KL reaches the limit, or forever if it never does."""
    settings = on_tiny(tiny_model) | STEPS | {"num_minibatches": 1, "renew_every": 0, "kl_beta": 0.1, "lr": 3e-3}
    never, rows = run("prorl", tmp_path / "never", **settings)
    kl = [row["kl"] for row in rows if "kl" in row]
    assert kl[0] < 1e-6 < kl[1] < kl[2]
    _, rows = run("prorl", tmp_path / "at once", **settings | {"renew_at_kl": kl[1] / 2})
    assert max(row["kl"] for row in rows if "kl" in row) < 1e-6
    between = (kl[1] + kl[2]) / 2
    _, rows = run("prorl", tmp_path / "later", **settings | {"renew_at_kl": between})
    later = [row["kl"] for row in rows if "kl" in row]
    assert later[:2] == kl[:2] and later[2] < 1e-6 < later[3]
    beyond, _ = run("prorl", tmp_path / "beyond", **settings | {"renew_at_kl": 2 * max(kl)})
    assert_same_weights(beyond, never)


def test_a_limit_of_the_kl_needs_a_reference(tiny_model, tmp_path, capsys):
    sentence = refused(capsys, tmp_path, prorl, **on_tiny(tiny_model) | STEPS | {"kl_beta": 0.0, "renew_at_kl": 0.1})
    assert "--renew-at-kl needs a reference" in sentence


@pytest.mark.parametrize("script", [prorl, r1])
def test_it_resumes_with_its_reference(script, tiny_model, tmp_path, half_correct, capsys):
    settings = on_tiny(tiny_model) | STEPS | {"renew_every": 2, "kl_beta": 0.3, "steps": 5, "save_every": 3}
    settings = {key: value for key, value in settings.items() if hasattr(script.Args, key)}
    weights, rows = run(script.__name__.rpartition(".")[2], tmp_path / "run", **settings)
    for path in (tmp_path / "run/checkpoint-000005").iterdir():
        path.unlink()
    script.main(script.Args(resume=tmp_path / "run"))
    again, logged = results(tmp_path / "run")
    assert_same_weights(again, weights)
    assert_same_rows(logged, rows)


@pytest.mark.parametrize("reset", [True, False])
def test_a_new_reference_brings_a_new_optimizer(reset, tiny_model, tmp_path, half_correct, capsys):
    """With a reset, the moments count only the updates since the new reference."""
    settings = on_tiny(tiny_model) | STEPS | {"renew_every": 3, "reset_optimizer": reset, "num_minibatches": 2}
    run("prorl", tmp_path / "run", **settings)
    state = torch.load(tmp_path / "run/checkpoint-000004/state.pt", weights_only=True)["optimizer"]["state"]
    assert {int(moments["step"]) for moments in state.values()} == {2 if reset else 8}
