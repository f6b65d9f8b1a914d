"""Stored evidence fits the claim and the code: arms, thresholds, metrics, and kept runs."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace

from claims import court, fair, problems, runs, tokens, variant
from claims.register import judged_by, versions
from tools.scripts import docstring

import numpy as np
import pytest
import torch
from kinds import JUDGED, OF_KIND

BY_RUNS = [name for name in OF_KIND["runs"] if name in JUDGED]


@pytest.mark.parametrize("name", [name for name in BY_RUNS if hasattr(court.load(name), "ARMS")])
def test_the_stored_arms_are_the_claims(name):
    """Each stored arm was run with the script and flags that the claim's file names today."""
    stored, claim = court.record(name)["result"], court.load(name)
    arms = fair.all_arms(claim.ARMS, getattr(claim, "WORLDS", fair.BOTH)) if hasattr(claim, "fair") else claim.ARMS
    if name == "rl_trades_pass_at_k_for_pass_at_1":  # two measurements of the same runs
        arms = dict.fromkeys(("before", "after"), arms["GRPO, sums-hard"])
    assert stored["arms"].keys() == arms.keys()
    for arm, words in arms.items():
        expected = "python " + " ".join(runs.words(words, 1))
        assert stored["arms"][arm]["command"] == expected, arm
    pairs = [pair.split(" → ") for pair in stored["differences"]]
    assert all(one in arms and other in arms for one, other in pairs)


@pytest.mark.parametrize("arm", ["grpo", "pass_at_k --k 2", "scalerl", "grpo+dr_grpo.token_weights --lr 1e-5"])
def test_results_know_the_code_that_made_them(arm, monkeypatch):
    """A result counts as today's only if its code hash matches; without a hash it does not."""
    made = {"command": "python " + " ".join(runs.words(arm, 1)), "code": runs.code_hash(arm)}
    assert runs.by_todays_code({"arms": {"a": made, "b": made}})
    assert not runs.by_todays_code({"arms": {"a": made, "b": {"command": made["command"]}}})
    assert runs.by_todays_code({"arms": {"a": made | {"code": "old", "repeated_code": made["code"]}}})
    code = runs.code
    monkeypatch.setattr(runs, "code", lambda script: [*code(script), "another line"])
    assert not runs.by_todays_code({"arms": {"a": made}})


@pytest.mark.slow
@pytest.mark.parametrize("name", BY_RUNS)
def test_results_are_those_of_todays_scripts(name):
    how = f"python -m claims {name} --check repeats its first seeds; if they differ, run it again"
    assert runs.by_todays_code(court.record(name)["result"]), how


@pytest.mark.parametrize("name", BY_RUNS)
def test_repeated_results_say_with_what(name):
    """With which libraries and files of common/."""
    assert court.record(name)["repeated"].keys() == {"date", *court.software()}


def test_results_name_versions(monkeypatch, tmp_path):
    """Results name the libraries' versions and a hash that follows the files of common/."""
    before = runs.software()
    assert before["torch"] == torch.__version__ and before.keys() == {"torch", "transformers", "numpy", "common"}
    monkeypatch.setattr(court, "ROOT", tmp_path)
    (tmp_path / "common/package").mkdir(parents=True)
    (tmp_path / "common/package/file.py").write_text("x = 1")
    one = runs.software()
    (tmp_path / "common/package/file.py").write_text("x = 2")
    assert len({found["common"] for found in (before, one, runs.software())}) == 3


def uneven(name):
    """Whether a fair trial of accuracy at the end has arms that were trained on unequal numbers of tokens."""
    stored = court.record(name)
    accuracy = stored["effect"].startswith("accuracy:") and "degrees" in stored["result"]
    return accuracy and bool(tokens.uneven(stored["result"]))


EVEN = [name for name in BY_RUNS if uneven(name)]


@pytest.mark.parametrize("name", EVEN)
def test_what_is_left_at_equal_tokens(name):
    """All pairs with unequal tokens were compared again, and the differences follow from values."""
    result = court.record(name)["result"]
    assert result["equal_tokens"].keys() == tokens.uneven(result).keys()
    for pair, again in result["equal_tokens"].items():
        first, second = (result["arms"][arm] | {"arm": arm} for arm in pair.split(" → "))
        longer, other = (first, second) if again["shorter"] == first["arm"] else (second, first)
        assert other["tokens"] < again["tokens"] / 0.94 < longer["tokens"] and len(again["values"]) == tokens.SEEDS
        values = {longer["arm"]: again["values"], other["arm"]: other["values"]}
        found = runs.difference(*(values[arm] for arm in pair.split(" → ")), paired=False)
        assert again["difference"] == pytest.approx([found.mean, found.half, found.detectable], rel=1e-4)


