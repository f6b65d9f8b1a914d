"""Questions about people of invented countries, such as `In which country does Mora Tilunk live?`.

Names are invented, so the answer has to be found: in a passage about the person and, for the country, in one about
the town.
"""

import random
from functools import cache
from typing import NamedTuple

JOBS = ("baker", "farmer", "judge", "miller", "nurse", "painter", "potter", "singer", "tailor", "weaver")
QUESTIONS = {  # and what answers it
    "What is the job of {}?": "job",
    "In which town does {} live?": "town",
    "In which country does {} live?": "country",
}
PEOPLE, FIRST_NAMES, TOWNS, COUNTRIES = 8000, 100, 400, 40


class Person(NamedTuple):
    name: str
    job: str
    town: str
    country: str


def invent(rng: random.Random, endings: tuple[str, ...]) -> str:
    """A name of two syllables and an ending."""
    syllables = (rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(2))
    return "".join(syllables).capitalize() + rng.choice(endings)


def first_name(rng: random.Random) -> str:
    return invent(rng, ("", "l", "n", "s"))


def last_name(rng: random.Random) -> str:
    return invent(rng, ("rd", "lt", "nk", "sk"))


def town(rng: random.Random) -> str:
    return invent(rng, ("by", "ham", "ton"))


def country(rng: random.Random) -> str:
    return invent(rng, ("ia", "land"))


def about_person(person: Person) -> str:
    return f"{person.name}: {person.job} in {person.town}"


def about_town(person: Person) -> str:
    return f"{person.town}: town in {person.country}"


@cache
def people() -> list[Person]:
    """All people of the world, always the same. Many share a first name, none a full name."""
    rng = random.Random(2026)
    first = [first_name(rng) for _ in range(FIRST_NAMES)]
    countries = [country(rng) for _ in range(COUNTRIES)]
    places = list({town(rng): rng.choice(countries) for _ in range(TOWNS)}.items())
    found: dict[str, Person] = {}
    while len(found) < PEOPLE:
        name = f"{rng.choice(first)} {last_name(rng)}"
        found[name] = Person(name, rng.choice(JOBS), *rng.choice(places))
    return list(found.values())


def passages() -> list[str]:
    """The corpus: a passage about each person and each town, as `title: text`."""
    return list(dict.fromkeys(write(person) for person in people() for write in (about_person, about_town)))


def retrieval_problem(rng: random.Random) -> tuple[str, str]:
    """A question about one of the people, and its answer."""
    person, question = rng.choice(people()), rng.choice(list(QUESTIONS))
    return question.format(person.name), getattr(person, QUESTIONS[question])
