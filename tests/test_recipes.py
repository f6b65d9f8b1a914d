"""Recipes are sums of tricks: each can be taken away, without all of them the plain method is left."""

import itertools
import math
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import get_args, get_type_hints

import dapo
import dr_grpo
import grpo
from common.models import load_model
from common.overlap import Generator
from common.run import Run
from recipes import olmo3, pipeline_rl

import pytest
import torch
import tyro
from test_errors import refused
from test_identities import OFF, close, gradient, rows
from test_scripts import ROOT, load_file, results, run, without_times


def flags(script):
    """The flags in the table of a recipe's docstring, one for each trick."""
    return re.findall(r"^\| .+ \| .+ \| (--.+) \|$", script.__doc__, re.M)


def settings(script, flags):
    """What flags of the command line set."""
    defaults, given = vars(script.Args()), vars(tyro.cli(script.Args, args=" ".join(flags).split()))
    return {name: value for name, value in given.items() if value != defaults[name]}


class TestOlmo3:
    def test_without_its_tricks_it_is_grpo(self, tmp_path, capsys):
        """All seven flags of the docstring's table: GRPO with its KL and without TIS, to the bit."""
        plain = settings(olmo3, flags(olmo3))
        assert len(plain) == 7
        weights, logged = run("olmo3", tmp_path / "olmo3", **plain)
        expected, of_grpo = run("grpo", tmp_path / "grpo", kl_beta=plain["kl_beta"], tis_cap=0.0)
        assert all(torch.equal(weights[key], expected[key]) for key in expected)
        for row, row_ in zip(without_times(logged), without_times(of_grpo), strict=True):
            assert row_.items() <= row.items() and row.keys() - row_.keys() <= {"sampled_prompts", "kept_groups"}

    def test_each_trick_can_be_taken_away(self, tmp_path, monkeypatch, capsys):
        """Without any one of them, a step ends at another place; clip-higher acts between the bounds alone."""
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        one_round, settings_of = {"max_rounds": 1}, [{}]
        for flag in flags(olmo3):
            ((name, value),) = settings(olmo3, [flag]).items()
            if name != "clip_eps_high":  # with one round there are groups to be left out
                settings_of.append({name: value} | (one_round if name == "filter_groups" else {}))
        ends = [run("olmo3", tmp_path / str(i), steps=1, lr=1e-3, **s)[0] for i, s in enumerate(settings_of)]
        assert len(ends) == 7
        for i, j in itertools.combinations(range(7), 2):
            assert any(not torch.equal(ends[i][key], ends[j][key]) for key in ends[i]), (settings_of[i], settings_of[j])
        logp, old, _, a, mask = inputs = rows(0)
        between = mask & (a > 0) & (logp - old > math.log(1.2)) & (logp - old < math.log(1.272))
        assert between.any()
        assert torch.equal(gradient(olmo3, inputs) != gradient(olmo3, inputs, clip_eps_high=0.2), between)

    @pytest.mark.parametrize("seed", range(3))
    def test_it_is_dapo_but_for_tis_and_bounds(self, seed):
        """With the same advantages, bounds, and nothing to correct for."""
        inputs = rows(seed)
        close(gradient(olmo3, inputs, clip_eps_high=0.28), gradient(dapo, inputs))
        close(gradient(olmo3, inputs, average="response", clip_eps_high=0.2), gradient(grpo, inputs))

    def test_in_one_update_only_tis_acts(self):
        """As the Think models are trained: the gradient of a token is min(ρ, C) A over their number."""
        inputs = rows(0, spread=0.0)
        _, old, rollout, a, mask = inputs
        rho = torch.exp(old - rollout)
        assert (rho[mask] > 1.2).any(), "a cap has something to do"
        close(gradient(olmo3, inputs, tis_cap=1.2), -mask.double() / mask.sum() * rho.clamp(max=1.2) * a)

    def test_advantages(self):
        """Those of Dr. GRPO, or of GRPO, to the bit."""
        rewards = (torch.rand(6, 5, generator=torch.Generator().manual_seed(0)) < 0.4).float()
        assert torch.equal(
            olmo3.compute_advantages(rewards, olmo3.Args()), dr_grpo.compute_advantages(rewards, dr_grpo.Args())
        )
        for ddof in (0, 1):
            ours = olmo3.compute_advantages(rewards, olmo3.Args(std="group", ddof=ddof))
            assert torch.equal(ours, grpo.compute_advantages(rewards, grpo.Args(ddof=ddof)))

    @pytest.mark.parametrize("average", ["token", "response"])
    def test_leaving_groups_out_changes_the_denominator_alone(self, average):
        """What has no signal has no gradient either way: the direction stays, the length grows."""
        logp, old, rollout, a, mask = rows(0)
        silent = torch.arange(len(mask))[:, None] >= 24
        a = a * ~silent
        every, some = (gradient(olmo3, (logp, old, rollout, a, m), average=average) for m in (mask, mask & ~silent))
        factor = mask.sum().item() / mask[:24].sum().item() if average == "token" else len(mask) / 24
        assert factor > 1.3
        close(some, factor * every)

    def test_no_group_with_signal_is_thrown_away(self, tmp_path, monkeypatch, capsys):
        """Each is trained on once, in the order in which they were generated, in its step or the next."""
        generated, trained, step = [], [], 0  # (step, prompt, tokens) of each group

        def seed_step(seed, number):
            nonlocal step
            step = number
            return original(seed, number)

        class Watched(olmo3.Verifier):
            def __call__(self, problems, rollouts):
                verdicts = super().__call__(problems, rollouts)
                for i, (problem, group) in enumerate(zip(problems, rollouts.split(4), strict=True)):
                    if 0 < sum(verdicts[4 * i : 4 * i + 4]) < 4:
                        generated.append((step, problem.prompt_ids, group.tokens))
                return verdicts

        def collate(prompts, rollouts, device):
            trained.extend((step, *pair) for pair in zip(prompts, [r.tokens for r in rollouts.split(4)], strict=True))
            return collated(prompts, rollouts, device)

        original, collated = olmo3.seed_step, olmo3.collate
        monkeypatch.setattr(olmo3, "seed_step", seed_step)
        monkeypatch.setattr(olmo3, "Verifier", Watched)
        monkeypatch.setattr(olmo3, "collate", collate)
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        _, logged = run("olmo3", tmp_path / "run", steps=3, lr=1e-3, max_rounds=50, prompts_per_step=8)
        state = torch.load(tmp_path / "run" / "checkpoint-000003" / "state.pt", weights_only=True)
        waiting = [(4, prompt, group["tokens"]) for prompt, group, _ in state["kept"]]
        assert len(trained) == 3 * 8 and len(waiting) < 8
        assert [group[1:] for group in generated] == [group[1:] for group in trained + waiting]
        steps = [(before, after) for (before, *_), (after, *_) in zip(generated, trained + waiting, strict=True)]
        assert {after - before for before, after in steps} == {0, 1}, "some groups wait, none longer than a step"
        # TIS has to correct for more than the sampler's numerics where groups have waited.
        for row in logged:
            waited = any(before != after == row["step"] for before, after in steps)
            assert (row["mismatch_max"] > 1e-3) == waited

    def test_a_model_that_is_always_right(self, tmp_path, monkeypatch, capsys):
        """The rounds run out; groups without signal fill the batch, teach nothing, and wait for nothing."""
        monkeypatch.setattr("common.verify.Verifier.judge", lambda self, responses, golds, cut: [True] * len(responses))
        weights, logged = run("olmo3", tmp_path / "run", max_rounds=3, weight_decay=0.0)
        assert "only 0 of 4 groups have signal" in capsys.readouterr().out
        assert logged[1]["sampled_prompts"] == 12 and logged[1]["kept_groups"] == logged[1]["grad_norm"] == 0
        initial = load_file(ROOT / "models/arithmetic/model.safetensors")
        assert all(torch.equal(weights[key], initial[key]) for key in weights)
        state = torch.load(tmp_path / "run" / "checkpoint-000002" / "state.pt", weights_only=True)
        assert state["kept"] == []