@pytest.mark.parametrize("name", [name for name in BY_RUNS if "problems" in court.record(name)["result"]])
def test_intervals_for_new_problems(name):
    """They follow from what each run did with each problem, which gives its accuracy too."""
    result = court.record(name)["result"]
    correct = result["problems"]["correct"]
    arms = {arm: problems.accuracies(lines, result["problems"]["samples"]) for arm, lines in correct.items()}
    for arm, values in arms.items():
        assert np.nanmean(values, 1).tolist() == pytest.approx(result["arms"][arm]["values"], rel=1e-5)
    for pair, stored in result["problems"]["intervals"].items():
        assert problems.interval(*(arms[arm] for arm in pair.split(" → "))) == pytest.approx(stored, rel=1e-4)


@pytest.mark.parametrize("name", JUDGED)
def test_results_have_versions(name):
    """Each verdict says with which libraries and common/ it was made or repeated."""
    stored = court.record(name)
    known = stored.keys() | stored["result"].keys() | stored.get("repeated", {}).keys()
    assert court.software().keys() <= known


@pytest.mark.parametrize("name", JUDGED)
def test_results_are_judged_by_the_last_version(name):
    stored = court.record(name)
    assert stored["version"] == len(versions()[name]), f"python -m claims {name} --redraw judges it again"
    assert stored["judged_by"] == judged_by(name), "another rule or code: add a version to claims/register.jsonl"


WORDS = {0.5: "half", 2: "half|twice", 3: "third|three", 4: "quarter", 10: "tenth", 0.99: "within 1 %"}


