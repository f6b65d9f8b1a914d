import re

from common.verification.answers import last_number
from oracles import ENGINE_ANCHOR, ONE_UPDATE, at_least, grpo
from oracles.sdpo import tokenizer

# A random model writes numbers but no boxes.
NUMBERS = {"answer_format": "last-number"}


class Oracle(grpo.Oracle):
    LEARNS_WHEN_ALL_IS_CORRECT = True  # the judge does not know the answers
    CASES = [
        NUMBERS | {"judge_prompt": " ={answer}?", "accepts": "[0-4]", "judgements": 3, "clip_eps": 0.05, "ddof": 0}
        | {"kl_beta": 0.3, "tis_cap": 1.1},
        NUMBERS | {"judgements": 1, "accepts": "[a-m]", "kl_beta": 0.3, "tis_cap": 0.0},
        NUMBERS | {"accepts": "^.[a-z]"} | ENGINE_ANCHOR,
        NUMBERS | {"accepts": "[+=-]", "model": "the one of the tests", "dataset": "theirs"} | ONE_UPDATE,
    ]  # fmt: skip
    RANGES = {**grpo.Oracle.RANGES, "judgements": at_least(1)}
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "judge_prompt": " right {answer}",
        "accepts": r"^\S+ yes",
        "judgements": 2,
        "model": "search",
        "dataset": "search",
    }
    judgements = None  # of the current step, in order

    def batch(self, rounds):
        groups, *more = rounds
        self.judgements = [self.accepted(group) for group in more[0]] if more else []
        self.asked = [group[0].prompt for group in more[0]] if more else []
        return groups

    def accepted(self, group):
        assert len(group) == self.args.judgements
        texts = [tokenizer().decode(response.tokens, skip_special_tokens=True) for response in group]
        return sum(1 for text in texts if re.search(self.args.accepts, text)) / len(texts)

    def rewards(self, groups, kl):
        """The judge's score of each answer, 0 without an answer; without judgements, the verdicts."""
        if self.judgements is None:
            return super().rewards(groups, kl)
        rest = iter(zip(self.judgements, self.asked, strict=True))
        rewards = [[self.reward(response, rest) for response in group] for group in groups]
        assert next(rest, None) is None, "more was judged than has an answer"
        return rewards

    def reward(self, response, rest):
        answer = last_number(tokenizer().decode(response.tokens, skip_special_tokens=True))
        if response.truncated or answer is None:
            return 0.0
        score, asked = next(rest)
        question = tokenizer().decode(response.prompt).removesuffix("\n")
        expected = f"{question}{self.args.judge_prompt.replace('{answer}', answer)}\n"
        assert asked == tokenizer()(expected)["input_ids"], f"judged with another prompt than {expected!r}"
        return score

    def step_numbers(self, rounds, groups, rows):
        pairs = zip(self.rewards(groups, None), groups, strict=True)
        agrees = [(r > 0.5) == one.correct for rewards, group in pairs for r, one in zip(rewards, group, strict=True)]
        return {"judge_agreement": sum(agrees) / len(agrees)}
