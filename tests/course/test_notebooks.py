"""Every lesson runs from top to bottom, holds the output of a single run, and has all its parts."""

import ast
import json
import os
import random
import re
from datetime import UTC, datetime
from pathlib import Path

from notebooks import blank, predictions
from notebooks.predictions import NoPredictionError, Predictions
from worlds.search import behavior, writers
from worlds.search.problems import search_problem

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

# gpu_t4.ipynb needs a GPU and a download: tests/tools/test_gpu_files.py checks what it can without them.
FOLDER = Path(__file__).parent.parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))
LISTED = re.findall(r"^\| (\d+) \| \[(.+?)\]\((.+?)\)", (FOLDER / "README.md").read_text(), re.M)  # in reading order
LESSONS = [FOLDER / file for _, _, file in LISTED[:-1]]  # the last one holds the exercises
QUICK = "06_kl"  # the lesson that the default layer runs
LONGEST = 20  # lines of code in a cell; longer code belongs in a helper
TERMS = """policy, prompt, response, reward, objective, estimator, unbiased, variance, score, baseline, advantage,
on-policy, off-policy, rollout policy, importance weight, ratio, surrogate, value, critic, GAE, clip, bandit,
group, rollout batch, z-score, stale, trust region, minibatches, aggregation, micro-batches, engine,
learner, mismatch, head, temperature, top-p, truncated importance sampling, pass@k, KL divergence,
dynamic sampling, shaped reward, length reward, backtracking, subgoal setting, backward chaining,
reference, nats, entropy, seeds, avg@n, interval, standard error"""


def prose(path):
    """A lesson's Markdown cells, each with whether a code cell follows."""
    cells = nbformat.read(path, as_version=4).cells
    after = [cell.cell_type == "code" for cell in cells[1:]] + [False]
    return [(cell.source, code) for cell, code in zip(cells, after, strict=True) if cell.cell_type == "markdown"]


def pattern(output):
    """A cell's output with every number replaced, because numbers differ a little between machines."""
    text = output.get("text", "") or output.get("data", {}).get("text/markdown", "")
    return re.sub(r"-?\d[\d.,]*(e[-+]?\d+)?", "#", text)


def pictures(cells):
    """The number of pictures in these cells' outputs."""
    return sum("image/png" in o.get("data", {}) for cell in cells for o in cell.outputs)


def test_all_lessons_are_listed_by_number_and_title():
    assert sorted(int(number) for number, _, _ in LISTED) == list(range(11))
    assert sorted(file for _, _, file in LISTED) == [path.name for path in NOTEBOOKS]
    for number, title, file in LISTED:
        assert file.startswith(f"{int(number):02}_")
        assert prose(FOLDER / file)[0][0].startswith(f"# {number}. {title}")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_outputs(path):
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), (
        "the stored outputs are not from one run of the whole notebook"
    )
    assert pictures(code)
    messages = [o.text for cell in code for o in cell.outputs if o.get("name") == "stderr"]
    assert not messages, "stored outputs contain warnings, which hold paths of one machine"


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] * (p.stem != QUICK)) for p in NOTEBOOKS]
)
def test_lesson(path):
    """A lesson runs and reproduces the stored tables and captions, apart from their numbers."""
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    run = nbformat.read(path, as_version=4)
    NotebookClient(run, timeout=900, resources={"metadata": {"path": str(path.parent)}}).execute()
    ran = [cell for cell in run.cells if cell.cell_type == "code"]
    assert pictures(ran) == pictures(code)
    tables = [[pattern(o) for cell in cells for o in cell.outputs if "data" in o] for cells in (code, ran)]
    assert tables[0] == tables[1], "stored captions and tables differ from what the cells give"


