"""Every script's curves equal its oracle's, and change if a sign or a bound in the script changes."""

import importlib.util
import math
import statistics

from tools import fingerprint, traits
from tools.scripts import ROOT, load, parents, script_path

import pytest
from oracles import Response, Row, oracle

SCRIPTS = list(parents())
T, P0 = fingerprint.TOKENS, math.log(fingerprint.PROBABILITY)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("name", SCRIPTS)
def test_factors_are_the_oracles(name, whole):
    ratios = [0.45, 0.75, 0.9, 0.9998, 1.0, 1.0003, 1.1, 1.25, 1.3, 1.6, 1.9]
    reference = oracle(name, load(name).Args())
    for sign in (1.0, -1.0):
        expected = []
        for ratio in ratios:
            new = [P0 + math.log(ratio) if whole or t == 0 else P0 for t in range(T)]
            _, slopes = reference.row(Row(new, [P0] * T, [P0] * T, [sign] * T))
            expected.append(slopes[0] / -sign)
        found = fingerprint.factors(load(name), sign, whole, ratios)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12), f"A = {sign}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_weights_are_the_oracles(name):
    reference, lengths = oracle(name, load(name).Args()), [1, 7, 32, 50, 96]
    others = [fingerprint.LENGTH] * (fingerprint.GROUP - 1)
    unit = reference.weight([fingerprint.LENGTH, *others], 0)
    expected = [reference.weight([length, *others], 0) / unit for length in lengths]
    assert fingerprint.weights(load(name), lengths) == pytest.approx(expected, rel=1e-9)


def expected_advantages(name):
    """The oracle's advantages, one row per response of the batch of `verdicts`, each with a single token."""
    args = load(name).Args()
    reference, correct = oracle(name, args), fingerprint.verdicts(fingerprint.GROUP).tolist()
    rates = [statistics.fmean(group) for group in correct]
    if hasattr(load(name), "value_loss") or name == "vineppo":  # a critic that knows the success rate, then whitening
        flat = [r - rate for group, rate in zip(correct, rates, strict=True) for r in group]
        mean, std = statistics.fmean(flat), statistics.stdev(flat)
        flat = [(a - mean) / std for a in flat]
        return [flat[i : i + fingerprint.GROUP] for i in range(0, len(flat), fingerprint.GROUP)]
    if name == "dpo":
        return reference.of_pairs([[0.0] * len(group) for group in correct], correct)
    tokens, logps = [0] * fingerprint.LENGTH, [P0] * fingerprint.LENGTH
    groups = [
        [Response([k], tokens, logps, False, bool(r), [True] * len(tokens)) for r in g] for k, g in enumerate(correct)
    ]
    reference.budget = lambda response: fingerprint.LENGTH  # for LCPO
    rewards = reference.rewards(groups, [[0.0] * len(group) for group in correct])
    rows = [Row([P0], [P0], [P0], [a], [P0], entropies=[0.1]) for group in reference.advantages(rewards) for a in group]
    if not reference.CHOOSES:  # otherwise tokens are chosen elsewhere, as masks
        reference.prepare(rows)
    flat = [row.advantages[0] for row in rows]
    return [flat[i : i + fingerprint.GROUP] for i in range(0, len(flat), fingerprint.GROUP)]


