import random
import re

from common.batch import collate
from common.engines import Engine, make_engine
from common.environments import EpisodeEngine
from common.models import load_model
from common.records import Problem, Rollouts
from methods import calculator
from worlds import generated_problems
from worlds.pretrain import make_tokenizer
from worlds.products.calculator import calculate
from worlds.products.calculator import calculator as environment
from worlds.products.problems import product_problem
from worlds.products.writers import solution

import pytest
import torch

TOKENIZER = make_tokenizer()
EOS = TOKENIZER.eos_token_id


def tokens_of(text):
    return TOKENIZER(text)["input_ids"]


class Writer(Engine):
    """An engine that ignores prompts and writes the next lines of a script, one per response."""

    def __init__(self, *turns):
        super().__init__(calculator.Args())
        self.turns, self.seeds = list(turns), []

    def sample(self, request):
        self.seeds += request.seeds
        rollouts, limits = Rollouts(), [limit for limit in request.limits for _ in range(request.n)]
        for text, limit in zip(self.turns.pop(0), limits, strict=True):
            tokens = [*tokens_of(text), EOS][:limit]
            rollouts.tokens.append(tokens)
            rollouts.logps.append([-0.5] * len(tokens))
            rollouts.truncated.append(tokens[-1] != EOS)
            rollouts.sampled.append([True] * len(tokens))
        return rollouts


PROBLEM = Problem("3*17+5*2=?", "61", "3*17+5*2=?\n", tokens_of("3*17+5*2=?\n"))


def written(engine, n, max_tokens=60, **settings):
    args = calculator.Args(max_response_tokens=max_tokens, **settings)
    engine = EpisodeEngine(engine, environment(args.call), TOKENIZER, args, args.max_calls + 1)
    rollouts = engine.generate([PROBLEM], n, 7)
    return engine, rollouts, [TOKENIZER.decode(t, skip_special_tokens=True) for t in rollouts.tokens]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("3*17", "51"), (" 3 * 17+5 ", "56"), ("7/2", "7/2"), ("(2+3)*4/10", "2"), ("3-5", "-2"),
        ("3*", "error"), ("", "error"), ("1/0", "error"), ("2**99", "error"), ("__import__('os')", "error"),
        ("1e9", "error"), ("9*" * 30 + "9", "error"), ("(" * 40, "error"),
    ],
)  # fmt: skip
def test_only_short_expressions_of_integers_have_a_value(expression, value):
    assert calculate(expression) == value


def test_results_are_put_in_and_the_response_goes_on_behind_them():
    """Results are inserted and responses continue, with two calls, no call, or a malformed call."""
    engine = Writer(
        ["3*17=<<3*17>>99 dropped", "\\boxed{61}", "<<3*>>x"],
        ["\n5*2=<<5*2>>and this", "?"],
        ["\n51+10=61"],
    )
    calling, rollouts, texts = written(engine, 3)
    assert texts == ["3*17=<<3*17>>51\n5*2=<<5*2>>10\n51+10=61", "\\boxed{61}", "<<3*>>error?"]
    assert rollouts.truncated == [False, False, False]
    assert calling.observations == 1.0  # three insertions in three responses
    put_in = [
        "".join(TOKENIZER.convert_ids_to_tokens([t for t, was in zip(*row, strict=True) if not was]))
        for row in zip(rollouts.tokens, rollouts.sampled, strict=True)
    ]
    assert put_in == ["5110", "", "error"]
    for logps, sampled in zip(rollouts.logps, rollouts.sampled, strict=True):
        assert logps == [-0.5 if was else 0.0 for was in sampled]
    assert len(set(engine.seeds)) == len(engine.seeds) == 4  # each turn and response has its own random numbers


@pytest.mark.parametrize("settings,wasted", [({}, False), ({"stop": ()}, True)])
def test_the_engine_stops_at_the_end_of_a_call(settings, wasted, monkeypatch):
    """By default all sampled tokens are kept; without the stop string, those after a call are dropped."""
    args = calculator.Args(max_response_tokens=40, engine="transformers", **settings)
    model, tokenizer = load_model(args)
    engine, sampled = make_engine(args, model, tokenizer, []), []
    sample = engine.sample

    def counted(*arguments):
        rollouts = sample(*arguments)
        sampled.extend(map(len, rollouts.tokens))
        return rollouts

    monkeypatch.setattr(engine, "sample", counted)
    calling = EpisodeEngine(engine, environment(args.call), tokenizer, args, args.max_calls + 1)
    rollouts = calling.generate([PROBLEM] * 4, 8, 1)
    assert calling.observations > 0.3 and len(sampled) > 32
    assert (sum(sampled) > sum(map(sum, rollouts.sampled))) == wasted


