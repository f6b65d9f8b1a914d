"""Comparison of an answer with the gold answer by rules.

Expressions are left to math-verify. tests/common/verifier_cases.jsonl holds judged examples of every rule.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from common.verification.answers import (
    DEPTH,
    FONT,
    FONT_NAME,
    TOKEN,
    VARIABLE,
    Number,
    clean,
    is_enclosed,
    is_wording,
    multiplier,
    parse_number,
    split_name,
)

Pairs = list[tuple[str, str]]  # (gold, answer) for math-verify

CHOICE = re.compile(r"(?:\(([A-Z])\)|([A-Z])[.:)])(?= [\w(\\$€£]|$)|([A-Z])$")
OTHER_CHOICE = re.compile(r"\b[A-Z]\b|\([a-z]\)|^ ?(?:or|and)\b|^ ?,")
AS_WRITTEN = re.compile(r"-? ?\(?[0-9A-Z]+\)?_(?:\{ ?[0-9]+ ?\}|[0-9]+)|[0-9]+(?: ?[-:/] ?[0-9]+)+(?: [A-Za-z. ]*)?")
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


def spelling(text: str) -> str:
    """Words in the form that is compared: lower case, without spaces, periods of abbreviations and leading zeros."""
    text = re.sub(r",? ?\band\b ?", ",", FONT.sub(r"\1", text).lower())
    return re.sub(r" |(?<=[a-z])\.|(?<![0-9.])0+(?=[0-9])", "", text)


def as_written(text: str) -> str | None:
    """The spelling of a number in a base, a ratio, a time or a date: `2516_8`, `3:5`, `t = 8:34 pm`."""
    value = split_name(clean(FONT.sub(r"\1", text)))[1]
    return spelling(re.sub("[(){}]", "", value)) if AS_WRITTEN.fullmatch(value) else None


def words(text: str) -> str | None:
    """The spelling of words or a list of choices; None for mathematics."""
    plain = FONT.sub(r"\1", text)
    parts = [part.strip() for part in plain.split(",")]
    prose = all(re.fullmatch("[A-Z]|[A-Z]{3,}", part) or is_wording(part.lower().split()) for part in parts)
    return spelling(text) if prose or FONT.fullmatch(text) else None


def split(text: str, separator: str) -> list[str]:
    """The parts of a text between separators that are outside all brackets."""
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


@lru_cache(maxsize=10_000)
def collection(text: str) -> tuple[str, tuple[str, ...], str] | None:
    """The kind, items and name of a list, set, tuple, interval, union or matrix; None for anything else."""
    listed = [item for part in split_items(AND_OR.sub(",", text)) for item in plus_minus(part)]
    if len(listed) > 1:
        return ("set", tuple(listed), "") if all(listed) else None
    name, text = split_name(text)
    if len(pieces := split(text, r"\cup")) > 1:
        return ("union", tuple(pieces), name) if all(pieces) else None
    if matrix := MATRIX.fullmatch(text):
        rows = [row.split("&") for row in re.split(r"\\\\", matrix[2]) if row.strip()]
        kind = "determinant" if matrix[1] in ("v", "V") else "matrix"
        return f"{kind} {[len(row) for row in rows]}", tuple(cell.strip() for row in rows for cell in row), name
    tokens = TOKEN.findall(text)
    if tokens and tokens[0] in ("(", "[", r"\{", r"\langle") and is_enclosed(text):
        items = split_items("".join(tokens[1:-1]))
        if tokens[0] == r"\{":
            items = [item for part in items for item in plus_minus(part)]
        if all(items) and (len(items) > 1 or tokens[0] in ("[", r"\{")):
            return "set" if tokens[0] == r"\{" else tokens[0] + tokens[-1], tuple(items), name
    return None


def plus_minus(text: str) -> list[str]:
    """`1 \\pm \\sqrt2` as the two values it stands for."""
    if text.count(r"\pm") != 1:
        return [text]
    return [text.replace(r"\pm", sign).replace(r"\mp", other).strip() for sign, other in ("+-", "-+")]


def fits(gold: str, answer: str) -> bool:
    """Whether the names of a gold answer and an answer match. A gold answer without one takes (x, y), not (y, x)."""
    if answer[:1] == "(" and gold[:1] != "(":
        return answer[1:-1].split(",") == sorted(answer[1:-1].split(","))
    return not gold or not answer or gold == answer


def agree(gold: Number, answer: Number, tolerance: Fraction) -> bool:
    """Whether an answer is the gold number, within `tolerance` times it unless both are whole."""
    value = answer.value
    if answer.is_percent and not gold.is_percent and abs(gold.value) < 1:
        value /= 100  # 50% is correct for 0.5, and 0.5% is not; elsewhere the sign is a unit
    if not fits(gold.name, answer.name):
        return False
    if gold.value.denominator == 1 and (answer.is_fraction or value.denominator == 1):
        # For a whole gold number, no fraction counts: 84/2 is a calculation, not a result.
        return value == gold.value and not answer.is_fraction
    return abs(value - gold.value) <= tolerance * abs(gold.value)


def compare(gold: str, answer: str, tolerance: Fraction = Fraction(0)) -> Pairs | None:
    """None if the answer is incorrect, else the pairs that math-verify has to confirm, [] if it is correct."""
    if number := parse_number(gold):
        other = parse_number(answer)
        return [] if other and agree(number, other, tolerance) else None
    gold, answer = clean(gold), clean(answer)
    if len({re.sub(r"\\sqrt ?([0-9])", r"\\sqrt{\1}", text).replace(" ", "") for text in (gold, answer)}) == 1:
        return []
    names_fit = fits(split_name(gold)[0], split_name(answer)[0])
    for read in (choice, as_written):
        if value := read(gold):
            return [] if read(answer) == value and names_fit else None
    if value := words(gold):
        return [] if spelling(answer) == value else None
    if font := FONT.fullmatch(answer):
        answer = clean(font[1])
    return compare_collections(gold, answer, tolerance) if collection(gold) else compare_expressions(gold, answer)


def compare_collections(gold: str, answer: str, tolerance: Fraction) -> Pairs | None:
    """Item by item, sets and unions in any order."""
    (kind, golds, name), (other_kind, answers, other) = collection(gold), collection(answer) or ("", (), "")
    if not answers and kind[0] in "([u" and SET_NOTATION.search(answer):  # \mathbb{R}, or a difference of sets
        return None if ARITHMETIC.search(answer) else [(gold, answer)]
    names, other_names = ({split_name(item)[0] for item in items} - {""} for items in (golds, answers))
    if kind != other_kind or len(golds) != len(answers) or not fits(name, other):
        return None
    if len(names | other_names) < 2:  # x = 1 or x = 2
        golds, answers = (tuple(split_name(item)[1] for item in items) for items in (golds, answers))
    elif names != other_names:  # for AB = 9, CD = 4 the names are part of the answer
        return None
    if kind in ("set", "union"):
        items, golds, answers = golds, [], list(answers)
        for item in items:
            equal = [other for other in answers if compare(item, other, tolerance) == []]
            answers.remove(equal[0]) if equal else golds.append(item)
        if len(golds) > 1 and not any(map(collection, golds)):
            gold, answer = (rf"\{{{', '.join(items)}\}}" for items in (golds, answers))
            return None if any(map(parse_number, golds)) or leaves_work(gold, answer) else [(gold, answer)]
    compared = [compare(*pair, tolerance) for pair in zip(golds, answers, strict=True)]
    return None if None in compared else [pair for pairs in compared for pair in pairs]


RELATION = re.compile(r"[=<>]|\\(?:[lg]eq?(?:slant)?|[lg]t|neq?|in|subset(?:eq)?|equiv|approx|sim|cong)(?![A-Za-z])")
UNIT_AT_END = re.compile(FONT.pattern + r"(?: ?\^ ?(?:[23]|\{[23]\}))?$")
FUNCTION = re.compile(
    r"!|\\(?:(?:arc)?(?:sin|cos|tan|cot|sec|csc)h?|log|ln|lg|sum|prod|i{1,3}nt|oint|lim|max|min|gcd|lcm|[bp]?mod"
    r"|[dt]?binom|choose|det|lfloor|lceil|begin)(?![A-Za-z])"
)
# A sum, difference or product of two literal numbers, with any further terms: in x^2 + 1 + 7, but not in 3 + 2x.
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
        return None  # several values for one; but an interval may express an inequality
    both = (name or relation) and (other_name or other_relation)
    if not both and (other_relation or (relation and not items)):
        return None  # 5 = x^2+1 for x^2+1
    if not both or (name == other_name and not (relation or other_relation)):
        gold, answer = gold_value, value
    gold, answer = without_unit(gold), without_unit(answer)
    return None if leaves_work(gold, answer) else [(gold, answer)]


def without_unit(text: str) -> str:
    unit = UNIT_AT_END.search(text)
    return text[: unit.start()].strip() if unit and multiplier(unit[0]) == 1 else text


def variables(text: str) -> set[str]:
    return {token for token in TOKEN.findall(text) if VARIABLE.fullmatch(token)} - {"e", "i"}


def leaves_work(gold: str, answer: str) -> bool:
    """Whether an answer has variables, functions, arithmetic or, without variables, sums that the gold answer lacks."""
    return bool(
        variables(answer) - variables(gold)
        or any(pattern.search(answer) and not pattern.search(gold) for pattern in (FUNCTION, ARITHMETIC))
        or (not variables(gold) and len(SUM.findall(answer)) > len(SUM.findall(gold)))
    )


def expressions(gold: str) -> list[str]:
    """The parts of a gold answer that only math-verify can compare."""
    text = clean(gold)
    if parse_number(gold) or any(read(text) for read in (choice, as_written, words)):
        return []
    if items := collection(text):
        return [part for item in items[1] for part in expressions(item)]
    return [without_unit(split_name(text)[1])]


def gold_parts(gold: str | Sequence[str]) -> list[str]:
    """The gold answers of a problem; one that gives a number twice, `0.56 = 56\\%`, counts as two."""
    parts = []
    for text in [gold] if isinstance(gold, str) else gold:
        numbers = re.split(r"=|\\approx(?![A-Za-z])", text)
        parts += numbers if all(map(parse_number, numbers)) else [text]
    return parts


def compare_with_each(gold: str | Sequence[str], answer: str, tolerance: Fraction) -> list[Pairs | None]:
    """Like `compare`, for each part of the gold answers; only `[]` if the answer is one of them verbatim."""
    if answer.strip() in ([gold] if isinstance(gold, str) else gold):
        return [[]]
    return [compare(part, answer, tolerance) for part in gold_parts(gold)]
