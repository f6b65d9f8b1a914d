from statistics import fmean

from oracles import ENGINE_ANCHOR, ONE_UPDATE, at_least, grpo

from transformers import AutoTokenizer


class Oracle(grpo.Oracle):
    """Expects the environment of letters.py."""

    CASES = [
        {"clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1},
        {"max_turns": 2, "ddof": 0, "stop": ("a", "L")},
        {"kl_beta": 0.3, "tis_cap": 0.0, "max_response_tokens": 20},
        ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES = {**grpo.Oracle.RANGES, "max_turns": at_least(1)}
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "environment": "guessing",
        "max_turns": 8,
        "model": "guessing",
        "dataset": "guessing",
    }
    ELSEWHERE = {"environment"}

    def batch(self, rounds):
        """Each further round continues, in order, the episodes that went on."""
        groups, *later = rounds
        tokenizer, T = AutoTokenizer.from_pretrained("worlds/sums/model"), self.args.max_response_tokens
        self.turns = {id(r): [(0, "")] for group in groups for r in group}  # each turn's first token and state
        going, self.stopped, responses = [r for group in groups for r in group], 0, sum(map(len, groups))
        later = [[end for (end,) in turn] for turn in later]
        for number in range(1, self.args.max_turns + 1):
            still = []
            for response in going:
                start, _ = self.turns[id(response)][-1]
                text = tokenizer.decode(response.tokens[start:], skip_special_tokens=True)
                if text.upper() != text.lower() and any(c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" for c in text):
                    continue
                if number == self.args.max_turns:
                    self.stopped += 1
                    continue
                stop = start + 1
                while len(tokenizer.decode(response.tokens[start:stop], skip_special_tokens=True)) < len(text) - 1:
                    stop += 1
                given = tokenizer(str(len(text) % 3))["input_ids"][: T - stop]
                response.tokens[stop:] = given
                response.logps[stop:] = [0.0] * len(given)
                response.sampled[stop:] = [False] * len(given)
                response.truncated = True
                if stop + len(given) < T:
                    state = {True: "letter", False: "other"}[text[:1].isalpha()]
                    self.turns[id(response)].append((stop + 1, None if len(text) % 4 == 3 else state))
                    still.append(response)
            going = still
            ends = later.pop(0) if still else []
            for response, end in zip(still, ends, strict=True):
                assert end.prompt == response.prompt + response.tokens
                response.tokens += end.tokens
                response.logps += end.logps
                response.sampled += end.sampled
                response.truncated = end.truncated
                assert len(response.tokens) <= T
        assert not later, "something that nobody asked for was generated"
        self.stopped /= responses
        return groups

    def step_numbers(self, rounds, groups, rows):
        turns = fmean(len(self.turns[id(r)]) for group in groups for r in group)
        return {
            **{"turns": turns, "out_of_turns": self.stopped},
            **{"environment_errors": 0, "environment_timeouts": 0},
        }
