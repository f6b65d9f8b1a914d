"""Embedded worlds: their problems, writers and pretraining."""

import hashlib
import math
import random
import re
from collections import Counter
from fractions import Fraction
from itertools import permutations

import grpo
from common.data import load_problems
from common.engines import Request, prompt_seeds
from common.models import load_model
from common.records import Problem, Rollouts
from common.transformers_engine import TransformersEngine
from common.verification.verifier import Verifier
from worlds import DATASETS, MODELS, generated_problems, problem_function
from worlds.countdown.problems import Countdown
from worlds.pretrain import TEXTBOOK, Corpus, PretrainSettings, pretrain
from worlds.products import pretrain as pretrain_products
from worlds.products.problems import product_problem
from worlds.sums import pretrain as pretrain_sums
from worlds.sums.writers import guess, solution

import pytest
import torch
from conftest import SMALL
from safetensors.torch import load_file
from transformers import AutoTokenizer


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("sums", "b84ace12b9ee"),
        ("sums-hard", "b9ab187d8baa"),
        ("products", "bc4af8b74f16"),
        ("search", "5ff865eb9316"),
        ("search-hard", "ed25eea65a89"),
        ("countdown", "7e2d6925551e"),
    ],
)
def test_generated_problems_never_change(name, digest):
    """Generated problems stay the same, so that results in reports/ stay valid."""
    rng = random.Random(2026)
    questions = [problem_function(name)(rng)[0] for _ in range(200)]
    assert hashlib.sha256(repr(questions).encode()).hexdigest().startswith(digest)


@pytest.mark.parametrize("name,lengths", [("sums", range(2, 7)), ("sums-hard", range(5, 9))])
def test_answers_of_sums_and_their_splits(name, lengths):
    train, held_out = generated_problems(name, "train"), generated_problems(name, "eval")
    assert len(held_out) == 512 and len(train) == 20_000
    assert len({q for q, _ in train + held_out}) == 20_512, "a question twice, perhaps in both splits"
    counts = Counter()
    for question, answer in train + held_out:
        terms = question.removesuffix("=?").replace("-", "+-").split("+")
        assert sum(map(int, terms)) == int(answer)
        counts[len(terms)] += 1
        partial = 0
        for term in terms:
            partial += int(term)
            assert 0 <= partial <= 99
    # All lengths are equally likely, but there are few different sums of two terms.
    assert set(counts) == set(lengths)
    assert all(0.9 < counts[n] / 20_512 * len(lengths) < 1.35 for n in lengths if n > 2), counts


def test_a_world_is_added_in_one_place(capsys):
    """Every model's folder and data set exist, and a model refuses a world that it has not learned."""
    assert all((model.folder / "model.safetensors").is_file() for model in MODELS.values())
    assert {world for model in MODELS.values() for world in model.worlds} <= {world for world, _ in DATASETS.values()}
    grpo.Args(model="products", dataset=("sums-hard", "products")).checked()
    for model, dataset, words in (
        ("sums", "products", "the embedded model sums only knows sums and sums-hard: pass --model products"),
        ("products", "countdown", "products only knows sums and sums-hard and products: pass a pretrained --model"),
    ):
        with pytest.raises(SystemExit):
            grpo.Args(model=model, dataset=dataset).checked()
        assert words in capsys.readouterr().err


def reachable(numbers):
    """All values of expressions that use each number once."""
    if len(numbers) == 1:
        return set(numbers)
    found = set()
    for i, j in permutations(range(len(numbers)), 2):
        a, b, rest = numbers[i], numbers[j], [n for k, n in enumerate(numbers) if k not in (i, j)]
        for result in (a + b, a - b, a * b, *([Fraction(a) / b] if b else [])):
            found |= reachable([result, *rest])
    return found


@pytest.mark.slow
def test_countdown_can_be_solved_and_is_held_out():
    train, held_out = generated_problems("countdown", "train"), generated_problems("countdown", "eval")
    assert len(held_out) == 512 and len(train) == 20_000
    # Questions sort their numbers, so another order is the same problem.
    assert len({(a.numbers, a.target) for _, a in train + held_out}) == 20_512
    assert {len(a.numbers) for _, a in train} == {3, 4}
    for question, answer in held_out[:40]:
        assert answer.target in reachable(list(answer.numbers)), question
        assert all(f"{n}" in question for n in (*answer.numbers, answer.target))


