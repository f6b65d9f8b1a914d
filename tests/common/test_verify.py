"""What counts as a correct answer, and what a hostile answer can do."""

import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from common.records import Problem, Rollouts, ScoredAnswer
from common.verification import answers
from common.verification.answers import parse_number
from common.verification.comparison import compare
from common.verification.workers import Reply
from methods import gdpo, ttrl

import pytest
import torch
from judging import is_correct, make_verifier

# Pairs judged by hand: a gold answer (or several), and the content of the box (for last-number, the whole response).
CASES = [json.loads(line) for line in Path(__file__).with_name("verifier_cases.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("answer_format", ["boxed", "last-number"])
def test_table(answer_format):
    """Every judged pair gets its verdict, and there are enough pairs of each kind."""
    cases = [case for case in CASES if case["format"] == answer_format]
    assert len(cases) >= 100 and Counter(case["verdict"] for case in cases).most_common()[-1][1] >= 40
    verifier = make_verifier(answer_format=answer_format)
    texts = [rf"\boxed{{{case['answer']}}}" if answer_format == "boxed" else case["answer"] for case in cases]
    verdicts = verifier.judge(texts, [case["gold"] for case in cases], [False] * len(cases))
    verifier.close()
    misjudged = [
        case for case, verdict in zip(cases, verdicts, strict=True) if verdict != (case["verdict"] == "correct")
    ]
    assert not misjudged
    assert not verifier.failures


GOLDS = list(dict.fromkeys(case["gold"] for case in CASES if isinstance(case["gold"], str)))


@pytest.mark.parametrize("words", ["MULTIPLIES", "HEDGES", "SCALES"])
def test_each_word_that_changes_a_value_changes_a_verdict(words, monkeypatch):
    """Without any one of these words, some judged answer would be misjudged."""

    def misjudged(word):
        parse_number.cache_clear()
        judged = [case for case in CASES if case["format"] == "boxed" and re.search(rf"\b{word}s?\b", case["answer"])]
        judged = [case for case in judged if isinstance(case["gold"], str) and parse_number(case["gold"])]
        return [
            case for case in judged if (compare(case["gold"], case["answer"]) == []) != (case["verdict"] == "correct")
        ]

    listed = getattr(answers, words)
    assert len(listed) >= 6
    for word in listed:
        assert not misjudged(word)
        fewer = {w: listed[w] for w in listed if w != word} if isinstance(listed, dict) else listed - {word}
        with monkeypatch.context() as patch:
            patch.setattr(answers, words, fewer)
            assert misjudged(word), word
    parse_number.cache_clear()


def test_every_gold_is_its_own_answer(verifier):
    verifier.check_golds([Problem("", gold, "", []) for gold in GOLDS])
    for form in ("{}", " {}\n"):
        assert all(verifier.judge([rf"\boxed{{{form.format(gold)}}}" for gold in GOLDS], GOLDS, [False] * len(GOLDS)))


UNEVALUATED = [
    *("{}+7-7", "7-7+{}", "{}+0", "0+{}", "{}-0", "({}+1)-1", "--{}", "{}+1"),
    *("1*{}", "{}*1", r"1\cdot {}", r"{}\cdot 1", r"{}\times1", "({})(1)", "2*({})/2", "{}/1", r"\frac{{}}{1}"),
    *("{}!", "{}^1", r"\sqrt{({})^2}", "{}={}", "{} or 0", "{}, {}", "{}i", "{} x", "{}_{10}", "not {}"),
]


@pytest.mark.parametrize("form", UNEVALUATED)
def test_nothing_unevaluated_stands_for_a_number(verifier, form):
    golds = [gold for gold in GOLDS if parse_number(gold)]
    assert len(golds) > 40
    answers = ["\\boxed{" + form.replace("{}", gold) + "}" for gold in golds]
    assert not any(verifier.judge(answers, golds, [False] * len(golds)))


@pytest.mark.parametrize(
    "response,gold,expected",
    [
        (r"12+30=42 so \boxed{42}", "42", True),
        (r"\boxed{42.0}", "42", True),
        (r"\boxed{1,234}", "1234", True),
        (r"\boxed{12+30}", "42", False),  # the question, echoed
        (r"\boxed{84/2}", "42", False),  # an unevaluated division
        (r"\boxed{\frac{84}{2}}", "42", False),
        (r"\boxed{0.5}", r"\frac{1}{2}", True),
        (r"\boxed{1/2}", "0.5", True),
        (r"\boxed{41} \boxed{42}", "42", True),  # the last box counts
        (r"\boxed{42} \boxed{41}", "42", False),
        (r"\boxed{41, 42}", "42", False),
        ("the answer is 42", "42", False),
        (r"\boxed{42", "42", False),
        ("", "42", False),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", True),
        (r"\boxed{(3, \pi/2)}", r"\left( 3, \frac{\pi}{2} \right)", True),
        (r"\boxed{(3, \pi/3)}", r"\left( 3, \frac{\pi}{2} \right)", False),
        (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}", True),
    ],
)
def test_judgement(verifier, response, gold, expected):
    assert is_correct(verifier, response, gold) is expected


def test_last_number_as_the_answer(capsys):
    verifier = make_verifier(answer_format="last-number")
    texts = ["4 + 6 = 10.", "4 + 6 = 11, no, 10", "10 = 4 + 6", r"\boxed{10}", "ten", "4+6"]
    assert verifier.judge(texts, ["10"] * 6, [False] * 6) == [True, True, False, True, False, False]
    assert verifier.judge(["10"], ["10"], [True]) == [False]
    verifier.close()
    with pytest.raises(SystemExit):
        make_verifier(Problem("", "x^2", "", []), answer_format="last-number")
    assert "all numbers" in capsys.readouterr().err


def test_long_boxes_are_incorrect(verifier):
    assert is_correct(verifier, rf"\boxed{{{' ' * 990}42}}", "42")
    assert not is_correct(verifier, rf"\boxed{{{' ' * 1000}42}}", "42")


def test_truncated_responses_are_incorrect(verifier):
    assert is_correct(verifier, r"\boxed{42}", "42")
    assert not is_correct(verifier, r"\boxed{42}", "42", truncated=True)


def test_groups_get_their_own_answers(verifier):
    problems = [Problem("", "1", "", []), Problem("", "2", "", [])]
    texts = [r"\boxed{1}", r"\boxed{2}", r"\boxed{2}", r"\boxed{1}"]
    rollouts = Rollouts([list(map(ord, text)) for text in texts], [[]] * 4, [False] * 4)
    assert verifier(problems, rollouts).tolist() == [[1, 0], [1, 0]]
    assert rollouts.correct == [1, 0, 1, 0]


def test_rewards_apart(verifier, monkeypatch):
    """Each function has its own (P, G) rewards, 0 where late; without functions the verdicts are the rewards."""
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    alone, weight = gdpo.rewards_apart(verifier, rewards, Rollouts())
    assert torch.equal(alone, rewards[None]) and weight.tolist() == [1]
    monkeypatch.setattr(verifier, "reward_functions", SimpleNamespace(weights={"correct": 1.0, "a.py:f": -0.5}))
    given = [(1.0, 2.0), (0.0, 3.0), (0.0, None), (1.0, 5.0)]
    rollouts = Rollouts(rewards=[{"correct": correct, "f": value} for correct, value in given])
    each, weights = gdpo.rewards_apart(verifier, rewards, rollouts)
    assert each.tolist() == [rewards.tolist(), [[2, 3], [0, 5]]] and weights.tolist() == [1, -0.5]


@pytest.mark.parametrize(
    "group,cut,rewards",
    [
        (["3", "2", "2", "1"], [], [0, 1, 1, 0]),
        (["1+x", "2", "x+1", "2x"], [], [1, 0, 1, 0]),  # equal, not the same string
        (["5", "2", "2", "5"], [], [1, 0, 0, 1]),  # a tie: the first one wins
        (["5", "2", "5", None], [0], [0, 1, 0, 0]),
        (["5", "5", "5", "2"], [0], [0, 1, 1, 0]),
        ([None, "7", "7", ""], [1, 2], [0, 0, 0, 0]),
        (["84/2", "42", "42", "7"], [], [0, 1, 1, 0]),  # 42 is correct if the gold answer is 84/2, but not the reverse
        (["10+1", "11", "8", "8"], [], [0, 0, 1, 1]),
    ],
)
def test_majority(verifier, group, cut, rewards):
    """Each group votes separately; a truncated response or one without an answer has no vote."""
    texts = ["no box" if answer is None else rf"\boxed{{{answer}}}" for answer in ["1", "1", "1", "9", *group]]
    truncated = [row - 4 in cut for row in range(8)]
    majority = ttrl.majority(verifier, Rollouts([list(map(ord, text)) for text in texts], truncated=truncated), 4)
    assert majority.tolist() == [[1, 1, 1, 0], rewards]


def test_answer_that_cannot_be_parsed_fails_at_load(capsys):
    with pytest.raises(SystemExit) as stop:
        make_verifier(Problem("", "$$$", "", []))
    assert stop.value.code == 2
    assert "cannot be checked" in capsys.readouterr().err


def test_all_golds_that_cannot_be_read_are_named_with_their_rows(tmp_path, capsys):
    golds = ["12", r"\frac{1}", "x+", r"\sqrt", "12", "x^2", r"\frac{1}"]
    make_verifier(
        *(Problem("", gold, "", [], where=f"row {i} of split train") for i, gold in enumerate(golds[:1]))
    ).close()
    with pytest.raises(SystemExit) as stop:
        make_verifier(*(Problem("", gold, "", [], where=f"row {i} of split train") for i, gold in enumerate(golds)))
    assert stop.value.code == 2
    said = capsys.readouterr().err
    for i, gold in enumerate(golds):
        assert (f"{gold!r} (row {i} of split train)" in said) == (i in (1, 2, 3, 6)), said
    with pytest.raises(SystemExit):
        make_verifier(
            *(Problem("", f"x+{i}+", "", [], dataset="math", where=f"row {i} of split test") for i in range(120))
        )
    said = capsys.readouterr().err
    assert "'x+99+' (math row 99 of split test) and 20 more" in said and "x+100+" not in said


def test_each_of_several_answers_must_be_parsed(capsys):
    make_verifier(Problem("", ("12", "x^2"), "", [])).close()
    with pytest.raises(SystemExit):
        make_verifier(Problem("", ("12", "$$$"), "", []))
    assert "cannot be checked: '$$$'" in capsys.readouterr().err


@pytest.mark.parametrize("several", [("12", "13"), ["12", "13"]])
def test_any_of_several_answers(verifier, several):
    texts = [rf"\boxed{{{answer}}}" for answer in ("12", "13", "14", "12, 13", "25", "6+6")]
    assert verifier.judge(texts, [several] * 6, [False] * 6) == [True, True, False, False, False, False]
    problems = [Problem("", several, "", []), Problem("", "14", "", [])]
    rollouts = Rollouts([list(map(ord, text)) for text in texts[1:3] * 2], [[]] * 4, [False] * 4)
    assert verifier(problems, rollouts).tolist() == [[1, 0], [0, 1]]


def test_scorers(tmp_path, monkeypatch):
    """A score is between 0 and 1, and 1 is correct; a scorer that raises, hangs or cannot load counts as 0."""
    monkeypatch.setattr("common.verification.verifier.SCORE_LIMIT", 2.0)
    (tmp_path / "scorer.py").write_text(
        "import time\n"
        "def score(problem, text, tokens, truncated):\n"
        "    if text == 'hang': time.sleep(1000)\n"
        "    return {problem.payload: 1.0, 'near': 0.25, 'so': (0.5, 'so')}[text]\n"
    )
    gold = ScoredAnswer("", f"{tmp_path / 'scorer.py'}:score", "12")
    texts = [rf"\boxed{{{answer}}}" for answer in ("12", "near", "raise", "hang", "so")]
    verifier = make_verifier(Problem("", gold, "", []))
    rollouts = Rollouts([list(map(ord, text)) for text in texts], [], [False] * 5)
    assert verifier([Problem("", gold, "", [])], rollouts).tolist() == [[1, 0.25, 0, 0, 0.5]]
    assert rollouts.correct == [1, 0, 0, 0, 0]
    assert verifier.take_numbers()["verifier_failures"] == 2
    missing = ScoredAnswer("", f"{tmp_path / 'scorer.py'}:other", "12")
    assert verifier.judge(texts[:1], [missing], [False]) == [0] and verifier.take_numbers()["verifier_failures"] == 1
    verifier.close()


def test_failures_are_counted_only_where_they_decide(monkeypatch):
    """If math-verify fails on one of two gold answers, only an answer that misses the other is a failure."""
    verifier = make_verifier()
    replies = {"x": Reply(failed="timeout"), "y": Reply([1]), "z": Reply([0])}
    monkeypatch.setattr(verifier.pool, "ask", lambda program, rows: replies[rows[0][0]["payload"][0]])
    golds = [("x+xyz", "y+xyz"), ("x+xyz", "z+xyz"), "xyz"]
    assert verifier.judge([r"\boxed{xyz}"] * 3, golds, [False] * 3) == [True, False, True]
    assert verifier.failures == {"timeout": 1}
    verifier.close()


@pytest.mark.parametrize(
    "gold,answer,tolerance,expected",
    [
        ("8.24", "8.2415", 0.0, False),
        ("8.24", "8.2415", 0.001, True),
        ("8.24", "8.25", 0.001, False),
        ("100.5", "101.505", 0.01, True),  # the limit itself
        ("100.5", "101.506", 0.01, False),
        ("0.5", "0.65", 0.3, True),  # the float 0.3 is slightly below 0.3
        ("-100.5", "-101.505", 0.01, True),
        ("0.001", "0.002", 0.01, False),  # relative, not absolute
        (r"\frac{1}{3}", "0.333", 0.01, True),
        (r"\frac{1}{3}", r"33.3\%", 0.01, True),
        ("0.333", r"\frac{1}{3}", 0.01, True),
        ("204", r"\approx 203.9", 0.01, True),
        ("1000", "1001", 0.01, False),  # whole numbers are counted, not measured
        ("1000", "1001.5", 0.01, True),
        ("1000", "2001/2", 0.01, False),  # an unevaluated division
        ("0", "0.001", 0.01, False),
        ("8.24", "8.24+0.001", 0.01, False),  # unevaluated, however close
        ("8.24", r"\sqrt{67.9}", 0.01, False),
        ("8.24", "-8.24", 0.01, False),
        ("8.24", "8.24, 8.25", 0.01, False),
        ("(0.5, 2)", "(0.501, 2)", 0.01, True),
        ("(0.5, 2)", "(0.501, 2+0)", 0.01, False),
        (r"\sqrt{2}", "1.414", 0.01, False),  # only numbers have a tolerance
    ],
)
def test_tolerance(gold, answer, tolerance, expected):
    verifier = make_verifier(tolerance=tolerance)
    assert is_correct(verifier, rf"\boxed{{{answer}}}", gold) is expected
    verifier.close()