@pytest.mark.parametrize("name", JUDGED)
def test_thresholds_stand_in_the_rule(name):
    """The rule has each number in `verdict`, and SMALLEST; a number below 1e-3 may be a rounding tolerance."""
    path = court.HERE / f"{name}.py"
    rule = docstring(path).split("\nRule:")[1]
    numbers = set(map(float, re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", rule)))
    body = ast.parse(path.read_text()).body
    deciding = [n for n in body if getattr(n, "name", "") == "verdict" or ast.unparse(n).startswith("SMALLEST = ")]
    for node in (node for part in deciding for node in ast.walk(part)):
        if isinstance(node, ast.Constant) and type(node.value) in (int, float) and node.value not in (0, 1):
            value = node.value
            known = value in numbers or round(100 * value, 9) in numbers or re.search(WORDS.get(value, "no word"), rule)
            assert known or value < 1e-3, f"{value:g} is not in the rule: {rule}"


@pytest.mark.parametrize("ratio,verdict", [(1.49, court.CONTRADICTED), (1.51, court.REPRODUCED)])
def test_the_verdict_on_large_groups_is_about_the_mean(ratio, verdict):
    """The verdict depends on the mean ratio over the chances of a correct response."""
    claim = court.load("small_groups_are_noisier")
    of_chance = {p: {"2": ratio + d, "64": 1.0} for p, d in zip(claim.CHANCES, (0.2, -0.1, -0.1), strict=True)}
    assert claim.verdict({"grpo": of_chance}) == verdict


@pytest.mark.parametrize("best,verdict", [(96, court.REPRODUCED), (94, court.CONTRADICTED)])
def test_the_verdict_on_the_best_baseline_is_about_95_of_100_draws(best, verdict):
    ratios = [1.005] * best + [1.02] * (100 - best)
    assert (
        court.load("mean_reward_is_the_best_baseline").verdict({"variance with the mean over the best": ratios})
        == verdict
    )


@pytest.mark.parametrize("rare,verdict", [(20.2, court.REPRODUCED), (19.8, court.CONTRADICTED)])
def test_rare_tokens_have_ten_times_the_gradient_of_sure_ones(rare, verdict):
    claim = court.load("rare_tokens_dominate_the_gradient")
    norms = {claim.BINS[0]: rare, claim.BINS[-1]: 2.0}
    result = {name: {"norm": norms.get(name, 5.0), "norm / (1 - p)": 3.0} for name in claim.BINS}
    assert claim.verdict(result) == verdict


def test_clipped_ten_times_as_often_is_enough():
    result = {"all": 0.05, "below 0.2": 0.21, "above 0.9": 0.02}
    assert court.load("clip_silences_the_forks").verdict(result) == court.REPRODUCED


@pytest.mark.parametrize("pass_at_1,verdict", [(0.48, court.REPRODUCED), (0.46, court.INCONCLUSIVE)])
def test_maxrl_may_lose_less_than_003_at_pass_at_1(pass_at_1, verdict):
    arms = {"GRPO, sums-hard": {"pass@1": 0.5}, "MaxRL, sums-hard": {"pass@1": pass_at_1}}
    result = {"arms": arms, "differences": {"GRPO, sums-hard → MaxRL, sums-hard": [0.1, 0.01, 0.02]}}
    assert court.load("maxrl_keeps_pass_at_k_in_training").verdict(result) == verdict


@pytest.mark.parametrize("name", ["rl_trades_pass_at_k_for_pass_at_1", "maxrl_keeps_pass_at_k_in_training"])
def test_claims_about_pass_at_k_compare_it(name, monkeypatch):
    """The compared values are pass@32; pass@1 is reported too."""

    def trial(arm, seed):
        number = seed / 100 + 0.1 * list(arms.values()).index(arm)
        rows = [{"step": 0, "eval/avg": 0.01 + number, "eval/pass@32": 0.5 + number}]
        rows.append({"step": 1, "eval/avg": 0.02 + number, "eval/pass@32": 0.6 + number})
        made = runs.Trial(Path("nowhere"))
        settings = {"steps": 1, "prompts_per_step": 1, "responses_per_prompt": 1, "num_minibatches": 1}
        made.__dict__.update(rows=rows, settings=settings | {"update_epochs": 1})
        return made

    claim = court.load(name)
    arms = fair.all_arms(claim.ARMS, claim.WORLDS)
    monkeypatch.setattr(runs, "trial", trial)
    found = claim.compute(3)["arms"]
    seeds = (0.01, 0.02, 0.03)
    if "before" in found:
        assert found["before"]["values"] == pytest.approx([0.5 + x for x in seeds])
        assert found["after"]["values"] == pytest.approx([0.6 + x for x in seeds])
        assert found["after"]["pass@1 before"] == pytest.approx(0.03)
        assert found["after"]["pass@1 after"] == pytest.approx(0.04)
    else:
        assert found["GRPO, sums-hard"]["values"] == pytest.approx([0.6 + x for x in seeds])
        assert found["MaxRL, sums-hard"]["values"] == pytest.approx([0.7 + x for x in seeds])
        assert [arm["pass@1"] for arm in found.values()] == pytest.approx([0.04, 0.14, 0.24])


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The folders of all started runs; each run ends at once."""
    folders = []

    def run(words, **more):
        folder = Path(words[-1])
        folder.mkdir(parents=True)
        folders.append(folder)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(runs, "RUNS", tmp_path)
    monkeypatch.setattr(runs, "subprocess", SimpleNamespace(run=run))
    monkeypatch.setattr(runs.Trial, "ended", True)
    return folders


def test_kept_runs_belong_to_the_code_that_made_them(started, monkeypatch):
    """A change in code, flags, seed, settings or variant makes a new run."""
    runs.trial("grpo", 1)
    runs.trial("grpo", 1)
    assert len(started) == 1
    for arm, seed in (("grpo", 2), ("grpo --tis-cap 0", 1), ("grpo+coin", 1), ("dr_grpo", 1)):
        runs.trial(arm, seed)
    assert len(set(started)) == len(started) == 5
    code = runs.code
    monkeypatch.setattr(runs, "code", lambda script: [*code(script), "another line"])
    runs.trial("grpo", 1)
    assert len(set(started)) == 6
    monkeypatch.setattr(runs, "code", code)
    monkeypatch.setattr(runs, "SETTINGS", runs.SETTINGS.replace("--steps 30", "--steps 31"))
    runs.trial("grpo", 1)
    assert len(set(started)) == 7


def test_runs_use_the_same_instructions_on_every_processor(tmp_path, monkeypatch, started):
    found, run = [], runs.subprocess.run
    monkeypatch.setattr(runs.subprocess, "run", lambda words, **more: found.append(more["env"]) or run(words, **more))
    runs.trial("grpo", 1)
    assert runs.ENVIRONMENT.items() <= found[0].items() and "STRICT" in found[0]["MKL_CBWR"]


def test_kept_runs_of_a_variant_belong_to_its_code(started, tmp_path, monkeypatch):
    runs.trial("grpo+coin", 1)
    (tmp_path / "variant.py").write_text((Path(runs.__file__).parent / "variant.py").read_text() + "\n# changed\n")
    monkeypatch.setattr(runs, "__file__", str(tmp_path / "runs.py"))
    runs.trial("grpo+coin", 1)
    assert len(set(started)) == 2


def test_the_variant_k1_is_the_estimate_of_the_kl():
    """k1 is log π_θ - log π_ref, whose mean under π_θ is KL(π_θ ‖ π_ref)."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.2, 0.6])
    script = SimpleNamespace()
    variant.change(script, "k1", None)
    values = script.kl_penalty(p.log(), q.log())
    assert (p * values).sum().item() == pytest.approx((p * (p / q).log()).sum().item()) and values[0] > 0 > values[2]
