"""Is the answer right? Rules that cannot be talked around, and math-verify where rules do not reach.

What counts, for every data set:
- only the response is read, never the prompt, and a response cut off at the length limit is wrong;
- the answer is what stands in the last `\\boxed{...}`; no box, or one that is not closed, is wrong
  (with `--answer-format last-number` it is the number the response ends in, and counts as if it stood in a box);
- where the right answer is a number, the box must hold one literal number: `12`, `-1,200.5`, `3/8`, `\\frac38`,
  `3\\frac12`, `1.2\\times10^1`, with or without a currency, a unit or a percent sign, or a name before it (`x = 12`).
  math-verify alone would evaluate `\\boxed{39+62}`, and a model soon finds out;
- numbers are compared exactly, or within `tolerance` times the right answer unless both are whole;
- a choice (`C`, `\\text{(C)}`) is compared by its letter, words by their letters, ratios and times as they are
  written, numbers in another base by digits and base;
- tuples, intervals, sets, lists and matrices must be of the same kind and length, and are compared item by item;
- any other answer goes to math-verify, in a process of its own with a hard time limit, unless it leaves something
  to calculate that the right answer does not;
- where a problem has several right answers, any of them counts; where they cannot be listed (countdown), it has a check
  of its own for what stands in the box;
- a task of reasoning-gym has its own scorer for that, with scores from 0 to 1, of which 1 is right.

Units are not compared. An expression is right in every equal form, so a data set that asks to expand or factor
accepts its own question. When in doubt an answer is wrong: tests/verifier_cases.jsonl holds judged examples.
"""

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from common.cli import fail
from common.distributed import gather
from common.distributed import shard as share
from common.records import ScoredAnswer as GymAnswer
from common.verification.answers import (
    Pairs,
    compare,
    expressions,
    last_boxed,
    last_number,
    numbers_in,
    parse_number,
    right_answers,
)

WORKER = "x"
from common.records import Problem, Rollouts
from common.verification.rewards import Rewards, Worker

