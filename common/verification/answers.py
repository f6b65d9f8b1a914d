"""What counts as the same answer: finding it in a response, reading it, and comparing it by rules.

Rules decide wherever the right answer is a number, a choice, words, or a collection of these; what is left are
expressions, which `compare` hands on to math-verify (see `verify.py`) unless they leave something to calculate.
tests/verifier_cases.jsonl holds judged examples of every rule.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

LONGEST_NUMBER = 100  # characters

Pairs = list[tuple[str, str]]  # (gold, answer) for math-verify

# ---- Finding the answer in a response

BOX = re.compile(r"\\boxed\s*\{")
# Characters that belong together, so that 10^2, 1/2, 12:30 and \sqrt{2} do not end in 2, 2, 30 and 2.
RUN = re.compile(
    r"(?:(?<![\w.,)}%!^])[-+])?(?:[\w/^{}!]|\\(?=[A-Za-z])|(?<=[0-9])[.,: ](?=[0-9])|\.(?=[0-9])|(?<=[{^])-)+"
    r"(?:%|\s(?:dozen|hundred|thousand|million|billion|trillion)\b)?"
)
CHARACTERS = str.maketrans(
    dict.fromkeys("−‐‑‒–﹣－", "-")
    | dict.fromkeys("\u00a0\u2002\u2003\u2009\u200a\u202f", " ")
    | {"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "±": r"\pm ", "≈": r"\approx ", "°": r"^\circ "}
    | {"²": "^2", "³": "^3", "π": r"\pi ", "∞": r"\infty ", "∪": r"\cup ", "∈": r"\in "}
    | {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne "}
)


def last_boxed(text: str) -> str | None:
    """What stands in the last `\\boxed{...}`, or None without one whose braces balance.

    >>> last_boxed("so \\\\boxed{3}, no: \\\\boxed{\\\\frac{1}{2}}")
    '\\\\frac{1}{2}'
    """
    start = max((box.end() for box in BOX.finditer(text)), default=None)
    if start is None:
        return None
    depth = 1
    for brace in re.finditer("[{}]", text[start:]):
        depth += 1 if brace[0] == "{" else -1
        if depth == 0:
            return text[start : start + brace.start()]
    return None


def last_number(text: str) -> str | None:
    """The number a text ends in, or None: "4 + 6 = 10." ends in 10, "10^2" in no literal number."""
    end = max(map(text.rfind, "0123456789"))
    if end < 0:
        return None
    text = text[max(0, end - LONGEST_NUMBER) : end + 20].translate(CHARACTERS)
    text = re.sub(r"\*\*|\\?[$€£¥]", "", BOX.sub(" ", text))
    text = re.sub(r" ?([/^]) ?", r"\1", re.sub(r"= ?- ?(?=[0-9.])", "= -", text))
    number = [run for run in RUN.findall(text) if re.search("[0-9]", run)][-1]
    if number.count("{") < number.count("}"):  # the box's own
        number = number.removesuffix("}")
    return number if parse_number(number) else None


# ---- One spelling for what looks the same

THOUSANDS = re.compile(r",\s?\\!\s?|\{,\}|(?<=[0-9])\\,(?=[0-9]{3}(?![0-9]))")
SPACING = re.compile(r"(?:(?<!\\)\\(?:[,;:! ]|(?:q?quad|displaystyle|left|right|[bB]igg?[lr]?)(?![A-Za-z]))|[~\s])+")
PHANTOM = re.compile(r"\\h?phantom ?(?:\{[^{}]*\}|[^{}\\])")
DOLLARS = re.compile(r"\$(?:[^$\\]|\\.)*\$")
FONT_NAME = r"\\(?:text(?:bf|it|rm|sf|normal)?|math(?:bf|it|rm|sf|normal)|[mh]box|operatorname|boldsymbol|bm)[ ]?"
FONT = re.compile(FONT_NAME + r"\{([^{}]*)\}")
WRAPPER = re.compile(rf"(?:{FONT_NAME})?\{{|\(")
TOKEN = re.compile(r"\\[A-Za-z]+|\\?.", re.DOTALL)
DEPTH = dict.fromkeys(["(", "[", "{", r"\{", r"\langle"], 1) | dict.fromkeys([")", "]", "}", r"\}", r"\rangle"], -1)


def clean(text: str) -> str:
    """An answer without what only changes its looks: sizes, spaces, styles of fractions, dollars, a closing period."""
    text = SPACING.sub(" ", THOUSANDS.sub(",", text.translate(CHARACTERS)))
    text = re.sub(r"\\(?:[dtcs]|nice)frac(?![A-Za-z])", r"\\frac", PHANTOM.sub("", text))
    text = text.replace(r"\frac\pi", r"\frac{\pi}").strip()
    for _ in range(9):  # layers, so that 500 nested braces take no longer
        if text.endswith(".") and not text.endswith(".."):
            text = text[:-1]
        elif DOLLARS.fullmatch(text):
            text = text[1:-1]
        elif text[:2] + text[-2:] in (r"\(\)", r"\[\]"):
            text = text[2:-2]
        elif text[:1] == "{" and is_enclosed(text):
            text = text[1:-1]
        else:
            break
        text = text.strip()
    return text


def unwrap(text: str) -> str:
    """A text without a font or parentheses around all of it: `\\mathbf{9}` and `(9)` are 9, but `(1,234)` is a pair."""
    opening = WRAPPER.match(text)
    if opening and is_enclosed(text[opening.end() - 1 :]) and not (opening[0] == "(" and "," in text):
        return clean(text[opening.end() : -1])
    return text


def is_enclosed(text: str) -> bool:
    """Whether the bracket at the start of a text closes at its end."""
    depth, tokens = 0, TOKEN.findall(text)
    for i, token in enumerate(tokens, 1):
        depth += DEPTH.get(token, 0)
        if depth == 0:
            return i == len(tokens) > 1
    return False


def split(text: str, separator: str) -> list[str]:
    """The parts of a text between those separators that stand in no brackets."""
    parts, depth = [""], 0
    for token in TOKEN.findall(text):
        depth += DEPTH.get(token, 0)
        if depth == 0 and token == separator:
            parts.append("")
        else:
            parts[-1] += token
    return [part.strip() for part in parts]


def split_items(text: str) -> list[str]:
    parts = split(text, ";")
    return parts if len(parts) > 1 else split(text, ",")


GREEK = r"\\(?:alpha|beta|gamma|delta|epsilon|theta|lambda|mu|rho|sigma|tau|(?:var)?phi|psi|omega)(?![A-Za-z])"
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
    """The name that a value is given and the value: `x = 12` is ("x", "12"), `12` is ("", "12")."""
    match = NAME.match(text)
    if match is None or re.search(rf"(?<![A-Za-z\\]){re.escape(match[1])}(?![A-Za-z])", text[match.end() :]):
        return "", text  # x = x^2 names nothing
    return match[1].replace(" ", ""), text[match.end() :]


# ---- Literal numbers

INTEGER = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)"
DECIMAL = rf"(?:{INTEGER}(?:\.[0-9]*)?|\.[0-9]+)"
FRACTION = re.compile(rf"\\frac(?: ?\{{ ?(-? ?{INTEGER}) ?\}}| ?([0-9]))(?: ?\{{ ?({INTEGER}) ?\}}| ?([0-9]))")
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
SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
# Words that may make another value of the number before them: "12 or thirteen", "12 and a half", "12 squared".
CHANGES_VALUE = re.compile(
    r"\b(?:or|and|nor|not|plus|minus|mod|modulo|base|squared|cubed|power|root|sqrt|factorial|remainder|pi|am|pm"
    r"|(?:sin|cos|tan|log)x?|cot|csc|ln|exp|mil|mln|bn|lakhs?|crores?|gross|half|halves|thirds?"
    r"|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand|million)ths?"
    r"|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve"
    r"|(?:thir|four|fif|six|seven|eigh|nine)teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)\b"
)


class Number(NamedTuple):
    value: Fraction
    is_fraction: bool = False  # written with a numerator and a denominator
    is_percent: bool = False
    name: str = ""


@lru_cache(maxsize=10_000)
def parse_number(text: str) -> Number | None:
    """One literal number, or None: `1,234`, `-0.5`, `\\frac{1}{2}`, `3\\frac12`, `\\$12.`, `x = 7`, `7 apples`."""
    if text.isascii() and text.removeprefix("-").isdigit() and len(text) <= LONGEST_NUMBER:  # nearly all there are
        return Number(Fraction(int(text)))
    name, text = split_name(unwrap(clean(text)))
    text = FRACTION.sub(lambda m: f" {(m[1] or m[2]).replace(' ', '')}/{m[3] or m[4]} ", unwrap(text))
    text = " ".join(DEGREES.sub("°", text).split()).removeprefix(r"\approx").lstrip()
    match = LITERAL.match(text)
    if match is None or match.end() > LONGEST_NUMBER:
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
    """By what the words behind a number multiply it: 1 if they are a unit or a name, None if they may be more.

    In `\\text{}` any word is a unit; outside, letters are variables (`12 x`, `12 ab`) unless they look like a word.
    """
    if not behind:
        return 1
    behind, powers = POWER.subn("", behind.replace(r"\%", "%").replace(r"\$", "$"))
    inside = re.findall("[A-Za-z]+", " ".join(FONT.findall(behind)))
    outside = re.findall("[a-z]+", re.sub(r"° ?[CF]\b", "", FONT.sub(" ", behind)).lower())
    behind = FONT.sub(r" \1 ", behind)
    words = re.findall("[a-z]+", behind.lower())
    if not BEHIND.fullmatch(behind) or CHANGES_VALUE.search(behind.lower()) or (powers and not words):
        return None
    if any(len(word) == 1 and word not in "agmshlLVWJNCF" for word in inside):
        return None
    if outside and not is_wording(outside) and behind.strip().lower() not in RATES:
        return None
    scales = [SCALES[word.removesuffix("s")] for word in words if word.removesuffix("s") in SCALES]
    if not scales:
        return 1
    return scales[0] if len(scales) == 1 and words[0].removesuffix("s") in SCALES and not powers else None


def is_wording(words: list[str]) -> bool:
    """Whether lower-case words that stand outside `\\text{}` are prose, not a product of variables."""
    return all(re.fullmatch("[a-z.'-]{2,}|a", word) for word in words) and any(
        SHORT_WORD.fullmatch(word) or re.fullmatch(r"(?![a-d]+$)(?=[a-z]*[aeiou])[a-z]{3,}", word) for word in words
    )


def agree(gold: Number, answer: Number, tolerance: Fraction) -> bool:
    """Whether an answer is the right number, within `tolerance` times it unless both are whole."""
    value = answer.value
    if answer.is_percent and not gold.is_percent and abs(gold.value) < 1:
        value /= 100  # 50% is right for 0.5, and 0.5% is not; elsewhere the sign is a unit
    if gold.name and answer.name and gold.name != answer.name:
        return False
    if gold.value.denominator == 1 and (answer.is_fraction or value.denominator == 1):
        # A fraction counts only where the answer is no whole number: 84/2 is a sum, not a result.
        return value == gold.value and not answer.is_fraction
    return abs(value - gold.value) <= tolerance * abs(gold.value)


# ---- Other answers that are compared here

CHOICE = re.compile(r"(?:\(([A-Z])\)|([A-Z])[.:)])(?= [\w(\\$€£]|$)|([A-Z])$")
OTHER_CHOICE = re.compile(r"\b[A-Z]\b|\([a-z]\)|^ ?(?:or|and)\b|^ ?,")
BASED = re.compile(r"(-?) ?\(?([0-9A-Z]+)\)?_(?:\{ ?([0-9]+) ?\}|([0-9]+))")
TIME_OR_RATIO = re.compile(r"[0-9]+(?: ?: ?[0-9]+)+(?: [A-Za-z. ]*)?")
AND_OR = re.compile(rf",? ?(?:{FONT_NAME}\{{[ ,]*(?:and|or) ?\}}|\b(?:and|or)\b) ?")
MATRIX = re.compile(
    r"[(\[]? ?\\begin\{(?:([pbBvV])?matrix|array)\}(?: ?\{[lcr| ]*\})?"
    r"(.*)\\end\{(?:[pbBvV]?matrix|array)\} ?[)\]]?",
    re.DOTALL,
)
SET_NOTATION = re.compile(r"\\(?:setminus|backslash|mathbb)(?![A-Za-z])")


def choice(text: str) -> str | None:
    """The letter of a single choice: `A`, `(A)`, `\\text{A}`, `A. 12`; None for hedges such as "A or B"."""
    text = clean(FONT.sub(r"\1", text)).removesuffix(",")
    match = CHOICE.match(text)
    if match is None or OTHER_CHOICE.search(text[match.end() :]):
        return None
    return match[1] or match[2] or match[3]


def number_in_base(text: str) -> tuple[str, ...] | None:
    """The sign, digits and base of `2516_8`."""
    match = BASED.fullmatch(clean(FONT.sub(r"\1", text)))
    return match and (match[1], match[2], match[3] or match[4])


def spelling(text: str) -> str:
    """Words as they are compared: in any case, without spaces, periods of abbreviations and leading zeros."""
    text = re.sub(r",? ?\band\b ?", ",", FONT.sub(r"\1", text).lower())
    return re.sub(r" |(?<=[a-z])\.|(?<![0-9.])0+(?=[0-9])", "", text)


def words(text: str) -> str | None:
    """The spelling of words, a list of choices, a ratio or a time; None for mathematics."""
    plain = FONT.sub(r"\1", text)
    parts = [part.strip() for part in plain.split(",")]
    prose = all(re.fullmatch("[A-Z]|[A-Z]{3,}", part) or is_wording(part.lower().split()) for part in parts)
    return spelling(text) if prose or TIME_OR_RATIO.fullmatch(plain) or FONT.fullmatch(text) else None


@lru_cache(maxsize=10_000)
def collection(text: str) -> tuple[str, tuple[str, ...]] | None:
    """The kind and the items of a list, set, tuple, interval, union or matrix; None for anything else."""
    listed = [item for part in split_items(AND_OR.sub(",", text)) for item in plus_minus(part)]
    if len(listed) > 1:
        return ("set", tuple(listed)) if all(listed) else None
    _, text = split_name(text)
    if len(pieces := split(text, r"\cup")) > 1:
        return ("union", tuple(pieces)) if all(pieces) else None
    if matrix := MATRIX.fullmatch(text):
        rows = [row.split("&") for row in re.split(r"\\\\", matrix[2]) if row.strip()]
        kind = "determinant" if matrix[1] in ("v", "V") else "matrix"
        return f"{kind} {[len(row) for row in rows]}", tuple(cell.strip() for row in rows for cell in row)
    tokens = TOKEN.findall(text)
    if tokens and tokens[0] in ("(", "[", r"\{", r"\langle") and is_enclosed(text):
        items = split_items("".join(tokens[1:-1]))
        if tokens[0] == r"\{":
            items = [item for part in items for item in plus_minus(part)]
        if all(items) and (len(items) > 1 or tokens[0] in ("[", r"\{")):
            return "set" if tokens[0] == r"\{" else tokens[0] + tokens[-1], tuple(items)
    return None


def plus_minus(text: str) -> list[str]:
    """`1 \\pm \\sqrt2` as the two values it stands for."""
    if text.count(r"\pm") != 1:
        return [text]
    return [text.replace(r"\pm", sign).replace(r"\mp", other).strip() for sign, other in ("+-", "-+")]


# ---- Comparison


def compare(gold: str, answer: str, tolerance: Fraction = Fraction(0)) -> Pairs | None:
    """None if the answer is wrong, else what math-verify has to confirm: nothing if it is right."""
    if number := parse_number(gold):
        other = parse_number(answer)
        return [] if other and agree(number, other, tolerance) else None
    gold, answer = clean(gold), clean(answer)
    if without_spaces(gold) == without_spaces(answer):
        return []
    for read in (choice, number_in_base):
        if value := read(gold):
            return [] if read(answer) == value else None
    if value := words(gold):
        return [] if spelling(answer) == value else None
    if font := FONT.fullmatch(answer):
        answer = clean(font[1])
    if collection(gold):
        return compare_collections(gold, answer, tolerance)
    return compare_expressions(gold, answer)


def without_spaces(text: str) -> str:
    return re.sub(r"\\sqrt ?([0-9])", r"\\sqrt{\1}", text).replace(" ", "")


def compare_collections(gold: str, answer: str, tolerance: Fraction) -> Pairs | None:
    """Item by item, sets and unions in any order."""
    (kind, golds), (other_kind, answers) = collection(gold), collection(answer) or ("", ())
    if not answers and kind[0] in "([u" and SET_NOTATION.search(answer):  # \mathbb{R}, or a difference of sets
        return None if ARITHMETIC.search(answer) else [(gold, answer)]
    names, other_names = ({split_name(item)[0] for item in items} - {""} for items in (golds, answers))
    if kind != other_kind or len(golds) != len(answers):
        return None
    if len(names | other_names) < 2:  # x = 1 or x = 2
        golds, answers = (tuple(split_name(item)[1] for item in items) for items in (golds, answers))
    elif names != other_names:  # for AB = 9, CD = 4 the names are part of the answer
        return None
    if kind in ("set", "union"):
        items, golds, answers = golds, [], list(answers)
        for item in items:
            match = next((other for other in answers if compare(item, other, tolerance) == []), None)
            if match is None:
                golds.append(item)
            else:
                answers.remove(match)
        if len(golds) > 1 and not any(map(collection, golds)):
            return compare_sets(golds, answers)
    compared = [compare(*pair, tolerance) for pair in zip(golds, answers, strict=True)]
    return None if None in compared else [pair for pairs in compared for pair in pairs]


def compare_sets(golds: list[str], answers: list[str]) -> Pairs | None:
    """What math-verify has to confirm of two or more values in any order."""
    if any(map(parse_number, golds)):
        return None
    gold, answer = (rf"\{{{', '.join(items)}\}}" for items in (golds, answers))
    return None if leaves_work(gold, answer) else [(gold, answer)]


RELATION = re.compile(r"[=<>]|\\(?:[lg]eq?(?:slant)?|[lg]t|neq?|in|subset(?:eq)?|equiv|approx|sim|cong)(?![A-Za-z])")
UNIT_AT_END = re.compile(FONT.pattern + r"(?: ?\^ ?(?:[23]|\{[23]\}))?$")
FUNCTION = re.compile(
    r"!|\\(?:(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|lg|sum|prod|i{1,3}nt|oint|lim|max|min|gcd|lcm|[bp]?mod"
    r"|[dt]?binom|choose|det|lfloor|lceil|begin)(?![A-Za-z])"
)
# Two literal numbers added, subtracted or multiplied, as in x^2 + 1 + 7, not in 3 + 2x; and any further term.
ARITHMETIC = re.compile(r"(?<![\w.^)}\]]) ?[0-9.]+ ?(?:[+*-]|\\times|\\cdot) ?[0-9.]+(?! ?[\w.^({\[\\])")
SUM = re.compile(r"(?<=[\w)}\]!.]) ?[+-]")


def compare_expressions(gold: str, answer: str) -> Pairs | None:
    """The question for math-verify, or None for an equation, several values or a calculation in place of one value."""
    (name, gold_value), (other_name, value) = split_name(gold), split_name(answer)
    if number := parse_number(value):
        value = str(number.value)
    relation, other_relation = RELATION.search(gold_value), RELATION.search(value)
    items = None if number else collection(answer)
    if items and (not relation or items[0] == "set"):
        return None  # several values for one; but an interval may stand for an inequality
    if (name or relation) and (other_name or other_relation):
        if name == other_name and not (relation or other_relation):
            gold, answer = gold_value, value
    elif other_relation or (relation and not items):
        return None  # 5 = x^2+1 for x^2+1
    else:
        gold, answer = gold_value, value
    gold, answer = without_unit(gold), without_unit(answer)
    return None if leaves_work(gold, answer) else [(gold, answer)]


def without_unit(text: str) -> str:
    unit = UNIT_AT_END.search(text)
    return text[: unit.start()].strip() if unit and multiplier(unit[0]) == 1 else text


def variables(text: str) -> set[str]:
    return {token for token in TOKEN.findall(text) if re.fullmatch(rf"[A-Za-z]|{GREEK}", token)} - {"e", "i"}


def leaves_work(gold: str, answer: str) -> bool:
    """Whether an answer has variables, or something to calculate, that the right answer does not have.

    To calculate are functions, sums and products of literal numbers, and, without variables, any further sum.
    """
    return bool(
        variables(answer) - variables(gold)
        or any(pattern.search(answer) and not pattern.search(gold) for pattern in (FUNCTION, ARITHMETIC))
        or (not variables(gold) and len(SUM.findall(answer)) > len(SUM.findall(gold)))
    )


def expressions(gold: str) -> list[str]:
    """The parts of a right answer that only math-verify can compare."""
    if parse_number(gold):
        return []
    gold = clean(gold)
    if choice(gold) or number_in_base(gold) or words(gold):
        return []
    if items := collection(gold):
        return [part for item in items[1] for part in expressions(item)]
    return [without_unit(split_name(gold)[1])]


def right_answers(gold: str | Sequence[str]) -> tuple[str, ...]:
    return (gold,) if isinstance(gold, str) else tuple(gold)


@lru_cache(maxsize=10_000)
def numbers_in(gold: str) -> list[str]:
    """The numbers in a right answer that gives one twice, `0.56 = 56\\%`; for any other the answer itself."""
    parts = re.split(r"=|\\approx(?![A-Za-z])", gold)
    return parts if len(parts) > 1 and all(map(parse_number, parts)) else [gold]
