"""Environments of other packages: stand-ins for verifiers before 0.4 and reasoning-gym, and the Python interpreter."""

import json
import sys
import time

from common.environments import Observation, ask, load_environment
from common.records import Problem, ScoredAnswer
from worlds import generated_problems
from worlds.python.environment import sandbox
from worlds.verifiers import problems as of_verifiers
from worlds.verifiers.tools import offer, read_calls, shown

import pytest
from runs import ended, run

# The part of verifiers that we use, with environments of two turns, which may fail, without and with a tool.
VERIFIERS = """
import json
from types import SimpleNamespace

class Rubric:
    async def score_rollout(self, state):
        state["reward"] = float(state["input"]["answer"] in state["said"][-1])

class Environment:
    eval_dataset, rubric = None, Rubric()

    def __init__(self, *tools):
        self.tool_defs = list(tools) or None

    def get_dataset(self, n):
        prompt = lambda i: [{"role": "user", "content": f"{i}+{i}?", "tool_calls": None}]
        return [{"prompt": prompt(i), "answer": str(2 * i), "info": {"i": i}} for i in range(20)]

    async def rollout(self, row, client, model):
        messages, said = [SimpleNamespace(**message) for message in row["prompt"]], []
        state = {"input": row, "said": said, "error": None}
        while len(said) < 2:
            response = await client.get_response(prompt=messages, model=model, tools=self.tool_defs, sampling_args={})
            said.append(response.message.content)
            if said[-1] == "fail":
                state["error"] = ValueError("tool lost")
                break
            answers = [SimpleNamespace(role="user", content=f"Sure, {row['info']['i']}?")]
            if calls := response.message.tool_calls:
                results = [sum(json.loads(call.arguments).values()) for call in calls if call.name == "add"]
                answers = [SimpleNamespace(role="tool", content=str(result)) for result in results]
            messages = [*messages, response.message, *answers]
        return state

def load_environment(name):
    adder = SimpleNamespace(name="add", description="Add.", parameters={})
    return {"twice": Environment(), "adder": Environment(adder)}[name]
"""
TYPES = """
from types import SimpleNamespace
from functools import partial
Response = ToolCall = SimpleNamespace
ResponseMessage = partial(SimpleNamespace, role="assistant")
"""
CLIENTS = """
from abc import ABC, abstractmethod

class Client(ABC):
    def __init__(self, client):
        self.client = client

    @abstractmethod
    async def close(self): ...
"""


