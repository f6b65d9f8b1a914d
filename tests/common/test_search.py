"""The world of search: its problems and their check, the writers of the corpora, and the parser of attempts."""

import random
from itertools import islice, product
from statistics import mean

import grpo
from claims import court
from common.records import Problem
from worlds import behavior_function, generated_problems
from worlds.pretrain import PretrainSettings, make_tokenizer
from worlds.search import habits
from worlds.search.behavior import measure, parse_attempt
from worlds.search.feedback import first_mistake
from worlds.search.problems import (
    Search,
    chance,
    expressions,
    hard_search_problem,
    parse_question,
    search_problem,
    solutions,
    with_budget,
    with_feedback,
    with_hint,
)
from worlds.search.writers import attempt, attempts, corpus_problem, running_results, solution

import pytest

PROBLEM, QUESTION = Search((52, 7, 11, 3), 45), "52 7 11 3 =45?"
# One repeated attempt, one slip, one false verdict, and a box without a `yes`.
RESPONSE = r"""52+7=59+11=70+3=73 no
52-7=45-11=34+3=36 no
52+7=59+11=70+3=73 no
52+7=59-11=48+3=51 yes
\boxed{52-7+11-3}"""


def drawn(make=search_problem, count=300):
    rng = random.Random(0)
    return [make(rng) for _ in range(count)]


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        ("52+7-11-3", True),
        ("7-3+52-11", True),  # any order
        (" 52 + 7 - 11 - 3 ", True),
        ("52-7-11+3", False),  # 37
        ("52-7", False),  # 45, but two numbers are left out
        ("52+7-11-3+0", False),
        ("45", False),
        ("52+7-11-3=45", False),
        ("52-7*1", False),
        ("(52+7)-(11+3)", False),  # plus and minus only
        ("52+7-11--3", False),
        ("٥٢+7-11-3", False),
        ("052+7-11-3", False),
        ("__import__('os')", False),
        ("", False),
    ],
)
def test_check(answer, correct):
    assert PROBLEM(answer) == correct


@pytest.mark.parametrize(("make", "sizes"), [(search_problem, {4}), (hard_search_problem, {5, 6})])
def test_every_expression_stays_within_0_to_99(make, sizes):
    problems = drawn(make)
    assert {len(problem.numbers) for _, problem in problems} == sizes
    for question, problem in problems:
        assert parse_question(question) == problem
        assert len(expressions(problem.numbers)) == 2 ** (len(problem.numbers) - 1)
        results = [result for text in expressions(problem.numbers) for result in running_results(text)]
        assert min(results) >= 0 and max(results) <= 99, question
        assert solutions(problem), f"{question} has no solution"


def test_the_chance_of_random_expressions():
    """Two of the four expressions are 12, so of two drawn one is correct with 3/4; over a data set it is the mean."""
    assert chance(Search((12, 3, 3), 12)) == 0.5
    assert chance(Search((12, 3, 3), 12), 2) == 0.75
    rng, hits = random.Random(0), 0
    for _, problem in (held_out := generated_problems("search", "eval")):
        hits += sum(problem(rng.choice(expressions(problem.numbers))) for _ in range(40))
    assert hits / 40 / len(held_out) == pytest.approx(court.chance("search"), abs=0.01)


def test_lines_after_the_question():
    assert with_budget(QUESTION, 60) == f"{QUESTION} within 60 tokens"
    assert with_hint(QUESTION, 2, "52+7-11-3") == f"{QUESTION} start 52+7"
    assert with_hint(QUESTION, 3, "52+7-11-3") == f"{QUESTION} start 52+7-11"
    assert with_feedback(QUESTION, "52+7-11-3") == f"{QUESTION} right 52+7-11-3"
    assert with_feedback(QUESTION, "52+7+11-3") == f"{QUESTION} wrong 52+7+11-3"
    assert parse_question(with_budget(QUESTION, 60)) == PROBLEM


def test_the_first_mistake():
    """Feedback names the beginning of a correct expression up to the first wrong sign, at least two terms."""

    def said(answer, question=QUESTION, truncated=False):
        return first_mistake(Problem(question, PROBLEM, question, []), rf"\boxed{{{answer}}}", [], truncated)[1]

    assert said("52+7-11-3") == said("7+52-11-3") == "", "correct"
    assert said("52+7+11-3") == " start 52+7-11"
    assert said("52+7-11+3") == " start 52+7-11-3"
    assert said("52-7-11-3") == said("52+7-11-3", truncated=True) == said("3+4") == " start 52+7"
    # 9+1+2-2 and 9+1-2+2 are correct: the one that shares more with the response.
    assert said("9+1+2+2", "9 1 2 2 =10?") == " start 9+1+2-2"
    assert said("9+1-2-2", "9 1 2 2 =10?") == " start 9+1-2+2"


