"""PipelineRL is the sum of its components, its corrections are what they say, and --overlap changes no result."""

import itertools
import multiprocessing
import multiprocessing.util
import os
import shutil
import signal
import threading
import time
import types
from multiprocessing import resource_tracker
from pathlib import Path
from typing import get_args, get_type_hints

import grpo
from common.engines import WeightHistory
from common.metrics import effective_sample_size
from common.models import load_model
from common.run import Run
from recipes import pipeline_rl
from recipes.overlap import Generator
from tools.scripts import components

import pytest
import torch
from runs import assert_same_rows, assert_same_weights, differing, refused, results, run, settings_of
from test_identities import OFF, close, gradient, rows

# Responses that are long enough to get new weights twice.
LONG_GRPO = {"steps": 4, "lr": 5e-4, "max_response_tokens": 32, "staleness": 2, "tis_cap": 5.0}
LONG = LONG_GRPO | {"in_flight_every": 8}
CORRECTIONS = get_args(get_type_hints(pipeline_rl.Args)["correction"])


class TestPipelineRL:
    @pytest.mark.slow
    def test_without_its_components_it_is_grpo(self, tmp_path, capsys):
        """All four flags of the docstring's table: GRPO without TIS, to the bit; with token-tis and its cap, GRPO."""
        plain = settings_of(pipeline_rl, components("pipeline_rl").values())
        assert len(plain) == 4
        for own, of_grpo in (plain, {"tis_cap": 0.0}), (plain | {"correction": "token-tis", "tis_cap": 2.0}, {}):
            weights, logged = run("pipeline_rl", tmp_path / f"own-{len(of_grpo)}", **own)
            expected, rows_ = run("grpo", tmp_path / f"grpo-{len(of_grpo)}", **of_grpo)
            assert_same_weights(weights, expected)
            assert_same_rows(logged, rows_, more={"ess", "tis_masked"})

    @pytest.mark.slow
    def test_each_component_can_be_removed(self, tmp_path, monkeypatch, capsys):
        """Without any one of them a run ends at another place."""
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        away = [{}, *(settings_of(pipeline_rl, [flag]) for flag in components("pipeline_rl").values())]
        ends = [run("pipeline_rl", tmp_path / str(i), **LONG | s)[0] for i, s in enumerate(away)]
        for one, other in itertools.combinations(ends, 2):
            assert differing(one, other), "a component without effect"

    @pytest.mark.slow
    def test_without_new_weights_in_flight_it_is_stale_grpo(self, tmp_path, capsys):
        weights, _ = run("pipeline_rl", tmp_path / "own", **LONG | {"in_flight_every": 0})
        expected, _ = run("grpo", tmp_path / "grpo", **LONG_GRPO)
        assert_same_weights(weights, expected)

    @pytest.mark.slow
    def test_weights_that_never_change_are_no_new_weights(self, tmp_path, monkeypatch, capsys):
        """In flight, with the keys and values of before, the engine continues as if nothing happened, to the bit."""
        monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_: None)
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        _, changing = run("pipeline_rl", tmp_path / "changing", **LONG)
        _, fixed = run("pipeline_rl", tmp_path / "fixed", **LONG | {"staleness": 0, "in_flight_every": 0})
        assert_same_rows(changing, fixed)

    @pytest.mark.parametrize("correction", CORRECTIONS)
    def test_nothing_to_correct(self, correction):
        """Where the engine is the learner no correction acts, and the gradient is GRPO's."""
        logp, old, _, a, mask = rows(0)
        close(gradient(pipeline_rl, (logp, old, old, a, mask), correction=correction, tis_cap=5.0),
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
            for mine, truth in zip(expected(correction), exact, strict=True):
                close(mine, truth)
        for correction in ("token-tis", "none"):
            assert any(
                (mine - truth).abs().max() > 0.01 for mine, truth in zip(expected(correction), exact, strict=True)
            )

    def test_effective_sample_size(self):
        """1 on-policy; with one of n tokens that counts alone, 1/n."""
        old, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
        assert effective_sample_size(old, old - 0.7, mask) == pytest.approx(1.0)
        far = torch.full((2, 3), 30.0)
        far[0, 0] = 0.0
        assert effective_sample_size(old, far, mask) == pytest.approx(1 / 6)
        assert effective_sample_size(old, far, mask & (far > 0)) == pytest.approx(1.0)


class TestOverlap:
    """A generator in a process of its own."""

    @pytest.mark.slow
    def test_the_result_is_the_same(self, tmp_path, capsys):
        """To the bit, and it was ahead: the learner waited for less than was generated."""
        weights, rows_ = run("pipeline_rl", tmp_path / "alone", **LONG)
        again, logged = run("pipeline_rl", tmp_path / "both", overlap=True, **LONG)
        assert_same_weights(weights, again)
        assert_same_rows(rows_, logged, more={"seconds/overlap"})
        assert all("seconds/overlap" in row for row in logged[1:])
        assert min(row["seconds/overlap"] for row in logged[1:]) < 0
        assert all(row["seconds/generate"] > 0 for row in logged[1:])

    @pytest.mark.slow
    def test_a_generator_that_is_killed(self, tmp_path, monkeypatch, capsys):
        """One sentence, nothing lost: the step before is saved though no checkpoint was due, and it can be resumed."""
        record, steps = WeightHistory.record, []

        def kill(history, model):
            steps.append(1)
            if len(steps) == 2:
                for child in multiprocessing.active_children():
                    os.kill(child.pid, signal.SIGKILL)
            record(history, model)

        monkeypatch.setattr(WeightHistory, "record", kill)
        with pytest.raises(SystemExit) as stop:
            run("pipeline_rl", tmp_path / "cut", overlap=True, save_every=0, **LONG)
        assert stop.value.code == 1
        error = capsys.readouterr().err.strip()
        assert error.startswith("error: step ") and "\n" not in error
        assert "the generator's process has ended with exit code -9" in error and "--resume" in error
        monkeypatch.setattr(WeightHistory, "record", record)
        (saved,) = (tmp_path / "cut").glob("checkpoint-*")
        assert saved.name in ("checkpoint-000002", "checkpoint-000003")
        weights, rows_ = run("pipeline_rl", tmp_path / "whole", **LONG)
        pipeline_rl.main(pipeline_rl.Args(resume=tmp_path / "cut"))
        again, logged = results(tmp_path / "cut")
        assert_same_weights(weights, again)
        assert_same_rows(rows_, logged, more={"seconds/overlap"})

    def test_a_generator_that_ends_while_it_starts(self, tmp_path, monkeypatch, capsys):
        """One sentence: the learner does not wait for it to read the problems, two megabytes."""
        resource_tracker.ensure_running()
        monkeypatch.setenv("PYTHONHOME", str(tmp_path))  # no Python starts with this one
        before = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("the learner hangs"))
        signal.alarm(120)
        try:
            with pytest.raises(SystemExit) as stop:
                run("pipeline_rl", tmp_path / "run", overlap=True, **LONG)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)
        error = capsys.readouterr().err.strip()
        assert stop.value.code == 1 and "\n" not in error, error
        assert error.startswith("error: step 1: the generator's process has ended with exit code 1"), error

    @pytest.mark.slow
    def test_ctrl_c_while_the_generator_starts(self, tmp_path, monkeypatch, capsys):
        """It reaches both processes, as from a terminal: the step is finished and saved, and the run resumes."""
        spawn = multiprocessing.util.spawnv_passfds

        def interrupted(*args):
            # To this thread: another one may not block the signal, and would take it.
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            child = spawn(*args)
            os.kill(child, signal.SIGINT)
            return child

        resource_tracker.ensure_running()
        monkeypatch.setattr(multiprocessing.util, "spawnv_passfds", interrupted)
        run("pipeline_rl", tmp_path / "run", overlap=True, **LONG)
        assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-000001"]

    @pytest.mark.slow
    def test_a_learner_that_is_killed(self):
        """The generator ends at once, in the middle of a batch."""
        context = multiprocessing.get_context("spawn")
        connection, other = context.Pipe()
        learner = context.Process(target=wait_for_a_batch, args=(other,))
        learner.start()
        generator = Path(f"/proc/{connection.recv()}")
        learner.kill()
        learner.join()
        deadline = time.monotonic() + 30
        while generator.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not generator.exists(), "the generator outlived the learner"

    @pytest.mark.slow
    def test_an_error_in_the_generator_is_the_learners(self, capsys):
        """With what it says there; lack of memory then ends the run with the sentence that it always does."""
        args = grpo.Args(steps=1)
        model, _ = load_model(args)
        stub = types.SimpleNamespace(args=args)
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
            monkeypatch.setattr("recipes.overlap.world_size", lambda: 2)
        if missing == "memory":
            monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1 << 20))
        sentence = refused(capsys, tmp_path, pipeline_rl, overlap=True)
        words = {"core": "needs a second CPU core", "GPU": "needs a second GPU", "process": "a run of one process"}
        assert (words | {"memory": "GB of shared memory"})[missing] in sentence


def lacks_memory(*_):
    raise MemoryError("none left")


def never_ends(*_):
    time.sleep(1000)


def wait_for_a_batch(connection):
    """A learner whose generator is at a batch that takes long."""
    args = grpo.Args(steps=1)
    model, _ = load_model(args)
    generator = Generator(types.SimpleNamespace(args=args), never_ends, model, [])
    generator.publish(1, [list(model.named_parameters())])
    connection.send(generator.process.pid)
    generator.receive(1)
