"""Search in a local corpus: the index, its environment, and the world in which the embedded model searches."""

import random
import re
from contextlib import closing

from common.environments import ask, load_environment
from common.records import Episode, Problem, Rollouts
from common.verification import Verifier
from recipes import agent
from worlds import generated_problems
from worlds.pretrain import make_tokenizer, to_tensors
from worlds.retrieval.environment import ENVIRONMENT, index
from worlds.retrieval.problems import QUESTIONS, about_person, about_town, passages, people
from worlds.retrieval.writers import corpus_question, solution

import pytest
from runs import refused, run

NOTES = ["Oslo: capital of Norway", "Norway: a kingdom, with Oslo", "Bergen: a town of Norway", "Nothing else."]


class TestIndex:
    def test_the_title_counts_most(self):
        search = index(NOTES, 2)
        assert search("Oslo") == NOTES[:2] and search("norway?") == [NOTES[1], NOTES[0]]
        assert search("the town of Bergen")[0] == NOTES[2] and search("else") == [NOTES[3]]

    def test_any_query_is_answered(self):
        search = index(NOTES, 3)
        for query in ("", " ", '"', "' OR 1=1 --", "title:", "NEAR(", "*", "Rome", "\0", "é" * 5000, "AND OR NOT"):
            assert search(query) == []
        assert search("Oslo AND NOT Norway") == search("Oslo Norway not and") == search("oslo " * 40 + "norway")

    def test_every_answer_stands_in_the_corpus(self):
        search = index(passages(), 1)
        assert len({person.name for person in people()}) == len(people())
        for person in people()[::40]:
            assert search(person.name) == [about_person(person)] and search(person.town) == [about_town(person)]
        for question, answer in generated_problems("retrieval", "eval")[:60]:
            name = re.search("[A-Z][a-z]+ [A-Z][a-z]+", question)[0]
            person = next(person for person in people() if person.name == name)
            assert answer == getattr(person, QUESTIONS[question.replace(name, "{}")])


class TestEnvironment:
    def test_an_episode(self):
        person = people()[0]
        first = next(other for other in people() if other.name.split()[0] == person.name.split()[0])
        turns = [f"<search>{person.name}</search>", f"so <search>{person.town}</search>", "<search>Rome</search>"]
        play = ENVIRONMENT.play(Problem("?", person.country, "", []))
        answers = [ask(play, turn) for turn in [*turns, f"<search>{first.name.split()[0]}</search>"]]
        found = [about_person(person), about_town(person), "nothing found", about_person(first)]
        assert [answer.text for answer in answers] == [f"\n{text}\n" for text in found]
        assert [answer.state for answer in answers] == ["\n".join(found[: i + 1]) for i in range(4)]
        assert ask(play, f"\\boxed{{{person.country}}}") == (None, "")  # the verifier judges it

    def test_a_corpus_of_ones_own(self, tmp_path, capsys):
        (tmp_path / "notes.txt").write_text("\n\n".join(NOTES))
        environment = load_environment(f"retrieval:{tmp_path}/notes.txt")
        play = environment.play(Problem("?", "Norway", "", []))
        assert ask(play, "<search>Norway</search>").text == f"\n{NOTES[1]}\n{NOTES[0]}\n{NOTES[2]}\n"
        assert environment.stop == ENVIRONMENT.stop == ("</search>",)
        (tmp_path / "empty.txt").write_text("\n \n")
        (tmp_path / "latin.txt").write_bytes("Zürich: a town".encode("latin-1"))
        for name in ("empty.txt", "latin.txt", "missing.txt", "."):
            error = refused(capsys, tmp_path, agent, environment=f"retrieval:{tmp_path}/{name}")
            assert "there must be a text file (UTF-8) with a passage on each line" in error

    def test_an_answer_in_a_passage_is_not_the_policys(self):
        tokenizer, problem = make_tokenizer(), Problem("?", "7", "", [])
        search, passage, box = map(tokenizer.encode, ("<search>7</search>", "\n\\boxed{7}\n", "\\boxed{7}"))
        rollouts = Rollouts([search + passage, search + passage + box], truncated=[False] * 2)
        rollouts.sampled = [[True] * len(search) + [False] * len(passage) + [True] * n for n in (0, len(box))]
        with closing(Verifier(agent.Args(), tokenizer, [problem])) as verifier:
            assert verifier([problem], rollouts).tolist() == [[1.0, 1.0]]  # without an environment all text counts
            rollouts.episodes = [Episode([0], [""]) for _ in range(2)]
            assert verifier([problem], rollouts).tolist() == [[0.0, 1.0]]


class TestWriters:
    def test_what_they_write(self):
        rng = random.Random(0)
        question = "In which country does Mora Tilunk live?"
        written = [solution(rng, question, False) for _ in range(4000)]
        searched = [text for text in written if text.startswith("<search>")]
        whole = [text for text in searched if text.startswith("<search>Mora Tilunk</search>\nMora Tilunk: ")]
        looked_up = [text for text in whole if text.count("<search>") == 2]
        assert len(searched) / 4000 == pytest.approx(0.55, abs=0.03)
        assert len(whole) / len(searched) == pytest.approx(0.4, abs=0.04)
        assert len(looked_up) / len(whole) == pytest.approx(0.3, abs=0.06)
        for text in looked_up:
            country = text.split(": town in ")[1].split("\n")[0]
            assert text.endswith(f"\\boxed{{{country}}}")
        assert corpus_question(rng)[0] != corpus_question(rng)[0]

    def test_passages_have_no_loss_in_pretraining(self):
        tokenizer = make_tokenizer()
        text = "<search>Mora</search>\nMora Tilunk: baker in Sevaton\n\\boxed{baker}"
        row = (tokenizer.encode("What is the job of Mora Tilunk?\n"), [*tokenizer.encode(text), tokenizer.eos_token_id])
        _, labels = to_tensors([row], tokenizer)
        kept = tokenizer.decode(labels[0][labels[0] >= 0].tolist(), skip_special_tokens=True)
        assert kept == "<search>Mora</search>\\boxed{baker}"


def test_names_are_compared_as_words():
    names = ["Lasoia", "Oslaia", "baker", "Sevanby", "Evansby"]
    args, tokenizer = agent.Args(), make_tokenizer()
    problems = [Problem("?", name, "", []) for name in names]
    with closing(Verifier(args, tokenizer, problems)) as verifier:
        tokens = [tokenizer.encode(f"\\boxed{{{name}}}") for _ in names for name in names]
        rollouts = Rollouts(tokens, truncated=[False] * len(tokens))
        found = verifier(problems, rollouts)
    assert found.tolist() == [[float(a == b) for b in names] for a in names]


@pytest.mark.slow
def test_it_learns_to_search_twice(tmp_path, capsys):
    """The base model rarely searches twice; after 20 steps it does, and its accuracy rises above 0.7."""
    names = dict.fromkeys(("environment", "model", "dataset"), "retrieval")
    settings = dict(steps=20, prompts_per_step=8, responses_per_prompt=8, eval_problems=64, eval_samples=4)
    _, rows = run("agent", tmp_path / "run", max_response_tokens=192, eval_every=0, **settings, **names)
    assert 0.1 < rows[0]["eval/avg"] < 0.35 and rows[1]["turns"] < 2.2
    assert rows[-1]["eval/avg"] > 0.7 and rows[-2]["turns"] > 2.2