@pytest.mark.parametrize(
    "answer,correct",
    [
        ("3*7+5", True),
        (" ( 7 * 3 ) + 5 ", True),
        (r"3 \times 7 + 5", True),
        ("5+3*7 = 26", True),
        (r"\left(3\times7\right)+5=26", True),
        ("3*7+5=27", False),  # after the equals sign only the target is allowed
        ("26", False),
        ("3+5+7", False),
        ("7*3+5+0", False),  # a number that was not given
        ("21+5", False),
        ("3*7+5+5-5", False),  # one used too often
        ("3*7", False),  # one left over
        ("37-5-6", False),
        ("-3*-7+5", False),  # a sign is not a binary operation
        ("0x3*7+5", False),
        ("3*7+05", False),
        ("3*7+5.0", False),
        ("3*7+5 #", False),
        ("3**7//5", False),
        ("__import__('os').system('x')", False),
        ("3*7+5\n3*7+5", False),
        ("(" * 400 + "3" + ")" * 400, False),
        ("3" + "+3" * 499, False),
        ("9" * 999, False),
        ("3/(7-7)+5", False),
        ("", False),
    ],
)
def test_countdown_rules(answer, correct):
    problem = Problem("", Countdown((3, 5, 7), 26), "", [])
    tokenizer = AutoTokenizer.from_pretrained("worlds/sums/model")
    verifier = Verifier(grpo.Args(), tokenizer, [problem])
    ids = tokenizer.encode(f"so \\boxed{{{answer}}}")
    assert verifier([problem], Rollouts(tokens=[ids], truncated=[False])).tolist() == [[correct]]
    assert verifier([problem], Rollouts(tokens=[ids], truncated=[True])).tolist() == [[0.0]]
    verifier.close()


def test_countdown_is_exact():
    """8 / (3 - 8/3) is 24 in fractions but not in floating point."""
    assert Countdown((3, 3, 8, 8), 24)("8/(3-8/3)")
    assert 8 / (3 - 8 / 3) != 24
    assert Countdown((3, 3, 8, 8), 24)("8÷(3−8÷3)")
    assert not Countdown((3, 3, 8, 8), 23)("8/(3-8/3)")


@pytest.mark.slow
def test_a_run_on_countdown(chat_model, tmp_path, capsys):
    """A pretrained model can train on countdown; embedded models and --answer-format last-number are refused."""
    grpo.main(grpo.Args(model=str(chat_model), dataset="countdown", run_dir=tmp_path / "run", **SMALL))
    out = capsys.readouterr().out
    assert "each number exactly once" in out and "--- answer 56 of 5, 38, 72, 85: reward 0 ---" in out
    for settings, words in (
        ({"model": "sums-filler"}, "the embedded model sums-filler only knows sums and sums-hard"),
        ({"model": str(chat_model), "answer_format": "last-number"}, "needs a data set whose answers are all numbers"),
    ):
        with pytest.raises(SystemExit):
            grpo.main(grpo.Args(dataset="countdown", run_dir=tmp_path / "refused", **SMALL | settings))
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_the_model_with_filler_text():
    """The model repeats its result before the box, up to many times, and its file is not larger than the first's."""
    paths = [MODELS[name].folder / "model.safetensors" for name in ("sums", "sums-filler")]
    assert paths[1].stat().st_size <= paths[0].stat().st_size
    args = grpo.Args(model="sums-filler", eval_problems=32)
    model, tokenizer = load_model(args)
    _, held_out = load_problems(args, model, tokenizer)
    engine = TransformersEngine(args, model, tokenizer)
    rollouts = engine.sample(Request([p.prompt_ids for p in held_out], 8, [96] * 32, 1.0, prompt_seeds(32, 0)))
    counts, same = Counter(), []
    for text in tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True):
        again, box = re.findall(r"^(?:so|hm|ok|er) (\d+)$", text, re.M), re.search(r"\\boxed\{(\d+)\}$", text)
        counts[len(again)] += 1
        same += [number == box[1] for number in again if box]
    assert 0.15 < counts[0] / counts.total() < 0.4 and len(counts) > 6, counts
    assert sum(same) / len(same) > 0.8, "filler lines repeat the result"


def test_writers_of_sums():
    """Textbook writers write every step; of the others 3 in 5 guess at once, and 3 in 20 at each later step."""
    assert {solution(random.Random(seed), "31+7-12=?", textbook=True) for seed in range(200)} == {
        "31+7=38\n38-12=26\n\\boxed{26}"
    }
    steps = Counter(solution(random.Random(seed), "31+7-12=?", textbook=False).count("=") for seed in range(4000))
    assert [steps[n] / 4000 for n in (0, 1)] == pytest.approx([0.6, 0.4 * 0.15], abs=0.025)


