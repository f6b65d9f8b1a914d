"""The protocol of environments: turns, limits, failures, and rewards that an environment gives."""

import re
import time
from contextlib import suppress

import grpo
from common import data, environments
from common.data import time_limit
from common.engines import Request
from common.environments import Environment, EpisodeEngine, Observation, ask, load_environment, observation_ids
from common.records import Episode, Rollouts
from common.verification import Verifier
from tools.scripts import ROOT

import pytest
from playing import PROBLEM, TOKENIZER, Writer, played, tokens_of
from transformers import AutoTokenizer


def count_up(problem):
    """Ends, and gives its reward, once a response names the problem's answer."""
    said, text = [], (yield)
    while problem.answer not in text:
        said.append(text)
        text = yield Observation(f"<{len(said)}>", state="".join(said))
    return 1 / (1 + len(said))


def test_turns_are_batched_until_each_episode_ends():
    rollouts, texts, engine = played(count_up, ["a!", "7!", "b!"], ["7!", "c!"], ["7!"])
    assert texts == ["a!<1>7!", "7!", "b!<1>c!<2>7!"]
    assert [episode.reward for episode in rollouts.episodes] == [1 / 2, 1, 1 / 3]
    assert [episode.starts for episode in rollouts.episodes] == [[0, 5], [0], [0, 5, 10]]
    assert [episode.states for episode in rollouts.episodes] == [["", "a!"], [""], ["", "b!", "b!c!"]]
    inserted = [[not was for was in row] for row in rollouts.sampled]
    assert [sum(row) for row in inserted] == [3, 0, 6] and inserted[0] == [False] * 2 + [True] * 3 + [False] * 2
    assert [len(request.prompts) for request in engine.engine.requests] == [1, 2, 1]
    assert all(request.stop == ("!",) for request in engine.engine.requests)
    assert rollouts.truncated == [False] * 3
    assert engine.numbers == {"turns": 2, "out_of_turns": 0, "environment_errors": 0, "environment_timeouts": 0}
    seeds = [seed for request in engine.engine.requests for seed in request.seeds]
    assert len(set(seeds)) == len(seeds) == 4


def test_limits_on_turns_and_tokens():
    """The turn limit ends an episode without an observation; inserted tokens count toward the token limit."""
    rollouts, texts, engine = played(count_up, ["a!", "7!"], ["b!"], max_turns=2)
    assert texts == ["a!<1>b!", "7!"] and engine.numbers["out_of_turns"] == 0.5
    assert [(episode.reward, len(episode)) for episode in rollouts.episodes] == [(None, 2), (1.0, 1)]
    for limit, expected in ((4, "a!<1"), (5, "a!<1>"), (6, "a!<1>b")):
        rollouts, texts, _ = played(count_up, ["a!", "7!"], ["bc!"], limit=limit)
        assert texts[0] == expected and rollouts.truncated == [True, False]
        assert len(rollouts.episodes[0]) == 1 + (limit > 5)


def test_what_was_not_read_is_dropped():
    def play(problem):
        yield
        yield Observation("+", read=2)

    rollouts, texts, _ = played(play, ["abcd!"], ["e!"], max_turns=2)
    assert texts == ["ab+e!"] and rollouts.sampled == [[True, True, False, True, True]]

    def read_nothing(problem):
        yield
        yield Observation("+", read=0)

    _, texts, _ = played(read_nothing, ["abcd!"], ["e!"], max_turns=2)
    assert texts == ["a+e!"], "a response without a token of its own would have no loss"


def test_an_environment_that_fails_ends_its_episode(monkeypatch):
    """An exception, an invalid reply or a time-out ends one episode with reward 0 and is counted; others go on."""
    monkeypatch.setattr(environments, "TIME_LIMIT", 0.2)

    def play(problem):
        text = yield
        if text == "raise!":
            raise KeyError("lost")
        if text == "hang!":
            time.sleep(60)
        if text == "loop!":
            while True:
                pass
        if text == "list!":
            yield ["no observation"]
        if text == "nan!":
            return float("nan")
        yield Observation("ok")
        return 1

    words = ["raise!", "hang!", "loop!", "list!", "nan!", "go!"]
    rollouts, texts, engine = played(play, words, ["on!"])
    assert texts == [*words[:-1], "go!okon!"]
    assert [episode.reward for episode in rollouts.episodes] == [0.0] * 5 + [1.0]
    failures = [episode.failure for episode in rollouts.episodes]
    assert failures[0] == "KeyError: 'lost'" and failures[1].startswith("too late") and failures[5] == ""
    assert "list" not in failures[4] and "nan" in failures[4] and "no observation" in failures[3]
    assert engine.numbers["environment_errors"] == 3 and engine.numbers["environment_timeouts"] == 2