def test_copies_for_students_hold_no_outputs(tmp_path):
    """Copies differ from the lessons only by having no outputs, lines that find the lessons' helpers, a cell for each
    prediction, without which the cell below does not run, and folded answers."""
    blank.main(tmp_path / "copies")
    for path in NOTEBOOKS:
        copy = nbformat.read(tmp_path / "copies" / path.name, as_version=4)
        nbformat.validate(copy)
        code = [cell for cell in copy.cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in code)
        head, _, first = code[0].source.partition("\n\n" + "sys.path.insert(0, ")
        found, _, rest = first.partition(")\nfrom predictions import Predictions\n\n")
        line, _, code[0].source = rest.partition("\n\n")
        assert head == "import sys" and (tmp_path / "copies" / ast.literal_eval(found) / "lesson.py").exists()
        assert line == f"predictions = Predictions({path.stem!r})"
        number = 0
        for before, cell, below in zip(copy.cells, copy.cells[1:], copy.cells[2:], strict=False):
            if cell.source.startswith("predictions.predict("):
                number += 1
                assert "**Predict.**" in before.source
                assert cell.source == f'predictions.predict({number}, r"""\n""")', "a backslash stays one"
                guard, _, below.source = below.source.partition("\n")
                assert guard == f"predictions.answer({number})" and below.metadata["jupyter"]["source_hidden"]
        original = nbformat.read(path, as_version=4)
        assert number == sum(code and "**Predict.**" in cell for cell, code in prose(path))
        kept = [cell.source for cell in copy.cells if not cell.source.startswith("predictions.predict(")]
        head, foot = map(re.escape, blank.FOLD)
        kept = [re.sub(f"{head}(.+?){foot}", lambda fold: fold[1] + "\n\n", text, flags=re.S) for text in kept]
        assert [text.rstrip() for text in kept] == [cell.source.rstrip() for cell in original.cells]


def test_what_gives_an_answer_away_is_folded():
    """The code up to the next text is folded, and that text up to the next heading or prediction."""
    told = "None of them.\n\n$x$\n\n## Next\n\n> **Predict.** More?"
    texts = ("", "> **Predict.** Which?", "", "", told, "Free.", "")
    made = [{"cell_type": "markdown" if text else "code", "metadata": {}, "id": "", "source": [text]} for text in texts]
    cells = blank.blank({"cells": made}, "x", FOLDER)["cells"]
    hidden = ["jupyter" in cell["metadata"] for cell in cells]
    assert hidden == [False, False, False, True, True, False, False, False]
    folded = f"{blank.FOLD[0]}None of them.\n\n$x$\n\n</details>\n\n## Next\n\n> **Predict.** More?"
    assert "".join(cells[5]["source"]) == folded and cells[6]["source"] == ["Free."]
    assert blank.folded("## Next\n") == "## Next\n"


BAD = ("bad.jsonl", "none.jsonl", "deep.jsonl", "pipe.jsonl")


def test_a_prediction_comes_before_its_answer(tmp_path, monkeypatch, capsys):
    """The file has when each prediction was written and whether it was too late; other lessons do not count."""
    monkeypatch.chdir(tmp_path)
    mine, other = Predictions("06_kl"), Predictions("05_pass_at_k")
    with pytest.raises(NoPredictionError, match="between the quotes") as error:
        mine.predict(1, " \n")
    assert error.value._render_traceback_() == ["error: write your prediction and its reason between the quotes."]
    other.predict(1, "grows")
    mine.predict(2, "k1")
    with pytest.raises(NoPredictionError, match="prediction 1 first"):
        mine.answer(1)
    mine.predict(1, "k2,\nbecause it is a square ≥ 0")
    mine.answer(1)
    mine.predict(1, "k1 after all")
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    told = [(row["lesson"][:2], row["prediction"], row.get("before"), row.get("text")) for row in rows]
    assert told == [
        ("05", 1, True, "grows"), ("06", 2, True, "k1"), ("06", 1, True, "k2,\nbecause it is a square ≥ 0"),
        ("06", 1, None, None), ("06", 1, False, "k1 after all"),
    ]  # fmt: skip
    times = [datetime.fromisoformat(row["time"]) for row in rows]
    assert times == sorted(times) and abs((datetime.now(UTC) - times[0]).total_seconds()) < 60
    other.answer(1)
    other.write(2, answer="shown")
    other.predict(2, "too late")
    (tmp_path / "bad.jsonl").write_text("1\n")
    (tmp_path / "deep.jsonl").write_text("[" * 100_000)
    os.mkfifo(tmp_path / "pipe.jsonl")  # reading it would wait
    capsys.readouterr()
    predictions.main([tmp_path / name for name in ("predictions.jsonl", *BAD)])
    count, *bad = capsys.readouterr().out.splitlines()
    assert count.endswith(": 3 predictions before their answers, 1 only afterwards")
    assert len(bad) == len(BAD) and all(line.endswith(".jsonl: not a file of predictions") for line in bad)


