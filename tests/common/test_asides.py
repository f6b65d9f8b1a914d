"""Asides: what an environment asks the policy in other conversations."""

from common.environments import Aside, Observation

from playing import TOKENIZER, played


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
    assert prompts[1] == ["a?!\n", "b!\n"] and prompts[2] == ["1!again\n"] and prompts[4] == ["c!\n"]
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

    end = "its asides are too long, or too many in one turn"
    rollouts, *_, engine = played(endless, ["a!", "b!"], *[["c!"]] * 3, max_turns=3)
    assert [episode.failure for episode in rollouts.episodes] == [end, ""] and not engine.engine.turns
    # An aside's prompt has one token more than its question; the engine's context is 62, and a response at most 60.
    rollouts, *_ = played(long, ["1", "51", "61"], ["x" * 99, "x" * 99])
    assert [(episode.reward, episode.failure) for episode in rollouts.episodes] == [(60, ""), (10, ""), (0, end)]
