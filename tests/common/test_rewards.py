"""Reward functions: their inputs, how their values are used, and what happens when they fail."""

import json
import time
from collections import Counter
from pathlib import Path

import dapo
import grpo
import maxrl
from common.records import Problem, Rollouts
from common.verification.rewards import Rewards, split_weight
from common.verification.workers import Pool
from methods import dpo, lcpo_max, pass_at_k, reinforce_rej
from recipes import scalerl
from tools.plots import read_metrics

import pytest
from conftest import SMALL
from runs import alive

ROOT = Path(__file__).parent.parent.parent
PROBLEMS = [
    Problem("1+1=?", "2", "1+1=?\n", [], row={"level": 3, "info": {"source": "a"}}),
    Problem("2+2=?", ("4", "four"), "2+2=?\n", []),
]
TEXTS, TOKENS, CUT = ["two", "4"], [[5, 6, 7], [8]], [False, True]


@pytest.fixture
def rewards(tmp_path):
    """Builds Rewards from a file's source and the names of its functions; closed at the end."""
    pool = Pool(2)

    def make(source, *names, timeout=30.0):
        (tmp_path / "own.py").write_text(source)
        names = tuple(f"{tmp_path / 'own.py'}:{name}" if name[0] != "c" else name for name in names)
        return Rewards(grpo.Args(reward=names, reward_timeout=timeout), pool, Counter())

    yield make
    pool.close()


def ask(rewards, correct=None):
    """Which responses are correct, and their rewards."""
    return rewards(PROBLEMS, TEXTS, Rollouts(TOKENS, truncated=CUT), correct)[:2]


def refused(capsys, code, function, *args, **settings):
    with pytest.raises(SystemExit) as stop:
        function(*args, **settings)
    assert stop.value.code == code
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: "), error
    return error


def test_a_function_gets_problem_text_tokens_and_truncated(rewards):
    source = """
def f(problem, text, tokens, truncated):
    print("what a function prints does not mix with its replies")
    seen = f"{problem.question} {problem.answer} {text}"
    return {"1+1=? 2 two": 0.25, "2+2=? ['4', 'four'] 4": -3}[seen] + 10 * len(tokens)

def g(problems, texts, tokens, truncated):
    return [100.0 * cut + len(problem.prompt) for problem, cut in zip(problems, truncated)]
"""
    assert ask(rewards(source, "f"))[1] == [30.25, 7.0]
    assert ask(rewards(source, "g"))[1] == [6.0, 106.0]
    assert ask(rewards(source, "f=2", "g=-0.5"))[1] == [60.5 - 3.0, 14.0 - 53.0]
    columns = """
def level(problem, text, tokens, truncated):
    return problem.row["level"] if problem.row.get("info") == {"source": "a"} else 0.5
"""
    assert ask(rewards(columns, "level"))[1] == [3.0, 0.5]


def test_a_function_may_return_feedback(rewards):
    source = """
def f(problem, text, tokens, truncated):
    return 0.5, f"not {text}\\ud800"

def g(problems, texts, tokens, truncated):
    return [(1, ""), 2]

async def h(problem, text, tokens, truncated):
    return 3, problem.question
"""
    of_each = [{"f": 0.5, "g": 1.0, "h": 3.0}, {"f": 0.5, "g": 2.0, "h": 3.0}]
    judged = rewards(source, "f", "g", "h=0.1")(PROBLEMS, TEXTS, Rollouts(TOKENS, truncated=CUT), None)
    assert judged == ([False] * 2, pytest.approx([1.8, 2.8]), of_each, ["not two?\n1+1=?", "not 4?\n2+2=?"])


def test_what_is_correct(rewards):
    """`correct` among the rewards is the verifier's verdict; without it every function must give at least 1."""
    source = "def f(p, text, *_): return 0.5 if text == 'two' else 1\ndef g(p, text, *_): return text == '4'"
    assert ask(rewards(source, "f=0.3")) == ([False, True], [0.15, 0.3])
    assert ask(rewards(source, "f", "g")) == ([False, True], [0.5, 2.0])
    assert not rewards(source, "f").needs_verdicts
    both = rewards(source, "correct=2", "f")
    assert both.needs_verdicts
    assert ask(both, correct=[True, False]) == ([True, False], [2.5, 1.0])