def test_errors_in_the_steps_of_sums():
    """3 in 100 steps are off by ±1 or ±10, and half of these are noticed and corrected in the next line."""
    texts = [solution(random.Random(seed), "31+7-12=?", textbook=False) for seed in range(40_000)]
    first = [text.split("\n") for text in texts if text.startswith("31+7=")]
    wrong = [lines for lines in first if lines[0] != "31+7=38"]
    assert len(wrong) / len(first) == pytest.approx(0.03, abs=0.006)
    noticed = [lines for lines in wrong if lines[0].endswith(" wait")]
    assert len(noticed) / len(wrong) == pytest.approx(0.5, abs=0.08)
    assert all(lines[1] == "31+7=38" for lines in noticed)
    by = Counter(int(lines[0].split("=")[1].split()[0]) - 38 for lines in wrong)
    assert by.keys() == {-10, -1, 1, 10} and min(by.values()) > 0.2 * len(wrong)


@pytest.mark.parametrize(("operations", "correct"), [(1, 1 / 2), (2, 1 / 8), (3, 1 / 32)])
def test_guesses_of_sums(operations, correct):
    """Incorrect guesses are near the answer and spread more widely the more operations are left."""
    rng = random.Random(0)
    found = Counter(guess(rng, 50, operations) - 50 for _ in range(8000))
    assert found[0] / 8000 == pytest.approx(correct, abs=0.02)
    wrong = {distance for distance in found if distance}
    assert wrong == set(range(-6 * operations, 6 * operations + 1)) - {0}
    near_zero = [guess(rng, 0, 3) for _ in range(1000)]
    assert max(near_zero) > 0 == min(near_zero) and near_zero.count(0) > 400, "what would be negative is 0"


def test_writers_add_filler_lines_by_chance():
    """Filler is as frequent with correct as with incorrect answers, and absent without `filler`."""
    lines = {True: [], False: []}
    for seed in range(4000):
        text = solution(random.Random(seed), "31+7-12=?", textbook=False, filler=True)
        *idle, box = [line for line in text.split("\n") if "=" not in line]
        assert all(line.split(" ")[1] == box[7:-1] for line in idle)
        lines[box == r"\boxed{26}"].append(len(idle))
        assert " " not in solution(random.Random(seed), "31+7-12=?", textbook=False).replace(" wait", "")
    means = [sum(counts) / len(counts) for counts in lines.values()]
    assert all(abs(mean - 3) < 0.3 for mean in means), means  # 3/4 of the writers, with 4 lines on average


@pytest.mark.parametrize("options", [{}, {"filler": True}])
def test_pretraining_is_reproducible(options, tmp_path, capsys):
    """A few steps of the command write the same weights twice, for the textbook part and its continuation."""
    weights = []
    for name in ("a", "b"):
        pretrain_sums.main(pretrain_sums.Args(steps=12, batch=2, out=tmp_path / name, **options))
        weights.append((tmp_path / name / "model.safetensors").read_bytes())
    assert weights[0] == weights[1]
    shown = re.findall(r"^step +(\d+)  loss [\d.]+ +\d+ s$", capsys.readouterr().out, re.M)
    assert "11" in shown, "the last step"
    load_model(grpo.Args(model=str(tmp_path / "a")))


@pytest.mark.parametrize("start", [0, 10])
def test_the_learning_rate_of_pretraining(start, tmp_path, monkeypatch):
    """The rate rises in the first 5 % of the steps and falls to 0 at the end, wherever training starts."""
    rates, step = [], torch.optim.AdamW.step
    monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: rates.append(self.param_groups[0]["lr"]) or step(self))
    model, tokenizer = load_model(grpo.Args())
    corpus = Corpus(problem_function("sums"), solution, ("sums",))
    args = PretrainSettings(steps=40, batch=2, lr=8.0, out=tmp_path)
    pretrain(model, tokenizer, corpus, args, start)
    expected = [min((i + 1) / 2, (40 - start - i) / 38) for i in range(40 - start)]
    assert rates == pytest.approx([8.0 * factor for factor in expected])


def test_the_base_model_of_products_is_pretrained_from_that_of_sums(tmp_path, monkeypatch):
    """Its pretraining starts from the weights for sums, on solutions with calculator calls, at 82 % of the steps."""
    calls = []
    monkeypatch.setattr(pretrain_products, "pretrain", lambda *given: calls.append(given))
    pretrain_products.main(pretrain_products.Args(steps=11, batch=2, out=tmp_path))
    ((model, _, corpus, args, textbook),) = calls
    of_sums = load_file(MODELS["sums"].folder / "model.safetensors")
    assert all(torch.equal(weight, of_sums[name]) for name, weight in model.named_parameters() if name in of_sums)
    assert corpus.problem is product_problem and corpus.datasets == ("products",)
    assert any("<<" in corpus.write(random.Random(seed), "3*4+5=?", False) for seed in range(20))
    assert (args.steps, args.lr, args.out, textbook) == (11, 8e-3, tmp_path, math.ceil(11 * TEXTBOOK))
