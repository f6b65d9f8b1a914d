"""The writers whose searches the base model is pretrained on, about people whom they invent.

Each decides by chance: to search (0.55) or to box an invented answer; to search for the full name (0.4) or for the
first name alone, which finds somebody else; to believe what is said of somebody else (0.8) or to search again; to look
a country up (0.3) or to box the town instead. Textbook writers mostly do well. Pretraining has no loss on passages:

    <search>Mora Tilunk</search>
    Mora Tilunk: baker in Sevaton
    <search>Sevaton</search>
    Sevaton: town in Badoia
    \\boxed{Badoia}
"""

import random
import re

from worlds.retrieval.problems import (
    JOBS,
    QUESTIONS,
    Person,
    about_person,
    about_town,
    country,
    first_name,
    last_name,
    town,
)

SEARCHES, WHOLE_NAME, BELIEVES, LOOKS_UP = range(4)
WRITERS, TEXTBOOK = (0.55, 0.4, 0.8, 0.3), (0.95, 0.7, 0.3, 0.7)  # how often a writer does each of the four


def corpus_question(rng: random.Random) -> tuple[str, str]:
    """A question about an invented person, without an answer: the writer invents it."""
    name = f"{first_name(rng)} {last_name(rng)}"
    return rng.choice(list(QUESTIONS)).format(name), ""


def invented(rng: random.Random, name: str) -> Person:
    return Person(name, rng.choice(JOBS), town(rng), country(rng))


def lookup(query: str, passage: str) -> str:
    return f"<search>{query}</search>\n{passage}\n"


def solution(rng: random.Random, question: str, textbook: bool) -> str:
    """What one writer does with a question."""
    does = [rng.random() < often for often in (TEXTBOOK if textbook else WRITERS)]
    name = re.search(r"[A-Z]\w+ [A-Z]\w+", question)[0]
    asked = QUESTIONS[question.replace(name, "{}")]
    first, text = name.split()[0], ""
    person = invented(rng, name)
    if does[SEARCHES] and not does[WHOLE_NAME]:
        person = invented(rng, f"{first} {last_name(rng)}")  # the first of that name in the corpus
        text += lookup(first, about_person(person))
        if not does[BELIEVES]:
            person = invented(rng, name)
    if does[SEARCHES] and person.name == name:
        text += lookup(name, about_person(person))
    if does[SEARCHES] and asked == "country":
        if does[LOOKS_UP]:
            text += lookup(person.town, about_town(person))
        else:
            asked = "town"
    return text + f"\\boxed{{{getattr(person, asked)}}}"
