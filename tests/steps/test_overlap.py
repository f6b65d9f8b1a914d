"""PipelineRL and ScaleRL with --overlap: another process generates; either may be killed, stopped or interrupted."""

import os
import random
import shutil
import signal
import time

from common.metrics import read_metrics
from recipes import pipeline_rl, remote

import pytest
import torch
from runs import PROCESSES, play, refused, run
from test_pipeline_rl import LONG


def command(folder, tiny_model, *more):
    settings = {"steps": 1000, "prompts-per-step": 4, "responses-per-prompt": 4, "eval-problems": 2, "eval-samples": 1}
    settings |= {"max-response-tokens": 32, "staleness": 2, "save-every": 0, "eval-every": 0, "model": tiny_model}
    settings |= {"dataset": tiny_model / "problems.jsonl"}
    given = [f"--{name}={value}" for name, value in settings.items()]
    return ["recipes/pipeline_rl.py", "--overlap", f"--run-dir={folder}", *given, *more]


def learn(words, folder, silent_seconds):
    """Target of the learner's process."""
    remote.SILENT_SECONDS = silent_seconds
    play(words, folder)


class Overlapped:
    """A run in its own process, and the process that generates for it."""

    def __init__(self, words, tmp_path, silent_seconds=remote.SILENT_SECONDS):
        self.output, self.errors = tmp_path / "output", tmp_path / "errors"
        self.process = PROCESSES.Process(target=learn, args=(words, tmp_path, silent_seconds))
        self.process.start()

    def generator(self):
        """The generator's process id, once it exists."""
        path = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        while self.process.is_alive():
            for child in open(path).read().split():  # noqa: SIM115
                if "recipes.channel" in open(f"/proc/{child}/cmdline").read():  # noqa: SIM115
                    return int(child)
            time.sleep(0.02)
        pytest.fail(f"it ended: {self.errors.read_text()}")

    def wait_for(self, text):
        while self.process.is_alive():
            if self.output.exists() and text in self.output.read_text():
                return
            time.sleep(0.02)
        pytest.fail(f"no {text!r}: {self.errors.read_text()}")

    def end(self, seconds=120):
        """The exit code and the error messages."""
        self.process.join(seconds)
        if self.process.is_alive():
            self.process.kill()
            pytest.fail("the learner hangs")
        return self.process.exitcode, self.errors.read_text().strip()


