"""The verifier decides which answers are correct, with strict rules first and math-verify as the fallback.

docs/rewards.md lists the rules. In doubt an answer is incorrect.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from common.cli import fail
from common.clock import clock
from common.distributed import device, gather, shard
from common.records import Problem, Rollouts, ScoredAnswer
from common.settings import DataSettings
from common.verification.answers import last_boxed, last_number, parse_number
from common.verification.comparison import compare_with_each, expressions, gold_parts
from common.verification.rewards import Judged, Rewards, number
from common.verification.workers import Pool, Program, Reply

import torch
from torch import Tensor

TIME_LIMIT = 2.0  # seconds of processor time for one comparison, which usually takes milliseconds
HANG_LIMIT = 300.0  # seconds of wall time for it
SCORE_LIMIT = 10.0  # seconds for a call of a scorer
MAX_ANSWER_LENGTH = 1000  # characters; longer answers are incorrect
MAX_NAMED = 100  # answers in an error message

Question = tuple[Program, str, str | None]  # for a worker: the gold answer or payload, and the answer


class Verifier:
    """Judges responses and computes their rewards.

    Ends the program if a gold answer of `problems` cannot be checked or a reward function cannot be loaded.
    """

    def __init__(self, args: DataSettings, tokenizer: Any, problems: list[Problem]) -> None:
        self.tokenizer = tokenizer
        self.find_answer = last_boxed if args.answer_format == "boxed" else last_number
        self.tolerance = Fraction(str(args.tolerance))
        self.failures: Counter[str] = Counter()  # answers that could not be judged, by reason
        self.pool = Pool(args.reward_workers)
        self.equality = Program(f"{Path(__file__).with_name('equality.py')}:is_equal", HANG_LIMIT, TIME_LIMIT)
        self.reward_functions = Rewards(args, self.pool, self.failures) if args.reward else None
        self.judges = self.reward_functions is None or self.reward_functions.needs_verdicts
        if not self.judges:
            return
        texts = [problem for problem in problems if isinstance(problem.answer, str | tuple)]
        self.check_golds(texts)
        numbers = all(parse_number(gold) for problem in texts for gold in gold_parts(problem.answer))
        if args.answer_format == "last-number" and not (numbers and len(texts) == len(problems)):
            fail("--answer-format last-number needs a data set whose answers are all numbers.")

    def check_golds(self, problems: list[Problem]) -> None:
        """End the program if gold answers cannot be read, and name them all: no response could be correct."""
        if problems and all(str(problem.answer).startswith("assert ") for problem in problems):
            fail("the answers are tests of code: pass --reward docs/rewards/code_tests.py:passes_tests.")
        rows: dict[Question, list[str]] = {}
        for problem in problems[shard(len(problems))]:
            for part in (part for gold in gold_parts(problem.answer) for part in expressions(gold)):
                where = f" ({' '.join(filter(None, (problem.dataset, problem.where)))})" if problem.where else ""
                rows.setdefault((self.equality, part, None), []).append(f"{part!r:.100}{where}")
        parts = gather(
            [rows[question] for question, reply in zip(rows, self.ask(rows), strict=True) if reply.value != [1]]
        )
        if unread := list(dict.fromkeys(name for part in parts for names in part for name in names)):
            more = f" and {len(unread) - MAX_NAMED} more" if len(unread) > MAX_NAMED else ""
            named = ", ".join(unread[:MAX_NAMED])
            fail(f"these answers of the data set cannot be checked: {named}{more}. Remove or rewrite their rows.")

    def ask(self, questions: Iterable[Question]) -> Iterator[Reply]:
        """The replies of math-verify or scorers."""
        return self.pool.map((program, [[{"payload": gold}, text, [], False]]) for program, gold, text in questions)

    def __call__(self, problems: list[Problem], rollouts: Rollouts) -> Tensor:
        """The rewards (P, G) of G responses to each of P problems. Sets verdicts, rewards and feedback."""
        with clock("verify"):
            G = len(rollouts.tokens) // len(problems)
            # Each process judges its shard, and no other process repeats it: a time-out might differ.
            rows = range(len(rollouts.tokens))[shard(len(rollouts.tokens))]
            parts = gather(self.judge_and_reward([problems[row // G] for row in rows], rollouts.select(rows)))
            correct, rewards, *more = ([value for part in parts for value in part[k]] for k in range(4))
            rollouts.correct, rollouts.rewards, rollouts.feedback = list(map(bool, correct)), *more
            return torch.tensor(rewards, dtype=torch.float, device=device()).view(len(problems), G)

    def judge_and_reward(self, problems: list[Problem], rollouts: Rollouts) -> Judged:
        """Which of B responses are correct, their rewards, and what reward functions gave and say of each."""
        texts = self.tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
        functions, correct, scores = self.reward_functions, None, []
        if self.judges:
            golds = [problem.answer for problem in problems]
            for i, episode in enumerate(rollouts.episodes):  # an environment's reward is final
                golds[i] = golds[i] if episode.reward is None else episode.reward
            scores = self.judge(self.written(rollouts) if rollouts.episodes else texts, golds, rollouts.truncated)
            correct = [score >= 1 for score in scores]
        return functions(problems, texts, rollouts, correct) if functions else (correct, scores, [], [])

    def written(self, rollouts: Rollouts) -> list[str]:
        """The responses without what was inserted: an answer that an environment gives is not the policy's."""
        rows = zip(rollouts.tokens, rollouts.sampled, strict=True)
        own = [list(itertools.compress(tokens, sampled)) for tokens, sampled in rows]
        return self.tokenizer.batch_decode(own, skip_special_tokens=True)

    def judge(self, responses: list[str], golds: list[Any], truncated: list[bool]) -> list[float]:
        """The scores of B responses: 1 if the answer is correct, else 0; a scorer may also give a value in between.

        A gold answer may be the score itself.
        """
        scores = [0.0] * len(responses)
        # For each gold answer of a response, the questions whose lowest score counts.
        pending: dict[int, list[list[Question]]] = {}
        for i, (response, gold, cut) in enumerate(zip(responses, golds, truncated, strict=True)):
            if isinstance(gold, float):
                scores[i] = gold
                continue
            answer = None if cut else self.find_answer(response)
            if answer is None or len(answer) > MAX_ANSWER_LENGTH:
                continue
            if isinstance(gold, ScoredAnswer):
                pending[i] = [[(Program(gold.scorer, SCORE_LIMIT), gold.payload, answer)]]
            elif callable(gold):
                scores[i] = float(gold(answer))
            else:
                compared = compare_with_each(gold, answer, self.tolerance)
                scores[i] = float([] in compared)
                if not scores[i] and any(compared):
                    pending[i] = [[(self.equality, *pair) for pair in pairs] for pairs in compared if pairs]
        questions = dict.fromkeys(question for parts in pending.values() for part in parts for question in part)
        replies = dict(zip(questions, self.ask(questions), strict=True))
        for i, parts in pending.items():
            answered = [[replies[question] for question in part] for part in parts]
            scores[i] = max(min(0.0 if reply.failed else number(reply.value[0]) for reply in part) for part in answered)
            failed = [reply.failed for part in answered for reply in part if reply.failed]
            if failed and not scores[i]:
                self.failures[failed[0]] += 1
        return scores

    def take_numbers(self) -> dict[str, float]:
        """Since the last call: the answers that could not be judged and the rewards that took too long; and each
        reward function's mean, standard deviation and fraction in time."""
        count = sum(gather(self.failures.total()))
        self.failures.clear()
        return {"verifier_failures": count, **(self.reward_functions.take_numbers() if self.reward_functions else {})}

    def close(self) -> None:
        self.pool.close()
