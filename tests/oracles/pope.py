import re

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Response, fraction, grpo

from transformers import AutoTokenizer


class Oracle(grpo.Oracle):
    CASES = [
        {"hint": " ({prefix})", "max_prefix": 0.7, "kl_beta": 0.3, "tis_cap": 1.1, "clip_eps": 0.05, "ddof": 0},
        {"max_prefix": 1.0, "hint": "{prefix}", "tis_cap": 0.0},
        {"max_prefix": 0.5} | ENGINE_ANCHOR,
        {"max_prefix": 0.0} | ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "max_prefix": fraction}
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "hint": " start {prefix}",
        "max_prefix": 0.75,
        "solution_column": "solution",
        "model": "search",
        "dataset": "search-hard",
    }
    ELSEWHERE = {"solution_column"}

    def batch(self, rounds):
        """In the second round, groups without a correct response are replaced by groups with hints."""
        plain, *more = rounds
        again = iter(more[0] if more else [])
        groups = [group if self.is_plain(group) else next(again) for group in plain]
        assert next(again, None) is None and len(more) <= 1, "a prompt was sampled again without need"
        for before, group in zip(plain, groups, strict=True):
            self.check_hint(before[0], group[0], self.is_plain(before))
        return groups

    def is_plain(self, group: list[Response]):
        return self.args.max_prefix == 0 or any(response.correct for response in group)

    def check_hint(self, before: Response, response: Response, is_plain: bool):
        """A plain prompt is unchanged; for 17+17=? a hint has the first of 17, +17, =34, as many as are allowed."""
        old, new = AutoTokenizer.from_pretrained("worlds/sums/model").batch_decode([before.prompt, response.prompt])
        x = re.fullmatch(r"(\d+)\+\1=\?\n", old)[1]
        words = [f"{x}", f"+{x}", f"={2 * int(x)}"]
        allowed = [k for k in (1, 2, 3) if k <= self.args.max_prefix * 3]
        hints = [self.args.hint.replace("{prefix}", "".join(words[:k])) for k in allowed]
        expected = [old] if is_plain else [f"{old[:-1]}{hint}\n" for hint in hints]
        assert new in expected, f"the prompt is {new!r}, expected one of {expected}"

    def step_numbers(self, rounds, groups, rows):
        verdicts = [response.correct for group in rounds[0] for response in group]
        return {"sampled_prompts": sum(map(len, rounds)), "plain_accuracy": sum(verdicts) / len(verdicts)}
