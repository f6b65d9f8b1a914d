"""docs/first-week.md: every bash block runs, in order, and does what the page says."""

import json
import os
import re
import subprocess
import threading
import time
import urllib.request
from contextlib import suppress

from common.metrics import read_metrics
from tools.scripts import ROOT

import pytest
from test_judge import Server

PAGE = (ROOT / "docs/first-week.md").read_text()
WATCH = "python -m tools.watch"


def blocks():
    return re.findall(r"^```bash\n(.*?)^```$", PAGE, re.M | re.S)


def shorter(block):
    """The block with two fewer steps, because steps take most of the time and are all alike."""
    block = block.replace("--steps 3", "--steps 1").replace("--steps 4", "--steps 2")
    return block.replace("checkpoint-000004", "checkpoint-000002")


def test_blocks_that_do_not_run_are_those_for_vllm():
    others = re.findall(r"^```(?!bash\n)(\w+)\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(blocks()) == 8 and [kind for kind, _ in others] == ["sh", "sh"]
    assert PAGE.count("--steps 3") == 1 and PAGE.count("--steps 4") == 2  # as in `shorter`
    assert all(block.startswith("vllm serve ") and block.count("\n") == 1 for _, block in others)


def look_at(block, environment, run):
    """What a browser gets from the page of the run, which is served until the block's process is ended."""
    port = int(re.search(r"--port (\d+)", block)[1])
    server = subprocess.Popen(block.split(), cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while time.monotonic() < end and server.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as reply:
                assert b"<html" in reply.read()
                return
            time.sleep(0.5)
        raise AssertionError("the page is not served")
    finally:
        server.terminate()
        server.wait(20)


@pytest.mark.slow
def test_the_commands(tmp_path):
    """All commands run in order; the page's folder week/ is a link to a temporary folder."""
    folder = ROOT / "week"
    assert not folder.exists()
    folder.symlink_to(tmp_path, target_is_directory=True)
    run = tmp_path / "run"
    with Server() as judge:
        threading.Thread(target=judge.serve_forever, daemon=True).start()
        environment = os.environ | {"JUDGE_URL": f"http://127.0.0.1:{judge.server_port}/v1", "OMP_NUM_THREADS": "1"}
        try:
            said = []
            for block in map(shorter, blocks()):
                if block.startswith(WATCH):
                    look_at(block, environment, run)
                    continue
                shell = ["bash", "-euo", "pipefail", "-c", block]
                done = subprocess.run(shell, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1200)
                assert done.returncode == 0, done.stdout + done.stderr
                said.append(done.stdout + done.stderr)
        finally:
            folder.unlink()
            judge.shutdown()
    trained, memory, resumed = said[2], said[4], said[5]
    assert re.search(r"reward +correct +steps +brief +judge", trained)
    assert "ended with exit code 1" in memory and "error: not enough memory" in memory and "Traceback" not in memory
    assert "checkpoint-000001 is saved" in memory and "resuming" in resumed
    rows = read_metrics(run)
    assert [row["step"] for row in rows] == list(range(3))
    assert len({row["reward/judge"] for row in rows[1:]}) > 1 and len(judge.bodies) > 100
    contents = judge.bodies[-1]["messages"][1]["content"]
    assert "- each line adds one number" in contents
    settings = json.loads((run / "config.json").read_text())["args"]
    assert settings["micro_batch_tokens"] == 2048 and settings["gradient_checkpointing"]
    assert (tmp_path / "evaluation/results.json").exists()
