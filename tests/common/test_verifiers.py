"""Environments of verifiers 0.4, with the package itself; collected only where it is installed (conftest.py)."""

import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from common.environments import Aside, Observation, ask, load_environment
from common.records import Problem
from tools.scripts import ROOT
from worlds import generated_problems
from worlds.verifiers import problems as of_verifiers
from worlds.verifiers import v1
from worlds.verifiers.environment import play

import pytest
from environments_of_verifiers import MODULES, TASKSET
from runs import ended, run

OPEN = []  # episodes, to be closed


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(TASKSET + text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # for servers of tools
    of_verifiers.load.cache_clear()
    yield
    while OPEN:
        OPEN.pop().close()


def problems(name):
    return [generated_problems(f"verifiers:{name}", part) for part in ("train", "eval")]


def plays(name, row, count):
    question, answer, _, row = problems(name)[0][row]
    environment, problem = load_environment(f"verifiers:{name}"), Problem(str(question), answer, "", [], row=row)
    OPEN.extend(found := [environment.play(problem) for _ in range(count)])
    return found


def test_episodes_of_an_environment():
    train, held_out = problems("sums_twice")
    assert (len(train), len(held_out)) == (16, 4)
    assert train[3][0] == [{"role": "system", "content": "Add."}, {"role": "user", "content": "7+7?"}]
    one, other, third, fourth = plays("sums_twice", 3, 4)
    assert ask(one, "13") == ask(other, "x") == ask(third, "14") == ask(fourth, "") == Observation("Sure, 7?")
    assert ask(one, "14") == (1.0, "") and ask(third, "13") == ask(other, "13") == (0.0, "")
    assert ask(fourth, "fail") == (0.0, "RuntimeError: task SumTask scoring: ValueError: tool lost")


def test_a_closed_episode_leaves_nothing_open():
    (one,) = plays("sums_twice", 0, 1)
    before = len(os.listdir("/proc/self/fd"))
    ask(one, "x")
    assert len(os.listdir("/proc/self/fd")) > before
    one.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_batch_may_have_many_open_episodes(monkeypatch):
    """Each of these 200 holds several files; the usual limit of a process is 1,024."""
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, usual[1]), usual[1]))
    try:
        many = plays("sums_twice", 0, 200)
        assert {ask(one, "x") for one in many} == {Observation("Sure, 4?")}
        for one in many:
            one.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


def test_an_environment_that_has_the_first_word(monkeypatch):
    monkeypatch.setattr(v1, "OPENED", 10)
    train, held_out = problems("sums_asked")
    assert (len(train), len(held_out)) == (8, 2)
    assert [question[0]["content"] for question, *_ in train[:2]] == ["2+2?", "3+3?"]
    (one,) = plays("sums_asked", 0, 1)
    assert ask(one, "x") == Observation("And?") and ask(one, "4") == (1.0, "")


def test_several_agents():
    """The first one learns. The others are asides, in conversations of their own; tasks that begin alike are kept."""
    train, held_out = problems("sums_traded")
    assert (len(train), len(held_out)) == (4, 1)
    assert {tuple(message["content"] for message in question) for question, *_ in train} == {("Buy.", "Your offer?")}
    (one,) = plays("sums_traded", 0, 1)
    seller = [{"role": "system", "content": "Sell."}, {"role": "user", "content": "3?"}]
    assert ask(one, "3") == Aside(seller)
    assert ask(one, "5") == Observation("No, 5.")
    seller += [{"role": "assistant", "content": "5"}, {"role": "user", "content": "4?"}]
    assert ask(one, "4") == Aside(seller)
    assert ask(one, "4") == Observation("No, 4.") and ask(one, "4") == (-1.0, "")


def test_agents_that_are_asked_at_once():
    """They get their turns one after the other. An agent that is not to be trained may be the second one."""
    one, other = plays("sums_traded_at_once", 0, 2)
    assert ask(one, "4") == ask(other, "4") == Aside([{"role": "user", "content": "Sell?"}])
    assert ask(one, "4") == (1.0, "") and ask(other, "5") == (0.0, "")


def test_an_aside_has_no_tools():
    async def rollout(row, respond):
        return await respond([], ["add"], False) + await respond([], ["add"], True)

    one = play(SimpleNamespace(rollout=rollout), Problem("?", "", "", []))
    assert ask(one, "4") == (0.0, "RuntimeError: an agent that does not learn has tools, which is not supported")


def test_an_episode_is_one_conversation():
    (one,) = plays("sums_again", 0, 1)
    assert ask(one, "1") == (0.0, "RuntimeError: its agent starts another conversation; only one is supported")