def becomes(number, states):
    """Whether the process reaches one of these states within 30 seconds: T stopped, Z ended, X gone."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            state = open(f"/proc/{number}/stat").read().split()[2]  # noqa: SIM115
        except (FileNotFoundError, ProcessLookupError):
            state = "X"
        if state in states:
            return True
        time.sleep(0.05)
    return False


def gone(number):
    return becomes(number, "ZX")


class TestOverlap:
    """A generator in its own process. Moments: while it starts, and after some steps."""

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["pipeline_rl", "scalerl"])
    def test_a_run(self, name, tmp_path, monkeypatch, capsys):
        """A run ends as usual, no group is older than η, and some are older than the learner's weights."""
        _, logged = run(name, tmp_path / "run", overlap=True, **LONG | {"tis_cap": 0.0})
        assert [row["step"] for row in logged if "age" in row] == [1, 2, 3, 4]
        steps = [row for row in logged if "age" in row]
        assert all(row["oldest"] <= 2 for row in steps) and steps[0]["age"] == 0
        assert max(row["oldest"] for row in steps) > 0

    @pytest.mark.slow
    def test_without_staleness_it_is_the_same_run(self, tmp_path, capsys):
        """With staleness 0 the generator always waits, so both modes end with the same weights within rounding."""
        same = LONG | {"staleness": 0, "steps": 3}
        one, rows_ = run("pipeline_rl", tmp_path / "one", **same)
        two, others = run("pipeline_rl", tmp_path / "two", overlap=True, **same)
        for name, weight in one.items():
            torch.testing.assert_close(weight, two[name], rtol=0, atol=1e-4)
        assert [row.get("length") for row in rows_] == [row.get("length") for row in others]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "number,moment",
        [(signal.SIGKILL, "start"), (signal.SIGKILL, "step"), (signal.SIGTERM, "step"), (signal.SIGINT, "step")],
    )
    def test_a_generator_that_ends(self, number, moment, tiny_model, tmp_path):
        """The learner ends with one sentence and exit code 1, its steps are saved, and the run resumes."""
        running = Overlapped(command(tmp_path / "run", tiny_model), tmp_path)
        generator = running.generator()
        if moment == "step":
            running.wait_for("  2/1000")
        os.kill(generator, number)
        code, error = running.end()
        assert code == 1 and error.count("error: ") == 1 and "\n" not in error, error
        assert f"the generator's process has ended with exit code -{int(number)}" in error
        if moment == "step":
            assert "--resume" in error
            (saved,) = (tmp_path / "run").glob("checkpoint-*")
            steps = int(saved.name[-6:])
            if number == signal.SIGKILL:  # all signals look the same to the learner
                steps += 1
                pipeline_rl.main(pipeline_rl.Args(resume=tmp_path / "run", steps=steps))
            logged = [row["step"] for row in read_metrics(tmp_path / "run") if "age" in row]
            assert steps >= 2 and logged == [*range(1, steps + 1)]

    @pytest.mark.slow
    @pytest.mark.parametrize("moment", ["start", "step"])
    def test_a_generator_that_is_stopped(self, moment, tiny_model, tmp_path):
        """The learner waits for a limited time, ends with one sentence, and ends the generator."""
        running = Overlapped(command(tmp_path / "run", tiny_model), tmp_path, silent_seconds=5.0)
        generator = running.generator()
        if moment == "step":
            running.wait_for("  2/1000")
        os.kill(generator, signal.SIGSTOP)
        code, error = running.end(60)
        assert code == 1 and "has been silent for 5 seconds" in error and "\n" not in error, error
        assert gone(generator)

    @pytest.mark.slow
    @pytest.mark.parametrize("moment", ["start", "step"])
    @pytest.mark.parametrize("stopped", [False, True])
    def test_a_learner_that_is_killed(self, stopped, moment, tiny_model, tmp_path):
        """The generator ends too, even if it was stopped, and the run resumes from its last checkpoint."""
        running = Overlapped(command(tmp_path / "run", tiny_model, "--save-every=1"), tmp_path)
        generator = running.generator()
        if moment == "step":
            running.wait_for("  2/1000")
        if stopped:
            os.kill(generator, signal.SIGSTOP)
            assert becomes(generator, "T")  # the kernel ends a stopped child, but not one that is about to stop
        running.process.kill()
        assert gone(generator), "the generator outlived the learner"
        running.end()
        if moment == "step" and not stopped:
            steps = int(max(path.name for path in (tmp_path / "run").glob("checkpoint-0*"))[-6:]) + 1
            pipeline_rl.main(pipeline_rl.Args(resume=tmp_path / "run", steps=steps))
            assert read_metrics(tmp_path / "run")[-1]["step"] == steps

    @pytest.mark.slow
    def test_a_learner_that_is_stopped(self, tiny_model, tmp_path):
        """After a stop that is longer than a generator's silence may be, both processes continue."""
        running = Overlapped(command(tmp_path / "run", tiny_model, "--steps=40"), tmp_path, silent_seconds=5.0)
        running.wait_for("  1/40")
        os.kill(running.process.pid, signal.SIGSTOP)
        assert becomes(running.process.pid, "T"), "it ended before it was stopped"
        time.sleep(6)
        os.kill(running.process.pid, signal.SIGCONT)
        assert running.end()[0] == 0

    @pytest.mark.slow
    @pytest.mark.parametrize("moment", ["start", "step"])
    def test_ctrl_c(self, moment, tiny_model, tmp_path):
        """Ctrl-C signals the learner's process group: the step is finished and saved, and the run resumes."""
        running = Overlapped(command(tmp_path / "run", tiny_model), tmp_path)
        generator = running.generator()
        if moment == "step":
            running.wait_for("  1/1000")
        os.killpg(running.process.pid, signal.SIGINT)
        code, error = running.end()
        assert code == 0 and "finishing this step" in error and gone(generator), error
        (saved,) = (tmp_path / "run").glob("checkpoint-*")
        if moment == "step":
            pipeline_rl.main(pipeline_rl.Args(resume=tmp_path / "run", steps=int(saved.name[-6:]) + 1))

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", [0, 3, 6])  # seeds that signal the generator, both, the learner
    def test_at_a_random_moment(self, seed, tiny_model, tmp_path):
        """After a kill or an interrupt at any moment, neither process outlives the other, and the run resumes."""
        chance = random.Random(seed)
        running = Overlapped(command(tmp_path / "run", tiny_model, "--save-every=1"), tmp_path)
        generator = running.generator()
        time.sleep(chance.uniform(0, 8))
        target = chance.choice(["learner", "generator", "both"])
        if target == "both":
            os.killpg(running.process.pid, signal.SIGINT)
        else:
            os.kill(running.process.pid if target == "learner" else generator, signal.SIGKILL)
        assert gone(generator), f"after a signal to {target} the generator goes on"
        code, error = running.end()
        expected = {"learner": (-signal.SIGKILL,), "generator": (1,), "both": (0, 130)}
        assert code in expected[target] and "Traceback" not in error, (target, code, error)
        if saved := sorted((tmp_path / "run").glob("checkpoint-0*")):
            steps = int(saved[-1].name[-6:]) + 1
            pipeline_rl.main(pipeline_rl.Args(resume=tmp_path / "run", steps=steps))
            assert [row["step"] for row in read_metrics(tmp_path / "run") if "age" in row] == [*range(1, steps + 1)]

    @pytest.mark.slow
    def test_an_error_in_the_generator_is_the_learners(self, tmp_path, capfd, monkeypatch):
        """An error in the generator's process is printed and ends the run like one in the learner's."""
        send = remote.Channel.send

        def poisoned(channel, message):
            if isinstance(message, dict):
                message["args"]["model"] = "no-such-folder/at-all"
            send(channel, message)

        monkeypatch.setattr(remote.Channel, "send", poisoned)
        with pytest.raises(SystemExit) as stop:
            run("pipeline_rl", tmp_path / "run", overlap=True, **LONG)
        assert stop.value.code == 2 and "no-such-folder" in capfd.readouterr().err

    @pytest.mark.parametrize("missing", ["core", "GPU", "process", "memory"])
    def test_what_it_needs(self, missing, tmp_path, monkeypatch, capsys):
        if missing == "core":
            monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
        if missing == "GPU":
            monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
            monkeypatch.setattr("torch.accelerator.device_count", lambda: 1)
        if missing == "process":
            monkeypatch.setattr("recipes.remote.world_size", lambda: 2)
        if missing == "memory":
            monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1 << 20))
        sentence = refused(capsys, tmp_path, pipeline_rl, overlap=True)
        words = {"core": "needs a second CPU core", "GPU": "needs a second GPU", "process": "with one process only"}
        assert (words | {"memory": "GB of shared memory"})[missing] in sentence
