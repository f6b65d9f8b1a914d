"""The examples of reward functions in docs/rewards."""

import os
from collections import Counter
from pathlib import Path

import grpo
from common.records import Problem, Rollouts
from common.verification.rewards import Rewards
from common.verification.workers import Pool
from docs.rewards.code_tests import passes_tests_or_says_why

ROOT = Path(__file__).parent.parent.parent


EXAMPLES = ROOT / "docs/rewards"


def example(name, *cases):
    pool = Pool(2)
    own = Rewards(grpo.Args(reward=(f"{EXAMPLES / name}",)), pool, Counter())
    problems, texts, expected = zip(*cases, strict=True)
    rollouts = Rollouts([list(range(len(text))) for text in texts], truncated=[False] * len(texts))
    got = own(list(problems), list(texts), rollouts, None)[1]
    pool.close()
    assert got == list(expected), list(zip(texts, got, strict=True))


def test_example_format():
    problem = Problem("1+1=?", "2", "", [])
    form = "<think>one and one</think>\n\\boxed{2}"
    example(
        "format.py:thinks_first",
        (problem, form, 1.0),
        (problem, form + " and more", 0.0),
        (problem, "<think></think>\\boxed{2}", 0.0),
        (problem, "\\boxed{2}", 0.0),
    )
    example("format.py:short", (problem, "12", 1.0), (problem, "123", 0.5), (problem, "1234", 0.0))


def test_example_language():
    """Three Chinese characters count as three words; numbers, formulas and commands count as none."""
    english, chinese = Problem("What is 1+1?", "2", "", []), Problem("1+1 等于多少?", "2", "", [])
    messages = [{"role": "system", "content": "你好"}, {"role": "user", "content": "And 2?"}]
    chat = Problem(str(messages), "2", "", [])  # as in common/data.py
    example(
        "language.py:same_script",
        (english, r"One and one is two: \frac{2}{1} = x_1", 1.0),
        (english, "One, so 答案是 two", 0.5),
        (english, "答案", 0.0),
        (chinese, "答案是 two", 0.75),
        (chinese, "12 = 12", 1.0),
        (chinese, r"答案 $\triangle ABC = x$ \text{cm}", 1.0),
        (Problem("2たす3は?", "5", "", []), "答えは5です, カ", 1.0),
        (chat, "two", 1.0),
        (chat, "два", 0.0),
    )


def test_example_countdown(monkeypatch):
    monkeypatch.chdir(ROOT)
    question = "Using the numbers 3, 5, 7, write an expression that equals 26. You may use"
    problem = Problem(question, "", "", [])
    example(
        "countdown.py:partial_credit",
        (problem, r"so \boxed{3*7+5}", 1.0),
        (problem, r"so \boxed{3+7+5}", 0.1),
        (problem, r"so \boxed{21+5}", 0.0),
        (problem, r"so \boxed{26}", 0.0),
        (problem, "3*7+5", 0.0),
    )


def test_example_code(tmp_path):
    """Correct code passes; incorrect, endless, greedy and dishonest code does not."""
    problem = Problem("Double a number.", "assert double(3) == 6\nassert double(-1) == -2", "", [])

    def block(code):
        return f"Here it is:\n```python\n{code}\n```"

    example(
        "code_tests.py:passes_tests",
        (problem, block("def double(x):\n    return 2 * x"), 1.0),
        (problem, block("def double(x):\n    return x ** 2"), 0.0),
        (problem, block("def double(x):\n    while True: pass"), 0.0),
        (problem, block("double = lambda x: 2 * x\nkept = bytearray(4 << 30)"), 0.0),
        (problem, block(f"open({str(tmp_path / 'big')!r}, 'wb').write(bytes(8 << 20))\ndouble = lambda x: 2 * x"), 0.0),
        (problem, block("import os\nos._exit(0)"), 0.0),
        (problem, block("raise SystemExit(0)"), 0.0),
        (problem, "def double(x): return 2 * x", 0.0),
    )
    assert os.path.getsize(tmp_path / "big") <= 1 << 20


def test_example_code_with_feedback():
    """The failed test, and why it failed."""
    problem = Problem("Double a number.", "assert double(3) == 6\nassert double(-1) == -2", "", [])

    def said(code, truncated=False):
        reward, text = passes_tests_or_says_why(problem, f"```python\n{code}\n```", [], truncated)
        assert reward == float(not text)
        return text

    assert said("def double(x): return 2 * x") == ""
    assert said("def double(x): return x ** 2") == "AssertionError in the line: assert double(3) == 6"
    assert said("def double(x):\f return x + 3") == "AssertionError in the line: assert double(-1) == -2"
    assert said("def double(x): return y") == "NameError: name 'y' is not defined in the line: assert double(3) == 6"
    assert said("def double(x:") == "SyntaxError: '(' was never closed in the line: def double(x:"
    assert said("while True: pass") == "The code takes too long."
    forged = "import sys; print('  File \"<string>\", line 999', file=sys.stderr); raise SystemExit"
    for code in ("raise SystemExit(0)", "import os; os.abort()", forged):
        assert said(code) == "The code ends the process before the tests have passed."
    assert len(said(f"raise ValueError('{'y' * 10_000}')")) < 500
    assert said("def double(x): return 2 * x", truncated=True) == "There is no finished block of Python code."
