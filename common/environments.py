"""Environments: a policy acts in turns, and an environment answers each with an observation or ends the episode.

An environment is a generator function, called once per episode: it receives the text of a turn, and yields an
observation or returns the reward. For an opponent's turn it yields an aside. docs/environments.md shows one.
"""

import importlib
import inspect
import json
import math
from bisect import bisect_left
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import worlds
from common.cli import fail, first_line, say
from common.data import filled_template, make_prompt, time_limit
from common.distributed import gather, shard
from common.engines import Engine, Request, prompt_seeds
from common.records import Episode, Problem, Rollouts
from common.verification.worker import load

TIME_LIMIT = 30.0  # seconds for an answer to one turn
MAX_LATE = 16  # late answers in one turn of a batch; more end the run
LATE = "too late"
KEYS = ("role", "content")  # of a chat message


class Observation(NamedTuple):
    """An environment's answer to a turn: a text that is inserted after it, without loss."""

    text: str
    # Equal for episodes of a group that are in the same state, so that methods can compare what they did there.
    state: str | None = None
    read: int | None = None  # characters of the turn that were read; what follows is dropped


class Aside(NamedTuple):
    """A question in another conversation, such as an opponent's. The policy answers it too, but without loss."""

    question: str | list[dict[str, str]]  # a text, which is the prompt or its only message, or chat messages


class End(NamedTuple):
    """The end of an episode. Without a reward, the verifier judges its text."""

    reward: float | None
    failure: str = ""


Play = Generator[Observation | Aside | None, str, float | None]


class Environment(NamedTuple):
    play: Callable[[Problem], Play]
    stop: tuple[str, ...] = ()  # strings that end a turn, besides EOS


def load_environment(name: str) -> Environment:
    """The environment named by worlds/__init__.py, ADAPTER:TASK or file.py:NAME."""
    source, _, rest = name.rpartition(":")
    try:
        if source.endswith(".py"):
            return load(f"{Path(source).absolute()}:{rest}")
        if source:
            return importlib.import_module(f"worlds.{source.replace('-', '_')}.environment").environment(rest)
        return importlib.import_module(f"worlds.{worlds.ENVIRONMENTS[name]}").ENVIRONMENT
    except Exception as error:  # of any kind in a user's file
        known = ", ".join(worlds.ENVIRONMENTS)
        fail(f"--environment {name} is not one of {known}, ADAPTER:TASK or file.py:NAME ({first_line(error)}).")


def ask(play: Play, text: str) -> Observation | Aside | End:
    """The environment's answer to a turn. If it fails or takes too long, the episode ends with reward 0."""
    try:
        with time_limit(TIME_LIMIT, wall=True):
            if inspect.getgeneratorstate(play) == inspect.GEN_CREATED:
                next(play)
            answer = play.send(text)
    except StopIteration as end:
        answer = End(end.value)
    except TimeoutError as error:
        return End(0.0, f"{LATE}, {first_line(error)}")
    except Exception as error:  # of any kind
        return End(0.0, first_line(error))
    match answer:
        case Observation(str()) | End(None):
            return answer
        case Aside(question) if is_question(question):
            return answer
        case End(int() | float() as reward) if math.isfinite(reward):
            return End(float(reward))
    return End(0.0, f"it answers with {answer!r:.80}")


def is_question(question: Any) -> bool:
    """Whether it is a text or chat messages."""
    try:
        json.dumps(question, ensure_ascii=False).encode()  # not with a lone surrogate
    except (TypeError, ValueError, RecursionError):
        return False
    match question:
        case str():
            return question != ""
        case [_, *_]:
            return all(isinstance(one, dict) and {str} == {type(one.get(key)) for key in KEYS} for one in question)
    return False


def close(play: Play) -> None:
    """Close the generator of an episode; its clean-up has the same time limit as an answer."""
    with suppress(Exception), time_limit(TIME_LIMIT, wall=True):
        play.close()


def observation_ids(text: str, turn: list[int], tokenizer: Any) -> list[int]:
    """An observation as tokens. In a chat, if the turn's message has ended, it is the next message."""
    if tokenizer.chat_template is None or not turn or turn[-1] not in tokenizer.all_special_ids:
        return tokenizer(text, add_special_tokens=False)["input_ids"]
    contents = ("user", "?"), ("assistant", "\0"), ("user", text)
    chat = [{"role": role, "content": content} for role, content in contents]
    chat = filled_template(chat, tokenizer)
    ids = tokenizer(chat.partition("\0")[2], add_special_tokens=False)["input_ids"]
    return ids[1:] if ids[0] == turn[-1] else ids