TIME_LIMIT = 2.0  # seconds of processor time for one comparison; a common one takes milliseconds
SCORE_LIMIT = 10.0  # seconds for one answer of a task of reasoning-gym
LONGEST_ANSWER = 1000  # characters; longer boxes are wrong without a look


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
    """Judges batches of responses.

    A problem's answer may be several right ones. `tolerance` is relative: 0.01 accepts 8.2 for 8.24.
    With `reward`, functions of the user's give the rewards (`common/verification/rewards.py`), and may say what is right.
    """

    def __init__(
        self,
        tokenizer: Any,
        problems: list[Problem],
        answer_format: str = "boxed",
        tolerance: float = 0.0,
        reward: tuple[str, ...] = (),
        workers: int = 2,
    ) -> None:
        self.tokenizer = tokenizer
        self.find_answer = last_boxed if answer_format == "boxed" else last_number
        self.tolerance = Fraction(str(tolerance))
        self.failures: Counter[str] = Counter()  # what could not be judged, by reason
        self.idle: SimpleQueue[MathVerify] = SimpleQueue()
        self.workers = [MathVerify() for _ in range(workers)]
        for worker in self.workers:
            self.idle.put(worker)
        self.threads = ThreadPoolExecutor(workers)
        self.scorers = [Worker(f"{WORKER}:score", SCORE_LIMIT) for _ in range(workers)]
        self.idle_scorers: SimpleQueue[Worker] = SimpleQueue()
        for scorer in self.scorers:
            self.idle_scorers.put(scorer)
        self.own = Rewards(reward) if reward else None
        if self.own and not self.own.asks_verifier:
            return
        answers = dict.fromkeys(problem.answer for problem in problems)
        golds = [text for answer in answers if isinstance(answer, str | tuple) for text in right_answers(answer)]
        parts = [part for gold in golds for part in numbers_in(gold)]
        self.check_golds(parts)
        if answer_format == "last-number" and not (all(map(parse_number, parts)) and len(golds) >= len(answers)):
            fail("--answer-format last-number needs a data set whose answers are all numbers.")

    def ask(self, pair: tuple[str, str | None]) -> str:
        worker = self.idle.get()
        try:
            return worker.ask(*pair)
        finally:
            self.idle.put(worker)

    def score(self, pair: tuple[GymAnswer, str]) -> dict[str, Any]:
        """What the scorer of the task gives for an answer: its `rewards`, or why it `failed`."""
        gold, answer = pair
        worker = self.idle_scorers.get()
        try:
            return worker.ask([[{"task": gold.task, "entry": gold.entry}, answer, [], False]])
        finally:
            self.idle_scorers.put(worker)

    def check_golds(self, golds: list[str]) -> None:
        """End the program if a right answer cannot be parsed: its reward would be 0 for ever."""
        parts = {(part, None): gold for gold in golds[share(len(golds))] for part in expressions(gold)}
        for gold, reply in zip(parts.values(), self.threads.map(self.ask, parts), strict=True):
            if reply != "right":
                fail(f"the data set's answer {gold!r} cannot be checked ({reply}): remove or rewrite that row.")

    def __call__(self, problems: list[Problem], rollouts: Rollouts) -> list[bool]:
        """Whether each of the B = P·G responses to P problems is right; their rewards go to `rollouts.rewards`."""
        G = len(rollouts.tokens) // len(problems)
        texts = self.tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
        # Each process judges its share. Verdicts are never repeated elsewhere: a time-out might differ.
        mine = share(len(texts))
        asked = [p for p in problems for _ in range(G)][mine]
        texts, tokens, truncated = texts[mine], rollouts.tokens[mine], rollouts.truncated[mine]
        right = rewards = None
        if self.own is None or self.own.asks_verifier:
            rewards = self.judge(texts, [p.answer for p in asked], truncated)
            right = [score >= 1 for score in rewards]
        if self.own:
            right, rewards = self.own(asked, texts, tokens, truncated, right)
        parts = gather((right, rewards))
        rollouts.rewards = [float(reward) for _, part in parts for reward in part]
        return [verdict for part, _ in parts for verdict in part]

    def judge(self, responses: list[str], golds: list[Any], truncated: list[bool]) -> list[float]:
        """By the rules at the top, 1 for each of B responses that ends in its gold answer, or in one of them, else 0.

        What has a scorer may also get a number between.
        """
        verdicts: list[float] = []
        scored: dict[int, tuple[GymAnswer, str]] = {}  # what its task's scorer has to judge
        waiting: dict[int, list[Pairs]] = {}  # for each right answer, what math-verify has to confirm
        for response, gold, cut in zip(responses, golds, truncated, strict=True):
            answer = None if cut else self.find_answer(response)
            if answer is None or len(answer) > LONGEST_ANSWER:
                verdicts.append(False)
                continue
            if isinstance(gold, GymAnswer):
                scored[len(verdicts)] = gold, answer
                verdicts.append(False)
                continue
            if callable(gold):
                verdicts.append(gold(answer))
                continue
            parts = [part for text in right_answers(gold) for part in numbers_in(text)]
            compared = [compare(part, answer, self.tolerance) for part in parts]
            verdicts.append([] in compared or answer.strip() in right_answers(gold))
            if not verdicts[-1] and any(compared):
                waiting[len(verdicts) - 1] = [pairs for pairs in compared if pairs]
        questions = dict.fromkeys(pair for compared in waiting.values() for pairs in compared for pair in pairs)
        replies = dict(zip(questions, self.threads.map(self.ask, questions), strict=True))
        for i, compared in waiting.items():
            verdicts[i] = any(all(replies[pair] == "right" for pair in pairs) for pairs in compared)
            failed = [replies[pair] for pairs in compared for pair in pairs if replies[pair] not in ("right", "wrong")]
            if failed and not verdicts[i]:
                self.failures[failed[0]] += 1
        for i, reply in zip(scored, self.threads.map(self.score, scored.values()), strict=True):
            if "failed" in reply:
                self.failures[reply["failed"]] += 1
            else:
                verdicts[i] = reply["rewards"][0]
        return verdicts

    def take_failures(self) -> int:
        """How many answers could not be judged, and rewards came too late, since the last call."""
        count = sum(gather(self.failures.total() + (self.own.take_late() if self.own else 0)))
        self.failures.clear()
        return count

    def close(self) -> None:
        self.threads.shutdown()
        for worker in self.workers + self.scorers + ([self.own] if self.own else []):
            worker.close()
