import re
from statistics import fmean, pstdev

from oracles import ENGINE_ANCHOR, ONE_UPDATE, at_least, grpo

from transformers import AutoTokenizer

# Patterns that differ between a random model's responses; one compares response and prompt.
OTHERS = ("\n.*[5-9]", "![A-F]", "\n.*[+-]", "!\n.*=", "([0-9]).*\n.*\\1", "never found")
LISTS = {"persistent": ("\n.*[0-4]", "[a-z]"), "candidates": OTHERS}


class Oracle(grpo.Oracle):
    LEARNS_WHEN_ALL_IS_CORRECT = True  # from the rubric
    CASES = [
        LISTS | {"max_criteria": 2, "clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1},
        LISTS | {"max_criteria": 1, "ddof": 0, "tis_cap": 0.0},
        LISTS | {"evolve": False} | ENGINE_ANCHOR,
        LISTS | ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "max_criteria": at_least(1)}
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "persistent": (r"\\boxed\{-?\d+\}$",),
        "candidates": (
            *(r"\A(\d+[-+]\d+).*\n\1=", r"([-+]\d+)=\?\n(?:.*\n)*.*\1=-?\d+\n\\boxed"),
            *(r"=(-?\d+)\n\1[-+]", r"=(-?\d+)\n\\boxed\{\1\}", r"!\?\n\\boxed", r"!\[false\]"),
        ),
        "evolve": True,
        "max_criteria": 5,
    }

    def __init__(self, args):
        super().__init__(args)
        self.given = {}
        self.tokenizer = AutoTokenizer.from_pretrained("worlds/sums/model")
        self.used = set()  # candidates in use after each step

    def batch(self, rounds):
        (groups,) = rounds
        rewards = self.judged(groups)
        self.given = {id(r): rewards[p][i] for p, group in enumerate(groups) for i, r in enumerate(group)}
        return groups

    def rewards(self, groups, kl):
        """The rewards from judging the step's responses once."""
        return [[self.given.get(id(r), float(r.correct)) for r in group] for group in groups]

    def judged(self, groups):
        args, met = self.args, {}
        for criterion in (*args.persistent, *args.candidates):
            pattern = criterion[1:] if criterion[0] == "!" else criterion
            met[criterion] = [[re.search(pattern, self.text(r)) is not None for r in group] for group in groups]
        separating = {c for c in args.candidates if any(len(set(group)) == 2 for group in met[c])}
        now = self.used | separating if args.evolve else set(args.candidates)
        rubric = [*args.persistent, *(c for c in args.candidates if c in now)]
        rewards = [
            [sum((-1 if c[0] == "!" else 1) * met[c][p][i] for c in rubric) for i in range(len(group))]
            for p, group in enumerate(groups)
        ]
        kept = now
        if args.evolve:
            spread = {c: fmean(pstdev(map(float, group)) for group in met[c]) for c in now}
            order = sorted((c for c in now if spread[c] > 0), key=lambda c: (-spread[c], args.candidates.index(c)))
            kept = set(order[: args.max_criteria])
        self.counts_of_step = {
            "criteria": len(rubric),
            "criteria_added": len(now - self.used) if args.evolve else 0,
            "criteria_dropped": len(now - kept),
        }
        self.used = kept
        return rewards

    def text(self, response):
        prompt, text = (
            self.tokenizer.decode(ids, skip_special_tokens=True) for ids in (response.prompt, response.tokens)
        )
        for step in set(re.findall(r"-?[0-9]+[-+][0-9]+=-?[0-9]+", text)):
            left, _, right = step.partition("=")
            text = (
                text if eval(re.sub("0*([0-9]+)", r"\1", left)) == int(right) else text.replace(step, f"{step}[false]")
            )
        return prompt + text

    def step_numbers(self, rounds, groups, rows):
        return self.counts_of_step
