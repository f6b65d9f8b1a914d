"""R1's reward for the language (2501.12948, Sec. 2.3.2): the fraction of words in the language of the question.

--reward correct=1 docs/rewards/language.py:same_script=0.2

A word's language is told by its script alone, so this sees Chinese in an English response and no French. Numbers,
formulas and LaTeX commands are no words.
"""

import re
import unicodedata
from collections import Counter

COMMAND = re.compile(r"\\[A-Za-z]+")
EAST = r"[\u3040-\u30ff\u3400-\u9fff]"  # Chinese and Japanese characters, each of which is a word
WORD = re.compile(rf"{EAST}|(?:(?!{EAST})[^\W\d_]){{2,}}")


def scripts(text: str) -> Counter[str]:
    """How many words are in each script: LATIN, CJK, CYRILLIC, ..."""
    return Counter(unicodedata.name(word[0], "").partition(" ")[0] for word in WORD.findall(COMMAND.sub(" ", text)))


def same_script(problem, text: str, tokens: list[int], truncated: bool) -> float:
    """1 if all words are in the question's main script, or if there are none."""
    question = problem.question  # of a chat, its last message
    asked, written = scripts(question if isinstance(question, str) else question[-1]["content"]), scripts(text)
    if not asked or not written:
        return 1.0
    return written[asked.most_common(1)[0][0]] / written.total()
