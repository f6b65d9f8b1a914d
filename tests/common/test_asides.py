"""Asides: what an environment asks the policy in other conversations."""

import grpo
from common.data import filled_template
from common.environments import Aside, Environment, EpisodeEngine, Observation

import pytest
from playing import PROBLEM, TOKENIZER, Writer, played
from sampling import make
from transformers import AutoTokenizer

END = "its asides are too long, or too many in one turn"


def negotiate(problem):
    """An opponent, who is the policy too, is told each turn and answers; a turn with a ? is told twice."""
    text = yield
    while text != "stop!":
        heard = yield Aside(text)
        if "?" in text:
            heard += yield Aside(f"{heard}again")
        text = yield Observation(f"({heard})")
    return 0.5


def test_asides_are_no_part_of_the_response():
    """What the policy says for an opponent is given to the environment alone, and has its own seed."""
    turns = ["a?!", "b!", "stop!"], ["1!", "2!"], ["3!"], ["c!", "stop!"], ["4!"], ["stop!"]
    rollouts, texts, engine = played(negotiate, *turns)
    assert texts == ["a?!(1!3!)c!(4!)stop!", "b!(2!)stop!", "stop!"]
    assert [episode.starts for episode in rollouts.episodes] == [[0, 9, 15], [0, 6], [0]]
    assert [sum(row) for row in rollouts.sampled] == [3 + 2 + 5, 2 + 5, 5]
    requests = engine.engine.requests
    prompts = [[TOKENIZER.decode(ids) for ids in request.prompts] for request in requests]
    assert prompts[1] == ["a?!", "b!"] and prompts[2] == ["1!again"] and prompts[4] == ["c!"]
    assert all(request.stop == ("!",) for request in requests)
    seeds = [seed for request in requests for seed in request.seeds]
    assert len(set(seeds)) == len(seeds) == 1 + 2 + 1 + 2 + 1 + 1
    assert engine.numbers["turns"] == 2 and engine.numbers["environment_errors"] == 0
    # The first episode has the same seeds where it is alone, so it is the same whatever happens in the others.
    _, alone, single = played(negotiate, *([row[0]] for row in turns))
    assert alone == texts[:1] and [request.seeds[0] for request in single.engine.requests] == [
        request.seeds[0] for request in requests
    ]


def test_asides_end():
    """Too many in one turn, or one that is too long, end the episode; their limit leaves room for the prompt."""

    def endless(problem):
        text = yield
        while text != "b!":
            yield Aside("?")
        return 1.0

    def long(problem):
        text = yield
        heard = yield Aside("1" * int(text))
        return float(len(heard))

    rollouts, *_, engine = played(endless, ["a!", "b!"], *[["c!"]] * 3, max_turns=3)
    assert [episode.failure for episode in rollouts.episodes] == [END, ""] and not engine.engine.turns
    # The engine's context has 62 tokens, and a response at most 60.
    rollouts, *_ = played(long, ["1", "52", "62"], ["x" * 99, "x" * 99])
    assert [(episode.reward, episode.failure) for episode in rollouts.episodes] == [(60, ""), (10, ""), (0, END)]


@pytest.mark.parametrize(
    "question", ["", [], ["a"], [{"role": "user"}], [{"role": 1, "content": ""}], "\ud800", {"role": "user"}, None]
)
def test_what_is_no_question_ends_the_episode(question):
    def play(problem):
        if (yield) == "a!":
            yield Aside(question)
        return 1.0

    rollouts, *_ = played(play, ["a!", "b!"])
    assert [episode.reward for episode in rollouts.episodes] == [0.0, 1.0]
    assert rollouts.episodes[0].failure.startswith("it answers with Aside(question=")


def test_the_prompt_of_an_aside(chat_model):
    """Neither --prompt nor --system-prompt nor --few-shot is for asides; the temperature and the stop strings are."""
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    chat = [{"role": "system", "content": "Sell."}, {"role": "user", "content": "3?"}]

    def play(problem):
        yield
        yield Aside("3?")
        yield Aside(chat)
        return 1.0

    settings = {"prompt": "{question} please", "system_prompt": "Add.", "max_prompt_tokens": 1, "temperature": 0.5}
    writer = Writer(["a!"], ["b!"], ["c!"])
    engine = EpisodeEngine(writer, Environment(play, ("!",)), tokenizer, grpo.Args(**settings), 2)
    engine.generate([PROBLEM], 1, 7)
    asked = [tokenizer.decode(request.prompts[0]) for request in writer.requests[1:]]
    assert asked == [filled_template(messages, tokenizer) for messages in ([chat[1]], chat)]
    assert [request.temperature for request in writer.requests] == [0.5] * 3


def test_an_aside_fits_the_models_context(embedded, problems):
    """256 tokens with the embedded model."""
    given = []

    def play(problem):
        yield
        given.append((yield Aside("1" * 254)))
        if len(given) == 1:
            yield Aside("1" * 256)
        return 1.0

    episodes = EpisodeEngine(make(embedded), Environment(play), TOKENIZER, grpo.Args(max_response_tokens=48), 3)
    rollouts = episodes.generate(problems[:1], 2, 1)
    assert len(given) == 2 and max(map(len, given)) <= 2
    assert [episode.failure for episode in rollouts.episodes] == [END, ""]
