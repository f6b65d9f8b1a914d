from fractions import Fraction
from functools import cache

from common.verification.answers import last_number
from common.verification.comparison import compare_with_each
from oracles import ENGINE_ANCHOR, ONE_UPDATE, Response, grpo

from transformers import AutoTokenizer

NUMBERS = {"answer_format": "last-number"}  # a random model writes numbers but no boxes


@cache
def tokenizer():
    return AutoTokenizer.from_pretrained("worlds/sums/model")


class Oracle(grpo.Oracle):
    LEARNS_WHEN_ALL_IS_CORRECT = True  # answers in a group differ even with equal verdicts
    CASES = [NUMBERS | case for case in (*grpo.Oracle.CASES[:2], ENGINE_ANCHOR, ONE_UPDATE)]

    def __init__(self, args):
        super().__init__(args)
        self.agree = {}  # by id, whether a response has the majority answer

    def batch(self, rounds):
        (groups,) = rounds
        self.agree = {id(r): r in winners for group in groups for winners in [self.majority(group)] for r in group}
        return groups

    def majority(self, group: list[Response]):
        """The responses with the group's most frequent answer; in a tie, the first such answer."""
        best = []
        for candidate in group:
            if (answer := self.answer(candidate)) is not None:
                voters = [r for r in group if self.is_equal(answer, self.answer(r))]
                best = voters if len(voters) > len(best) else best
        return best

    def answer(self, response: Response):
        text = tokenizer().decode(response.tokens, skip_special_tokens=True)
        return None if response.truncated else last_number(text)

    def is_equal(self, answer, other):
        """Each answer is correct if the other one is the gold answer."""
        pairs = [(answer, other), (other, answer)]
        return other is not None and all([] in compare_with_each(*pair, Fraction(0)) for pair in pairs)

    def rewards(self, groups, kl):
        """Rewards from the vote, or verdicts if there was none."""
        return [[float(self.agree.get(id(r), r.correct)) for r in group] for group in groups]

    def step_numbers(self, rounds, groups, rows):
        return {"majority_correct": sum(any(self.agree[id(r)] and r.correct for r in g) for g in groups) / len(groups)}
