"""Environments of verifiers since 0.3, with the package itself; collected only where it is installed (conftest.py)."""

from common.environments import Observation, ask, load_environment
from common.records import Problem
from worlds import generated_problems
from worlds.verifiers import problems as of_verifiers

import pytest
from runs import ended, run

TASKSET = """
import verifiers.v1 as vf

class SumData(vf.TaskData):
    answer: str

class SumTask(vf.Task[SumData]):
    @vf.reward
    async def correct(self, trace: vf.Trace) -> float:
        if trace.last_reply == "fail":
            raise ValueError("tool lost")
        return float(self.data.answer in trace.last_reply)
"""
TWICE = """
class Twice(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            if not (await interaction.turn()).terminated:
                await interaction.turn(f"Sure, {task.data.idx}?")

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        for i in range(20):
            yield SumTask(SumData(prompt=f"{i}+{i}?", system_prompt="Add.", answer=str(2 * i)), self.config.task)

__all__ = ["Sums", "Twice"]
"""
FIRST_WORD = """
class Asks(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            for question in (f"{task.data.idx}+{task.data.idx}?", "And?"):
                if (await interaction.turn(question)).terminated:
                    break

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        i = 0
        while True:
            yield SumTask(SumData(answer=str(2 * i)), self.config.task)
            i += 1

__all__ = ["Sums", "Asks"]
"""
TWO = """
class Config(vf.EnvConfig):
    buyer: vf.AgentConfig = vf.AgentConfig()
    seller: vf.AgentConfig = vf.AgentConfig()

class Market(vf.Env[Config]):
    async def run(self, task, agents):
        await agents.buyer.run(task)
        await agents.seller.run(task)

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        return [SumTask(SumData(prompt="?", answer="1"), self.config.task)]

__all__ = ["Sums", "Market"]
"""
TOOLS = """
class Adder(vf.Toolset):
    @vf.tool
    async def add(self, a: int, b: int) -> int:
        return a + b

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        return [SumTask(SumData(prompt="?", answer="1"), self.config.task)]

    @classmethod
    def toolsets(cls, config):
        return [Adder(vf.ToolsetConfig())]

__all__ = ["Sums"]
"""
MODULES = {"sums_twice": TWICE, "sums_asked": FIRST_WORD, "sums_traded": TWO, "sums_with_tools": TOOLS}


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(TASKSET + text)
    monkeypatch.syspath_prepend(str(tmp_path))


def problems(name):
    return [generated_problems(f"verifiers:{name}", part) for part in ("train", "eval")]


def plays(name, row, count):
    question, answer, _, row = problems(name)[0][row]
    environment, problem = load_environment(f"verifiers:{name}"), Problem(str(question), answer, "", [], row=row)
    return [environment.play(problem) for _ in range(count)]


def test_episodes_of_an_environment():
    train, held_out = problems("sums_twice")
    assert (len(train), len(held_out)) == (16, 4)
    assert train[3][0] == [{"role": "system", "content": "Add."}, {"role": "user", "content": "7+7?"}]
    one, other, third, fourth = plays("sums_twice", 3, 4)
    assert ask(one, "13") == ask(other, "x") == ask(third, "14") == ask(fourth, "") == Observation("Sure, 7?")
    assert ask(one, "14") == (1.0, "") and ask(third, "13") == ask(other, "13") == (0.0, "")
    assert ask(fourth, "fail") == (0.0, "RuntimeError: task SumTask scoring: ValueError: tool lost")


def test_an_episode_may_be_closed_before_its_end():
    (one,) = plays("sums_twice", 0, 1)
    ask(one, "x")
    one.close()
    assert ask(one, "x") == (None, "")


def test_an_environment_that_has_the_first_word(monkeypatch):
    of_verifiers.load("sums_asked").tasks = of_verifiers.load("sums_asked").tasks[:10]
    train, held_out = problems("sums_asked")
    assert (len(train), len(held_out)) == (8, 2) and train[0][0] == [{"role": "user", "content": "2+2?"}]
    (one,) = plays("sums_asked", 0, 1)
    assert ask(one, "x") == Observation("And?") and ask(one, "4") == (1.0, "")


def test_the_policy_can_only_be_one_agent_without_tools(capsys):
    for name, words in (("sums_traded", "it has several agents (buyer, seller)"), ("sums_with_tools", "it has tools")):
        assert words in ended(capsys, lambda name=name: of_verifiers.load(name))


def test_a_run(chat_model, tmp_path):
    """The environment's reply becomes the next message of the chat."""
    name = "verifiers:sums_twice"
    settings = dict(environment=name, dataset=name, eval_problems=2, prompts_per_step=2, num_minibatches=1)
    _, rows = run("agent", tmp_path / "run", model=str(chat_model), max_response_tokens=200, **settings)
    assert rows[1]["environment_errors"] == 0 and 1 < rows[1]["turns"] <= 2
    assert "Sure, " in (tmp_path / "run" / "samples" / "step-000002.md").read_text()
