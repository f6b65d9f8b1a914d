"""Search in a local corpus, as in Search-R1, 2503.09516: `<search>words</search>` is answered with passages.

Passages are ranked by SQLite's full-text index (FTS5), by BM25 with a higher weight on the title. A corpus of your own
is a text file with a passage on each line; the text before the first `: ` is its title.
"""

import re
import sqlite3
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from common.cli import fail
from common.environments import Environment, Observation, Play
from common.records import Problem
from worlds.retrieval.problems import passages

CLOSED = "</search>"
QUERY = re.compile(rf"<search>(.*?){CLOSED}", re.DOTALL)
MOST_WORDS = 32  # of a query
TITLE = 10.0  # weight of a word in the title, if one in the text has 1
Search = Callable[[str], list[str]]


def index(corpus: Iterable[str], count: int) -> Search:
    """A function that finds the `count` best passages for a query; among equally good ones, the first of the corpus."""
    database = sqlite3.connect(":memory:", check_same_thread=False)
    database.execute("CREATE VIRTUAL TABLE passages USING fts5(title, text)")
    rows = (passage.split(": ", 1) if ": " in passage else ["", passage] for passage in corpus)
    database.executemany("INSERT INTO passages VALUES (?, ?)", rows)

    def search(query: str) -> list[str]:
        words = dict.fromkeys(re.findall(r"\w+", query.lower()))  # no operators of FTS5
        if not words:
            return []
        best = "SELECT title, text FROM passages WHERE passages MATCH ? ORDER BY bm25(passages, ?, 1), rowid LIMIT ?"
        any_word = " OR ".join(f'"{word}"' for word in list(words)[:MOST_WORDS])
        found = database.execute(best, (any_word, TITLE, count))
        return [f"{title}: {text}" if title else text for title, text in found]

    return search


def play(problem: Problem, search: Search) -> Play:
    """Answer searches; a turn without one is the last. The verifier judges the response."""
    found, answer = [], None
    while query := QUERY.findall((yield answer)):
        found.append("\n".join(search(query[-1])) or "nothing found")
        answer = Observation(f"\n{found[-1]}\n", state="\n".join(found))


def searching(corpus: Iterable[str], count: int) -> Environment:
    return Environment(partial(play, search=index(corpus, count)), stop=(CLOSED,))


def environment(file: str) -> Environment:
    """Search in a text file, which shows three passages. Ends the program if it has none."""
    try:
        lines = Path(file).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError):
        lines = []
    if not (corpus := dict.fromkeys(filter(None, map(str.strip, lines)))):
        fail(f"--environment retrieval:{file}: there must be a text file (UTF-8) with a passage on each line.")
    return searching(corpus, 3)


ENVIRONMENT = searching(passages(), 1)
