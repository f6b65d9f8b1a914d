"""Environments of verifiers 0.4, as modules; each follows TASKSET."""

TASKSET = """
import verifiers.v1 as vf

class SumData(vf.TaskData):
    answer: str

class Memory(vf.State):
    sums: int = 0

class SumTask(vf.Task[SumData, Memory]):
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
        buys, sells = (vf.Task(vf.TaskData(idx=task.data.idx, system_prompt=said)) for said in ("Buy.", "Sell."))
        async with agents.buyer.interaction(buys) as buyer, agents.seller.interaction(sells) as seller:
            offer, price = await buyer.turn("Your offer?"), ""
            while not offer.terminated and price != offer.last_reply:
                price = (await seller.turn(f"{offer.last_reply}?")).last_reply
                offer = await buyer.turn(f"No, {price}.")
        seller.trace.record_reward("price", len(price))
        buyer.trace.record_reward("price", -len(price))

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        return [SumTask(SumData(prompt="Trade.", answer="none"), self.config.task) for _ in range(5)]

__all__ = ["Sums", "Market"]
"""
TOOLS = """
import os

class Adder(vf.Toolset[vf.SharedToolsetConfig, Memory]):
    @vf.tool
    async def add(self, a: int, b: int) -> str:
        if a == 666:
            os._exit(1)
        if a == 0:
            return b * "x"
        self.state.sums += 1
        return f"{a + b}, sum {self.state.sums}"

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        return [SumTask(SumData(prompt=f"{i}?", answer="14"), self.config.task) for i in range(10)]

    @classmethod
    def toolsets(cls, config):
        return [Adder(vf.SharedToolsetConfig())]

class Twice(vf.SingleAgentEnv):
    async def start(self):
        self.question = "Sure?"

    async def stop(self):
        print(self.question)

    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            await interaction.turn()
            await interaction.turn(self.question)

__all__ = ["Sums", "Twice"]

if __name__ == "__main__":
    Adder.run()
"""
OWN_TOOLS = """
import os

class Adder(vf.Toolset[vf.ToolsetConfig, Memory]):
    @vf.tool
    async def add(self, a: int, b: int) -> int:
        return a + b

    @vf.tool
    async def sub(self, a: int) -> int:
        os._exit(1)

class Adding(SumTask):
    @classmethod
    def toolsets(cls, config):
        return [Adder(vf.ToolsetConfig())]

    @vf.intercept
    async def forbid(self, response: vf.Response):
        assert response.finish_reason == ("tool_calls" if response.message.tool_calls else "stop")
        if any('"a": 13' in call.arguments for call in response.message.tool_calls or []):
            response.message.tool_calls, response.message.content = None, "It is 14."
        return response

    @vf.intercept
    async def replace(self, request: vf.Request) -> vf.Request | None:
        if request.messages[-1].role == "tool" and request.messages[-1].name == "adder_sub":
            request.messages[-1].content = "forbidden"
            return request

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        return [Adding(SumData(prompt=f"{i}?", answer="14"), self.config.task) for i in range(10)]

__all__ = ["Sums"]

if __name__ == "__main__":
    Adder.run()
"""
AGAIN = """
class Again(vf.SingleAgentEnv):
    async def run(self, task, agents):
        await agents.agent.run(task)
        await agents.agent.run(task)

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        return [SumTask(SumData(prompt=f"{i}?", answer="1"), self.config.task) for i in range(5)]

__all__ = ["Sums", "Again"]
"""
NONE = """
class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        return []

__all__ = ["Sums"]
"""
SILENT = """
class Silent(vf.SingleAgentEnv):
    async def run(self, task, agents):
        raise ValueError("server down")

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        return [SumTask(SumData(answer="1"), self.config.task)]

__all__ = ["Sums", "Silent"]
"""
OTHER_CLASS = OWN_TOOLS.replace("return [Adding(", "return [SumTask(SumData(prompt='?', answer='1'), None)] + [Adding(")
SILENT_SERVER = TOOLS.replace("vf.SharedToolsetConfig()", "vf.SharedToolsetConfig(url=os.environ['SILENT'])")
BOTH = """
import asyncio

class Config(vf.EnvConfig):
    buyer: vf.AgentConfig = vf.AgentConfig()
    seller: vf.AgentConfig = vf.AgentConfig()
    max_concurrent_agents: int | None = None

class Market(vf.Env[Config]):
    async def setup(self, agents):
        agents.seller.trainable = False

    async def run(self, task, agents):
        async with agents.buyer.interaction(task) as buyer, agents.seller.interaction(task) as seller:
            both = await asyncio.gather(buyer.turn("Buy?"), seller.turn("Sell?"))
        buyer.trace.record_reward("same", both[0].last_reply == both[1].last_reply)

class Sums(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self):
        return [SumTask(SumData(prompt=None, answer="none"), self.config.task) for _ in range(5)]

__all__ = ["Sums", "Market"]
"""
SELLER = "seller: vf.AgentConfig = vf.AgentConfig()"
SERVED = SELLER.replace("()", '(model="small")')
CONNECTED = SELLER.replace("()", '(client={"type": "eval", "base_url": "http://127.0.0.1:1"})')
UNTRAINED = """
    async def setup(self, agents):
        agents.buyer.trainable = False
"""
MODULES = {
    "sums_twice": TWICE, "sums_asked": FIRST_WORD, "sums_again": AGAIN,
    "sums_traded": TWO, "sums_traded_by_one": TWO.replace(SELLER, SERVED), "sums_sold": TWO.replace(SELLER, CONNECTED),
    "sums_traded_at_once": BOTH,
    "sums_bought": TWO.replace("class Market(vf.Env[Config]):", "class Market(vf.Env[Config]):" + UNTRAINED),
    "sums_with_tools": TOOLS, "no_sums": NONE, "sums_unasked": SILENT,
    "sums_with_own_tools": OWN_TOOLS, "sums_of_two_classes": OTHER_CLASS, "sums_without_answers": SILENT_SERVER,
    "sums_opened_with_tools": OWN_TOOLS.replace('prompt=f"{i}?", ', ""),
    "sums_that_exit": TOOLS.replace("return [Adder(", "raise SystemExit('no key')  # ("),
}  # fmt: skip
