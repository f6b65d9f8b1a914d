"""How a run ends: with a summary, by a signal, or with a failure that is reported in one sentence."""

import errno
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from common import distributed
from common.checkpoints import checkpoints
from common.cli import fail, lacks_memory
from common.distributed import local_world_size, rank, world_size
from common.folders import ROOT, remove_if_empty, resume_flags
from common.settings import dataset_names
from common.terminal import silence

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPEAT_SECONDS = 1.0  # a second Ctrl-C within this time is torchrun's repetition of the first
UNREADABLE = (errno.EACCES, errno.ENAMETOOLONG)  # a path in a setting
PEER_ENDED = ("Connection closed by peer", "Connection reset by peer", "Broken pipe", "Timed out")
COLLAPSED = 0.5  # warn if the final accuracy is below this fraction of the best one
MEMORY_HELP = (
    "a lower --micro-batch-tokens or --gradient-checkpointing helps in training, fewer --prompts-per-step or "
    "--max-response-tokens in generation, and with vLLM on a GPU a lower --gpu-memory-utilization."
)


def take_signals(run: Any) -> None:
    """Ctrl-C, a termination request, and a closed terminal end the run after the current step."""
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # as set by nohup
                run.stack.callback(signal.signal, number, signal.signal(number, interrupt_handler(run)))


def interrupt_handler(run: Any) -> Callable[[int, Any], None]:
    """What a signal does: the first one ends the run after the current step, a second one at once."""

    def interrupt(number: int, _: Any) -> None:
        if distributed.another_failed():  # torchrun ends the rest
            if rank() == 0 and hasattr(run, "dir"):
                remove_if_empty(run.dir)
            os._exit(1)
        if not run.stop_requested:
            run.stop_soon()
            if rank() == 0:
                with suppress(OSError):  # not print, which may be what was interrupted
                    os.write(2, b"\ninterrupted: finishing this step and saving (Ctrl-C again stops at once)\n")
        elif world_size() == 1 or time.monotonic() - run.stop_requested > REPEAT_SECONDS:
            raise KeyboardInterrupt

    return interrupt


def resume_hint(run: Any) -> str:
    """How to resume a run that ended early."""
    saved = checkpoints(run.dir) if hasattr(run, "dir") else []
    if not saved and hasattr(run, "dir") and (run.dir.parent / "config.json").exists():  # a stage of several
        return f"To resume: {resume_command(run)}"
    if not saved:
        return "There is no checkpoint yet."
    return f"Everything up to {saved[-1].name} is saved: {resume_command(run)}"


def resume_command(run: Any) -> str:
    nodes = world_size() // local_world_size()
    launcher = f"torchrun --nproc-per-node {local_world_size()}" if world_size() > 1 else "python"
    launcher += f" --nnodes {nodes} ..." if nodes > 1 else ""
    stage = (run.dir.parent / "config.json").exists()  # of a run of several stages, which is resumed as a whole
    flags = resume_flags(run.dir.parent if stage else run.dir, run.args)
    return f"{launcher} {run.script.relative_to(ROOT)} {flags}"


def report_crash(run: Any, error: BaseException) -> None:
    """One sentence if memory or disk ran out or the run was stopped; a bug keeps its traceback."""
    sentence, code = None, 1
    if isinstance(error, KeyboardInterrupt):
        sentence, code = f"stopped. {resume_hint(run)}", 130
    elif isinstance(error, BrokenPipeError):
        silence()
        sentence = f"stdout was closed. {resume_hint(run)}"
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        sentence = f"the disk is full or a quota is used up: {error}. {resume_hint(run)}"
    elif isinstance(error, OSError) and error.errno in UNREADABLE and not hasattr(run, "model"):
        sentence, code = f"{error.filename}: {error.strerror}.", 2
    elif isinstance(error, OSError) and error.filename and run.dir in Path(error.filename).parents:
        sentence = f"the run folder {run.dir} was moved, deleted or made read-only: {error.strerror}."
    elif lacks_memory(error):
        sentence = f"not enough memory: {MEMORY_HELP} {resume_hint(run)}"
    elif world_size() > 1 and any(words in str(error) for words in PEER_ENDED):
        sentence = f"another process ended without a message, perhaps for lack of memory. {resume_hint(run)}"
    if sentence:
        fail(sentence, code)


def exit_now(error: BaseException) -> None:
    """End this process at once: a normal shutdown could deadlock with other processes."""
    if not isinstance(error, SystemExit):
        if distributed.may_report():
            traceback.print_exception(error)
        error = SystemExit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(error.code if isinstance(error.code, int) else 1)


def draw(run: Any) -> None:
    """Draw the curves."""
    from tools.plots import draw_curves  # matplotlib takes a second to load

    data = " and ".join(dataset_names(run.args))
    draw_curves(run.dir, f"{run.script.name}, {run.args.model} on {data}, seed {run.args.seed}")


def summarize(run: Any) -> None:
    """Draw the curves, and print the result and where its files are."""
    draw(run)
    minutes, seconds = divmod(round(time.perf_counter() - run.started), 60)
    lines = []
    if run.evaluations:
        best = max(run.evaluations, key=lambda step: run.evaluations[step]["eval/avg"])
        after = run.evaluations[max(run.evaluations)]
    if before := run.evaluations.get(0):  # absent if the log was damaged
        lines = [
            f"held-out accuracy         {before['eval/avg']:.3f} → {after['eval/avg']:.3f} "
            f"± {after['eval/standard_error']:.3f} (avg@{before['eval/n']} → avg@{after['eval/n']})",
            f"greedy accuracy           {before['eval/greedy']:.3f} → {after['eval/greedy']:.3f}",
        ]
    lines += [f"time                      {minutes} min {seconds} s", f"run folder                {run.dir}"]
    if run.evaluations and after["eval/avg"] < COLLAPSED * run.evaluations[best]["eval/avg"]:
        where = f": those weights are in {run.dir / 'best'}" if best else ", before training"
        accuracy = run.evaluations[best]["eval/avg"]
        lines.append(f"warning: accuracy has collapsed; it was {accuracy:.3f} at step {best}{where}")
    lines += [f"checkpoint                {folder}" for folder in checkpoints(run.dir)[-1:]]
    if run.interrupted:
        lines.append(f"to resume                 {resume_command(run)}")
    run.terminal.write_line("\n" + "\n".join(lines))
