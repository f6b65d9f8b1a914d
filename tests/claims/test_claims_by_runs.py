"""Claims by runs: runs are made once, arms are compared in pairs, and variants change only what they name."""

import json
import random
import subprocess
import zlib
from pathlib import Path
from types import SimpleNamespace

import dppo
import grpo
from claims import court, fair, runs, variant
from claims.__main__ import Args, main

import pytest
import torch
from kinds import JUDGED, OF_KIND
from scipy import stats

TINY = (
    "--steps 2 --warmup-steps 0 --prompts-per-step 4 --responses-per-prompt 2 --num-minibatches 2 "
    "--max-response-tokens 24 --eval-problems 2 --eval-samples 2"
)


@pytest.mark.slow
def test_a_claim_by_runs_comes_to_a_verdict(tmp_path, monkeypatch, capsys):
    """An interrupted claim resumes and repeats no finished run."""
    monkeypatch.setattr(court, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(runs, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(runs, "LAST", TINY)
    name, started, run = "thinking_lengthens_because_it_pays", [], subprocess.run

    def in_this_process(words, **more):
        """Run all but the first command in this process, without loading everything again."""
        started.append(words)
        if len(started) == 1:
            return run(words, **more)
        variant.main(words[3:] if words[1] == "-m" else ["grpo", *words[2:]])
        return subprocess.CompletedProcess(words, 0, "", "")

    monkeypatch.setattr(runs, "JOBS", 1)
    monkeypatch.setattr(runs, "subprocess", SimpleNamespace(run=in_this_process))
    monkeypatch.setattr(grpo, "compute_advantages", grpo.compute_advantages)  # restored after the variant replaces it
    runs.trial("grpo", 2)
    main(Args(claims=(name,), seeds=2))
    assert len(started) == 4  # two arms with two seeds, including the run that existed
    main(Args(claims=(name,), seeds=2))
    assert len(started) == 4
    stored = court.record(name)
    assert f"{stored['verdict']}: " in capsys.readouterr().out and (tmp_path / "results" / f"{name}.png").exists()
    assert {arm["responses"] for arm in stored["result"]["arms"].values()} == {16}
    assert {arm["updates"] for arm in stored["result"]["arms"].values()} == {4}


def test_a_run_that_fails_ends_the_claim_with_its_reason(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "RUNS", tmp_path)
    with pytest.raises(SystemExit):
        runs.trial("grpo --num-minibatches 3", 1)
    assert "--num-minibatches 3 does not divide" in capsys.readouterr().err
    assert not list(tmp_path.glob("*/done"))


def test_a_run_that_was_stopped_is_not_kept(tmp_path, monkeypatch, capsys):
    """An interrupted script exits with code 0 after its current step, but its run is not kept."""
    monkeypatch.setattr(runs, "RUNS", tmp_path)

    def run(words, **more):
        written(Path(words[-1]), 3, [{"eval/avg": 0.25}, {}, {}])
        return subprocess.CompletedProcess(words, 0, "", "interrupted: finishing this step and saving")

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(SystemExit):
        runs.trial("grpo", 1)
    assert "did not finish: interrupted" in capsys.readouterr().err and not list(tmp_path.glob("*/done"))


def written(folder, steps, rows):
    """Write a run folder as a script leaves it."""
    folder.mkdir()
    settings = {"steps": steps, "prompts_per_step": 8, "responses_per_prompt": 4, "num_minibatches": 2}
    (folder / "config.json").write_text(json.dumps({"args": settings | {"update_epochs": 3}}))
    lines = [{"step": i, "accuracy": 0.1 * i, "clip_pos": 0.25, "clip_neg": 0.0} | row for i, row in enumerate(rows)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return runs.Trial(folder)


def test_what_a_run_says(tmp_path):
    rows = [{"eval/avg": 0.25}, {"response_tokens": 100}, {"sampled_prompts": 24, "kl": None, "eval/avg": 0.5}]
    whole = written(tmp_path / "whole", 2, rows)
    assert whole.last() == 0.5 and whole.series("accuracy") == [0.1, 0.2] and whole.mean("accuracy", 1) == 0.2
    assert whole.clipped == 0.25
    assert whole.budget == {"responses": 8 * 4 + 24 * 4, "tokens": 100, "updates": 12}
    diverged = written(tmp_path / "diverged", 3, rows)
    assert diverged.last() == 0 and diverged.series("accuracy") == [0.1, 0.2, 0]
    assert diverged.series("clip_pos") == [0.25] * 3  # a diverged run only loses its accuracy


@pytest.mark.parametrize("again,said", [(0.5, "the same in 2 arms"), (0.25, "8 responses 0.5 and now 0.25")])
def test_a_repeated_seed_is_compared(again, said, monkeypatch, tmp_path, capsys):
    """Each arm's first seed is run anew and compared with 0.5; only an equal result is marked as repeated."""
    monkeypatch.setattr(runs, "CHECKS", tmp_path / "checks")
    (tmp_path / "checks/run of an earlier check").mkdir(parents=True)
    arms = {"8 responses": {"values": [0.5, 0.7]}, "b": {"values": [again], "command": "old", "code": "old"}}
    new = {"values": [again], "command": "new", "code": "new"}
    kept = {}

    def compute(seeds):
        assert seeds == 1 and tmp_path / "checks" == runs.RUNS and not runs.RUNS.exists()
        return {"arms": dict.fromkeys(arms, new)}

    usual, claim = runs.RUNS, SimpleNamespace(KIND="runs", compute=compute)
    monkeypatch.setattr(runs, "load", lambda name: claim)
    monkeypatch.setattr(runs, "record", lambda name: {"date": "2026-11-22", "result": {"arms": arms}})
    monkeypatch.setattr(runs, "store", lambda name, result, **about: kept.update(about, **result))
    main(Args(claims=("any",), check=True))
    assert said in capsys.readouterr().out and bool(kept) == (again == 0.5) and usual == runs.RUNS
    if kept:
        assert kept["date"] == "2026-11-22" and kept["repeated"] == {"date": runs.today(), **runs.software()}
        assert kept["arms"]["8 responses"] == {"values": [0.5, 0.7], "repeated_code": "new"}
        assert kept["arms"]["b"] == {"values": [again], "command": "old", "code": "old", "repeated_code": "new"}


def test_differences_are_paired(tmp_path, monkeypatch):
    """The interval is scipy's paired t-test, which is far narrower than the spread between seeds."""
    before, gain = [0.1, 0.3, 0.5, 0.7, 0.2], [0.10, 0.11, 0.09, 0.12, 0.08]
    ends = {"a": before, "b": [x + y for x, y in zip(before, gain, strict=True)]}

    def trial(arm, seed):
        folder = tmp_path / f"{arm}{seed}"
        return runs.Trial(folder) if folder.exists() else written(folder, 1, [{}, {"eval/avg": ends[arm][seed - 1]}])

    monkeypatch.setattr(runs, "trial", trial)
    monkeypatch.setattr(runs, "words", lambda arm, seed: [arm, "--seed", str(seed)])
    monkeypatch.setattr(runs, "code_hash", lambda arm: "")
    result = runs.compare({"first": "a", "second": "b"}, [("first", "second")], 5)
    mean, half, seen = result["differences"]["first → second"]
    low, high = stats.ttest_rel(ends["b"], ends["a"]).confidence_interval(0.95)
    assert (mean - half, mean + half) == pytest.approx((low, high)) and half < 0.03
    assert runs.judged(result, "first → second", 0.05) == court.REPRODUCED
    assert runs.judged(result, "first → second", 0.05, sign=-1) == court.CONTRADICTED
    assert runs.judged_lossless(result, "first → second", 0.05) == court.REPRODUCED
    fewer = {"differences": {"first → second": [-mean, half, seen]}}
    assert runs.judged_lossless(fewer, "first → second", 0.05) == court.CONTRADICTED
    assert runs.judged_by_clip(result, court.CONTRADICTED) == court.CONTRADICTED  # a quarter is clipped
    result["arms"] = {name: arm | {"clipped": 0.009} for name, arm in result["arms"].items()}
    assert runs.judged_by_clip(result, court.CONTRADICTED) == court.VOID
    generator = torch.Generator().manual_seed(0)  # with `seen` as the true mean, 80 % of samples detect it
    spread = stats.tstd(gain)
    samples = seen + spread * torch.randn(4000, 5, generator=generator, dtype=torch.float64)
    found = (stats.ttest_1samp(samples.numpy(), 0, axis=1).pvalue < 0.05).mean()
    assert found == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize("name", OF_KIND["runs"])
def test_every_claim_by_runs_can_be_judged_and_drawn(name, tmp_path, monkeypatch):
    """Made-up runs, different in every arm, are enough for a verdict and a picture."""
    claim = court.load(name)
    numbers = ("accuracy", "length", "length_correct", "length_incorrect", "entropy", "kl", "truncated")

    def trial(arm, seed):
        folder = tmp_path / f"{zlib.crc32(arm.encode())}-{seed}"
        if folder.exists():
            return runs.Trial(folder)
        rng = random.Random(folder.name)
        ends = {key: rng.random() for key in (*numbers, "eval/avg", *(f"eval/pass@{2**i}" for i in range(9)))}
        return written(folder, 20, [{key: end * i / 20 for key, end in ends.items()} for i in range(1, 22)])

    monkeypatch.setattr(runs, "trial", trial)
    monkeypatch.setattr(runs.Trial, "weights", "worlds/sums/model")
    for probe, value in (("waits", [0.01, 0.5, 0.2]), ("entropy", 0.3)):  # these would run the model
        if hasattr(claim, probe):
            monkeypatch.setattr(claim, probe, lambda *_, value=value: value)
    monkeypatch.setattr(fair, "at_best_rate", lambda words: f"{words} --lr 1e-4")
    if hasattr(claim, "TEACHER"):
        monkeypatch.setattr(claim, "trial", trial)
    result = court.rounded(claim.compute(5))
    assert claim.verdict(result) in court.VERDICTS
    if hasattr(claim, "waits"):
        assert [arm["values"] for arm in result["arms"].values()] == [[0.01] * 5] * 2, "not the fraction with a wait"
    assert all(arm in claim.effect(result) for arm in result["arms"])
    claim.draw(result).savefig(tmp_path / "picture.png", dpi=90)
    assert 5_000 < (tmp_path / "picture.png").stat().st_size < 60_000


def test_a_sigmoid_that_is_one(tmp_path):
    """Fitted to half of a sigmoid curve, the sigmoid predicts its end, and the last value does not."""
    claim = court.load("sigmoid_predicts_the_end")
    curve = [0.25 + 0.6 / (1 + (12 / step) ** 2.5) for step in range(1, 51)]  # (2510.13786, Eq. 1)
    trial = written(tmp_path / "run", 50, [{"eval/avg": 0.25}, *({"accuracy": value} for value in curve)])
    assert claim.sigmoid_error(trial) == pytest.approx(0, abs=1e-4)
    assert claim.last_value_error(trial) == pytest.approx(sum(curve[-10:]) / 10 - sum(curve[20:25]) / 5)


@pytest.mark.parametrize("name", [name for name in OF_KIND["runs"] if name in JUDGED])
def test_stored_differences_follow_from_the_values(name):
    result = court.record(name)["result"]
    assert result["seeds"] >= 5 and all(len(arm["values"]) == result["seeds"] for arm in result["arms"].values())
    for pair, (mean, half, _) in result["differences"].items():
        first, second = (result["arms"][arm]["values"] for arm in pair.split(" → "))
        independent = "degrees" in result
        test = stats.ttest_ind(second, first, equal_var=False) if independent else stats.ttest_rel(second, first)
        rounding = 1e-5 * max(map(abs, first + second))  # stored values have six significant digits
        assert tuple(test.confidence_interval(0.95)) == pytest.approx((mean - half, mean + half), abs=rounding)


def test_changed_rewards():
    torch.manual_seed(0)
    rewards = (torch.rand(500, 8) < 0.3).float()
    shuffled, coin, lenient = (variant.REWARDS[name](rewards, 0.2) for name in ("shuffled", "coin", "lenient"))
    assert torch.equal(shuffled.sum(1), rewards.sum(1)) and not torch.equal(shuffled, rewards)
    assert abs((shuffled * rewards).sum(1).mean() - (rewards.sum(1) ** 2 / 8).mean()) < 0.1  # only by chance
    assert abs(coin.mean() - 0.5) < 0.03 and coin.unique().tolist() == [0, 1]
    assert (lenient >= rewards).all() and abs(lenient[rewards == 0].mean() - 0.2) < 0.03


def test_changed_masks():
    """Each half masks what DPPO masks for its sign; the control masks as many tokens with negative advantage."""
    torch.manual_seed(0)
    shape, args = (64, 32), dppo.Args()
    logp, rollout_logp = (torch.randn(2, *shape, dtype=torch.float64) - 1).clamp(max=-0.01)
    advantages = torch.where(torch.rand(64, 1) < 0.5, 1.0, -1.0).expand(shape)
    mask = torch.rand(shape) < 0.9
    logp[~mask] = 0  # as in the loop, 0 on padding
    inputs = (logp, rollout_logp, advantages, args)
    loss, values = dppo.policy_loss(*inputs)
    free = -torch.exp(logp - rollout_logp) * advantages * logp  # (64, 32)
    clipped = {kind: variant.with_mask(dppo, kind)(*inputs) for kind in variant.MASKS}
    for kind, side in (("negative", advantages < 0), ("positive", advantages > 0)):
        torch.testing.assert_close(clipped[kind][0][mask], torch.where(side, loss, free)[mask])
    of_random = clipped["random"][1]["clip_neg"].bool()
    assert of_random.sum() == (values["clip_neg"].bool() & mask).sum() > 50
    assert not of_random[(advantages > 0) | ~mask].any()
    assert (of_random & values["clip_neg"].bool()).sum() < 0.6 * of_random.sum()
    torch.testing.assert_close(clipped["random"][0], free * ~of_random)


def test_a_function_of_another_script():
    """A replaced function is called like the script's own, even if the script passes fewer inputs."""
    script, args = SimpleNamespace(token_weights=lambda mask: mask), SimpleNamespace(max_response_tokens=10)
    variant.change(script, "dr_grpo.token_weights", args)
    assert script.token_weights(torch.ones(2, 3)).sum().item() == pytest.approx(0.3)
    with pytest.raises(SystemExit):
        variant.change(script, "cion", args)
