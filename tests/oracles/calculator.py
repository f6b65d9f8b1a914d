import re
from fractions import Fraction

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Response, at_least, grpo

from transformers import AutoTokenizer


class Oracle(grpo.Oracle):
    # Calls that a random model makes: a lower-case letter, then a digit or letter as the expression.
    CALL = "[a-m]([0-9a-zA-Z])"
    CASES = [
        {"call": CALL, "clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1},
        {"call": CALL, "max_calls": 1, "ddof": 0, "stop": ("1", "e", "K")},
        {"call": CALL, "kl_beta": 0.3, "tis_cap": 0.0, "max_response_tokens": 20},
        {"call": CALL} | ENGINE_ANCHOR,
        {"call": CALL} | ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "max_calls": at_least(1)}
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "call": "<<([^<>]*)>>",
        "max_calls": 8,
        "stop": (">>",),
        "model": "products",
        "dataset": "products",
    }

    def batch(self, rounds):
        """Each further round continues, in order, the responses that ended with a call in the previous round."""
        groups, *turns = rounds
        tokenizer, T = AutoTokenizer.from_pretrained("worlds/sums/model"), self.args.max_response_tokens
        turns = [[end for (end,) in turn] for turn in turns]
        going = [(r, 0) for group in groups for r in group]
        self.calls = 0
        for number in range(self.args.max_calls):
            ends, still = turns[number] if number < len(turns) else [], []
            for response, start in going:
                for stop in range(start + 1, len(response.tokens) + 1):
                    found = re.search(
                        self.args.call, tokenizer.decode(response.tokens[start:stop], skip_special_tokens=True)
                    )
                    if found:
                        break
                else:
                    continue
                # the expression is one character, so its value is itself or an error
                self.calls += 1
                result = str(Fraction(found[1])) if found[1].isdigit() else "error"
                given = tokenizer(result)["input_ids"][: T - stop]
                response.tokens[stop:] = given
                response.logps[stop:] = [0.0] * len(given)
                response.sampled[stop:] = [False] * len(given)
                response.truncated = True
                if stop + len(given) < T:
                    end: Response = ends.pop(0)
                    assert end.prompt == response.prompt + response.tokens
                    start = len(response.tokens)
                    response.tokens += end.tokens
                    response.logps += end.logps
                    response.sampled += end.sampled
                    response.truncated = end.truncated
                    assert len(response.tokens) <= T
                    still.append((response, start))
            assert not ends, "more was generated than the recorded calls ask for"
            going = still
        assert len(turns) <= self.args.max_calls
        return groups

    def step_numbers(self, rounds, groups, rows):
        return {"calls": self.calls / sum(map(len, groups))}
