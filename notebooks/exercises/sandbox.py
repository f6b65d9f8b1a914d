"""Runs untrusted code: each function in a process that can only compute.

`Sandbox` talks to a server (this file run as a program), which has torch loaded and holds no answers. The server forks
for each request. The child drops every system call that a computation does not need (no files, no network, no other
processes, no signals), gets limits on memory and time, and only then reads the student's code. It writes plain numbers,
which the grader compares. This needs Linux. On other systems, where students only check their own code, the server runs
it itself: the same modules can be imported, but nothing is confined.
"""

import contextlib
import ctypes
import importlib
import json
import math
import os
import platform
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self, TextIO

CONFINED, NOT_CONFINED = "+", "-"  # the child writes one of these before it reads the student's code
WALL = 4  # seconds of wall time allowed per second of processor time
LARGEST = 4 << 20  # bytes that a function's results may take
# Numbers of the allowed system calls on x86-64 and ARM64 (ARM64 from the kernel's headers; not tested).
ALLOWED = {
    "x86_64": (0xC000003E, {
        "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12,
        "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "sched_yield": 24, "mremap": 25, "madvise": 28,
        "getpid": 39, "exit": 60, "gettimeofday": 96, "gettid": 186, "futex": 202, "sched_getaffinity": 204,
        "clock_gettime": 228, "exit_group": 231, "getrandom": 318,
    }),
    "aarch64": (0xC00000B7, {
        "lseek": 62, "read": 63, "write": 64, "close": 57, "fstat": 80, "exit": 93, "exit_group": 94, "futex": 98,
        "clock_gettime": 113, "sched_getaffinity": 123, "sched_yield": 124, "rt_sigaction": 134, "rt_sigprocmask": 135,
        "rt_sigreturn": 139, "gettimeofday": 169, "getpid": 172, "gettid": 178, "brk": 214, "munmap": 215,
        "mremap": 216, "mmap": 222, "mprotect": 226, "madvise": 233, "getrandom": 278,
    }),
}  # fmt: skip

with contextlib.suppress(ImportError):  # not on Windows
    import resource

CONFINES = platform.system() == "Linux" and platform.machine() in ALLOWED


class Filter(ctypes.Structure):
    """The kernel's struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def confine(memory: int, seconds: int) -> None:
    """Restrict this process to computing and writing to open files; any other system call fails with EPERM."""
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    machine, calls = ALLOWED[platform.machine()]
    numbers = sorted(calls.values())
    load, if_equal, give = 0x20, 0x15, 0x06  # the kernel's packet filter: BPF_LD, BPF_JEQ, BPF_RET
    program = [(load, 0, 0, 4), (if_equal, 1, 0, machine), (give, 0, 0, 0x80000000), (load, 0, 0, 0)]
    program += [(if_equal, len(numbers) - i, 0, number) for i, number in enumerate(numbers)]
    program += [(give, 0, 0, 0x00050001), (give, 0, 0, 0x7FFF0000)]  # EPERM; allowed
    packed = b"".join(struct.pack("HBBI", *step) for step in program)
    libc = ctypes.CDLL(None, use_errno=True)
    no_new_privileges, set_seccomp, filter_mode = 38, 22, 2
    if libc.prctl(no_new_privileges, 1, 0, 0, 0) or libc.prctl(
        set_seccomp, filter_mode, ctypes.byref(Filter(len(program), packed)), 0, 0
    ):
        raise OSError(ctypes.get_errno(), "the kernel refuses the system call filter")


def child(request: dict[str, Any], results: int) -> None:
    """Run the student's function and write its results; the forked process ends afterwards."""
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    sys.stdout = sys.__stdout__  # on descriptor 1
    os.closerange(3, results)
    os.closerange(results + 1, 1024)
    try:
        confine(request["memory"], request["seconds"])
    except OSError as error:
        os.write(results, f"{NOT_CONFINED}{error}".encode())
        return
    os.write(results, CONFINED.encode())
    data = run_request(request).encode()
    while data:
        data = data[os.write(results, data) :]


def run_request(request: dict[str, Any]) -> str:
    """The results of a student's function as JSON."""
    from runner import run_files

    return json.dumps(run_files(*(request[name] for name in ("sources", "script", "function", "cases"))))


def serve(replies: TextIO) -> None:
    """Answer requests, one line of JSON each, until the input ends.

    A separate process reads each request: a student's process can search the memory that it inherits, which must never
    have held another student's files or results.
    """
    if not CONFINES:
        while answer(replies):
            pass
        return
    while True:
        pid = os.fork()
        if pid == 0:
            answered = False
            try:
                answered = answer(replies)
            finally:
                os._exit(not answered)
        if os.waitpid(pid, 0)[1]:
            return


