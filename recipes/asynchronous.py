"""Generation that waits for no batch: prompts begin as others end, and new weights are taken between any two tokens.

The learner's version v is the number of rollout batches that it has trained on. Admission bounds the staleness, as in
AReaL (2505.24298, Eq. 3; `StalenessManager` in its code): by version v, (v + η + 1) P prompts have been submitted, not
counting those of dropped groups. A group that ends joins a queue, and a batch takes the P oldest groups of it. Groups
do not end in the order in which they began, so one can still be older than η: it is dropped, and another prompt takes
its place (PipelineRL's code counts such samples and trains on them; prime-rl drops them). A group is as old as its
first token.

The same code in two modes:
- one process: time is counted in tokens, and while the learner trains on a batch, sampling continues for a number of
  tokens drawn from the run's seed. Runs, even resumed ones, repeat to the bit: the checkpoint holds the groups under
  way, with their keys and values.
- `--overlap`: another process generates all the time (`remote.py`). What it samples depends on how fast both are, so no
  two runs are alike. A resumed run restarts the groups that were under way.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass, field, is_dataclass
from functools import lru_cache
from typing import Any

from common.clock import clock
from common.data import problem_stream
from common.distributed import gather, rank, world_size
from common.engines import Engine, Request, Weights, prompt_seeds
from common.lora import whole_weights
from common.records import Problem, Rollouts
from common.run import Run

import numpy as np

Cuts = dict[int, tuple[int, list[int]]]  # as in Rollouts.splice: where a row is cut, and which tokens follow there
Interrupt = Callable[[Rollouts, int, Any, Any], Cuts]  # responses of a group, its seed, tokenizer, settings
Prompt = tuple[int, list[int], int]  # its number in the run, token ids, seed


@lru_cache(maxsize=64)
def batch_seeds(P: int, seed: int, batch: int) -> list[int]:
    """The seeds that a synchronous run gives to the prompts of a batch."""
    return prompt_seeds(P, seed, batch)


def draw(
    problems: list[Problem], excluded: Set[str], start: int, count: int, seed: int
) -> tuple[dict[int, Problem], int]:
    """The next `count` problems of the stream whose prompts are not `excluded`, by position; and where it continues."""
    drawn: dict[int, Problem] = {}
    while missing := count - len(drawn):
        stream = problem_stream(problems, seed, start, missing)
        drawn |= {start + i: problem for i, problem in enumerate(stream) if problem.prompt not in excluded}
        start += missing
    return drawn, start


@dataclass
class Group:
    """The G responses to a prompt."""

    number: int  # of the prompt, from 0
    version: int  # of the weights that sampled its first tokens
    rollouts: Rollouts


@dataclass
class UnderWay:
    """A prompt whose responses have begun."""

    prompt: Prompt
    version: int  # of the weights at its first tokens
    # Once the group is interrupted: its responses; what each cut row continues from, and later the whole row.
    whole: Rollouts | None = None
    cut: dict[int, Rollouts] = field(default_factory=dict)
    missing: int = 0  # cut rows that have not ended


class Worker:
    """Where responses are sampled: prompts wait for room and begin, groups end, and weights change at any token.

    With several processes, each samples its shard of the prompts, and all know what has begun and ended.
    """

    def __init__(self, engine: Engine, tokenizer: Any, args: Any, interrupt: Interrupt | None = None) -> None:
        self.engine, self.tokenizer, self.args, self.interrupt = engine, tokenizer, args, interrupt
        self.stream = engine.stream()
        self.version = -1  # before the first weights
        self.tokens = self.idle_tokens = 0  # since the last call of `idle`
        self.waiting: list[Prompt] = []
        self.begun: dict[int, UnderWay] = {}  # by the number of the prompt
        self.paused: dict[Any, Any] = {}  # the state of the stream, while it is paused

    def load(self, version: int, weights: Weights) -> None:
        """Use new weights for all tokens from now on."""
        self.engine.update(weights)
        self.version = version
        if self.paused:
            self.stream.load_state_dict(self.paused)
            self.paused = {}
        if self.args.kv == "recompute":
            self.stream.reread()

    def pause(self) -> None:
        """Free the engine for other uses until the next `load`."""
        self.paused = self.stream.state_dict()

    def submit(self, prompts: list[Prompt]) -> None:
        self.waiting += prompts

    def step(self, begin: bool = True) -> list[Group]:
        """Sample a token of each response, and return finished groups. Waiting prompts `begin` if there is room."""
        free = self.args.in_flight_prompts - len(self.begun)
        # Several at a time: whenever rows join, the transformers engine copies all keys and values.
        if begin and (free >= self.args.in_flight_prompts // 8 or not self.begun):
            self.begin(self.waiting[:free])
            self.waiting = self.waiting[free:]
        self.tokens += 1
        self.idle_tokens += not self.begun
        self.stream.step()
        ended = {key: rollouts for part in gather(self.stream.take()) for key, rollouts in part.items()}
        return [group for key in sorted(ended) for group in self.end(*key, ended[key])]

    @property
    def has_work(self) -> bool:
        return self.version >= 0 and bool(self.begun or self.waiting)

    def idle(self) -> float:
        """The fraction of the tokens since the last call for which nothing was under way."""
        fraction = self.idle_tokens / max(1, self.tokens)
        self.tokens = self.idle_tokens = 0
        return fraction

    def finish(self) -> list[Group]:
        """Sample until all responses have ended."""
        groups = []
        while self.begun:
            groups += self.step(begin=False)
        return groups

    def begin(self, prompts: list[Prompt]) -> None:
        self.begun |= {prompt[0]: UnderWay(prompt, self.version) for prompt in prompts}
        mine = [prompt for prompt in prompts if self.is_mine(prompt[0])]
        if mine:
            numbers, ids, seeds = zip(*mine, strict=True)
            limits, G = [self.args.max_response_tokens] * len(mine), self.args.responses_per_prompt
            self.stream.join([(n, 0) for n in numbers], Request(ids, G, limits, self.args.temperature, seeds))

    def is_mine(self, number: int) -> bool:
        return number % world_size() == rank()

    def end(self, number: int, part: int, rollouts: Rollouts) -> list[Group]:
        """The group, if these responses complete it: all of them (part 0), or the end of the cut row `part - 1`."""
        group = self.begun[number]
        if part:
            group.cut[part - 1] = group.cut[part - 1].extended(rollouts)
            group.missing -= 1
        else:
            group.whole = rollouts
            cuts = self.interrupt(rollouts, group.prompt[2], self.tokenizer, self.args) if self.interrupt else {}
            begun = rollouts.splice(cuts, self.args.max_response_tokens).split(1)
            group.cut, group.missing = dict(zip(cuts, begun, strict=True)), len(cuts)
            self.go_on(group)
        if group.missing:
            return []
        del self.begun[number]
        return [Group(number, group.version, group.whole.replace(group.cut, Rollouts.join(group.cut.values())))]

    def go_on(self, group: UnderWay) -> None:
        """Continue the cut rows of a group."""
        number, ids, seed = group.prompt
        if group.cut and self.is_mine(number):
            prompts = [ids + begun.tokens[0] for begun in group.cut.values()]
            limits = [self.args.max_response_tokens - len(begun.tokens[0]) for begun in group.cut.values()]
            seeds = [prompt_seeds(1, seed, row)[0] for row in group.cut]
            keys = [(number, 1 + row) for row in group.cut]
            self.stream.join(keys, Request(prompts, 1, limits, self.args.temperature, seeds))

    def close(self) -> None:
        """Nothing to close: the engine belongs to the run."""

    def state_dict(self) -> dict[str, Any]:
        paused = {key: part for state in gather(self.paused) for key, part in state.items()}
        return {"waiting": self.waiting, "begun": [plain(group) for group in self.begun.values()], "paused": paused}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.waiting = list(state["waiting"])
        groups = [UnderWay(**group) for group in state["begun"]]
        for group in groups:
            group.whole = group.whole and Rollouts(**group.whole)
            group.cut = {row: Rollouts(**begun) for row, begun in group.cut.items()}
        self.begun = {group.prompt[0]: group for group in groups}
        self.paused = {key: part for key, part in state["paused"].items() if self.is_mine(key[0])}


def plain(value: Any) -> Any:
    """A value with its dataclasses as dictionaries, as a checkpoint has them; lists are not copied."""
    if is_dataclass(value):
        return {name: plain(part) for name, part in vars(value).items()}
    return {key: plain(part) for key, part in value.items()} if isinstance(value, dict) else value


class Generator:
    """The learner's side: it submits prompts, and makes rollout batches of the groups in the queue."""

    def __init__(
        self, run: Run, engine: Engine, model: Any, tokenizer: Any, train: list[Problem], interrupt: Any = None
    ) -> None:
        """`interrupt`, of type `Interrupt`, is the recipe's function that may cut responses short."""
        self.run, self.args, self.model, self.train = run, run.args, model, train
        if run.args.overlap:
            from recipes.remote import Remote

            self.worker = Remote(run, model, train, interrupt)
        else:
            self.worker = Worker(engine, tokenizer, run.args, interrupt)
        self.submitted = self.dropped = 0  # prompts so far; groups that were dropped
        self.position = 0  # in the stream of problems
        self.positions: dict[int, int] = {}  # in that stream, of prompts whose groups are neither taken nor dropped
        self.problems: dict[int, Problem] = {}  # the same prompts' problems
        self.queue: list[Group] = []

    def batch(self, step: int, excluded: Set[str] = frozenset()) -> tuple[list[Problem], Rollouts]:
        """The oldest P groups of the queue, once there are that many. Prompts in `excluded` are no longer submitted."""
        P, version, submitted, dropped = self.args.prompts_per_step, step - 1, self.submitted, self.dropped
        with clock("sync"):
            self.worker.load(version, whole_weights(self.model))
        with clock("generate"):
            self.submit(version, excluded)
            while len(self.queue) < P:
                self.queue += self.worker.step()
                self.submit(version, excluded)
            groups = self.take()
            problems = [self.forget(group) for group in groups]
            if not self.args.overlap:
                self.sample_meanwhile(step)
        ages = [version - group.version for group in groups]
        self.run.log(age=sum(ages) / P, oldest=max(ages), generator_idle=self.worker.idle())
        self.run.log(sampled_prompts=self.submitted - submitted, dropped_groups=self.dropped - dropped)
        self.run.log(queued_groups=len(self.queue))
        return problems, Rollouts.join(group.rollouts for group in groups)

    def take(self) -> list[Group]:
        """The oldest P groups of the queue."""
        self.queue.sort(key=lambda group: group.number)
        groups, self.queue = self.queue[: self.args.prompts_per_step], self.queue[self.args.prompts_per_step :]
        return groups

    def submit(self, version: int, excluded: Set[str]) -> None:
        """Drop the groups that are older than η, and submit as many prompts as this version admits."""
        for group in [group for group in self.queue if version - group.version > self.args.staleness]:
            self.queue.remove(group)
            self.dropped += 1
            self.forget(group)
        admitted = (version + self.args.staleness + 1) * self.args.prompts_per_step + self.dropped
        count = max(0, admitted - self.submitted)
        drawn, self.position = draw(self.train, excluded, self.position, count, self.args.seed)
        numbers = range(self.submitted, self.submitted + count)
        self.positions |= dict(zip(numbers, drawn, strict=True))
        self.problems |= dict(zip(numbers, drawn.values(), strict=True))
        self.worker.submit([self.prompt(number) for number in numbers])
        self.submitted += count

    def forget(self, group: Group) -> Problem:
        """The problem of a group that is taken or dropped."""
        del self.positions[group.number]
        return self.problems.pop(group.number)

    def prompt(self, number: int) -> Prompt:
        batch, i = divmod(number, self.args.prompts_per_step)
        seed = batch_seeds(self.args.prompts_per_step, self.args.seed, batch + 1)[i]
        return number, self.problems[number].prompt_ids, seed

    def sample_meanwhile(self, step: int) -> None:
        """One process: sample for as long as the learner would train on this batch, then until weights can be taken."""
        tokens = np.random.default_rng((self.args.seed, step)).integers(2 * self.args.training_tokens + 1)
        for _ in range(tokens):
            self.queue += self.worker.step()
        if not self.args.in_flight_updates:
            self.queue += self.worker.finish()
        self.worker.pause()

    def state_dict(self) -> dict[str, Any]:
        names = ("submitted", "dropped", "position", "positions")
        queue = [plain(group) for group in self.queue]
        return {name: getattr(self, name) for name in names} | {"queue": queue, "worker": self.worker.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        worker = state.pop("worker")
        vars(self).update(state)
        stream = {number: problem_stream(self.train, self.args.seed, at, 1) for number, at in self.positions.items()}
        self.problems = {number: problem for number, (problem,) in stream.items()}
        self.queue = [Group(number, version, Rollouts(**rollouts)) for number, version, rollouts in
                      (group.values() for group in state["queue"])]  # fmt: skip
        if self.args.overlap:  # what was under way begins again
            self.worker.submit([self.prompt(n) for n in self.positions.keys() - {group.number for group in self.queue}])
        else:
            self.worker.load_state_dict(worker)

    def close(self) -> None:
        self.worker.close()