# Responses that are long enough to get new weights twice.
LONG_GRPO = {"steps": 4, "lr": 5e-4, "max_response_tokens": 32, "staleness": 2, "tis_cap": 5.0}
LONG = LONG_GRPO | {"in_flight_every": 8}
CORRECTIONS = get_args(get_type_hints(pipeline_rl.Args)["correction"])


class TestPipelineRL:
    def test_without_its_tricks_it_is_grpo(self, tmp_path, capsys):
        """All four flags of the docstring's table: GRPO without TIS, to the bit; with token-tis and its cap, GRPO."""
        plain = settings(pipeline_rl, flags(pipeline_rl))
        assert len(plain) == 4
        for own, of_grpo in (plain, {"tis_cap": 0.0}), (plain | {"correction": "token-tis", "tis_cap": 2.0}, {}):
            weights, logged = run("pipeline_rl", tmp_path / f"own-{len(of_grpo)}", **own)
            expected, rows_ = run("grpo", tmp_path / f"grpo-{len(of_grpo)}", **of_grpo)
            assert all(torch.equal(weights[key], expected[key]) for key in expected)
            for row, row_ in zip(without_times(logged), without_times(rows_), strict=True):
                assert row_.items() <= row.items()
                assert row.keys() - row_.keys() <= {"ess", "tis_masked", "deepseek_masked"}

    def test_each_trick_can_be_taken_away(self, tmp_path, monkeypatch, capsys):
        """Without any one of them a run ends at another place."""
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        away = [{}, *(settings(pipeline_rl, [flag]) for flag in flags(pipeline_rl))]
        away[1] |= {"in_flight_every": 0}  # which has no meaning without staleness
        ends = [run("pipeline_rl", tmp_path / str(i), **LONG | s)[0] for i, s in enumerate(away)]
        for one, other in itertools.combinations(ends, 2):
            assert any(not torch.equal(one[key], other[key]) for key in one)

    def test_without_new_weights_in_flight_it_is_stale_grpo(self, tmp_path, capsys):
        weights, _ = run("pipeline_rl", tmp_path / "own", **LONG | {"in_flight_every": 0})
        expected, _ = run("grpo", tmp_path / "grpo", **LONG_GRPO)
        assert all(torch.equal(weights[key], expected[key]) for key in expected)

    def test_weights_that_never_change_are_no_new_weights(self, tmp_path, monkeypatch, capsys):
        """In flight, from keys and values of before, the engine goes on as if nothing had happened, to the bit."""
        monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_: None)
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        _, changing = run("pipeline_rl", tmp_path / "changing", **LONG)
        _, fixed = run("pipeline_rl", tmp_path / "fixed", **LONG | {"staleness": 0, "in_flight_every": 0})
        assert without_times(changing) == without_times(fixed)

    @pytest.mark.parametrize("correction", CORRECTIONS)
    def test_nothing_to_correct(self, correction):
        """Where the sampler is the learner all corrections are none, and the gradient is GRPO's."""
        logp, old, _, a, mask = rows(0)
        close(gradient(pipeline_rl, (logp, old, old, a, mask), correction=correction, deepseek_delta=1e3, tis_cap=5.0),
              gradient(grpo, (logp, old, old, a, mask)))  # fmt: skip

    @pytest.mark.parametrize("seed", range(3))
    def test_corrections_in_closed_form(self, seed):
        """Each times the gradient of GRPO; masks have tokens on both sides."""
        inputs = rows(seed)
        _, old, mu, _, mask = inputs
        plain = gradient(grpo, inputs)
        rho = torch.exp(old - mu)
        whole = torch.where(mask, rho, 1.0).prod(1, keepdim=True)
        mean = whole ** (1 / mask.sum(1, keepdim=True))
        expected = {
            "none": torch.ones_like(rho),
            "token-tis": rho.clamp(max=1.2),
            "sequence-tis": whole.clamp(max=1.2).expand(rho.shape),
            "icepop": rho * ((rho >= 0.9) & (rho <= 1.2)),
            "sequence-mask": (whole * (whole <= 1.2)).expand(rho.shape),
            "geometric-mask": ((mean >= 0.9) & (mean <= 1.1)).double().expand(rho.shape),
        }
        for correction, weight in expected.items():
            if "mask" in correction or correction == "icepop":
                assert (weight[mask] == 0).any() and (weight[mask] > 0).any()
            close(gradient(pipeline_rl, inputs, correction=correction, tis_cap=1.2, icepop_low=0.9), plain * weight)

    @pytest.mark.parametrize("seed", range(3))
    def test_areal_and_pipeline_rl(self, seed):
        """AReaL's Eq. 5, π_prox / π_behav min(u A, clip(u) A) without a cap; PipelineRL's Eq. 5 where r is 1."""
        logp, old, mu, a, mask = inputs = rows(seed)
        each = mask / (len(mask) * mask.double().sum(1, keepdim=True))
        u = torch.exp(logp - old)
        flows = torch.where(a > 0, u <= 1.2, u >= 0.8)
        assert not flows[mask].all()
        close(gradient(pipeline_rl, inputs, tis_cap=OFF), -each * torch.exp(old - mu) * u * a * flows)
        weight = torch.exp(old - mu).clamp(max=1.3)
        close(gradient(pipeline_rl, (old, old, mu, a, mask), tis_cap=1.3), -each * weight * a)

    @pytest.mark.parametrize("seed", range(3))
    def test_deepseek_leaves_out_wrong_responses_that_are_far_away(self, seed):
        """2512.02556, Eq. 9, response by response, with the policy of the update and not of the rollout."""
        logp, _, mu, a, mask = inputs = rows(seed)
        weights = gradient(pipeline_rl, inputs, correction="deepseek", deepseek_delta=0.1) / gradient(grpo, inputs)
        left_out = set()
        for i in range(len(mask)):
            n = int(mask[i].sum())
            if a[i, 0] < 0 and (mu[i, :n] - logp[i, :n]).mean() > 0.1:
                left_out.add(i)
        flows = ~weights.isnan()  # GRPO's own gradient is not 0
        assert left_out and any(flows[i].any() for i in left_out)
        for i in range(len(mask)):
            assert (weights[i][flows[i]] == (0 if i in left_out else 1)).all()

    def test_only_weights_of_whole_responses_are_unbiased(self):
        """By enumeration: E_μ[ρ R ∇log π] is ∇E_π[R] for two-token responses; with weights per token it is not."""
        generator = torch.Generator().manual_seed(0)
        first, second, mu_first, mu_second = (
            torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((3,), (3, 3)) * 2
        )
        parameters = [first.requires_grad_(), second.requires_grad_()]
        every = [(i, j) for i in range(3) for j in range(3)]

        def logps(a, b):
            one, two = a.log_softmax(0), b.log_softmax(1)
            return torch.stack([torch.stack([one[i], two[i, j]]) for i, j in every])  # (9, 2)

        rewards = torch.tensor([float((i + j) % 3 == 0) for i, j in every], dtype=torch.float64)[:, None]
        logp, mu = logps(*parameters), logps(mu_first, mu_second)
        exact = torch.autograd.grad((logp.sum(1, keepdim=True).exp() * rewards).sum(), parameters, retain_graph=True)
        mask = torch.ones(9, 2, dtype=torch.bool)

        def expected(correction):
            args = pipeline_rl.Args(correction=correction, tis_cap=OFF)
            weight = pipeline_rl.tis_weight(logp.detach(), mu, mask, args)
            total = (mu.sum(1, keepdim=True).exp() * weight * rewards * logp).sum()
            return torch.autograd.grad(total, parameters, retain_graph=True)

        for correction in ("sequence-tis", "sequence-mask"):
            for mine, right in zip(expected(correction), exact, strict=True):
                close(mine, right)
        for correction in ("token-tis", "none"):
            assert any(
                (mine - right).abs().max() > 0.01 for mine, right in zip(expected(correction), exact, strict=True)
            )

    def test_effective_sample_size(self):
        """1 on-policy; with one of n tokens that counts alone, 1/n."""
        old, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
        assert pipeline_rl.effective_sample_size(old, old - 0.7, mask) == pytest.approx(1.0)
        far = torch.full((2, 3), 30.0)
        far[0, 0] = 0.0
        assert pipeline_rl.effective_sample_size(old, far, mask) == pytest.approx(1 / 6)
        assert pipeline_rl.effective_sample_size(old, far, mask & (far > 0)) == pytest.approx(1.0)


