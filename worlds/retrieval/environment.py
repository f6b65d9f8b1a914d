"""Search in a local corpus, as in Search-R1, 2503.09516: `<search>words</search>` is answered with passages.

Passages are ranked by SQLite's full-text index (FTS5), by BM25 with a higher weight on the title. A corpus of your own
is a text file with a passage on each line, as `title: text` or as text alone.
"""

import re
import sqlite3
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path

from common.cli import fail
from common.environments import Environment, Observation, Play
from common.records import Problem
from worlds.retrieval.problems import passages

CLOSED = "</search>"
QUERY = re.compile(rf"<search>(.*?){CLOSED}", re.DOTALL)
MOST_WORDS = 32  # of a query
TITLE = 10.0  # what a word in the title counts, beside one in the text
Search = Callable[[str], list[str]]


def index(corpus: Iterable[str], count: int) -> Search:
    """A function that finds the `count` best passages for a query; of equally good ones the first of the corpus."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE passages USING fts5(title, text)")
    rows = (line.split(": ", 1) if ": " in line else ["", line] for line in corpus)
    database.executemany("INSERT INTO passages VALUES (?, ?)", rows)

    def search(query: str) -> list[str]:
        words = [f'"{word}"' for word in re.findall(r"\w+", query)[:MOST_WORDS]]  # no operators of FTS5
        if not words:
            return []
        best = "SELECT title, text FROM passages WHERE passages MATCH ? ORDER BY bm25(passages, ?, 1), rowid LIMIT ?"
        found = database.execute(best, (" OR ".join(words), TITLE, count))
        return [f"{title}: {text}" if title else text for title, text in found]

    return search


def play(problem: Problem, search: Callable[[], Search]) -> Play:
    """Answer searches; a turn without one is the last. The verifier judges the response."""
    found, answer = [], None
    while query := QUERY.findall((yield answer)):
        found.append("\n".join(search()(query[-1])) or "nothing found")
        answer = Observation(f"\n{found[-1]}\n", state="\n".join(found))


def environment(file: str) -> Environment:
    """Search in a text file, of which three passages are shown. Ends the program if it has none."""
    path = Path(file)
    corpus = list(filter(None, map(str.strip, path.read_text().splitlines()))) if path.is_file() else []
    if not corpus:
        fail(f"--environment retrieval:{file}: there must be a text file with a passage on each line.")
    return Environment(partial(play, search=cache(lambda: index(corpus, 3))), stop=(CLOSED,))


ENVIRONMENT = Environment(partial(play, search=cache(lambda: index(passages(), 1))), stop=(CLOSED,))
