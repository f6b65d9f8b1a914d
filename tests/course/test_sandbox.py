"""The sandbox's parts: its system call filter, its limits, and what is read from the child."""

import ctypes
import errno
import io
import json
import os
import platform
import resource
import signal
import struct
import time
from pathlib import Path
from types import SimpleNamespace

from notebooks.exercises import sandbox

import pytest

MACHINE, CALLS = sandbox.ALLOWED[platform.machine()]
LATE = "it does not end: it used up its time limit."
KILLED, REFUSED, ALLOWED = 0x80000000, 0x00050000 | errno.EPERM, 0x7FFF0000


@pytest.fixture
def confined(monkeypatch):
    """Lets a test call `confine` harmlessly and records the limits and the filter that the kernel would get."""
    given = SimpleNamespace(limits={}, calls=[], refuses=0)

    def prctl(option, *rest):
        if option == 22:
            packed = rest[1].contents
            start = ctypes.c_void_p.from_buffer(packed, sandbox.Filter.program.offset).value
            given.program = list(struct.iter_unpack("HBBI", ctypes.string_at(start, 8 * packed.length)))
        given.calls.append((option, rest[0]))
        return given.refuses

    monkeypatch.setattr(resource, "setrlimit", given.limits.__setitem__)
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: SimpleNamespace(prctl=prctl))
    monkeypatch.setattr(ctypes, "byref", ctypes.pointer)
    return given


def decision(program, machine, call):
    """A filter's decision on a system call; its steps are load, jump if equal, and return."""
    at, value = 0, None
    while True:
        code, if_equal, otherwise, k = program[at]
        if code == 0x06:
            return k & 0xFFFF0000 if k == KILLED else k
        if code == 0x20:
            value = {0: call, 4: machine}[k]  # offsets in the kernel's struct seccomp_data
        else:
            at += if_equal if value == k else otherwise
        at += 1


def test_the_filter_allows_the_listed_calls_only(confined):
    sandbox.confine(1000, 7)
    assert {call for call in range(600) if decision(confined.program, MACHINE, call) == ALLOWED} == set(CALLS.values())
    assert {decision(confined.program, MACHINE, call) for call in range(600)} == {ALLOWED, REFUSED}
    assert {decision(confined.program, MACHINE ^ 1, call) for call in range(600)} == {KILLED}
    assert confined.calls == [(38, 1), (22, 2)]  # no new privileges, then the filter


def test_limits(confined):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    sandbox.confine(123 << 20, 7)
    limits = confined.limits
    soft, hard = limits[resource.RLIMIT_AS]
    assert soft == hard == pytest.approx(pages * resource.getpagesize() + (123 << 20), rel=0.02)
    assert limits[resource.RLIMIT_CPU] == (7, 8) and limits[resource.RLIMIT_CORE] == (0, 0) and len(limits) == 3


def test_the_graders_limits():
    assert sandbox.Sandbox().limits == {"seconds": 10, "memory": 1 << 30}
    assert sandbox.Sandbox(3, 5).limits == {"seconds": 3, "memory": 5 << 20}


def test_a_kernel_that_refuses(confined):
    confined.refuses = -1
    with pytest.raises(OSError, match="the kernel refuses the system call filter"):
        sandbox.confine(1000, 7)


def collected(write, seconds=30.0):
    """What `collect` returns for a child that calls `write` with its descriptor."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            write(writing)
        finally:
            os._exit(0)
    os.close(writing)
    return sandbox.collect(pid, reading, seconds)


@pytest.mark.parametrize(
    ("write", "reply"),
    [
        (lambda to: os.write(to, b"+[1]"), {"data": "[1]"}),
        (lambda to: os.write(to, b"+"), {"problem": "its process ended without a result."}),
        (lambda to: os.write(to, b"-no filter"), {"failed": "no filter"}),
        (lambda to: None, {"failed": "the process did not start"}),
        (
            lambda to: (os.write(to, b"+"), os.kill(os.getpid(), signal.SIGKILL)),
            {"problem": "its process was ended by SIGKILL."},
        ),
        (lambda to: (os.write(to, b"+"), os.kill(os.getpid(), signal.SIGXCPU)), {"problem": LATE}),
    ],
)
def test_what_a_child_leaves(write, reply):
    assert collected(write) == reply


def test_a_child_that_does_not_end_or_writes_too_much():
    start = time.monotonic()
    assert collected(lambda to: (os.write(to, b"+"), time.sleep(60)), 0.3) == {"problem": LATE}
    assert time.monotonic() - start < 20

    def flood(to):
        while True:
            os.write(to, b"+" * 65536)

    assert collected(flood) == {"problem": "it writes more than any correct result needs."}


def test_a_function_has_no_files_but_its_result(monkeypatch):
    """The child has only standard streams and its result's descriptor; the grader's files are closed."""

    def open_files(request):
        return " ".join(str(n) for n in range(64) if Path(f"/proc/self/fd/{n}").exists())

    monkeypatch.setattr(sandbox, "confine", lambda memory, seconds: None)
    monkeypatch.setattr(sandbox, "run_request", open_files)
    before, (reading, writing), behind = os.pipe(), os.pipe(), os.pipe()
    if os.fork() == 0:
        try:
            sandbox.child({"memory": 0, "seconds": 0}, writing)
        finally:
            os._exit(0)
    os.wait()
    found = os.read(reading, 1000).decode()
    assert found == f"{sandbox.CONFINED}0 1 2 {writing}"
    for number in (*before, reading, writing, *behind):
        os.close(number)


def test_a_sandbox_that_does_not_work_is_no_result():
    """If the sandbox or its server fails, grading stops instead of giving everyone 0 points."""
    for reply, words in (('{"failed": "no seccomp"}\n', "no seccomp"), ("", "the server ended")):
        broken = sandbox.Sandbox.__new__(sandbox.Sandbox)
        broken.limits, broken.server = {}, SimpleNamespace(stdin=io.StringIO(), stdout=io.StringIO(reply))
        with pytest.raises(RuntimeError, match=words):
            broken.run({}, "grpo", "kl_penalty", [])


def output(values, shape):
    return {"outputs": [{"values": values, "shape": shape, "dtype": "float64"}]}


@pytest.mark.parametrize(
    "result",
    [
        output([1, 2], [3]),
        output([1, 2], [-1, -2]),
        output([1], [1] * 9),
        output(["x"], [1]),
        {"outputs": 3},
        {},
        [],
        3,
    ],
)
def test_what_is_no_result(result):
    """Only the known number of results, with the numbers that their shapes require, or one problem is accepted."""
    nothing = [{"problem": "its process wrote something that is not a result."}]
    assert sandbox.readable(json.dumps([result]), 1) == nothing
    good = output([1.0, 2.0], [2, 1])
    assert sandbox.readable(json.dumps([good, output([0.5], []), output([], [0])]), 3) != nothing
    assert sandbox.readable(json.dumps([good]), 1) == [good] and sandbox.readable(json.dumps([good]), 2) == nothing
    assert sandbox.readable(json.dumps([{"problem": 3}]), 2) == [{"problem": "3"}]
    assert sandbox.readable("[" * 100_000, 1) == nothing == sandbox.readable("", 1)