@pytest.mark.parametrize(
    "body,words",
    [
        ("return 1 / 0", "failed for 'two': ZeroDivisionError: division by zero (own.py, line 1)"),
        ("raise SystemExit('no more')", "failed for 'two': SystemExit: no more (own.py, line 1)"),
        ("return float('nan')", "gave nan for 'two': rewards must be finite"),
        ("return -float('inf')", "gave -inf for 'two': rewards must be finite"),
        ("return 10 ** 400", "failed for 'two': OverflowError"),
        ("return 'good'", "failed for 'two': TypeError: a reward must be a number, or a number and a text, not 'good'"),
        ("return None", "failed for 'two': TypeError: a reward must be a number, or a number and a text, not None"),
        ("return 1, 2", "a reward must be a number, or a number and a text, not (1, 2)"),
        ("return 1, 'a', 'b'", "a reward must be a number, or a number and a text, not (1, 'a', 'b')"),
        ("return (1, 'a'), 'b'", "a reward must be a number, or a number and a text, not ((1, 'a'), 'b')"),
        ("return 'good', 'good'", "a reward must be a number, or a number and a text, not ('good', 'good')"),
        ("return float('nan'), 'good'", "gave nan for 'two': rewards must be finite"),
        ("import os; os._exit(3)", "failed for 'two': its process has ended"),
    ],
)
def test_a_mistake_ends_the_run_with_a_sentence(rewards, body, words, capsys):
    assert words in refused(capsys, 1, ask, rewards(f"def f(problem, text, tokens, truncated): {body}", "f"))


def test_a_batch_of_another_size(rewards, capsys):
    source = "def f(problems, texts, tokens, truncated): return [1.0]"
    assert "it gave 1 rewards for 2 responses" in refused(capsys, 1, ask, rewards(source, "f"))


