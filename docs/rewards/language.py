"""R1's reward for the language (2501.12948, Sec. 2.3.2): the fraction of words in the language of the question.

--reward correct=1 docs/rewards/language.py:same_script=0.2

A word's language is told by its script alone, so this sees Chinese in an English response, but not French. Numbers,
single Latin letters, LaTeX commands, and formulas between dollar signs do not count.
"""

import ast
import re
import unicodedata
from collections import Counter

FORMULA = re.compile(r"\$[^$]*\$|\\[A-Za-z]+(\{[A-Za-z]*\})?")
EAST = r"[\u3040-\u30ff\u3400-\u9fff]"  # Chinese and Japanese characters, each of which counts as a word
WORD = re.compile(rf"{EAST}|(?:(?!{EAST})[^\W\d_])+")


def script(word: str) -> str:
    """LATIN, CYRILLIC, ...; EAST for both Chinese and Japanese."""
    return "EAST" if re.match(EAST, word) else unicodedata.name(word[0], "").partition(" ")[0]


def scripts(text: str) -> Counter[str]:
    """How many words are in each script."""
    words = WORD.findall(FORMULA.sub(" ", text))
    return Counter(script(word) for word in words if len(word) > 1 or not word.isascii())


def last_message(question: str) -> str:
    """Of a question that is a chat, as text, its last message."""
    return ast.literal_eval(question)[-1]["content"] if question.startswith("[{'role'") else question


def same_script(problem, text: str, tokens: list[int], truncated: bool) -> float:
    """1 if all words are in the question's main script, or if there are none."""
    asked, written = scripts(last_message(problem.question)), scripts(text)
    if not asked or not written:
        return 1.0
    return written[asked.most_common(1)[0][0]] / written.total()
