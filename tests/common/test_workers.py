"""Worker processes that hang, die, or are asked to end."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path

from common.verification.workers import Pool, Program, Worker

import pytest
from judging import is_correct, make_verifier
from runs import alive


def test_hostile_answers_end_and_are_counted():
    """Endless answers are killed and counted, and good answers in the same batch are still judged."""
    verifier = make_verifier()
    try:
        assert is_correct(verifier, r"\boxed{1+x^2}", "x^2+1")  # starts both workers before the clock
        answers = [r"9^{9^{9^9}}", r"8^{8^{8^8}}", "(10^9)!", r"1+x^2", "(" * 400 + "x"]
        start = time.perf_counter()
        verdicts = verifier.judge([rf"\boxed{{{answer}}}" for answer in answers], ["x^2+1"] * 5, [False] * 5)
        assert time.perf_counter() - start < 30
        assert verdicts == [False, False, False, True, False]
        assert verifier.failures["timeout"] >= 2
        assert is_correct(verifier, r"\boxed{1+x^2}", "x^2+1")  # the workers are back
    finally:
        verifier.close()


@pytest.mark.slow
def test_a_busy_machine_changes_no_verdict(verifier):
    """The limit counts processor time, so a worker on a busy core reaches the same verdict."""
    worker, core = Worker(verifier.equality._replace(processor_limit=0.5)), {min(os.sched_getaffinity(0))}
    assert worker.ask([[{"payload": "x^2"}, "x^2"]]).value == [1]  # starts the worker
    pid = worker.process.pid
    child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
    command = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command, start_new_session=True) for _ in range(9)]  # Linux may divide time by session
    try:
        for process in (child, *(other.pid for other in busy)):
            os.sched_setaffinity(process, core)
        os.setpriority(os.PRIO_PROCESS, child, 15)
        start = time.perf_counter()
        assert worker.ask([[{"payload": r"\sin(x)^2"}, r"1-\cos^2 x"]]).value == [1]  # a tenth of a second's work
        assert time.perf_counter() - start > 0.5, "nothing was in its way"
    finally:
        for other in busy:
            other.kill()
            other.wait()
        worker.end()


def test_what_asks_the_run_to_end_leaves_the_workers(verifier):
    """Workers ignore Ctrl-C and a closed terminal, because the current step still needs their verdicts."""
    assert is_correct(verifier, r"\boxed{1+x^2}", "x^2+1")
    for worker in verifier.pool.workers:
        if worker.process is not None:
            pid = worker.process.pid
            child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text())
            for process, number in itertools.product((child, pid), (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)):
                os.kill(process, number)
    verifier.failures.clear()
    assert is_correct(verifier, r"\boxed{2+x^2}", "x^2+2") and is_correct(verifier, r"\boxed{3+x^2}", "x^2+3")


def test_worker_that_dies_is_replaced():
    """When a worker dies, the answer it was checking counts as a failure, and a new worker starts."""
    verifier = make_verifier()
    assert is_correct(verifier, r"\boxed{1+x^2}", "x^2+1")
    for worker in verifier.pool.workers:
        if worker.process is not None:
            os.killpg(worker.process.pid, signal.SIGKILL)  # with its child, which has the same pipes
            worker.process.wait()
    assert not is_correct(verifier, r"\boxed{1+x^2}", "x^2+1") and verifier.take_numbers()["verifier_failures"] == 1
    assert is_correct(verifier, r"\boxed{1+x^2}", "x^2+1") and verifier.take_numbers()["verifier_failures"] == 0
    verifier.close()


def test_a_pool_is_closed_while_its_workers_hang_or_start(tmp_path, capfd):
    """Closing interrupts calls and imports, prints nothing, and leaves no process or thread behind."""
    for text in (
        "import time\ndef f(problem, text, tokens, truncated): time.sleep(1000)",
        "import time\ntime.sleep(1000)",
    ):
        (tmp_path / "own.py").write_text(text)
        pool = Pool(2)
        program = Program(f"{tmp_path / 'own.py'}:f", 100.0)
        replies = pool.map([(program, [[{}, "", [], False]])] * 3)
        while not all(worker.process for worker in pool.workers):
            time.sleep(0.01)
        time.sleep(0.5)
        pids = [worker.process.pid for worker in pool.workers]
        start = time.monotonic()
        pool.close()
        assert time.monotonic() - start < 10
        assert not any(map(alive, pids)) and all(worker.process is None for worker in pool.workers)
        with pytest.raises(CancelledError):
            assert all(reply.failed and not reply.late for reply in replies)
    assert capfd.readouterr().err == ""


def test_a_worker_that_hangs_ends_with_the_run(tmp_path):
    """A killed run cannot end its workers, so they end by themselves, with everything they started."""
    (tmp_path / "own.py").write_text(f"""
import subprocess, time
def f(problem, text, tokens, truncated):
    child = subprocess.Popen(["sleep", "1000"])
    with open({str(tmp_path / "pid")!r}, "w") as file:
        file.write(str(child.pid))
    time.sleep(1000)
""")
    worker = Worker(Program(f"{tmp_path / 'own.py'}:f", 100.0))
    assert not worker.start().failed
    worker.process.stdin.write(json.dumps([[{}, "", [], False]]).encode() + b"\n")
    worker.process.stdin.flush()
    end = time.monotonic() + 20
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert time.monotonic() < end
        time.sleep(0.05)
    worker.process.stdin.close()  # as the kernel does for a killed run
    while alive(int((tmp_path / "pid").read_text())) or alive(worker.process.pid):
        assert time.monotonic() < end, "a worker outlived its run"
        time.sleep(0.05)


def test_a_closed_worker_does_not_start():
    worker = Worker(Program("math:sqrt", time_limit=5.0))
    worker.close()
    assert worker.ask(None).failed == "the run is ending" and worker.process is None