def test_an_environment_that_always_fails_ends_the_run(monkeypatch, capsys):
    def play(problem):
        raise ValueError("no such game")
        yield

    with pytest.raises(SystemExit) as stop:
        played(play, ["a!", "b!"])
    assert stop.value.code == 1
    assert "the environment failed in all 2 episodes: ValueError: no such game" in capsys.readouterr().err
    monkeypatch.setattr(environments, "TIME_LIMIT", 0.01)
    monkeypatch.setattr(environments, "MAX_LATE", 1)

    def hang(problem):
        yield
        time.sleep(60)

    with pytest.raises(SystemExit) as stop:
        played(hang, ["a!"] * 3)
    assert "the environment took more than 0.01 seconds for 2 turns of a batch" in capsys.readouterr().err


def test_the_time_limit_is_one_of_the_wall_and_is_taken_back():
    with pytest.raises(TimeoutError), time_limit(0.05, wall=True):
        time.sleep(10)
    with time_limit(0.05, wall=True):
        pass
    time.sleep(0.1)  # the alarm is off


def test_nobody_escapes_the_time_limit(monkeypatch):
    """Code that catches every exception, or sleeps while cleaning up, still runs into the time limit."""
    monkeypatch.setattr(data, "AGAIN", 0.05)

    tries = []

    def stubborn(seconds):
        for _ in range(3):
            tries.append(seconds)
            with suppress(Exception):
                time.sleep(seconds)

    start = time.monotonic()
    with pytest.raises(TimeoutError), time_limit(0.1, wall=True):
        stubborn(20)
    assert tries == [20]
    with pytest.raises(TimeoutError), time_limit(0.1, wall=True):
        try:
            time.sleep(20)
        finally:
            time.sleep(20)
    with pytest.raises(TimeoutError), time_limit(0.1, wall=True), suppress(BaseException):  # and then returns
        time.sleep(20)
    assert time.monotonic() - start < 10


def test_plays_are_closed_within_the_time_limit(monkeypatch, capsys):
    """A play is closed when it fails or reaches the turn limit; the first failure of a run is printed."""
    monkeypatch.setattr(environments, "TIME_LIMIT", 0.1)
    monkeypatch.setattr(data, "AGAIN", 0.05)
    closed = []

    def play(problem):
        try:
            text = yield
            while "fail" not in text:
                text = yield Observation("+")
            raise KeyError("lost")
        finally:
            closed.append(problem)
            time.sleep(0 if "fail" in text else 20)

    start = time.monotonic()
    _, texts, engine = played(play, ["a!", "fail!"], ["b!"], max_turns=2)
    assert texts == ["a!+b!", "fail!"] and len(closed) == 2 and time.monotonic() - start < 10
    assert "note: the environment failed in 1 of 2 episodes: KeyError: 'lost'." in capsys.readouterr().out
    engine.count([Episode([0], [""], 0.0, "again"), Episode([0], [""], 0.0)], 0.0)
    assert not capsys.readouterr().out


def test_the_environments_reward_is_final_and_without_one_the_verifier_judges():
    verifier = Verifier(grpo.Args(), TOKENIZER, [PROBLEM])
    rollouts = Rollouts([tokens_of("\\boxed{7}") for _ in range(4)], truncated=[False] * 4)
    rollouts.sampled = [[True] * len(tokens) for tokens in rollouts.tokens]
    rollouts.episodes = [Episode([0], [""], reward) for reward in (None, 0.0, 0.25, 1.0)]
    try:
        assert verifier([PROBLEM], rollouts).tolist() == [[1.0, 0.0, 0.25, 1.0]]
        assert rollouts.correct == [True, False, False, True]
    finally:
        verifier.close()