def answer(replies: TextIO) -> bool:
    """Answer one request; False if there is none."""
    if not (line := sys.stdin.readline()):
        return False
    request = json.loads(line)
    if CONFINES:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                child(request, writing)
            finally:
                os._exit(0)
        os.close(writing)
        reply = collect(pid, reading, WALL * request["seconds"])
    else:
        reply = {"data": run_request(request)}
    print(json.dumps(reply), file=replies, flush=True)
    return True


def collect(pid: int, reading: int, seconds: float) -> dict[str, str]:
    """What the child writes before it ends or is killed: {"data": text} or {"problem": the reason for none}."""
    end, data, problem = time.monotonic() + seconds, b"", None
    while problem is None:
        if not select.select([reading], [], [], max(0.0, end - time.monotonic()))[0]:
            problem = "it does not end: it used up its time limit."
        elif not (chunk := os.read(reading, 1 << 16)):
            break
        elif len(data := data + chunk) > LARGEST:
            problem = "it writes more than any correct result needs."
    os.close(reading)
    if problem:
        os.kill(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == -signal.SIGXCPU:
        problem = "it does not end: it used up its time limit."
    elif not problem and status < 0:
        problem = f"its process was ended by {signal.Signals(-status).name}."
    text = data.decode(errors="replace")
    if not text.startswith(CONFINED):
        return {"failed": text.removeprefix(NOT_CONFINED) or "the process did not start"}
    if not problem and text == CONFINED:
        problem = "its process ended without a result."
    return {"problem": problem} if problem else {"data": text.removeprefix(CONFINED)}


class Sandbox:
    """The grader's side."""

    def __init__(self, seconds: int = 10, memory_mb: int = 1024) -> None:
        self.limits = {"seconds": seconds, "memory": memory_mb << 20}

    def __enter__(self) -> Self:
        environment = {"PATH": os.defpath, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        self.server = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            process_group=0,  # Ctrl-C in the terminal goes to the grader only, which then stops this group
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind:
            self.stop()
        with contextlib.suppress(BrokenPipeError):
            self.server.stdin.close()
        self.server.wait()

    def stop(self) -> None:
        """End the server and the function that it runs; `run` then raises RuntimeError."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.server.pid, signal.SIGKILL) if CONFINES else self.server.kill()

    def run(
        self, sources: dict[str, str], script: str, function: str, cases: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """The results of `runner.run_files` for the student's function, or one problem if its process fails."""
        request = self.limits | {"sources": sources, "script": script, "function": function, "cases": cases}
        with contextlib.suppress(BrokenPipeError):  # the server ended
            print(json.dumps(request), file=self.server.stdin, flush=True)
        reply = json.loads(self.server.stdout.readline() or '{"failed": "the server ended"}')
        if "failed" in reply:
            raise RuntimeError(reply["failed"])
        return readable(reply["data"], len(cases)) if "data" in reply else [{"problem": reply["problem"]}]


def readable(text: str, count: int) -> list[dict[str, Any]]:
    """Parse untrusted text: a result for each case, or one problem."""
    try:
        results = [numbers_or_problem(result) for result in json.loads(text)]
        if len(results) == count or "problem" in results[0]:
            return results
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, RecursionError, OverflowError):
        pass
    return [{"problem": "its process wrote something that is not a result."}]


def numbers_or_problem(result: dict[str, Any]) -> dict[str, Any]:
    """A case's result with the types that it must have; raises an error for anything else."""
    if "problem" in result:
        return {"problem": str(result["problem"])}
    found = []
    for output in result["outputs"]:
        numbers, shape = [float(x) for x in output["values"]], [int(n) for n in output["shape"]]
        if len(shape) > 8 or math.prod(shape) != len(numbers) or min(shape, default=0) < 0:
            raise ValueError
        found.append({"values": numbers, "shape": shape, "dtype": str(output["dtype"])})
    return {"outputs": found}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from runner import IMPORTABLE, torch

    for name in IMPORTABLE:  # modules that students may import must be loaded before
        importlib.import_module(name)
    torch.set_num_threads(1)
    repr(torch.vmap(torch.sin)(torch.ones(1)))  # makes torch load its lazy modules
    sys.path.clear()
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):  # students may print
        serve(sys.__stdout__)
