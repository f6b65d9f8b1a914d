"""Episodes with an engine that follows a script, for tests of environments."""

from dataclasses import replace

import grpo
from common.engines import Engine
from common.environments import Environment, EpisodeEngine
from common.records import Problem, Rollouts
from worlds.pretrain import make_tokenizer

TOKENIZER = make_tokenizer()
EOS = TOKENIZER.eos_token_id


def tokens_of(text):
    return TOKENIZER(text)["input_ids"]


PROBLEM = Problem("?", "7", "?\n", tokens_of("?\n"))


class Writer(Engine):
    """An engine that returns the next lines of a script, one per response, up to the request's stop string."""

    context = 62

    def __init__(self, *turns):
        super().__init__(grpo.Args())
        self.turns, self.requests = list(turns), []
        self.sleep = self.close = lambda: None

    def update(self, weights):
        pass

    def sample(self, request):
        self.requests.append(request)
        rollouts, limits = Rollouts(), [limit for limit in request.limits for _ in range(request.n)]
        for text, limit in zip(self.turns.pop(0), limits, strict=True):
            ends = any(text.endswith(stop) for stop in request.stop)
            tokens = (tokens_of(text) + [EOS] * (not ends))[:limit]
            rollouts.tokens.append(tokens)
            rollouts.logps.append([-0.5] * len(tokens))
            rollouts.truncated.append(tokens[-1] != EOS and not (ends and len(tokens) < limit))
            rollouts.sampled.append([True] * len(tokens))
        return rollouts


def played(play, *turns, max_turns=9, limit=60, stop=("!",), answer="7"):
    """Episodes of an environment with a Writer, their texts, and the engine."""
    writer, args = Writer(*turns), grpo.Args(max_response_tokens=limit)
    engine = EpisodeEngine(writer, Environment(play, stop), TOKENIZER, args, max_turns)
    rollouts = engine.generate([replace(PROBLEM, answer=answer)], len(turns[0]), 7)
    texts = [TOKENIZER.decode(ids, skip_special_tokens=True) for ids in rollouts.tokens]
    return rollouts, texts, engine