@pytest.fixture
def verifiers(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("verifiers", "worlds.verifiers.v"))]:
        monkeypatch.delitem(sys.modules, name)
    for name, text in (("__init__", VERIFIERS), ("types", TYPES), ("clients", CLIENTS)):
        (tmp_path / "verifiers").mkdir(exist_ok=True)
        (tmp_path / "verifiers" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    of_verifiers.load.cache_clear()
    yield
    of_verifiers.load.cache_clear()
    for name in [name for name in sys.modules if name.startswith(("verifiers", "worlds.verifiers.v"))]:
        del sys.modules[name]


def test_an_environment_of_verifiers(verifiers):
    train, held_out = (generated_problems("verifiers:twice", part) for part in ("train", "eval"))
    assert (len(train), len(held_out)) == (16, 4)
    question, answer, _, row = train[3]
    assert question == [{"role": "user", "content": "7+7?"}]
    environment, problem = load_environment("verifiers:twice"), Problem(str(question), answer, "", [], row=row)
    play, other = environment.play(problem), environment.play(problem)
    assert ask(play, "13") == ask(other, "x") == Observation("Sure, 7?")
    assert ask(play, "14") == (1.0, "") and ask(other, "13") == (0.0, "")
    assert ask(environment.play(problem), "fail") == (0.0, "ValueError: tool lost")


def test_an_environment_with_a_tool(verifiers):
    question, answer, _, row = generated_problems("verifiers:adder", "train")[3]
    system, user = question
    assert user == {"role": "user", "content": "7+7?"}
    about = {"name": "add", "description": "Add.", "parameters": {}}
    assert json.dumps({"type": "function", "function": about}) in system["content"].splitlines()
    environment, problem = load_environment("verifiers:adder"), Problem(str(question), answer, "", [], row=row)
    play, other = environment.play(problem), environment.play(problem)
    calls = [f'<tool_call>{{"name": "add", "arguments": {{"a": 7, "b": {b}}}}}</tool_call>' for b in (7, 1)]
    text = "<tool_response>\n14\n</tool_response>\n<tool_response>\n8\n</tool_response>"
    assert ask(play, f"Add {calls[0]}\n{calls[1]}") == Observation(text)
    assert ask(play, "14") == (1.0, "")
    assert ask(other, calls[0][:-1]) == Observation("Sure, 7?")  # a call that is not closed is text


def test_calls_of_tools():
    def call(text):
        return f"<tool_call>{text}</tool_call>"

    chat, tools = [{"role": "user", "content": "?"}], [{}]
    add = '{"name": "add", "arguments": {"a": 1}}'
    read = {"id": "1-0", "name": "add", "arguments": '{"a": 1}'}
    assert read_calls(f" So\n{call(f' {add} ')} ", chat, tools) == ("So", [read])
    assert read_calls(call(add) * 2, chat, tools) == ("", [read, read | {"id": "1-1"}])
    others = ["none", call(add[1:]), call("[1]"), call('{"name": "add"}'), call('{"name": "add", "arguments": 1}')]
    others += [call(add.replace("a", "\\ud800")), call("[" * 100_000)]
    assert [read_calls(f" {text} ", chat, tools) for text in others] == [(f" {text} ", []) for text in others]
    assert read_calls(call(add), chat, []) == (call(add), [])


def test_contents_of_several_parts():
    parts = [{"type": "text", "text": "See"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    assert shown({"role": "user", "content": parts}) == "See\n[image_url]"
    assert shown({"role": "tool", "content": parts}) == "<tool_response>\nSee\n[image_url]\n</tool_response>"


def test_tools_join_the_system_message():
    system, user = {"role": "system", "content": "Go."}, {"role": "user", "content": "?"}
    assert offer([user], []) == [user]
    (alone, last), (joined, _) = offer([user], [{"name": "add"}]), offer([system, user], [{"name": "add"}])
    assert last == user and alone["role"] == joined["role"] == "system" and '{"name": "add"}' in alone["content"]
    assert joined["content"] == f"Go.\n\n{alone['content']}"


def test_a_run_with_verifiers(verifiers, chat_model, tmp_path, capsys):
    """The environment's reply becomes the next message of the chat."""
    name = "verifiers:twice"
    settings = dict(environment=name, dataset=name, eval_problems=2, prompts_per_step=2, num_minibatches=1)
    _, rows = run("agent", tmp_path / "run", model=str(chat_model), max_response_tokens=200, **settings)
    assert rows[1]["environment_errors"] == 0 and 1 < rows[1]["turns"] <= 2
    text = (tmp_path / "run" / "samples" / "step-000002.md").read_text()
    assert "Sure, " in text


def test_without_the_package_one_sentence(capsys, monkeypatch):
    of_verifiers.load.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    error = ended(capsys, lambda: of_verifiers.load("twice"))
    assert error == "error: --environment verifiers:twice needs another package: pip install verifiers==0.4.0."


def test_attempts_at_a_task_of_reasoning_gym(tmp_path):
    """Each box is scored: below 1 the model may try again, and 1 ends the episode."""
    (tmp_path / "scorer.py").write_text(
        "def score(problem, text, tokens, truncated):\n    return 1.0 if text == problem.payload else 0.25\n"
    )
    answer = ScoredAnswer("7", f"{tmp_path / 'scorer.py'}:score", "7")
    problem = Problem("?", answer, "", [])
    play = load_environment("reasoning-gym:any").play(problem)
    assert ask(play, "none").text == "\nThere is no \\boxed{}. Try again.\n"
    assert ask(play, "\\boxed{8}") == Observation("\nThe score is 0.25, not 1. Try again.\n", state="8")
    assert ask(play, "\\boxed{7}") == (1.0, "")


def test_the_interpreter(monkeypatch):
    environment = load_environment("python")
    play = environment.play(Problem("?", "7", "", []))
    assert ask(play, "Let us see.\n```python\nprint(3 * 17)\n```\n").text == "```output\n51\n```\n"
    assert "ZeroDivisionError" in ask(play, "```python\n1 / 0\n```\n").text
    monkeypatch.setitem(sandbox().__globals__, "SECONDS", 1)
    assert ask(play, "```python\nimport time; time.sleep(60)\n```\n").text == "```output\nIt took too long.\n```\n"
    assert ask(play, "It is \\boxed{7}.") == (None, "")
    assert len(ask(environment.play(None), "```python\nprint('a' * 10**5)\n```\n").text) < 600


def test_output_of_the_interpreter_has_a_largest_size():
    """Output is limited to 1 MiB, and the interpreter does not wait for processes that a program leaves behind."""
    status, output = sandbox()("import sys\nwhile True: sys.stdout.write('a' * 10**6)")
    assert status > 0 and 0 < len(output) <= 1 << 20  # writing fails with an OSError before the time limit
    start = time.monotonic()
    assert sandbox()("import subprocess; subprocess.Popen(['sleep', '7']); print('done')") == (0, "done\n")
    assert time.monotonic() - start < 5