@pytest.mark.slow
def test_a_copy_runs(tmp_path):
    """A copy stops at the first answer without a prediction, and runs once every cell has one."""
    blank.main(tmp_path / "copies")
    copy = nbformat.read(tmp_path / "copies" / f"{QUICK}.ipynb", as_version=4)
    with pytest.raises(CellExecutionError, match="write your prediction"):
        NotebookClient(copy, timeout=900, resources={"metadata": {"path": str(tmp_path / "copies")}}).execute()
    for cell in copy.cells:
        if cell.source.startswith("predictions.predict("):
            cell.source = cell.source.replace("\n", "k1\n")
    NotebookClient(copy, timeout=900, resources={"metadata": {"path": str(tmp_path / "copies")}}).execute()
    assert pictures([cell for cell in copy.cells if cell.cell_type == "code"])


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_parts_of_a_lesson(path):
    """Goals, time and prerequisites come first, predictions before their answers, and a quiz last."""
    cells = prose(path)
    first, last = cells[0][0], cells[-1][0]
    assert re.search(r"^\*\*You will be able to\*\*\n(- .+\n?(  .+\n?)*){3,5}", first, re.M)
    assert re.search(r"^\*\*Time:\*\* .* minutes .*the cells take \d+ s of processor time \(measured\)\.", first, re.M)
    assert "**You need:**" in first
    predictions = [
        code and cell.rstrip().splitlines()[-1].startswith("> ") for cell, code in cells if "**Predict.**" in cell
    ]
    assert len(predictions) >= 3 and all(predictions)
    assert "## Check yourself" in last
    answers = re.findall(
        r"^\*\*([123])\.\*\* .+?\n<details><summary>Answer</summary>\n.+?\n</details>", last, re.M | re.S
    )
    assert answers == ["1", "2", "3"]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_cells_are_short(path):
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            assert len([line for line in cell.source.splitlines() if line.strip()]) <= LONGEST, cell.source


def test_terms_are_explained_where_they_first_stand():
    """A term is bold where it is explained, which is its first use outside headings and goals."""
    text = "\n".join(cell for path in LESSONS for cell, _ in prose(path))
    text = re.sub(r"^#.*$|^\*\*You will be able to\*\*\n(- .*\n|  .*\n)*", "", text, flags=re.M)
    text = re.sub(r"\s+", " ", text)
    for term in " ".join(TERMS.split()).split(", "):
        (explained,) = re.finditer(rf"\*\*{re.escape(term)}\*\*", text, re.I)
        first = re.search(rf"(?<![\w-]){re.escape(term)}(?![\w-])", text, re.I)
        assert first.start() == explained.start() + 2, f"{term}: {text[first.start() - 60 : first.end() + 20]}"


def cut_and_broken(rng):
    """A response in the world of search, often truncated or with a damaged line, and its problem."""
    question, problem = search_problem(rng)
    text = writers.solution(rng, question, textbook=rng.random() < 0.5)
    if rng.random() < 0.3:
        text = text[: rng.randrange(len(text))]
    if rng.random() < 0.3:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice("=+ 7\n") + text[at:]
    return problem, text


def test_the_key_of_the_search_exercise_finds_the_habits_and_its_start_does_not():
    cells = nbformat.read(FOLDER / "09_search.ipynb", as_version=4).cells
    (start,) = [cell.source for cell in cells if cell.source.startswith("def habits")]
    (key,) = re.findall(r"```python\n(.+?)```", cells[-1].source, re.S)
    rng, names = random.Random(1), ("attempts", "yes", "no", "backtracks", "repeated")
    responses = [cut_and_broken(rng) for _ in range(500)]
    truth = [{name: behavior.count(*response)[name] for name in names} for response in responses]
    found = {}
    for source in (key, start):
        exec(source, namespace := {})
        found[source] = [namespace["habits"](text) for _, text in responses]
    assert found[key] == truth
    assert all(sum(count[name] for count in truth) > 50 for name in names)
    wrong = [f["attempts"] != t["attempts"] for f, t in zip(found[start], truth, strict=True)]
    assert 0 < sum(wrong) < 250 and all(set(f) == {"attempts"} for f in found[start])