def test_stop_strings_of_a_request_end_a_turn(embedded, problems):
    """The transformers engine stops at a request's stop strings in addition to those of the settings."""
    from sampling import make, sample

    whole = sample(make(embedded), problems)
    stopped = sample(make(embedded, stop=("}",)), problems, stop=("=",))
    for tokens, cut in zip(whole.tokens, stopped.tokens, strict=True):
        text = embedded[1].decode(tokens, skip_special_tokens=True)
        ends = [text.index(stop) for stop in "=}" if stop in text]
        expected = text[: min(ends) + 1] if ends else text
        assert embedded[1].decode(cut, skip_special_tokens=True) == expected


def test_observations_in_a_chat_are_messages(chat_model):
    """An observation is a new message if the turn ended its own, and plain text after a stop string."""
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    engine = EpisodeEngine(Writer(), Environment(count_up), tokenizer, grpo.Args(), 2)
    turn = tokenizer("hello")["input_ids"]
    ended = [*turn, tokenizer.eos_token_id]
    end, ids = engine.cut(ended, 0, Observation("no"))
    assert end == len(ended)
    assert tokenizer.decode(ids) == "\n<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(engine.cut(turn, 0, Observation("no"))[1]) == "no"


def test_an_observation_has_no_special_tokens():
    """No BOS is inserted, even if the tokenizer starts every text with one."""

    class Tokenizer:
        chat_template = None

        def decode(self, tokens, skip_special_tokens):
            return "".join(map(chr, tokens))

        def __call__(self, text, add_special_tokens=True):
            return {"input_ids": [1] * add_special_tokens + list(map(ord, text))}

    engine = EpisodeEngine(Writer(), Environment(count_up), Tokenizer(), grpo.Args(), 2)
    tokens = list(map(ord, "1+2 <<6*7>>8*9"))
    assert engine.cut(tokens, 4, Observation("42", read=7)) == (11, [ord("4"), ord("2")])
    assert engine.cut(tokens, 0, Observation("")) == (14, [])


def test_a_chat_template_that_never_ends_at_an_observation(chat_model, monkeypatch, capsys):
    """A template may hang only on a second message, which prompts do not have."""
    monkeypatch.setattr(data, "PROMPT_SECONDS", 0.3)
    tokenizer = AutoTokenizer.from_pretrained(chat_model)
    tokenizer.chat_template = (
        "{% if messages[1] %}" + "{% for a in range(9999) %}" * 4 + "{% endfor %}" * 4 + "{% endif %}"
    )
    with pytest.raises(SystemExit):
        observation_ids("no", [tokenizer.eos_token_id], tokenizer)
    assert "it takes more than 0.3 seconds" in capsys.readouterr().err


def test_an_environment_is_found_by_its_name(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("from common.environments import Environment\nMINE = Environment(list, ('!',))\n")
    assert load_environment(f"{tmp_path}/mine.py:MINE").stop == ("!",)
    assert load_environment("calculator").stop == (">>",)
    for name in ("nothing", "gym:sudoku", "no.py:MINE", f"{tmp_path}/mine.py:OTHER"):
        with pytest.raises(SystemExit) as stop:
            load_environment(name)
        error = capsys.readouterr().err
        assert stop.value.code == 2 and f"--environment {name} is not one of" in error and error.count("\n") == 1


def test_a_play_is_asked_in_order():
    play = count_up(PROBLEM)
    assert ask(play, "a") == Observation("<1>", state="a") and ask(play, "7") == (0.5, "")
    assert Request([], 1, [], 1.0, []).stop == ()


def test_the_example_of_the_docs(tmp_path):
    """The example of docs/environments.md works when a Writer plays it."""
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/environments.md").read_text(), re.S)
    assert len(example.strip().splitlines()) <= 24
    (tmp_path / "game.py").write_text(example)
    environment = load_environment(f"{tmp_path}/game.py:LISTS")
    turns = (["red.", "iron.", "blue."], ["blue.", "blue."], ["green."])
    rollouts, texts, _ = played(environment.play, *turns, stop=environment.stop, answer="color")
    assert texts == ["red. (2 to go)\nblue. (1 to go)\ngreen.", "iron.", "blue. (2 to go)\nblue."]
    assert [episode.reward for episode in rollouts.episodes] == [1.0, 0.0, pytest.approx(1 / 3)]
    assert rollouts.episodes[0].states == ["", "red", "blue red"]