@pytest.mark.parametrize(
    "name,words",
    [
        ("nowhere.py:f", "nowhere.py:f: no such file"),
        ("own.py:g", "cannot be loaded: AttributeError: module 'own' has no attribute 'g'"),
        ("no_such_package.module:f", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_package'"),
        ("broken.py:f", "cannot be loaded: SyntaxError"),
        ("own.py:N", "cannot be loaded: TypeError"),
        ("own.py", "must be correct, file.py:function"),
        ("own.py:f=much", "must be correct, file.py:function"),
        ("own.py:f=1e999", "must be correct, file.py:function"),
        ("right=0.5", "must be correct, file.py:function"),
        (("own.py:f", "other.py:f"), "two functions of the same name"),
    ],
)
def test_what_cannot_be_loaded(name, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("N = 3\ndef f(problem, text, tokens, truncated): return 1")
    Path("broken.py").write_text("def f(:")
    names = (name,) if isinstance(name, str) else name
    assert words in refused(capsys, 2, Rewards, grpo.Args(reward=names), Pool(2), Counter())


def test_weights_are_read():
    assert split_weight("a.py:f") == ("a.py:f", 1.0)
    assert split_weight("a=b.py:f=-2.5e-1") == ("a=b.py:f", -0.25)
    assert split_weight("correct=3") == ("correct", 3.0)


def test_what_hangs_is_killed_and_counted(rewards, capsys, tmp_path):
    """A function that hangs is killed with its children; other responses and the next batch get rewards."""
    source = f"""
import signal, subprocess, time
def f(problem, text, tokens, truncated):
    if text == "two":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "1000"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        while True:
            time.sleep(1)
    return 1.0
"""
    own = rewards(source, "f", timeout=2.0)
    start = time.monotonic()
    assert ask(own) == ([False, True], [0.0, 1.0])
    assert time.monotonic() - start < 30
    assert "no answer within 2 seconds for 'two'; a late reward is 0" in capsys.readouterr().out
    assert own.failures == {"late": 1}
    assert own.take_numbers() == {"reward/f": 1.0, "reward/f/std": 0.0, "reward/f/in_time": 0.5}
    end = time.monotonic() + 20
    while alive(int((tmp_path / "pid").read_text())):
        assert time.monotonic() < end, "what the function started has outlived it"
        time.sleep(0.1)
    assert own(PROBLEMS[1:], TEXTS[1:], Rollouts(TOKENS[1:], truncated=CUT[1:]), None)[:2] == ([True], [1.0])


@pytest.mark.parametrize(
    "function",
    [
        "def f(problem, text, tokens, truncated): time.sleep(1000)",
        "def f(problems, texts, tokens, truncated): time.sleep(1000)",
        "async def f(problem, text, tokens, truncated): await asyncio.sleep(1000)",
    ],
)
def test_too_many_late_responses_end_the_run(rewards, monkeypatch, capsys, function):
    """Late responses are counted, not calls, so a late batch does not silently become zeros."""
    own = rewards(f"import asyncio, time\n{function}", "f", timeout=0.2)
    monkeypatch.setattr("common.verification.rewards.MAX_LATE", 2)
    assert ask(own) == ([False, False], [0.0, 0.0])
    assert own.failures == {"late": 2}
    assert "warning: --reward" in (said := capsys.readouterr().out) and "0.2 seconds for 'two'" in said
    monkeypatch.setattr("common.verification.rewards.MAX_LATE", 1)
    error = refused(capsys, 1, ask, own)
    assert "2 responses of a rollout batch are too late. Raise --reward-timeout" in error


def test_async_functions(rewards, capsys):
    """All responses of a batch run at once in one event loop, and only the late one gets 0."""
    source = """
import asyncio, os
seen, loops = [], set()

async def f(problem, text, tokens, truncated):
    loops.add(asyncio.get_running_loop())
    seen.append(text)
    await asyncio.sleep(0.1)
    assert len(loops) == 1
    if problem.question == "slow":
        await asyncio.sleep(1000)
    return len(seen)

async def g(problems, texts, tokens, truncated):
    await asyncio.sleep(0)
    return [float(text == "4") for text in texts]

async def h(problem, text, tokens, truncated):
    await asyncio.sleep(0)
    return 1 / (text == "two")
"""
    assert ask(rewards(source, "f", "g"))[1] == [2.0, 3.0], "each of two began before one had ended"
    own = rewards(source, "f", timeout=1.0)
    assert ask(own)[1] == [2.0, 2.0] and ask(own)[1] == [4.0, 4.0], "the same process again"
    problems = [Problem("slow", "2", "", []), PROBLEMS[1]]
    assert own(problems, TEXTS, Rollouts(TOKENS, truncated=CUT), None)[1] == [0.0, 6.0]
    assert own.failures == {"late": 1}
    error = refused(capsys, 1, ask, rewards(source, "h"))
    assert "failed for '4': ZeroDivisionError" in error, "names the response, not the first of the batch"


def test_python_objects(tmp_path, capsys):
    """Plain and async functions of this process are logged by name, and a run resumes only with them."""
    seen = []

    def length(problem, text, tokens, truncated):
        seen.append(problem.question)
        return len(tokens) / 64

    class Even:
        async def __call__(self, problem, text, tokens, truncated):
            return float(len(tokens) % 2 == 0)

    run = tmp_path / "run"
    settings = SMALL | {"reward": ["correct=2", length, Even()]}
    grpo.main(grpo.Args(run_dir=run, **settings))
    rows = read_metrics(run)
    for row in rows[1:]:
        assert row["reward/length"] == pytest.approx(row["length"] / 64)
        expected = 2 * row["accuracy"] + row["length"] / 64 + row["reward/Even"]
        assert row["reward"] == pytest.approx(expected, abs=1e-6) and 0 <= row["reward/Even"] <= 1
    assert len(set(seen)) > 4
    names = json.loads((run / "config.json").read_text())["args"]["reward"]
    assert names == ["correct=2", "python:length", "python:Even"]
    error = refused(capsys, 2, grpo.main, grpo.Args(resume=run, steps=3))
    assert "python:length" in error
    error = refused(capsys, 2, grpo.main, grpo.Args(resume=run, reward=tuple(names)))
    assert "--reward python:length was a Python object: resume from Python" in error
    grpo.main(grpo.Args(resume=run, steps=3, reward=settings["reward"]))
    assert read_metrics(run)[-1]["step"] == 3


@pytest.mark.parametrize(
    "body,words",
    [
        ("return problem.row['level']", "KeyError: 'level' (own.py, line 1)"),
        ("return float('inf')", "it gave inf"),
        ("import time; time.sleep(1000)", "no answer within 1 seconds"),
    ],
)
def test_functions_are_tried_before_the_model_loads(tmp_path, monkeypatch, capsys, body, words):
    """A trial on the first row fails with one sentence, exit code 2, and no run folder."""
    monkeypatch.setattr("grpo.load_model", lambda *_: pytest.fail("the model was loaded"))
    (tmp_path / "own.py").write_text(f"def f(problem, text, tokens, truncated): {body}")
    (tmp_path / "data.jsonl").write_text('{"question": "1+1=?", "answer": "2", "degree": 3}\n' * 8)
    settings = {"model": str(ROOT / "worlds/sums/model"), "dataset": str(tmp_path / "data.jsonl")}
    settings |= {"reward": (f"{tmp_path / 'own.py'}:f",), "reward_timeout": 1.0, "run_dir": tmp_path / "run"}
    error = refused(capsys, 2, grpo.main, grpo.Args(**SMALL | settings))
    assert f"fails for a made-up response to '1+1=?': {words}" in error
    assert not (tmp_path / "run").exists()


def test_a_run_learns_from_reward_functions(tmp_path, monkeypatch):
    """The log has the function's reward and the verifier's accuracy, and the config names the functions."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text("def length(problem, text, tokens, truncated): return len(tokens) / 64")
    settings = SMALL | {"reward": ("correct=2", "own.py:length=-1")}
    grpo.main(grpo.Args(run_dir=tmp_path / "run", **settings))
    rows = read_metrics(tmp_path / "run")
    for row in rows[1:-1]:
        assert row["reward"] == pytest.approx(2 * row["accuracy"] - row["length"] / 64, abs=1e-6)
        assert row["zero_std_groups"] < 1, "lengths differ"
        assert row["reward/correct"] == row["accuracy"] and row["reward/correct/in_time"] == 1
        assert row["reward/length"] == pytest.approx(row["length"] / 64) and row["reward/length/std"] > 0
    assert rows[0]["eval/reward"] < rows[0]["eval/avg"] * 2
    saved = json.loads((tmp_path / "run/config.json").read_text())["args"]["reward"]
    assert saved == ["correct=2", f"{tmp_path}/own.py:length=-1"]


@pytest.mark.slow
def test_filters_and_binary_methods(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(
        "def half(problem, text, tokens, truncated): return 0.5\n"
        "def even(problem, text, tokens, truncated): return float(len(tokens) % 2)"
    )
    # DAPO keeps groups by correctness: a reward of 0.5 is never correct, so no group has signal.
    dapo.main(dapo.Args(run_dir=tmp_path / "dapo", **SMALL, reward=("own.py:half",)))
    rows = [row for row in read_metrics(tmp_path / "dapo") if "accuracy" in row]
    assert all(row["accuracy"] == 0 and row["grad_norm"] == 0 for row in rows)
    # ScaleRL keeps groups whose rewards differ, correct or not.
    scalerl.main(scalerl.Args(run_dir=tmp_path / "scalerl", **SMALL, reward=("own.py:half", "own.py:even=-1")))
    rows = [row for row in read_metrics(tmp_path / "scalerl") if "accuracy" in row]
    assert all(row["accuracy"] == 0 and row["zero_std_groups"] < 1 and row["grad_norm"] > 0 for row in rows)
    for script in (maxrl, dpo, lcpo_max, pass_at_k, reinforce_rej):
        words = refused(capsys, 1, script.main, script.Args(run_dir=tmp_path / "no", **SMALL, reward=("own.py:half",)))
        assert "a reward of 0.5, but " in words and "use rewards of 0 and 1" in words
        for path in sorted((tmp_path / "no").rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    maxrl.main(maxrl.Args(run_dir=tmp_path / "maxrl", **SMALL, reward=("own.py:even",)))
    rows = [row for row in read_metrics(tmp_path / "maxrl") if "accuracy" in row]
    assert all(row["reward"] == row["accuracy"] for row in rows) and any(0 < row["reward"] < 1 for row in rows)