class EpisodeEngine(Engine):
    """An engine whose responses are episodes: the policy's turns and, between them, the environment's answers.

    In each round of generation all unfinished episodes get their next turn. The length limit is per episode.
    """

    def __init__(self, engine: Engine, environment: Environment, tokenizer: Any, args: Any, max_turns: int) -> None:
        if getattr(args, "replay_routing", False):
            fail("--replay-routing is not for episodes: no engine reports which experts read what is inserted.")
        super().__init__(args)
        self.engine, self.environment, self.tokenizer, self.max_turns = engine, environment, tokenizer, max_turns
        self.update, self.sleep, self.close = engine.update, engine.sleep, engine.close
        self.observations = 0.0  # per episode, in the last batch
        self.numbers: dict[str, float] = {}  # to log, from the last batch
        self.told = False  # whether the note on the first failure was printed

    def sample_shards(self, request: Request) -> Rollouts:
        request = replace(request, stop=(*request.stop, *self.environment.stop))
        rollouts = self.engine.sample_shards(request)
        n, count, limit = request.n, len(rollouts.tokens), request.limits[0]
        # Each process plays its shard of the episodes, and no other process repeats it: a time-out might differ.
        plays = {row: self.environment.play(request.problems[row // n]) for row in range(count)[shard(count)]}
        episodes, going, inserted = [Episode([0], [""]) for _ in range(count)], list(range(count)), 0
        for turn in range(1, self.max_turns + 1):
            turns = {row: rollouts.tokens[row][episodes[row].starts[-1] :] for row in going}
            answers = self.answers(plays, turns, request, turn)
            observed = {row: answer for row, answer in answers.items() if isinstance(answer, Observation)}
            for row in answers.keys() - observed.keys():
                episodes[row].reward, episodes[row].failure = answers[row]
            if turn == self.max_turns:  # an observation after the last turn is never read
                break
            cuts = {row: self.cut(rollouts.tokens[row], episodes[row].starts[-1], o) for row, o in observed.items()}
            begun = rollouts.splice(cuts, limit)
            rollouts, inserted = rollouts.replace(cuts, begun), inserted + len(cuts)
            going = [row for row, ids in zip(cuts, begun.tokens, strict=True) if len(ids) < limit]
            for row in going:
                episodes[row].starts.append(len(rollouts.tokens[row]))
                episodes[row].states.append(observed[row].state)
            if not going:  # all have ended, or have no room left after what was inserted
                break
            prompts = [request.prompts[row // n] for row in going]
            # Each episode has its own seeds, which depend neither on the rest of the batch nor on other turns.
            seeds = [prompt_seeds(1, request.seeds[row // n], row % n, turn)[0] for row in going]
            rest = self.engine.extend(prompts, rollouts.select(going), limit, request.temperature, seeds, request.stop)
            rollouts = rollouts.replace(going, rest)
        for play in plays.values():
            close(play)
        rollouts.episodes = episodes
        self.observations = inserted / count
        self.count(episodes, out_of_turns=len(observed) / count if turn == self.max_turns else 0.0)
        return rollouts

    def count(self, episodes: list[Episode], out_of_turns: float) -> None:
        """Set the numbers to log. End the run if every episode has failed."""
        failures = [episode.failure for episode in episodes if episode.failure]
        if len(failures) == len(episodes):
            fail(f"the environment failed in all {len(failures)} episodes: {failures[0]}.", code=1)
        if failures and not self.told:
            say(f"note: the environment failed in {len(failures)} of {len(episodes)} episodes: {failures[0]}.")
            self.told = True
        late = sum(failure.startswith(LATE) for failure in failures)
        self.numbers = {
            "turns": sum(map(len, episodes)) / len(episodes),
            "out_of_turns": out_of_turns,
            "environment_errors": len(failures) - late,
            "environment_timeouts": late,
        }

    def answers(
        self, plays: dict[int, Play], turns: dict[int, list[int]], request: Request, turn: int
    ) -> dict[int, Observation | End]:
        """The environment's answers to the last turn of each of these episodes, once it has no more asides."""
        answers = self.ask_all(plays, turns)
        for number in range(self.max_turns):
            asides = {row: answer for row, answer in answers.items() if isinstance(answer, Aside)}
            if not asides:
                break
            answers |= self.ask_all(plays, self.respond(asides, request, turn, number))
        endless = End(0.0, "its asides are too long, or too many in one turn")
        return {row: endless if isinstance(answer, Aside) else answer for row, answer in answers.items()}

    def respond(self, asides: dict[int, Aside], request: Request, turn: int, number: int) -> dict[int, list[int]]:
        """What the policy answers to asides, each with its own seed; nothing where one leaves no room for an answer."""
        n, context, prompts = request.n, self.engine.context, {}
        for row, aside in asides.items():
            prompt = make_prompt(aside.question, "{question}", self.tokenizer)[1]
            if len(prompt) < context:
                prompts[row] = prompt
        seeds = [prompt_seeds(1, request.seeds[row // n], row % n, turn, number)[0] for row in prompts]
        limits = [min(request.limits[0], context - len(prompt)) for prompt in prompts.values()]
        asked = Request(list(prompts.values()), 1, limits, request.temperature, seeds, stop=request.stop)
        return dict(zip(prompts, self.engine.sample_shards(asked).tokens, strict=True)) if prompts else {}

    def ask_all(self, plays: dict[int, Play], turns: dict[int, list[int]]) -> dict[int, Observation | Aside | End]:
        """The environment's answers to a turn of each of these episodes."""
        mine, late = {}, 0
        for row in filter(plays.__contains__, turns):
            mine[row] = ask(plays[row], self.tokenizer.decode(turns[row], skip_special_tokens=True))
            late += isinstance(mine[row], End) and mine[row].failure.startswith(LATE)
            if late > MAX_LATE:
                fail(f"the environment took more than {TIME_LIMIT:g} seconds for {late} turns of a batch.", code=1)
        return {row: answer for part in gather(mine) for row, answer in part.items()}

    def cut(self, tokens: list[int], start: int, observation: Observation) -> tuple[int, list[int]]:
        """Where the turn that begins at token `start` ends, after the last character read, and what to insert there."""

        def length(end: int) -> int:
            return len(self.tokenizer.decode(tokens[start:end], skip_special_tokens=True))

        end = len(tokens)
        if observation.read is not None:
            end = bisect_left(range(end), observation.read, lo=start + 1, key=length)
        return end, observation_ids(observation.text, tokens[start:end], self.tokenizer)