@pytest.mark.parametrize(
    "name,words",
    [
        ("sums_traded_by_one", "an agent has a model of its own (seller), which is not supported"),
        ("sums_sold", "an agent has a model of its own (seller), which is not supported"),
        ("sums_bought", "it asks buyer first, an agent that is not to be trained"),
        ("no_sums", "it has no tasks"),
        ("sums_unasked", "server down"),
        ("sums_of_two_classes", "its tasks have several classes, and some have tools; only one class is supported"),
        ("sums_that_exit", "SystemExit: no key"),
    ],
)
def test_what_cannot_be_played_is_refused(name, words, capsys):
    error = ended(capsys, lambda: of_verifiers.load(name))
    assert error.startswith(f"error: --environment verifiers:{name} cannot be loaded: ") and words in error


def call(name, **arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def test_tools():
    """One server for all episodes, each with a memory of its own."""
    system, user = problems("sums_with_tools")[0][0][0]
    assert user == {"role": "user", "content": "2?"} and '"name": "adder_add"' in system["content"]
    one, other, third = plays("sums_with_tools", 0, 3)
    assert ask(one, f"Add. {call('adder_add', a=1, b=2)}") == returned("3, sum 1")
    assert ask(other, call("adder_add", a=4, b=2) + call("adder_add", a=5, b=2)) == returned("6, sum 1", "7, sum 2")
    assert ask(one, call("adder_add", a=7, b=7)) == returned("14, sum 2")
    assert ask(other, call("subtract", a=7, b=7)) == returned("error: unknown tool 'subtract'")
    assert "validation error" in ask(other, call("adder_add", a="x", b=7)).text
    assert ask(other, "14") == ask(third, "<tool_call>14</tool_call>") == Observation("Sure?")  # that is no call
    assert ask(other, call("adder_add", a=1, b=1)) == returned("2, sum 3")
    assert ask(other, "14") == (1.0, "") and ask(third, "7") == (0.0, "")
    (fourth,) = plays("sums_with_tools", 0, 1)
    long = ask(fourth, call("adder_add", a=0, b=200_000)).text
    assert "bytes truncated" in long and len(long) < 21_000
    assert "a tool server does not answer (ConnectError: " in ask(one, call("adder_add", a=666, b=1)).failure
    (last,) = plays("sums_with_tools", 0, 1)
    assert ask(last, "14") == (0.0, "RuntimeError: the tool server adder has ended")


def test_the_end_of_the_process_stops_the_environment():
    code = "from worlds.verifiers import problems; problems.load('sums_with_tools'); print('loaded')"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert found.stdout.split() == ["loaded", "Sure?"] and found.stderr == ""


def test_tools_of_each_episode():
    """Its server ends with the episode."""
    assert '"name": "adder_add"' in problems("sums_with_own_tools")[0][0][0][0]["content"]
    one, other, third = plays("sums_with_own_tools", 0, 3)
    assert ask(one, call("adder_add", a=7, b=7)) == returned("14") and servers() == 1
    one.close()
    assert servers() == 0
    text = returned("error: unknown tool 'adder_mul'", "forbidden")
    assert ask(third, call("adder_mul") + call("adder_sub", a=1)) == text and ask(third, "14") == (1.0, "")
    assert ask(other, call("adder_add", a=13, b=1)) == (1.0, "")  # the environment answers instead


def test_few_problems_where_each_opening_starts_servers(monkeypatch):
    monkeypatch.setattr(v1, "OPENED_WITH_SERVERS", 3)
    assert len(v1.Adapter("sums_opened_with_tools").tasks) == 3


def test_a_silent_server(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("SILENT", f"http://127.0.0.1:{server.getsockname()[1]}/mcp")
        monkeypatch.setattr(v1, "CONNECT_SECONDS", 2)
        error = ended(capsys, lambda: of_verifiers.load("sums_without_answers"))
    assert "a tool server does not answer within 2 seconds" in error


def servers():
    """How many servers of tools of an episode are running."""
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
    return sum(b"sums_with_own_tools" in command for command in commands)


def returned(*texts):
    return Observation("\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in texts))


def test_of_a_traceback_the_last_line():
    """A server that does not start gives its log."""
    log = 'no server: Traceback (most recent call last):\n  File "facts.py", line 4\nValueError: no corpus\n'
    assert v1.reason(log) == "no server: ValueError: no corpus" and v1.reason("tool\nlost") == "tool\nlost"


@pytest.mark.parametrize("name,reply", [("sums_twice", "Sure, "), ("sums_traded", "No, ")])
def test_a_run(name, reply, chat_model, tmp_path):
    """The environment's reply becomes the next message of the chat, also where the policy plays an opponent."""
    name, model = f"verifiers:{name}", tmp_path / "model"
    shutil.copytree(chat_model, model)  # with a context that holds what both say: a random model's text has many tokens
    config = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 4096}
    (model / "config.json").write_text(json.dumps(config))
    settings = dict(environment=name, dataset=name, eval_problems=1, prompts_per_step=2, num_minibatches=1)
    _, rows = run("agent", tmp_path / "run", model=str(model), max_response_tokens=200, **settings)
    assert rows[1]["environment_errors"] == 0 and 1 < rows[1]["turns"] <= 2
    samples = (tmp_path / "run" / "samples" / "step-000002.md").read_text()
    assert reply in samples and "decided by the environment" in samples