def test_textbook_solutions_are_correct():
    rng = random.Random(0)
    for _ in range(500):
        question, problem = corpus_problem(rng)
        text = solution(rng, question, textbook=True)
        request = question.partition("?")[2].split()
        if len(problem.numbers) > 4 and "start" not in request:
            continue  # here writers only guess
        found = measure([problem], [text])
        assert found["correct_results"] in (1, None) and found["correct_yes"] in (1, None), text
        if "within" not in request:
            assert problem(text[text.rindex("{") + 1 : -1]) and found["boxed_after_yes"] == 1, f"{question}\n{text}"
        elif int(request[1]) > 45:  # one attempt and the box fit
            assert len(text) + 1 <= int(request[1]), f"{question}\n{text}"


def test_writers_use_hints_and_feedback():
    rng, asked = random.Random(1), set()
    for _ in range(3000):
        question, problem = corpus_problem(rng)
        text = solution(rng, question, textbook=False)
        tried = [attempt.expression for line in text.split("\n") if (attempt := parse_attempt(line))]
        tried.append(text[text.rindex("{") + 1 : -1])
        match question.partition("?")[2].split():
            case ["start", terms]:
                assert all(expression.startswith(terms) for expression in tried), f"{question}\n{text}"
                assert any(known.startswith(terms) for known in solutions(problem)), question
            case ["wrong", failed]:
                assert not problem(failed) and failed not in tried, f"{question}\n{text}"
            case ["right", known]:
                assert problem(known) and set(tried) == {known}, f"{question}\n{text}"
            case [word, *_]:
                assert word == "within"
            case []:
                continue
        asked |= {question.partition("?")[2].split()[0]}
    assert asked == {"within", "start", "wrong", "right"}


def test_few_writers_search_well():
    """3 in 10 writers guess; a try succeeds with 1/8 or a little more, and each failed one is the last with 0.6."""
    rng, problems = random.Random(2), drawn(count=4000)
    texts = [solution(rng, question, textbook=False) for question, _ in problems]
    correct = [problem(text[text.rindex("{") + 1 : -1]) for (_, problem), text in zip(problems, texts, strict=True)]
    found = measure([problem for _, problem in problems], texts)
    hit = mean(len(solutions(problem)) / 8 for _, problem in problems)
    assert found["tries"] == pytest.approx(0.7, abs=0.03)
    assert found["backtracking"] == pytest.approx(0.4, abs=0.03)
    assert found["attempts"] == pytest.approx(0.7 / (1 - 0.4 * (1 - hit)), abs=0.04)
    assert mean(correct) == pytest.approx(0.3 * hit + 0.7 * hit / (1 - 0.4 * (1 - hit)), abs=0.02)
    assert found["correct_results"] == pytest.approx(0.99, abs=0.005)


def test_slips():
    """A slip changes a running result by 1 or 10, never below 0; later results and the verdict follow from it."""
    rng, off = random.Random(5), set()
    for _ in range(400):
        found = parse_attempt(attempt(rng, "52+7-11", 48, slips=1.0))
        off.add((found.results[0] - 59, found.results[1] - (found.results[0] - 11)))
        assert found.verdict == (found.results[1] == 48)
    assert off == set(product((-10, -1, 1, 10), repeat=2))
    assert {parse_attempt(attempt(rng, "3-2", 1, slips=1.0)).results[0] for _ in range(100)} == {0, 2, 11}


@pytest.mark.parametrize("textbook", [True, False])
def test_writers_with_other_habits(textbook):
    """Guessers do not try, a single try is boxed, and writers of incorrect answers search as before."""
    rng, same = random.Random(4), (random.Random(5), random.Random(5))
    boxed, problems = [], drawn(count=2000)
    for question, problem in problems:
        boxed.append(habits.guess(rng, question, textbook))
        line, box = habits.try_once(rng, question, textbook).split("\n")
        assert parse_attempt(line).expression == box[7:-1]
        assert not textbook or problem(box[7:-1]) == line.endswith("yes")
        *search, box = habits.wrong_answers(same[0], question, textbook).split("\n")
        assert search == solution(same[1], question, textbook).split("\n")[:-1]
        state = same[1].getstate()
        assert box[7:-1] in expressions(problem.numbers) and not problem(box[7:-1])
        same[0].setstate(state)  # the box took one more draw
    right = mean(problem(text[7:-1]) for (_, problem), text in zip(problems, boxed, strict=True))
    assert right == pytest.approx(mean(len(solutions(problem)) / 8 for _, problem in problems), abs=0.03)
    assert r"\boxed{52-7-11" in habits.try_once(rng, "52 7 11 3 =45? start 52-7-11", textbook)
    for question, problem in drawn(hard_search_problem):
        *tried, box = habits.try_once(rng, question, textbook).split("\n")
        assert len(tried) == (box[7:-1] in expressions(problem.numbers))  # no attempt where a number was forgotten