class TestOverlap:
    """A generator in a process of its own."""

    def test_the_result_is_the_same(self, tmp_path, capsys):
        """To the bit, and it was ahead: the learner waited for less than was generated."""
        weights, rows_ = run("pipeline_rl", tmp_path / "alone", **LONG)
        again, logged = run("pipeline_rl", tmp_path / "both", overlap=True, **LONG)
        assert all(torch.equal(weights[key], again[key]) for key in weights)
        assert without_times(rows_) == without_times(logged)
        assert all("seconds/overlap" in row for row in logged[1:])
        assert min(row["seconds/overlap"] for row in logged[1:]) < 0
        assert all(row["seconds/generate"] > 0 for row in logged[1:])

    def test_a_generator_that_is_killed(self, tmp_path, monkeypatch, capsys):
        """One sentence, nothing lost: the step before is saved though no checkpoint was due, and the run can go on."""
        record, steps = pipeline_rl.WeightHistory.record, []

        def kill(history):
            steps.append(1)
            if len(steps) == 2:
                for child in multiprocessing.active_children():
                    os.kill(child.pid, signal.SIGKILL)
            record(history)

        monkeypatch.setattr(pipeline_rl.WeightHistory, "record", kill)
        with pytest.raises(SystemExit) as stop:
            run("pipeline_rl", tmp_path / "cut", overlap=True, save_every=0, **LONG)
        assert stop.value.code == 1
        error = capsys.readouterr().err.strip()
        assert error.startswith("error: step ") and "\n" not in error
        assert "the generator's process has ended with exit code -9" in error and "--resume" in error
        monkeypatch.setattr(pipeline_rl.WeightHistory, "record", record)
        (saved,) = (tmp_path / "cut").glob("checkpoint-*")
        assert saved.name in ("checkpoint-000002", "checkpoint-000003")
        weights, rows_ = run("pipeline_rl", tmp_path / "whole", **LONG)
        pipeline_rl.main(pipeline_rl.Args(resume=tmp_path / "cut"))
        again, logged = results(tmp_path / "cut")
        assert all(torch.equal(weights[key], again[key]) for key in weights)
        assert without_times(rows_) == without_times(logged)

    def test_a_learner_that_is_killed(self, tmp_path):
        """The generator ends with it, and the run goes on from its last checkpoint."""
        command = [sys.executable, "-m", "recipes.pipeline_rl", "--overlap", "--run-dir", str(tmp_path / "run")]
        command += ["--save-every", "1", "--eval-problems", "4", "--eval-samples", "1", "--prompts-per-step", "4"]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 300
        while not list((tmp_path / "run").glob("checkpoint-0*")) and time.monotonic() < deadline:
            time.sleep(0.1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        generators = [pid for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(generators) == 1
        process.kill()
        process.wait()
        deadline = time.monotonic() + 30
        while Path(f"/proc/{generators[0]}").exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not Path(f"/proc/{generators[0]}").exists(), "the generator outlived the learner"
        assert process.stderr.read() == ""

    def test_an_error_in_the_generator_is_the_learners(self, capsys):
        """With what it says there; lack of memory then ends the run with the sentence that it always does."""
        args = grpo.Args(steps=1)
        model, _ = load_model(args)
        stub = type("Stub", (), {"args": args, "seconds": {}})()
        generator = Generator(stub, lacks_memory, model, [])
        try:
            generator.publish(1, [list(model.named_parameters())])
            with pytest.raises(MemoryError, match="none left") as error:
                generator.receive(1)
            assert "in lacks_memory" in error.value.__notes__[0]
        finally:
            generator.close()

    @pytest.mark.parametrize("missing", ["core", "GPU", "process", "memory"])
    def test_what_it_needs(self, missing, tmp_path, monkeypatch, capsys):
        if missing == "core":
            monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
        if missing == "GPU":
            monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
            monkeypatch.setattr("torch.accelerator.device_count", lambda: 1)
        if missing == "process":
            monkeypatch.setattr("common.overlap.world_size", lambda: 2)
        if missing == "memory":
            monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1 << 20))
        sentence = refused(capsys, tmp_path, pipeline_rl, overlap=True)
        words = {"core": "needs a second CPU core", "GPU": "needs a second GPU", "process": "a run of one process"}
        assert (words | {"memory": "GB of shared memory"})[missing] in sentence


def lacks_memory(*_):
    raise MemoryError("none left")
