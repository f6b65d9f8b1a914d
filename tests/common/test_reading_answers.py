"""How an answer is found in a response and read as a number, in linear time."""

import time
from fractions import Fraction

from common.rows import final_answer
from common.verification.answers import last_boxed, last_number, parse_number
from common.verification.comparison import compare

import pytest


@pytest.mark.parametrize(
    "text,box",
    [
        (r"\boxed{42}", "42"),
        (r"\boxed{1} no, \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{a{b}c} and more", "a{b}c"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed {12}", "12"),
        ("\\boxed\n{12}", "12"),
        (r"\boxed{1} and \boxed 2", "1"),
        (r"\boxed{}", ""),
        (r"\boxed{42", None),
        ("42", None),
        ("", None),
    ],
)
def test_last_boxed(text, box):
    assert last_boxed(text) == box


@pytest.mark.parametrize(
    "text,value",
    [
        ("42", 42),
        (" 42 ", 42),
        ("42.", 42),
        ("42.0", 42),
        ("-7", -7),
        ("−7", -7),
        ("+7", 7),
        ("1,234,567", 1234567),
        ("1{,}234", 1234),
        (r"1\,234", 1234),
        (r"\$12", 12),
        ("$12.50", Fraction(25, 2)),
        ("12 apples", 12),
        (r"12\text{ cm}", 12),
        (r"12 \text{ square feet}", 12),
        (r"40\%", 40),
        (r"90^\circ", 90),
        ("x = 5", 5),
        (".5", Fraction(1, 2)),
        (r"\frac{1}{2}", Fraction(1, 2)),
        (r"-\dfrac{3}{4}", Fraction(-3, 4)),
        ("3/4", Fraction(3, 4)),
    ],
)
def test_literal_numbers(text, value):
    assert parse_number(text).value == value


@pytest.mark.parametrize(
    "text",
    ["", "39+62", "6*7", "2^5", "1/0", "12,34", "1 2", "4 2", "five", "1e3", "--1", "13=12", "٤٢", "9" * 200, "."],
)
def test_not_a_literal_number(text):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    "text,number",
    [
        ("4 + 6 = 10.", "10"),
        ("10-3", None),
        ("10 - 3 = 7", "7"),
        ("it is -3", "-3"),
        ("1,234, I think", "1,234"),
        ("2.50", "2.50"),
        ("no", None),
        ("it is −12", "-12"),
        ("so 1/2.", "1/2"),
        ("10^2", None),
        ("2^{10}", None),
        (r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\sqrt{2}", None),
        ("it is .5", ".5"),
        ("12 million", "12 million"),
        ("1 2", None),
        ("9" * 200, None),
    ],
)
def test_last_number(text, number):
    assert last_number(text) == number


@pytest.mark.parametrize(
    "text,answer",
    [("#### (1,5)", "(1,5)"), ("#### 1,234", "1234"), ("#### 1,234,567", "1234567"), ("#### 1, 2", "1, 2")],
)
def test_final_answer_keeps_what_commas_mean(text, answer):
    assert final_answer(text) == answer


PIECES = (
    r"1 9, 1: 1/ 1+ 10^ \times10^ 0 e a a- a' a, A A. (A) AB and or million ( ) [ { } \{ \} \\ . - + , ; $ % ^ _ _{ ="
    r" x= f( ! & ~ | \text{ \text{a} \text{and} \frac \frac1 \frac{1} \boxed{ \left( \! ,\! \, \pm \cup \phantom{ \sin"
    r" \begin{pmatrix} \end{pmatrix} \cdot ^\circ ° € − ² √ √( ½ ₂ １ \, 0.\overline 0.\overline{ 1,000. 1-1- tens half"
)


@pytest.mark.parametrize("gold", ["12", "x^2+1", r"\sqrt2", "(1,2)", r"\text{odd}"])
def test_no_text_takes_long(gold):
    """1,000 characters made to confuse a regular expression are read within half a second."""
    for piece in PIECES.split():
        for before in ("", "12 ", "x = ", r"\text{", "("):
            for text in (piece, piece + " "):
                answer = (before + text * 1000)[:999] + "x"
                start = time.process_time()
                compare(gold, answer)
                last_number(answer)
                last_boxed(answer * 10)
                assert time.process_time() - start < 0.5, answer[:20]
