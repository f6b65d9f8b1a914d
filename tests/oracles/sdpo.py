from functools import cache

from common.verification.answers import last_number
from oracles import ENGINE_ANCHOR, ONE_UPDATE, at_least, fraction, not_negative, of_functions, opd, without

from transformers import AutoTokenizer

SAYS = "tests/steps/comment.py:length_if_odd"  # a reward of 0, with the length of the response as feedback if it is odd
# A random model writes numbers but no boxes.
NUMBERS = {"answer_format": "last-number", "feedback": " = {answer}"}


@cache
def tokenizer():
    return AutoTokenizer.from_pretrained("worlds/sums/model")


class Oracle(opd.Oracle):
    CASES = [
        NUMBERS | {"kl_beta": 0.3, "teacher_rate": 0.3, "grpo_weight": 0.25, "tis_cap": 1.1, "steps": 3},
        NUMBERS | {"kl": "sampled", "teacher_rate": 1.0, "tis_cap": 0.0},
        NUMBERS | {"reward": ("correct", SAYS), "reward_feedback": " = {text}"},
        NUMBERS | {"kl": "sampled", "grpo_weight": 0.5, "feedback": " {response}"} | ENGINE_ANCHOR,
        NUMBERS | {"model": "the one of the tests", "dataset": "theirs"} | ONE_UPDATE,
    ]
    RANGES = without(opd.Oracle.RANGES, "responses_per_prompt") | {
        "responses_per_prompt": at_least(2),
        "teacher_rate": fraction,
        "grpo_weight": fraction,
        "kl_beta": not_negative,
    }
    DEFAULTS = without(opd.Oracle.DEFAULTS, "teacher") | {
        "model": "search",
        "dataset": "search",
        "feedback": " within 150 tokens",
        "reward_feedback": "{text}",
        "teacher_rate": 0.05,
        "grpo_weight": 0.0,
        "kl": "full",
    }
    LEARNS_WITHOUT_REWARDS = False  # no correct response to show
    own: list[bool] = []  # whether each response of a step has feedback

    def teacher_prompts(self, responses):
        """The teacher's prompt for each response."""
        G, self.own, prompts = self.args.responses_per_prompt, [], []
        for i, response in enumerate(responses):
            group = responses[i // G * G : i // G * G + G]
            shown = [other for other in group if other.correct and other is not response][:1]
            told = self.feedback(shown[0]) if shown else self.reward_feedback(response)
            self.own.append(bool(told))
            text = tokenizer().decode(response.prompt).removesuffix("\n") + told + "\n"
            prompts.append(tokenizer()(text)["input_ids"])
        return prompts

    def feedback(self, shown):
        text = tokenizer().decode(shown.tokens, skip_special_tokens=True)
        return self.args.feedback.replace("{answer}", last_number(text) or "").replace("{response}", text)

    def reward_feedback(self, response):
        says = SAYS in self.args.reward and len(response.tokens) % 2
        return self.args.reward_feedback.replace("{text}", str(len(response.tokens))) if says else ""

    def renew_teacher(self, teacher, weights):
        rate = self.args.teacher_rate
        teacher.set(
            [(1 - rate) * old + rate * new.double() for old, new in zip(teacher.parameters, weights, strict=True)]
        )

    def token_advantages(self, responses):
        """GRPO's part; `prepare` adds the teacher's."""
        G = self.args.responses_per_prompt
        means = [sum(r.correct for r in responses[i : i + G]) / G for i in range(0, len(responses), G)]
        return [[self.args.grpo_weight * (r.correct - means[i // G])] * len(r.tokens) for i, r in enumerate(responses)]

    def weight_of(self, row):
        return (1 - self.args.grpo_weight) * row.told

    def prepare(self, rows):
        for row, told in zip(rows, self.own, strict=True):
            row.told = told
            if self.args.kl == "sampled":
                said = [every[token].item() for every, token in zip(row.teacher, row.tokens, strict=True)]
                of_teacher = [self.weight_of(row) * (t - own) for t, own in zip(said, self.anchor(row), strict=True)]
                row.advantages = [a + b for a, b in zip(row.advantages, of_teacher, strict=True)]

    def with_kl(self, row):
        return super(opd.Oracle, self).with_kl(row)

    def distribution_loss(self, row, every):
        return self.weight_of(row) * super().distribution_loss(row, every)

    def step_numbers(self, rounds, groups, rows):
        verdicts = [float(response.correct) for group in groups for response in group]
        each = {"correct": verdicts, "length_if_odd": [0.0] * len(verdicts)} if self.args.reward else {}
        return {"feedback": sum(self.own) / len(self.own)} | of_functions(each)