NONE = "rewards play no part in its advantages"
TEACHER = "compute_advantages needs teacher_logp, old_logp, own, which rewards, ratios and lengths do not determine"
STEPS = "compute_advantages needs step_rewards, last, which rewards, ratios and lengths do not determine"
WITHOUT_REWARDS = {"opd": NONE, "spin": NONE, "sdpo": TEACHER, "opsd": TEACHER, "process_rewards": STEPS}


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in WITHOUT_REWARDS])
def test_advantages_are_the_oracles(name):
    found, G = fingerprint.advantages(load(name)), fingerprint.GROUP
    expected = expected_advantages(name)
    assert found["correct"][0] is None and found["incorrect"][G] is None
    assert found["correct"][1:] == pytest.approx([expected[k][0] for k in range(1, G + 1)], rel=1e-5, abs=1e-9)
    assert found["incorrect"][:-1] == pytest.approx([expected[k][-1] for k in range(G)], rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("name", WITHOUT_REWARDS)
def test_without_rewards_there_is_no_curve_of_advantages(name):
    found = fingerprint.fingerprint(load(name))
    assert found["advantages"] is None and found["token"] and found["weights"]
    assert found["why"] == {"advantages": WITHOUT_REWARDS[name]}


def test_a_script_with_other_functions_says_why_it_has_no_curve(tmp_path, capsys, monkeypatch):
    text = script_path("grpo").read_text()
    text = text.replace("def policy_loss(logp: Tensor, ", "def policy_loss(logp: Tensor, teacher_logp: Tensor, ")
    text = text.replace("def token_weights(", "def weights_of_turns(")
    module = changed(tmp_path / "other_functions.py", text)
    found = fingerprint.fingerprint(module)
    reason = "policy_loss needs teacher_logp, which rewards, ratios and lengths do not determine"
    assert found["advantages"] and found["token"] is None and found["weights"] is None
    assert found["why"] == {"token": reason, "response": reason, "weights": "it has no token_weights", "bounds": reason}
    monkeypatch.setattr(traits, "load", lambda name: module)
    words = traits.traits("grpo")
    assert words["baseline"] == STD and words["updates"] == OFF
    assert {words[key] for key in ("ratio", "stops", "averages", "long")} == {traits.UNKNOWN}
    monkeypatch.setattr(fingerprint, "load", lambda name: module)
    fingerprint.main(fingerprint.Args(("grpo",), tmp_path / "picture.png"))
    assert f"grpo has no curve of token: {reason}" in capsys.readouterr().out


CHANGES = [
    ("loss = -", "loss = "),
    ("keepdim=True)  # (P, 1)\n    std", "keepdim=True) * 0.9  # (P, 1)\n    std"),
    ("1 + args.clip_eps)", "1 + 1.5 * args.clip_eps)"),
    ("1 - args.clip_eps,", "1 - 1.5 * args.clip_eps,"),
    ("1 - args.clip_eps_low, ", "1 - 2 * args.clip_eps_low, "),
    ("args.clip_eps_high)", "2 * args.clip_eps_high)"),
    (", args.clip_log_eps", ", 2 * args.clip_log_eps"),
    ("> args.delta", "> 1.1 * args.delta"),
    ("return rewards - ", "return rewards + "),
    ("mask.sum(1, keepdim=True))", "mask.sum())"),
    ("mask / len(mask)", "mask / mask.sum(1, keepdim=True)"),
    ("mask / mask.sum().clamp(min=1)", "mask / len(mask)"),
    ("max=args.ratio_cap)", "max=1.5)"),
    ("(rewards - mean) / mean", "(rewards - mean) / (1 + mean)"),
    ("return rewards - others", "return rewards + others"),
]


def changed(path, text):
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ELEVEN = [name for name in SCRIPTS if script_path(name).parent == ROOT]


@pytest.mark.parametrize("name", ELEVEN)
def test_a_changed_sign_or_bound_changes_the_picture(name, tmp_path):
    text, before = script_path(name).read_text(), fingerprint.fingerprint(load(name))
    objective = text[: text.index("def main(")]
    places = [(old, new) for old, new in CHANGES if old in objective]
    assert len(places) >= 2, f"{name} has only {places}"
    for i, (old, new) in enumerate(places):
        other = changed(tmp_path / f"changed_{name}_{i}.py", objective.replace(old, new, 1) + text[len(objective) :])
        assert fingerprint.fingerprint(other) != before, f"nothing changes with {new!r} in the place of {old!r}"


def test_every_change_is_tried():
    texts = [script_path(name).read_text() for name in ELEVEN]
    unused = [old for old, _ in CHANGES if not any(old in text for text in texts)]
    assert not unused, f"no script has {unused}"


# From the papers: baseline, ratio, what zeroes the gradient, average, updates per batch, critic
STD = "group mean, over the group's std"
CLIP = "no gradient below 0.8, above 1.2"
OFF = "off-policy, 4 updates per batch"
TRAITS = {
    "reinforce": ("batch mean", "none", "nothing", "sum per response", "on-policy", "no"),
    "ppo": ("critic", "token", CLIP, "all tokens alike", OFF, "yes"),
    "grpo": (STD, "token", CLIP, "mean per response", OFF, "no"),
    "rloo": ("mean of the others", "none", "nothing", "sum per response", "on-policy", "no"),
    "dr_grpo": ("group mean", "token", CLIP, "sum over a constant", OFF, "no"),
    "dapo": (STD, "token", "no gradient below 0.8, above 1.28", "all tokens alike", OFF, "no"),
    "cispo": (STD, "token", "weight is capped at 5", "all tokens alike", OFF, "no"),
    "gspo": (STD, "response", "no gradient below 0.9997, above 1.0004", "mean per response", OFF, "no"),
    "gmpo": (
        STD,
        "response",
        "no gradient below 0.67032, above 1.4918, each token alone",
        "mean per response",
        OFF,
        "no",
    ),
    "dppo": ("group mean", "token", "no gradient below 0.5, above 1.5", "sum over a constant", OFF, "no"),
    "maxrl": ("group mean, over the group's mean", "token", CLIP, "sum per response", OFF, "no"),
    "dpo": ("pairs within the group", "none", "nothing", "sum per response", OFF, "no"),
    "dcpo": (
        STD,
        "token",
        "no gradient below 0.5, above 1.366",
        "mean per response, responses summed",
        OFF,
        "no",
    ),
    "sapo": (STD, "token", "fades", "mean per response", OFF, "no"),
    "opd": ("no reward", "token", "nothing", "mean per response", OFF, "no"),
    "vineppo": ("sampled values", "token", CLIP, "all tokens alike", OFF, "no"),
    "reinforce_pp": ("batch mean, scaled over the batch", "token", CLIP, "mean per response", OFF, "no"),
    "scalerl": (
        "group mean, scaled over the batch",
        "token",
        "weight is capped at 5",
        "mean per prompt",
        "off-policy, 8 batches old",
        "no",
    ),
}


@pytest.mark.parametrize("name", TRAITS)
def test_traits(name):
    found = traits.traits(name)
    assert found.pop("long") == ("0.50" if found["averages"].startswith("mean per response") else "1.00")
    assert tuple(found.values()) == TRAITS[name]


def test_wider_bounds_clip_later():
    grpo, gspo, cispo = load("grpo"), load("gspo"), load("cispo")
    assert fingerprint.scaled(grpo, 2.0).clip_eps == 0.4 and fingerprint.scaled(cispo, 0.5).ratio_cap == 3.0
    assert fingerprint.factors(grpo, 1.0, True, [1.3]) == [0.0]
    assert fingerprint.factors(grpo, 1.0, True, [1.3], fingerprint.scaled(grpo, 2.0)) == pytest.approx([1.3])
    assert fingerprint.scaled(gspo, 2.0).clip_eps_high == pytest.approx(8e-4)


@pytest.mark.parametrize("names", [("grpo", "gspo"), ("opd", "spin"), ()])
def test_a_picture_is_drawn(names, tmp_path, capsys):
    out = tmp_path / "picture.png"
    fingerprint.main(fingerprint.Args(names, out))
    assert out.read_bytes().startswith(b"\x89PNG") and str(out) in capsys.readouterr().out


@pytest.mark.parametrize(
    "args,message", [((("nothing",), None), "nothing is not a script"), ((("grpo",), "x.docx"), "is not a picture")]
)
def test_refusals(args, message, capsys):
    from pathlib import Path

    names, out = args
    with pytest.raises(SystemExit) as end:
        fingerprint.main(fingerprint.Args(names, Path(out) if out else None))
    assert end.value.code == 2 and message in capsys.readouterr().err