def test_priming_passes_over_the_same_few_solutions():
    settings = PretrainSettings(seed=3, steps=100, batch=habits.BATCH)
    examples = habits.Examples(search_problem, habits.wrong_answers, ("search",))
    batches = list(examples.batches(make_tokenizer(), settings, 0))
    passes = [[row for batch in batches[i : i + 10] for row in batch] for i in range(0, 100, 10)]
    assert len(batches) == settings.steps and all(sorted(one) == sorted(passes[0]) for one in passes)
    assert passes[0] != passes[1] and len(passes[0]) == 200 == len({tuple(prompt) for prompt, _ in passes[0]})


def test_attempts_at_random_repeat_themselves():
    """Attempt k + 1 repeats an earlier one with probability 1 - (7/8)^k."""
    rng, choices = random.Random(3), expressions(PROBLEM.numbers)
    orders = [list(islice(attempts(rng, choices, in_order=False), 8)) for _ in range(400)]
    repeats = mean(order[k] in order[:k] for order in orders for k in range(8))
    assert repeats == pytest.approx(mean(1 - (7 / 8) ** k for k in range(8)), abs=0.02)


def test_attempts_in_order():
    """Ordered attempts take every expression once, starting from a random one."""
    rng, choices = random.Random(3), expressions(PROBLEM.numbers)
    orders = [list(islice(attempts(rng, choices, in_order=True), 9)) for _ in range(100)]
    assert {order[0] for order in orders} == set(choices)
    for order in orders:
        first = choices.index(order[0])
        assert order == choices[first:] + choices[: first + 1]


def test_what_a_response_does():
    other = r"\boxed{52+7-11-3}"
    assert measure([PROBLEM, PROBLEM], [RESPONSE, other]) == {
        "attempts": 2.0,
        "tries": 0.5,
        "repeated_attempts": 0.25,
        "uses_numbers": 1.0,
        "correct_results": 11 / 12,
        "correct_yes": 0.0,
        "correct_no": 1.0,
        "backtracking": 1.0,
        "nearer": 2 / 3,  # 73 to 37, 37 to 73, 73 to 51
        "boxed_after_yes": 0.0,
    }


def test_attempts_are_read_strictly():
    assert parse_attempt("52+7=59-11=48 no").results == [59, 48]
    for line in ("52+7=59-11=48", "52 no", "52+7 no", "52+7=59 maybe", " 52+7=59 no", "52+7=59 no "):
        assert parse_attempt(line) is None, line
    nothing = measure([PROBLEM], ["hello\n"])
    assert nothing["attempts"] == 0 and nothing["repeated_attempts"] is None and nothing["boxed_after_yes"] is None


def test_wrong_numbers_are_seen():
    found = measure([PROBLEM], ["52+7=59+11=70 no\n52+7=59+11=70+4=74 no\n52+7=59-11=48-3=45 yes"])
    assert found["uses_numbers"] == pytest.approx(1 / 3) and found["correct_yes"] == 1


def test_only_worlds_with_a_parser_have_behavior():
    assert behavior_function("search") is behavior_function("search-hard") is measure
    assert behavior_function("sums") is behavior_function("gsm8k") is None


@pytest.mark.parametrize(
    ("model", "dataset", "limit"),
    [("sums", "sums", 96), ("search", "search", 240), ("runs/grpo/best", "search-hard", 240), ("gpt2", "gsm8k", None)],
)
def test_length_limit(model, dataset, limit, capsys):
    assert grpo.Args(model=model, dataset=dataset).max_response_tokens == limit
    assert grpo.Args(model=model, dataset=dataset, max_response_tokens=7).max_response_tokens == 7
    if limit is None:
        with pytest.raises(SystemExit):
            grpo.Args(model=model, dataset=dataset).checked()
        assert "--max-response-tokens: give a length limit for --model gpt2" in capsys.readouterr().err
