"""Finding the answer in a response, cleaning it, and reading literal numbers."""

import re
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

MAX_NUMBER_LENGTH = 100  # characters
BOX = re.compile(r"\\boxed\s*\{")
SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
# Words that change the value of the number before them, as in "12 squared", and words that may: "12 or thirteen".
MULTIPLIES, HEDGES = map(set, map(str.split, Path(__file__).with_name("words.txt").read_text().split("\n\n")))
# Characters read as one unit, so that 10^2, 1/2, 12:30 and \sqrt{2} do not end in 2, 2, 30 and 2.
RUN = re.compile(
    r"(?:(?<![\w.,)}%!^])[-+])?(?:[\w/^{}!]|\\(?=[A-Za-z])|(?<=[0-9])[.,: ](?=[0-9])|\.(?=[0-9])|(?<=[{^])-)+"
    r"(?:%|[ -](?:and (?:an? )?)?(?i:" + "|".join(sorted({*SCALES, *MULTIPLIES})) + r")\b"
    r"| ?[-+*] ?[A-Za-z]\b| \\(?:pi|sqrt)\b)?"
)
# What makes the number after it part of an expression: 7-3, 2 \times 3, f(3), > 3, not 3.
BEFORE = re.compile(
    r"(?:[\w.)}\]%!] ?[-+*÷] ?|[-+] |√|\\(?:times|cdot|div|pm|[lg]eq?|neq?|[lg]t|sqrt) *|(?<=[\w)}\]])(?<!\\left)\("
    r"|[0-9] ?[—~] ?|[0-9]\\[,;:! ]|(?:^|[ (])[<>] ?|\b(?:not|least|most|than) )$"
)
SCRIPT = re.compile("([⁰¹²³⁴-⁹⁺⁻]+)|[₀-₉]+")
ROOT = re.compile(r"√ ?([0-9]+(?:\.[0-9]+)?|[A-Za-z](?![\w^])|\([^()]*\))")
THOUSANDS = re.compile(r",\s?\\!\s?|\{,\}|(?<=[0-9])(?:\\,|[\u00a0\u2007\u2009\u202f])(?=[0-9]{3}(?![0-9]))")
SPACED = re.compile(r"(?<![\w.,:/])(?<![0-9] )[1-9][0-9]{0,2}(?: [0-9]{3}){2,}(?! ?[0-9:/])")  # 1 234 567, not 1 234
FRACTIONS = {sign: rf"\frac{{{normalize('NFKC', sign).replace('⁄', '}{')}}}" for sign in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"}
DIGITS = "".join(["0123456789０１２３４５６７８９", *FRACTIONS])
CHARACTERS = str.maketrans(
    dict.fromkeys("−‐‑‒–⁻", "-")
    | {"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "±": r"\pm ", "≈": r"\approx ", "°": r"^\circ "}
    | {"π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∈": r"\in ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "⁄": "/"}
    | FRACTIONS
)


def as_latex(text: str) -> str:
    """Text with commas between thousands and Unicode signs as LaTeX: `x²` is x^2, `½` \\frac{1}{2}, `１` 1."""
    text = SPACED.sub(lambda number: number[0].replace(" ", ","), THOUSANDS.sub(",", text))
    if text.isascii():
        return text
    text = SCRIPT.sub(lambda run: "^_"[not run[1]] + (run[0] if len(run[0]) == 1 else f"{{{run[0]}}}"), text)
    return normalize("NFKC", ROOT.sub(r"\\sqrt{\1}", text).translate(CHARACTERS))


def last_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}`, or None if there is none whose braces balance."""
    start = max((box.end() for box in BOX.finditer(text)), default=len(text))
    depth = 1
    for brace in re.finditer("[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start : start + brace.start()]
    return None


def last_number(text: str) -> str | None:
    """The last number of a text if it is a literal one: 10 in "4 + 6 = 10.", None in "10^2"."""
    end = max(map(text.rfind, DIGITS))
    if end < 0:
        return None
    text = as_latex(text[max(0, end - MAX_NUMBER_LENGTH) : end + 20])
    text = re.sub(r"\*\*|\\?[$€£¥]", "", BOX.sub(" ", text))
    text = re.sub(r" ?([/^]) ?", r"\1", re.sub(r"= ?- ?(?=[0-9.])", "= -", text))
    run = [run for run in RUN.finditer(text) if re.search("[0-9]", run[0])][-1]
    number = run[0].removesuffix("}") if run[0].count("{") < run[0].count("}") else run[0]  # the box's own
    return number if parse_number(number) and not BEFORE.search(text[: run.start()]) else None


SPACING = re.compile(r"(?:(?<!\\)\\(?:[,;:! ]|(?:q?quad|displaystyle|left|right|[bB]igg?[lr]?)(?![A-Za-z]))|[~\s])+")
PHANTOM = re.compile(r"\\h?phantom ?(?:\{[^{}]*\}|[^{}\\])")
DOLLARS = re.compile(r"\$(?:[^$\\]|\\.)*\$")
FONT_NAME = r"\\(?:text(?:bf|it|rm|sf|normal)?|math(?:bf|it|rm|sf|normal)|[mh]box|operatorname|boldsymbol|bm)[ ]?"
FONT = re.compile(FONT_NAME + r"\{([^{}]*)\}")
WRAPPER = re.compile(rf"(?:{FONT_NAME})?\{{|\(")
TOKEN = re.compile(r"\\[A-Za-z]+|\\?.", re.DOTALL)
DEPTH = dict.fromkeys(["(", "[", "{", r"\{", r"\langle"], 1) | dict.fromkeys([")", "]", "}", r"\}", r"\rangle"], -1)


def clean(text: str) -> str:
    """An answer without mere formatting: sizes, spaces, styles of fractions, dollars, a closing period."""
    text = SPACING.sub(" ", as_latex(text))
    text = re.sub(r"\\(?:[dtcs]|nice)frac(?![A-Za-z])", r"\\frac", PHANTOM.sub("", text))
    text = text.replace(r"\frac\pi", r"\frac{\pi}").strip()
    for _ in range(9):  # limited, so that 500 nested braces take no longer
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1].strip()
        elif DOLLARS.fullmatch(text) or (text[:1] == "{" and is_enclosed(text)):
            text = text[1:-1].strip()
        elif text[:2] + text[-2:] in (r"\(\)", r"\[\]"):
            text = text[2:-2].strip()
    return text


def unwrap(text: str) -> str:
    """A text without a font or parentheses around all of it: `\\mathbf{9}` and `(9)` are 9; `(1,234)` is a pair."""
    opening = WRAPPER.match(text)
    if opening and is_enclosed(text[opening.end() - 1 :]) and not (opening[0] == "(" and "," in text):
        return clean(text[opening.end() : -1])
    return text


def is_enclosed(text: str) -> bool:
    """Whether the bracket at the start of a text closes at its end."""
    depths = list(accumulate(DEPTH.get(token, 0) for token in TOKEN.findall(text)))
    return 0 in depths and depths.index(0) == len(depths) - 1 > 0


GREEK = r"\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau|(?:var)?phi|psi|omega)(?![A-Za-z])"
VARIABLE = re.compile(rf"[A-Za-z]|{GREEK}")
NAME = re.compile(
    rf"""( (?: (?:m[ ]?)?\\angle[ ]?[A-Z]{{1,3}} | [A-Z]{{1,4}} | [a-z] | {GREEK} )
           (?: _[A-Za-z0-9] | _\{{[A-Za-z0-9]+\}} )? '?
         | [fghpqEFGHPTV]\([^()=]*\)             # f(2) = 12, P(A) = 12
         | \((?:[A-Za-z],[ ]?)+[A-Za-z]\)        # (x, y) = (1, 2)
         | [A-Za-z]{{4,}}+(?:[ ][A-Za-z]++)*+    # total cost = 12
         | {FONT.pattern}
         ) [ ]? (?:=|\\approx(?![A-Za-z])|\\in(?![A-Za-z])) [ ]?""",
    re.VERBOSE,
)


def split_name(text: str) -> tuple[str, str]:
    """A value and the name before it: `x = 12` is ("x", "12"), `12` is ("", "12")."""
    match = NAME.match(text)
    if match is None or re.search(rf"(?<![A-Za-z\\]){re.escape(match[1])}(?![A-Za-z])", text[match.end() :]):
        return "", text  # x = x^2 is an equation
    return match[1].replace(" ", ""), text[match.end() :]


INTEGER = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)"
DECIMAL = rf"(?:{INTEGER}(?:\.[0-9]*)?|\.[0-9]+)"
FRACTION = re.compile(rf"\\frac(?: ?\{{ ?(-? ?{INTEGER}) ?\}}| ?([0-9]))(?: ?\{{ ?(-?)({INTEGER}) ?\}}| ?([0-9]))")
REPEATING = re.compile(r"(?<![0-9.,])(?<![0-9] )([0-9]*)\.([0-9]*)\\overline(\{)?([0-9](?(3)[0-9]*))(?(3)\}|(?![0-9]))")
LITERAL = re.compile(
    rf"""([+-]?)[ ]? (?:(?:\\?\$|[€£¥₹]|\\pounds|\\euro)[ ]?)? ([+-]?)[ ]?
         (?: (?:([0-9]+)[ ])? ({INTEGER}) [ ]?/[ ]? ({INTEGER})
           | ({DECIMAL}) [ ]?(?:\\times|\\cdot|\*)[ ]? 10[ ]?\^[ ]?
             (?:\{{[ ]?(-?[0-9]{{1,3}})[ ]?\}} | ([0-9])(?![0-9]))
           | ({DECIMAL}) )""",
    re.VERBOSE,
)
DEGREES = re.compile(r"\^ ?(?:\\circ|\{ ?\\circ ?\})(?![A-Za-z])|\\degree(?![A-Za-z])")
POWER = re.compile(r"(?<=[A-Za-z}]) ?\^ ?(?:[23]|\{ ?-?[123] ?\})")
BEHIND = re.compile(r"(?:[ %°€£¥₹$]|[A-Za-z]++(?:['-][A-Za-z]++)*+\.?|/(?= ?[A-Za-z])|\([A-Za-z .'/%°-]*\))*+")
SHORT_WORD = re.compile("[mcdk]m|in|ft|yd|mi|[mk]g|lbs?|oz|[mcd]l|hrs?|[mk]ph|kwh?|hz|rpm|sq|cu|pts?|qt|[kmg]b|pcs|no")
RATES = {"m/s", "km/s", "ft/s", "cm/s", "km/h", "mi/h", "g/l", "kg/l"}


class Number(NamedTuple):
    value: Fraction
    is_fraction: bool = False  # written with a numerator and a denominator
    is_percent: bool = False
    name: str = ""


@lru_cache(maxsize=10_000)
def parse_number(text: str) -> Number | None:
    """One literal number, or None: `1,234`, `-0.5`, `\\frac{1}{2}`, `3\\frac12`, `\\$12.`, `x = 7`, `7 apples`."""
    if text.isascii() and text.removeprefix("-").isdigit() and len(text) <= MAX_NUMBER_LENGTH:  # nearly all answers
        return Number(Fraction(int(text)))
    name, text = split_name(unwrap(clean(text)))
    text = FRACTION.sub(lambda m: f" {m[3] or ''}{m[1] or m[2]}/{m[4] or m[5]} ", unwrap(text))
    text = REPEATING.sub(  # 0.1\overline{6} is (16 - 1) / 90
        lambda m: f"{int(m[1] + m[2] + m[4]) - int(m[1] + m[2] or 0)}/{'9' * len(m[4])}{'0' * len(m[2])}", text
    )
    text = " ".join(DEGREES.sub("°", text).split()).removeprefix(r"\approx").lstrip()
    match = LITERAL.match(text)
    if match is None or match.end() > MAX_NUMBER_LENGTH:
        return None
    behind = text[match.end() :]
    scale = multiplier(behind)
    sign, inner_sign, whole, top, bottom, mantissa, exponent, digit, decimal = (
        (group or "").replace(",", "") for group in match.groups()
    )
    if scale is None or (sign and inner_sign):
        return None
    if top:
        if int(bottom) == 0 or (whole and not 0 < int(top) < int(bottom)):
            return None
        value = int(whole or 0) + Fraction(int(top), int(bottom))
    elif mantissa:
        if not 1 <= Fraction(mantissa) < 10:  # a product, not scientific notation
            return None
        value = Fraction(mantissa) * Fraction(10) ** int(exponent or digit)
    else:
        value = Fraction(decimal)
    value *= -scale if "-" in (sign, inner_sign) else scale
    return Number(value, bool(top), "%" in behind or "percent" in behind.lower(), name)


def multiplier(behind: str) -> int | None:
    """The factor that the text after a number stands for: 1 for a unit or a name, None if it may be more.

    In `\\text{}` any word is a unit; elsewhere letters are variables (`12 x`, `12 ab`) unless they look like a word.
    """
    behind, powers = POWER.subn("", behind.replace(r"\%", "%").replace(r"\$", "$"))
    inside = re.findall("[A-Za-z]+", " ".join(FONT.findall(behind)))
    outside = re.findall("[a-z]+", re.sub(r"° ?[CF]\b", "", FONT.sub(" ", behind)).lower())
    behind = FONT.sub(r" \1 ", behind)
    words = re.findall("[a-z]+", behind.lower())
    if not BEHIND.fullmatch(behind) or not (MULTIPLIES | HEDGES).isdisjoint(words) or (powers and not words):
        return None
    if any(len(word) == 1 and word not in "agmshlLVWJNCF" for word in inside):
        return None
    if outside and not is_wording(outside) and behind.strip().lower() not in RATES:
        return None
    scales = [SCALES.get(word.removesuffix("s"), 1) for word in words] or [1]
    if max(scales) == 1:
        return 1
    return scales[0] if scales[0] > 1 and max(scales[1:], default=1) == 1 and not powers else None


def is_wording(words: list[str]) -> bool:
    """Whether lower-case words outside `\\text{}` are prose, not a product of variables."""
    return all(re.fullmatch("[a-z.'-]{2,}|a", word) for word in words) and any(
        SHORT_WORD.fullmatch(word) or re.fullmatch(r"(?![a-d]+$)(?=[a-z]*[aeiou])[a-z]{3,}", word) for word in words
    )
