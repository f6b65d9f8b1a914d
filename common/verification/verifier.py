"""The verifier: is the answer correct? Strict rules first, math-verify as the fallback.

The rules, for every data set:
- Only the response is read, never the prompt. A response cut off at the length limit is incorrect.
- The answer is the content of the last `\\boxed{...}`; without a closed box a response is incorrect. With
  `--answer-format last-number` the answer is the last number of the response.
- If the gold answer is a number, the box must hold one literal number: `12`, `-1,200.5`, `3/8`, `\\frac38`, `3\\frac12`
  or `1.2\\times10^1`, with or without a currency, a unit, a percent sign, or a name before it (`x = 12`). math-verify
  alone would evaluate `\\boxed{39+62}`, and a model soon exploits that.
- Numbers are compared exactly, or within `tolerance` times the gold number unless both are whole.
- A choice (`C`, `\\text{(C)}`) is compared by its letter, words by their letters, ratios and times as written, numbers
  in another base by digits and base.
- Tuples, intervals, sets, lists and matrices must have the same kind and length; their items are compared one by one.
- math-verify compares all other answers, in a worker process with a time limit. An answer that leaves something to
  calculate that the gold answer does not is incorrect.
- A problem may have several gold answers: any one is correct. It may have a function instead that checks the answer
  (countdown), or a scorer that gives 0 to 1, where 1 is correct.

Units are not compared. An expression is correct in every equal form, so a data set that asks to expand or factor
accepts its own question. In doubt an answer is incorrect; tests/common/verifier_cases.jsonl holds judged examples.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

from common.cli import fail
from common.clock import clock
from common.distributed import device, gather, share
from common.records import Problem, Rollouts, ScoredAnswer
from common.settings import DataSettings
from common.verification.answers import last_boxed, last_number, parse_number
from common.verification.comparison import Pairs, compare, expressions, gold_answers, numbers_in
from common.verification.rewards import Rewards
from common.verification.workers import Pool, Program, Reply

import torch
from torch import Tensor

TIME_LIMIT = 2.0  # seconds of processor time for one comparison, which usually takes milliseconds
HANG_LIMIT = 300.0  # seconds of wall time for it
SCORE_LIMIT = 10.0  # seconds for a call of a scorer
MAX_ANSWER_LENGTH = 1000  # characters; longer answers are incorrect


class Verifier:
    """Judges responses and computes their rewards.

    Ends the program if a gold answer of `problems` cannot be checked or a reward function cannot be loaded.
    """

    def __init__(self, args: DataSettings, tokenizer: Any, problems: list[Problem]) -> None:
        self.tokenizer = tokenizer
        self.find_answer = last_boxed if args.answer_format == "boxed" else last_number
        self.tolerance = Fraction(str(args.tolerance))
        self.failures: Counter[str] = Counter()  # answers that could not be judged, by reason
        self.pool = Pool()
        self.equality = Program(f"{Path(__file__).with_name('equality.py')}:is_equal", HANG_LIMIT, TIME_LIMIT)
        self.reward_functions = Rewards(args.reward, self.pool) if args.reward else None
        if self.reward_functions and not self.reward_functions.needs_verdicts:
            return
        answers = dict.fromkeys(problem.answer for problem in problems)
        golds = [text for answer in answers if isinstance(answer, str | tuple) for text in gold_answers(answer)]
        parts = [part for gold in golds for part in numbers_in(gold)]
        self.check_golds(parts)
        if args.answer_format == "last-number" and not (all(map(parse_number, parts)) and len(golds) >= len(answers)):
            fail("--answer-format last-number needs a data set whose answers are all numbers.")

    def check_golds(self, golds: list[str]) -> None:
        """End the program if a gold answer cannot be parsed: no response could ever be correct."""
        parts = {(part, None): gold for gold in golds[share(len(golds))] for part in expressions(gold)}
        for gold, reply in zip(parts.values(), self.compare(parts), strict=True):
            if reply.value != [1]:
                reason = reply.failed or "math-verify cannot parse it"
                fail(f"the data set's answer {gold!r} cannot be checked ({reason}): remove or rewrite that row.")

    def compare(self, pairs: Iterable[tuple[str, str | None]]) -> Iterator[Reply]:
        """What math-verify replies to each (gold, answer)."""
        return self.pool.map((self.equality, [[{"answer": gold}, answer, [], False]]) for gold, answer in pairs)

    def __call__(self, problems: list[Problem], rollouts: Rollouts) -> Tensor:
        """The rewards (P, G) of G responses to each of P problems. Sets `rollouts.correct`: 1 if correct, else 0."""
        with clock("verify"):
            G = len(rollouts.tokens) // len(problems)
            texts = self.tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
            # Each process judges its shard, and no other process repeats it: a time-out might differ.
            mine = share(len(texts))
            parts = gather(
                self.judge_and_reward(
                    [problem for problem in problems for _ in range(G)][mine],
                    texts[mine],
                    rollouts.tokens[mine],
                    rollouts.truncated[mine],
                )
            )
            rollouts.correct = [float(verdict) for correct, _ in parts for verdict in correct]
            rewards = [reward for _, rewards in parts for reward in rewards]
            return torch.tensor(rewards, dtype=torch.float, device=device()).view(len(problems), G)

    def judge_and_reward(
        self, problems: list[Problem], texts: list[str], tokens: list[list[int]], truncated: list[bool]
    ) -> tuple[list[bool], list[float]]:
        """Which of B responses are correct, and their rewards."""
        functions, correct, scores = self.reward_functions, None, []
        if functions is None or functions.needs_verdicts:
            scores = self.judge(texts, [problem.answer for problem in problems], truncated)
            correct = [score >= 1 for score in scores]
        return functions(problems, texts, tokens, truncated, correct) if functions else (correct, scores)

    def judge(self, responses: list[str], golds: list[Any], truncated: list[bool]) -> list[float]:
        """The scores of B responses: 1 if the answer is correct, else 0; a scorer may also give a value between."""
        scores = [0.0] * len(responses)
        scored: dict[int, tuple[Program, list[Any]]] = {}  # questions to scorers
        unconfirmed: dict[int, list[Pairs]] = {}  # for each gold answer, what math-verify has to confirm
        for i, (response, gold, cut) in enumerate(zip(responses, golds, truncated, strict=True)):
            answer = None if cut else self.find_answer(response)
            if answer is None or len(answer) > MAX_ANSWER_LENGTH:
                continue
            if isinstance(gold, ScoredAnswer):
                scored[i] = Program(gold.scorer, SCORE_LIMIT), [[{"payload": gold.payload}, answer, [], False]]
            elif callable(gold):
                scores[i] = float(gold(answer))
            else:
                parts = [part for text in gold_answers(gold) for part in numbers_in(text)]
                compared = [compare(part, answer, self.tolerance) for part in parts]
                scores[i] = float([] in compared or answer.strip() in gold_answers(gold))
                if not scores[i] and any(compared):
                    unconfirmed[i] = [pairs for pairs in compared if pairs]
        for i, verdict in self.confirm(unconfirmed).items():
            scores[i] = float(verdict)
        for i, reply in zip(scored, self.pool.map(scored.values()), strict=True):
            if reply.failed:
                self.failures[reply.failed] += 1
            else:
                scores[i] = reply.value[0]
        return scores

    def confirm(self, unconfirmed: dict[int, list[Pairs]]) -> dict[int, bool]:
        """Whether math-verify confirms, for any of the gold answers, all pairs of expressions."""
        pairs = dict.fromkeys(pair for compared in unconfirmed.values() for pairs in compared for pair in pairs)
        replies = dict(zip(pairs, self.compare(pairs), strict=True))
        verdicts = {}
        for i, compared in unconfirmed.items():
            verdicts[i] = any(all(replies[pair].value == [1] for pair in pairs) for pairs in compared)
            failed = [replies[pair].failed for pairs in compared for pair in pairs if replies[pair].failed]
            if failed and not verdicts[i]:
                self.failures[failed[0]] += 1
        return verdicts

    def take_failures(self) -> int:
        """How many answers could not be judged, or rewards took too long, since the last call."""
        late = self.reward_functions.take_late() if self.reward_functions else 0
        count = sum(gather(self.failures.total() + late))
        self.failures.clear()
        return count

    def close(self) -> None:
        self.pool.close()
