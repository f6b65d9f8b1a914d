"""Is the answer right? Rules that cannot be talked around, and math-verify where rules do not reach.

What counts, for every data set:
- only the response is read, never the prompt, and a response cut off at the length limit is wrong;
- the answer is what stands in the last `\\boxed{...}`; no box, or one that is not closed, is wrong
  (with `--answer-format last-number` it is the last literal number, and counts as if it stood in a box);
- where the right answer is a number, the box must hold one literal number and is compared exactly.
  math-verify alone would evaluate `\\boxed{39+62}`, and a model soon finds out;
- any other answer goes to math-verify, in a process of its own with a hard time limit.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from common.cli import fail
from common.records import Problem, Rollouts

TIME_LIMIT = 2.0  # seconds of processor time for one comparison; a common one takes milliseconds
LONGEST_ANSWER = 1000  # characters; longer boxes are wrong without a look

NUMBER = re.compile(r"[+-]?(\d{1,3}(,\d{3})+|\d+)?(\.\d*)?")
FRACTION = re.compile(r"([+-]?)(?:\\[dt]?frac\{(\d+)\}\{(\d+)\}|(\d+)/(\d+))")
UNIT = re.compile(r"(\\(text|mathrm|mbox)\{[^{}]*\}|\s[A-Za-z][A-Za-z .]*|\\?%|\^\{?\\circ\}?|\\%)+$")


def last_boxed(text: str) -> str | None:
    """What stands in the last `\\boxed{...}`, or None without one whose braces balance.

    >>> last_boxed("so \\\\boxed{3}, no: \\\\boxed{\\\\frac{1}{2}}")
    '\\\\frac{1}{2}'
    """
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth = 0
    for i in range(start + len("\\boxed"), len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : i]
    return None


def last_number(text: str) -> str | None:
    """The last literal number in a text, or None: "4 + 6 = 10." ends in 10."""
    numbers = re.findall(r"(?:(?<![\d)])-)?\d[\d,]*(?:\.\d+)?", text)
    return numbers[-1].rstrip(",") if numbers else None


def parse_number(text: str) -> Fraction | None:
    """The value of one literal number, or None: `1,234`, `-0.5`, `\\frac{1}{2}`, `\\$12.`, `7 apples`."""
    text = text.strip().replace("\\$", "").replace("$", "").replace("{,}", ",").replace("−", "-")
    text = re.sub(r"\\[!,;: ]", "", text)
    text = UNIT.sub("", text).strip().removesuffix(".")
    text = re.sub(r"^[A-Za-z]\s*=\s*", "", text)
    if len(text) > 100 or not text.isascii():
        return None
    if match := FRACTION.fullmatch(text):
        sign, *digits = match.groups()
        top, bottom = (int(d) for d in digits if d is not None)
        return None if bottom == 0 else Fraction(-top if sign == "-" else top, bottom)
    if NUMBER.fullmatch(text) and any(c.isdigit() for c in text):
        return Fraction(text.replace(",", ""))
    return None


class MathVerify:
    """math-verify in processes that can be killed.

    Its own time limit is an alarm signal in whole seconds, which neither threads nor C code obey.
    """

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def ask(self, gold: str, answer: str | None) -> str:
        """ "right", "wrong", or what went wrong: "timeout", "crash", "unparsed gold", an exception's name.

        Without an answer, only whether the gold can be parsed.
        """
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-P", str(Path(__file__).with_name("math_verify_worker.py")), str(TIME_LIMIT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self.process.stdout.readline()  # it says hello once its imports are done
        try:
            self.process.stdin.write(json.dumps([gold, answer]) + "\n")
            self.process.stdin.flush()
            reply = self.process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:  # not its child alone, but the process itself is gone
            self.close()
            return "crash"
        return reply.strip()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


class Verifier:
    """Judges batches of responses; `failures` counts, by reason, what could not be judged."""

    def __init__(self, tokenizer: Any, problems: list[Problem], answer_format: str = "boxed", workers: int = 2) -> None:
        self.tokenizer = tokenizer
        self.find_answer = last_boxed if answer_format == "boxed" else last_number
        self.failures: Counter[str] = Counter()
        self.idle: SimpleQueue[MathVerify] = SimpleQueue()
        self.workers = [MathVerify() for _ in range(workers)]
        for worker in self.workers:
            self.idle.put(worker)
        self.threads = ThreadPoolExecutor(workers)
        self.check_golds([problem.answer for problem in problems])
        if answer_format == "last-number" and any(parse_number(problem.answer) is None for problem in problems):
            fail("--answer-format last-number needs a data set whose answers are all numbers.")

    def ask(self, pair: tuple[str, str | None]) -> str:
        worker = self.idle.get()
        try:
            return worker.ask(*pair)
        finally:
            self.idle.put(worker)

    def check_golds(self, golds: list[str]) -> None:
        """End the program if a right answer cannot be parsed: its reward would be 0 for ever."""
        pairs = [(gold, None) for gold in dict.fromkeys(golds) if parse_number(gold) is None]
        for (gold, _), reply in zip(pairs, self.threads.map(self.ask, pairs), strict=True):
            if reply != "right":
                fail(f"the data set's answer {gold!r} cannot be checked ({reply}): remove or rewrite that row.")

    def __call__(self, problems: list[Problem], rollouts: Rollouts) -> list[bool]:
        """Whether each of the B = P·G responses to P problems is right."""
        G = len(rollouts.tokens) // len(problems)
        texts = self.tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
        return self.judge(texts, [p.answer for p in problems for _ in range(G)], rollouts.truncated)

    def judge(self, responses: list[str], golds: list[str], truncated: list[bool]) -> list[bool]:
        """Whether each of B responses ends in its gold answer, by the rules at the top."""
        verdicts: list[bool] = []
        questions: dict[tuple[str, str], list[int]] = {}  # (gold, answer) for math-verify, and who gave it
        for response, gold, cut in zip(responses, golds, truncated, strict=True):
            answer, number = self.find_answer(response), parse_number(gold)
            if cut or answer is None or len(answer) > LONGEST_ANSWER:
                verdicts.append(False)
            elif number is not None:
                # A fraction counts only where the answer is no whole number: 84/2 is a sum, not a result.
                is_fraction = "/" in answer or "frac" in answer
                verdicts.append(parse_number(answer) == number and not (is_fraction and number.denominator == 1))
            elif answer.strip() == gold:
                verdicts.append(True)
            else:
                questions.setdefault((gold, answer), []).append(len(verdicts))
                verdicts.append(False)
        for rows, reply in zip(questions.values(), self.threads.map(self.ask, questions), strict=True):
            for i in rows:
                verdicts[i] = reply == "right"
            if reply not in ("right", "wrong"):
                self.failures[reply] += len(rows)
        return verdicts

    def close(self) -> None:
        self.threads.shutdown()
        for worker in self.workers:
            worker.close()
