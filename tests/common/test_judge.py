"""docs/rewards/judge.py against a real HTTP server on this machine.

The server is a stub that speaks the protocol of /v1/chat/completions; tests/common/test_vllm_serve.py has a real one.
"""

import json
import re
import threading
import time
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpo
from common.metrics import read_metrics
from common.records import Problem, Rollouts
from common.verification.rewards import Rewards
from common.verification.workers import Pool
from tools.scripts import ROOT

import pytest
from conftest import SMALL

JUDGE = f"{ROOT}/docs/rewards/judge.py:judge"
WAIT = 0.05  # seconds before the second try


class Server(ThreadingHTTPServer):
    """Scores a response by its number of 7s; the `replies`, each a status and a text, come first."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.bodies, self.headers, self.times, self.replies = [], [], [], []
        self.lock, self.busy, self.most_busy = threading.Lock(), 0, 0


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            server.bodies.append(body)
            server.headers.append(self.headers)
            server.times.append(time.monotonic())
            server.busy += 1
            server.most_busy = max(server.most_busy, server.busy)
            status, text = server.replies.pop(0) if server.replies else (200, None)
        threading.Event().wait(0.05)
        if text is None:
            response = re.search("<response>\n(.*)\n</response>", body["messages"][1]["content"], re.DOTALL)[1]
            text = json.dumps({"score": min(10, response.count("7"))})
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
        sent = json.dumps({"choices": [choice], "usage": usage}).encode()
        with server.lock:
            server.busy -= 1
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    with Server() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("JUDGE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        monkeypatch.setenv("JUDGE_MODEL", "judge-7b")
        monkeypatch.setenv("JUDGE_KEY", "secret")
        monkeypatch.setenv("JUDGE_FIRST_WAIT", str(WAIT))
        yield server
        server.shutdown()


@contextmanager
def judge(name="judge"):
    """Score responses to problems with one of the example's functions in a worker process."""
    pool = Pool(2)
    rewards = Rewards(grpo.Args(reward=(JUDGE.removesuffix("judge") + name,)), pool, Counter())

    def scores(texts, rows=None, cut=None):
        problems = [Problem("1+1=?", "2", "1+1=?\n", [], row=row) for row in rows or [{}] * len(texts)]
        rollouts = Rollouts([[1]] * len(texts), truncated=cut or [False] * len(texts))
        return rewards(problems, texts, rollouts, None)[1]

    yield scores
    pool.close()


def test_requests(server):
    """A request has task, rubric and response; equal requests are sent once, truncated responses never."""
    rows = [{"rubric": ["many sevens", "no eights"]}, {"rubric": "be brief"}, {}, {}, {}]
    with judge() as scores:
        assert scores(["77", "7", "x", "x", "777"], rows, [False] * 4 + [True]) == [0.2, 0.1, 0.0, 0.0, 0.0]
        assert len(server.bodies) == 3
        assert scores(["77"], rows[:1]) == [0.2] and len(server.bodies) == 3
    contents = [body["messages"][1]["content"] for body in server.bodies]
    assert any("- many sevens\n- no eights" in text and "<response>\n77\n" in text for text in contents)
    assert any("<rubric>\nbe brief\n</rubric>" in text for text in contents)
    assert all("<task>\n1+1=?\n" in text and "<reference>\n2\n" in text for text in contents)
    for body, headers in zip(server.bodies, server.headers, strict=True):
        assert body["model"] == "judge-7b" and body["temperature"] == 0
        assert body["response_format"]["type"] == "json_schema"
        assert headers["Authorization"] == "Bearer secret"


def test_only_general_questions_are_judged(server):
    """The judge scores rows with a rubric, and the verifier all others."""
    with judge("general") as scores:
        assert scores(["77", "77", "7"], [{"rubric": "be brief"}, {}, {"rubric": ""}]) == [0.2, 0.0, 0.0]
    assert len(server.bodies) == 1


def test_requests_run_at_the_same_time(server, monkeypatch):
    monkeypatch.setenv("JUDGE_AT_ONCE", "4")
    with judge() as scores:
        scores([str(i) for i in range(24)])
    assert len(server.bodies) == 24 and 2 <= server.most_busy <= 4


def test_retries(server, capsys):
    """A busy server and a reply without a score are retried; a refusal ends the run at once."""
    server.replies = [(429, "{}"), (503, "{}"), (200, "ten"), (200, '{"score": 11}')]
    with judge() as scores:
        assert scores(["7777"]) == [0.4] and len(server.bodies) == 5
        assert server.times[-1] - server.times[-2] >= 0.75 * 2**3 * WAIT, "it did not wait longer each time"
        server.replies = [(401, "no such key")]
        with pytest.raises(SystemExit):
            scores(["77"])
        assert len(server.bodies) == 6
        assert "failed for '77': RuntimeError" in (error := capsys.readouterr().err) and "401" in error
        server.replies = [(500, "{}")] * 5
        with pytest.raises(SystemExit):
            scores(["777"])
    assert len(server.bodies) == 11 and "no score in 5 tries" in capsys.readouterr().err


def test_budget_and_cache(server, monkeypatch, capsys, tmp_path):
    """A budget of 250 tokens allows three requests of 100; cached scores cost nothing."""
    monkeypatch.setenv("JUDGE_TOKENS", "250")
    monkeypatch.setenv("JUDGE_CACHE", str(tmp_path / "scores.jsonl"))
    monkeypatch.setenv("JUDGE_AT_ONCE", "1")
    with judge() as scores:
        assert [scores([text]) for text in ("1", "7", "77")] == [[0.0], [0.1], [0.2]]
        with pytest.raises(SystemExit):
            scores(["777"])
    assert "the judge's budget is used up: 300 tokens (JUDGE_TOKENS=250)" in capsys.readouterr().err
    with judge() as scores:
        assert scores(["77", "777", "7"]) == [0.2, 0.3, 0.1]
    assert len(server.bodies) == 4


@pytest.mark.slow
def test_a_run_with_a_judge(server, tmp_path, monkeypatch):
    """The log has the judge's scores, and a missing server is found before the model loads."""
    grpo.main(grpo.Args(run_dir=tmp_path / "run", reward=("correct", f"{JUDGE}=0.5"), **SMALL))
    rows = read_metrics(tmp_path / "run")[1:]
    assert all(row["reward"] == pytest.approx(row["accuracy"] + row["reward/judge"] / 2, abs=1e-6) for row in rows)
    assert any(row["reward/judge"] > 0 for row in rows)
    monkeypatch.setattr("grpo.load_model", lambda *_: pytest.fail("the model was loaded"))
    monkeypatch.setenv("JUDGE_URL", "http://127.0.0.1:9/v1")
    with pytest.raises(SystemExit) as stop:
        grpo.main(grpo.Args(run_dir=tmp_path / "none", reward=(JUDGE,), **SMALL))
    assert stop.value.code == 2 and not Path(tmp_path / "none").exists()
