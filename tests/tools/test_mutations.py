"""The list of mutations fits the code; running them takes longer (tools/mutate.py)."""

import ast
import json

from tools import mutate, tested
from tools.mutations import MUTATIONS
from tools.operators import mutations
from tools.scripts import ROOT

import pytest
from coverage import CoverageData


def test_every_mutation_has_its_line_and_its_test():
    assert not (lines := mutate.stale()), "\n".join(lines)


def test_no_mutation_stands_twice():
    keys = [(m.file, m.old, m.new) for m in MUTATIONS]
    assert len(set(keys)) == len(keys), [key for key in keys if keys.count(key) > 1]


def test_a_mutation_changes_the_code():
    assert not [m.what for m in MUTATIONS if m.old == m.new]


def same_bytes(a, b):
    """How many bytes are the same at the start of both."""
    return next((i for i, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


KINDS = {"comparison", "constant", "sign", "argument order", "swapped name", "removed line"}


@pytest.mark.slow
def test_generated_mutations_change_one_place_and_stay_programs():
    """There are mutations of every kind; each changes one place and leaves valid Python."""
    found = mutations("common/batch.py") + mutations("common/evaluation.py")
    assert {mutation.what.split(" in ")[0] for mutation in found} == KINDS
    for mutation in found:
        text = (ROOT / mutation.file).read_bytes()
        made = mutate.changed(text, mutation)
        assert ast.dump(ast.parse(made)) != ast.dump(ast.parse(text)), mutation
        start = same_bytes(text, made)
        end = same_bytes(text[start:][::-1], made[start:][::-1])
        places = [text[start : len(text) - end], made[start : len(made) - end]]
        assert all(len(place) <= 300 for place in places), f"{mutation} changes more than one place"
    assert mutate.sample(20, 0)[0] == mutate.sample(20, 0)[0] != mutate.sample(20, 1)[0]


def test_generated_mutations_are_run_by_the_tests_that_execute_them(tmp_path):
    """Tests in files that name the function come first, then quick ones; failing and long ones are left out."""
    draws, plots = "tests/steps/test_draws.py", "tests/tools/test_plots.py"
    contexts = {f"{draws}::b": 1.0, f"{draws}::a": 2.0, f"{plots}::a": 0.5}
    recorded = tmp_path / "recorded.coverage"
    data = CoverageData(str(recorded))
    for test in [*contexts, f"{draws}::fails", f"{draws}::long"]:
        data.set_context(f"{test}|run")
        data.add_lines({str(ROOT / "common/batch.py"): [10, 11]})
    data.set_context(f"{plots}::elsewhere|run")
    data.add_lines({str(ROOT / "common/batch.py"): [12]})
    data.write()
    seconds = contexts | {f"{draws}::long": 1e3, f"{draws}::fails": 1.0}
    lines = [f"{value:.2f}s call     {test}" for test, value in seconds.items()]
    recorded.with_suffix(".log").write_text("\n".join([*lines, f"FAILED {draws}::fails - assert"]))
    found = tested.Tested(recorded, ("common",), 1)
    assert found.of("common/batch.py", 11, 11, "sample_problems") == [*contexts]
    assert found.of("common/batch.py", 12, 13, "sample_problems") == [f"{plots}::elsewhere"]
    assert found.failing == [f"{draws}::fails"] and found.seconds[f"{draws}::a"] == 2


@pytest.mark.parametrize(
    "output,noticed", [("", ""), ("FAILED tests/a.py::test_b - assert 1", "tests/a.py::test_b"), (None, mutate.LATE)]
)
def test_a_test_that_fails_without_a_mutation_does_not_count(output, noticed, monkeypatch):
    ran, tests = [], mutate.Tests({})

    def run(words, mutation, file, limit):
        ran.append(words)
        return (
            output if mutation else "FAILED tests/a.py::test_fails_anyway[1] - no network\nERROR tests/a.py::test_too"
        )

    monkeypatch.setattr(tests, "run", run)
    for _ in range(2):
        assert tests.noticed_by(MUTATIONS[0], "grpo.py") == noticed
    assert len(ran) == 3, "the unchanged code is tested once"
    assert ran[1][-4:] == ["--deselect", "tests/a.py::test_fails_anyway[1]", "--deselect", "tests/a.py::test_too"]


def test_every_equivalent_mutation_exists_and_has_a_reason():
    known = json.loads(mutate.EQUIVALENT.read_text())
    files = {name.split(": ")[0] for name in known}
    keys = {mutate.key((mutation, file)) for file in files for mutation in mutations(file)}
    assert not known.keys() - keys and all(len(reason) > 20 for reason in known.values())
