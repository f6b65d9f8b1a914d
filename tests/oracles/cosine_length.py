import math

from oracles import ENGINE_ANCHOR, ONE_UPDATE, Response, grpo, kimi_length


class Oracle(kimi_length.Oracle):
    CASES = [
        {"kl_beta": 0.3, "tis_cap": 1.1, "clip_eps": 0.05, "ddof": 0},
        {"clip_eps": 0.05, "ddof": 0} | ENGINE_ANCHOR,
        ONE_UPDATE,
    ]
    RANGES, DEFAULTS = grpo.Oracle.RANGES, grpo.Oracle.DEFAULTS

    def reward(self, response: Response, group: list[Response]):
        """A cosine from length 0 to T: from 2 to 1 for correct answers, from -10 to 0 for the others."""
        length, T = len(response.tokens), self.args.max_response_tokens
        if length == T:
            return -10.0
        at_start, at_end = (2.0, 1.0) if response.correct else (-10.0, 0.0)
        return at_end + 0.5 * (at_start - at_end) * (1 + math.cos(math.pi * length / T))
