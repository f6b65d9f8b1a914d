"""Responses that start while others are under way: each depends only on its prompt, not on the other rows."""

import copy

from common.engines import Request

import pytest
import torch
from sampling import make, sample, three_versions
from transformers import DynamicCache

SEEDS, LIMIT = [1, 2, 3], 48


def settings(**more):
    return {"max_response_tokens": LIMIT, **more}


def request(problems, numbers, n=8):
    return Request(
        [problems[i].prompt_ids for i in numbers], n, [LIMIT] * len(numbers), 1.0, [SEEDS[i] for i in numbers]
    )


def to_the_end(stream):
    taken = stream.take()
    while stream.rows:
        stream.step()
        taken |= stream.take()
    return taken


def staggered(stream, problems, between=lambda stream: None):
    """Start the third prompt first, the second after 5 tokens, and the first after 11."""
    taken = {}
    for key, tokens in ((2, 5), (1, 6), (0, 0)):
        stream.join([key], request(problems, [key]))
        for _ in range(tokens):
            stream.step()
            between(stream)
            taken |= stream.take()
    return taken | to_the_end(stream)


@pytest.mark.parametrize("stop", [(), ("=1", "2\n")])
def test_who_begins_when_changes_nothing(embedded, problems, stop):
    """Tokens equal those of a batch whose rows start together, and log-probs agree within rounding."""
    whole = sample(make(embedded, stop=stop), problems, n=8, seeds=SEEDS).split(8)
    stream = make(embedded, **settings(stop=stop)).stream()
    taken = staggered(stream, problems)
    stream.tidy()
    assert sorted(taken) == [0, 1, 2] and not stream.groups and not len(stream.responses.limits)
    for key, expected in enumerate(whole):
        assert (taken[key].tokens, taken[key].truncated) == (expected.tokens, expected.truncated)
        for logps, others in zip(taken[key].logps, expected.logps, strict=True):
            assert logps == pytest.approx(others, abs=1e-5)
    assert len({len(tokens) for part in whole for tokens in part.tokens}) > 3


def test_columns_that_no_row_needs_are_dropped(embedded, problems):
    """However long prompts keep joining, the cache never outgrows the longest prompt and response."""
    stream, longest = make(embedded, **settings()).stream(), max(len(problem.prompt_ids) for problem in problems)
    for key in range(12):
        stream.join([key], request(problems, [key % 3]))
        assert stream.rows.length <= longest + LIMIT + 1
        for _ in range(9):
            stream.step()
        stream.take()
    stream.tidy()
    assert len(stream.responses.limits) == 8 * len(stream.groups)


@pytest.mark.parametrize("stop", [(), ("=1", "2\n")])
def test_a_state_continues_to_the_bit(embedded, problems, stop):
    """A saved state ends with the same responses in this engine and in another one, bit for bit."""
    engine = make(embedded, **settings(stop=stop))
    stream = engine.stream()
    stream.join([7], request(problems, [2]))
    for _ in range(5):
        stream.step()
    stream.join([4], request(problems, [0]))
    for _ in range(6):
        stream.step()
    taken = stream.take()
    state = copy.deepcopy(stream.state_dict())
    assert len(state) == 2 - len(taken) and sum(len(part["layers"][0][0]) for part in state.values()) >= 2
    ends = []
    for one in (stream, make(embedded, **settings(stop=stop)).stream()):
        one.load_state_dict(copy.deepcopy(state))
        ends.append({key: vars(rollouts) for key, rollouts in to_the_end(one).items()})
    assert ends[0] == ends[1] and ends[0]
    whole = dict(zip((4, 7), (sample(engine, problems, n=8, seeds=SEEDS).split(8)[i] for i in (0, 2)), strict=True))
    for key, rollouts in ends[0].items():
        assert rollouts["tokens"] == whole[key].tokens


def test_a_state_within_a_stop_string(embedded, problems):
    """A stop string is found even if the state is saved between its two tokens."""
    (tokens,) = sample(make(embedded), problems[:1], n=1, seeds=SEEDS[:1]).tokens
    words = [embedded[1].decode([token]) for token in tokens]
    t = next(t for t in range(3, len(words)) if words[t] + words[t + 1] not in "".join(words[: t + 1]))
    engine = make(embedded, **settings(stop=(words[t] + words[t + 1],)))
    stream = engine.stream()
    stream.join([0], request(problems, [0], n=1))
    for _ in range(t):
        stream.step()
    assert stream.responses.lengths.tolist() == [t + 1]
    state = stream.state_dict()
    stream = engine.stream()
    stream.load_state_dict(state)
    (end,) = to_the_end(stream).values()
    assert end.tokens == [tokens[: t + 2]] and end.truncated == [False]


@pytest.mark.parametrize("keep", [True, False])
def test_each_token_has_its_weights(embedded, problems, keep):
    """Weights change while rows are at different tokens; keys and values are kept or all recomputed."""
    model, versions = copy.deepcopy(embedded[0]), three_versions(embedded[0])
    engine = make(embedded, **settings())
    stream, loads = engine.stream(), []  # each group's token number at each change of weights
    clock = iter(range(1000))

    def change(stream):
        if (version := {3: 1, 8: 2}.get(next(clock))) is not None:
            engine.update(versions[version])
            if not keep:
                stream.reread()
            lengths = stream.responses.lengths
            loads.append({key: int(lengths[rows].max()) for key, rows in stream.slices().items()})

    taken = staggered(stream, problems, change)
    assert [sorted(load) for load in loads] == [[2], [1, 2]]
    for key, rollouts in taken.items():
        at = {load[key]: i + 1 for i, load in enumerate(loads) if key in load}
        first = {2: 0, 1: 1, 0: 2}[key]
        for response, logps in zip(rollouts.tokens, rollouts.logps, strict=True):
            model.load_state_dict(dict(versions[first]), strict=False)
            cache, unread, expected = DynamicCache(), problems[key].prompt_ids, []
            for t, token in enumerate(response):
                if t in at:
                    model.load_state_dict(dict(versions[at[t]]), strict=False)
                    if not keep:
                        cache, unread = DynamicCache(), problems[key].prompt_ids + response[:t]
                with torch.no_grad():
                    logits = model(torch.tensor([unread]), past_key_values=cache).logits[0, -1]
                expected.append(logits.log_softmax(-1)[token].item())
                unread = [token]
            assert logps == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("keep", [True, False])
def test_new_weights_that_are_the_old_ones(embedded, problems, keep):
    """Reloading equal weights changes nothing: bit for bit with kept keys and values, else within rounding."""
    engine = make(embedded, **settings())

    def same(stream):
        engine.update(embedded[0].named_parameters())
        if not keep:
            stream.reread()

    whole, changing = staggered(engine.stream(), problems), staggered(engine.stream(), problems, same)
    for key, rollouts in whole.items():
        assert changing[key].tokens == rollouts.tokens
        for logps, expected in zip(changing[key].logps, rollouts.logps, strict=True):
            assert logps == (expected if keep else pytest.approx(expected, abs=1e-5))