def test_the_length_limit_holds_for_all_turns_together():
    call = "3*17=<<3*17>>"  # 13 tokens
    _, rollouts, texts = written(Writer([call], ["0123456789"]), 1, max_tokens=18)
    assert texts == [call + "51" + "012"] and rollouts.truncated == [True]
    # no room for the whole result or a token after it: generation ends
    for limit, text in ((14, "5"), (15, "51")):
        _, rollouts, texts = written(Writer([call]), 1, max_tokens=limit)
        assert texts == [call + text] and rollouts.truncated == [True]
    # a truncated call does not count
    _, rollouts, texts = written(Writer([call]), 1, max_tokens=12)
    assert texts == [call[:12]] and rollouts.truncated == [True] and all(rollouts.sampled[0])


def test_only_so_many_calls_are_answered():
    _, _, texts = written(Writer(["<<1+1>>"], ["<<2+2>>."]), 1, max_calls=1)
    assert texts == ["<<1+1>>2<<2+2>>."]


def test_results_have_no_loss():
    """Inserted tokens get no gradient, and their log-probs do not affect the gradient of the other tokens."""
    _, rollouts, _ = written(Writer(["<<3*17>>", "51"], ["."]), 2)
    batch, args = collate([PROBLEM], rollouts, "cpu"), calculator.Args()
    mask = batch.response_mask
    assert (~mask & batch.token_mask).sum() == 2, "the result's two tokens"
    advantages = calculator.compute_advantages(torch.tensor([[1.0, 0.0]]), args).view(-1, 1).expand(mask.shape)
    gradients = []
    for there in (-1.0, -30.0):
        old = torch.full(mask.shape, -1.0).masked_fill(~mask, there)
        logp = (old + 0.1).requires_grad_()
        loss, _ = calculator.policy_loss(logp, old, advantages, args)
        (calculator.token_weights(mask) * loss).sum().backward()
        gradients.append(logp.grad)
    assert torch.equal(*gradients)
    assert (gradients[0][~mask] == 0).all() and (gradients[0][mask] != 0).all()
    assert calculator.token_weights(mask).sum(1).tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize("call", ["<<(", "<<.*>>", "<<(.)(.)>>"])
def test_a_call_needs_one_group(call, capsys):
    with pytest.raises(SystemExit):
        environment(call)
    assert f"--call {call} must be a regular expression with one group" in capsys.readouterr().err


def test_products_and_their_writers():
    rng, factors = random.Random(0), set()
    for _ in range(500):
        question, answer = product_problem(rng)
        factors |= {int(a) for a in re.findall(r"(\d+)\*", question)}
        sums = [eval(question[: i + 1]) for i in range(len(question) - 2) if question[i + 1] in "+-="]
        assert "*" in question and all(0 <= total <= 99 for total in sums) and sums[-1] == int(answer)
    assert factors == set(range(2, 10))
    solutions = [solution(rng, "6*7-5=?") for _ in range(2000)]
    called = [text for text in solutions if "<<6*7>>" in text]
    assert all(text.startswith("6*7=<<6*7>>42\n") and "\\boxed{37}" in text for text in called)
    guessed = [text for text in solutions if "<<6*7>>" not in text]
    assert sum("\\boxed{37}" in text for text in guessed) / len(guessed) == pytest.approx(0.1, abs=0.04)
    assert len(called) / 2000 == pytest.approx(0.3, abs=0.05)


def test_the_base_model_calls_now_and_then():
    """The base model calls sometimes, and guesses otherwise, because it has never seen a product's value."""
    model, tokenizer = load_model(calculator.Args())
    calls, correct = [], []
    for question, _ in generated_problems("products", "eval")[:100]:
        product = next(term for term in question[:-2].replace("-", "+").split("+") if "*" in term)
        ids = torch.tensor([tokenizer(f"{question}\n{product}=")["input_ids"]])
        chance = model(ids).logits[0, -1].softmax(-1)
        calls.append(chance[tokenizer.convert_tokens_to_ids("<")].item())
        correct.append(chance[tokenizer.convert_tokens_to_ids(str(eval(product))[0])].item())
    assert 0.2 < sum(calls) / 100 < 0.4
    assert sum(correct) / 100 < 0.5
