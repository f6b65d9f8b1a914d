"""What tools.watch serves, and to whom; tests/site/test_watch_page.py tests the page."""

import gzip
import http.client
import json
import os
from pathlib import Path

from tools.watch import __main__ as server

import pytest
from runs import ended, watched, write_logs


@pytest.fixture
def ask(tmp_path):
    """A function that queries the server for the runs in the test's folder."""
    with watched(tmp_path) as port:

        def ask(path, host="localhost"):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()

        yield ask


def test_runs_are_found_while_they_start(tmp_path, ask):
    assert json.loads(ask("/runs")[2]) == {}
    folder = write_logs(tmp_path / "b", [{"step": 0, "eval/avg": 0.5}], {12: [], 3: []})
    (folder / "rollouts" / "step-000013.jsonl.gz.partial").touch()
    (tmp_path / "no run").mkdir()
    first = json.loads(ask("/runs")[2])
    assert list(first) == [str(folder)] and first[str(folder)]["steps"] == [3, 12]
    write_logs(folder, [{"step": 0, "eval/avg": 0.5}, {"step": 1}])
    assert json.loads(ask("/runs")[2])[str(folder)]["version"] != first[str(folder)]["version"]


def test_a_log_with_numbers_that_json_lacks(tmp_path, ask):
    folder = write_logs(tmp_path / "run", [{"step": 1, "a": float("nan"), "b": float("-inf"), "c": None, "d": 2.5}])
    kind, text = ask(f"/metrics?run={folder}")[1:]
    assert kind["Content-Type"].startswith("application/json")
    assert text.decode() == '[{"step": 1, "a": null, "b": null, "c": null, "d": 2.5}]'


def test_responses_are_sent_as_they_are(tmp_path, ask):
    folder = write_logs(tmp_path / "run", [{"step": 1}], {1: [{"text": "x"}]})
    status, headers, content = ask(f"/rollouts?run={folder}&step=1")
    assert status == 200 and headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(content)) == {"text": "x"}


def test_nothing_else_is_served(tmp_path, ask):
    """Only files of the page and the runs are served, and only to requests with a local host name."""
    folder = write_logs(tmp_path / "run", [{"step": 1}], {1: []})
    (tmp_path / "rollouts").mkdir()
    (tmp_path / "rollouts" / "step-000001.jsonl.gz").touch()
    paths = ["/__main__.py", "/../__init__.py", "/metrics", f"/metrics?run={tmp_path}", "/metrics?run=/etc"]
    runs = [f"{folder}&step=2", f"{folder}&step=../1", f"{tmp_path}&step=1", f"{folder}/../run&step=1"]
    for path in paths + [f"/rollouts?run={run}" for run in runs]:
        assert ask(path)[0] == 404, path
    assert ask("/runs", host="localhost:9000")[0] == 200, "a forwarded port"
    for host in ("example.org", "example.org:8000", "localhost.example.org", ""):
        assert ask("/runs", host=host)[0] == 403, host
    policy = ask("/")[1]["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy


def test_what_a_damaged_or_hostile_folder_holds(tmp_path, ask, capfd):
    """Damaged runs do not affect others, and nothing outside a run's folder is served."""
    folder = write_logs(tmp_path / "run", [{"step": 1}], {step: [] for step in (1, 2, 3)})
    for step, change in ((1, Path.mkdir), (2, os.mkfifo), (3, lambda path: path.symlink_to(tmp_path / "secret"))):
        (file := folder / "rollouts" / f"step-00000{step}.jsonl.gz").unlink()
        change(file)
    (tmp_path / "secret").write_text("secret")
    for name, log in (("deep", "[" * 99999), ("huge", '{"step": 1, "a": 1' + "0" * 999 + "}"), ("bytes", "\0")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text(log)
        assert ask(f"/metrics?run={tmp_path / name}")[2] == b"[]"
    (tmp_path / "folder" / "metrics.jsonl").mkdir(parents=True)
    os.mkfifo(tmp_path / "pipe")
    assert len(json.loads(ask("/runs")[2])) == 4
    for path in (
        *(f"/rollouts?run={folder}&step={step}" for step in (1, 2, 3)),
        "http://[",
        f"/metrics?run={tmp_path}",
    ):
        assert ask(path)[0] == 404, path
    assert not capfd.readouterr().err


def test_mistakes(tmp_path, capsys):
    write_logs(tmp_path / "run", [{"step": 0}])
    taken = server.Server(server.Args((tmp_path,), port=0))
    assert taken.server_address[0] == "127.0.0.1", "others on the network could read it"
    for args, words in (
        (server.Args(()), "no run folders are given"),
        (server.Args((tmp_path / "none",)), "is not a run folder and holds none"),
        (server.Args((tmp_path,), port=taken.server_port), "Name another one, or 0"),
    ):
        assert words in ended(capsys, lambda args=args: server.main(args))
    taken.server_close()
