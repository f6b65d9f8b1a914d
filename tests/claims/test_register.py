"""The register holds the claims' current statements and explains every change made after a result."""

import re
import subprocess

from claims import court, register
from claims.__main__ import Args, main
from claims.page import identities, page
from claims.questions import IDENTITIES
from claims.register import changed_after_a_result, code_hash, history, judged_by, says, versions
from tools.scripts import ROOT

import pytest

FORMER = ("refuted", "within noise")  # names of verdicts until 2026-11-24
ALL = [version for of_claim in versions().values() for version in of_claim]


@pytest.mark.parametrize("name", court.names())
def test_the_last_version_is_what_the_claim_says(name):
    last = versions()[name][-1]
    how = (
        f"add a version with its reason to claims/register.jsonl; if only words changed, change the last line of {name}"
    )
    assert {part: last[part] for part in says(name)} == says(name) and "test" not in last, how


def test_an_identity_is_a_test():
    """Claims that follow from formulas have become tests, which exist."""
    assert {name for name, of_claim in versions().items() if "test" in of_claim[-1]} == {*IDENTITIES}
    for _, file, test in identities():
        *of_class, function = test.split("::")
        source = (ROOT / file).read_text()
        assert f"def {function}(" in source and all(f"class {name}" in source for name in of_class), test


def test_a_version_knows_its_code():
    """Other arms or another threshold change the hash of a claim's code; comments and docstrings do not."""
    text = (court.HERE / "cispo_is_twice_as_fast.py").read_text()
    assert code_hash(text) == code_hash(text.replace("Said by:", "Says:").replace("KIND =", "# a comment\nKIND ="))
    for old, new in (("--ratio-cap 2", "--ratio-cap 3"), ("/ 3, sign", "/ 4, sign"), ("goal=0.5", "goal=0.6")):
        assert old in text and code_hash(text.replace(old, new)) != code_hash(text)


@pytest.mark.parametrize("part", ["statement", "rule"])
def test_a_version_is_judged_by_one_rule(part, monkeypatch, capsys):
    """With another statement or rule, and no new version, there is no verdict, and the stored one stays."""
    name = "cispo_is_twice_as_fast"
    stored = (court.RESULTS / f"{name}.json").read_bytes()
    monkeypatch.setattr(register, "says", lambda name: says(name) | {part: "another"})
    with pytest.raises(SystemExit):
        main(Args(claims=(name,), redraw=True))
    assert f"{name} was judged by another rule or code" in capsys.readouterr().err
    assert (court.RESULTS / f"{name}.json").read_bytes() == stored


@pytest.mark.parametrize("old,new,same", [
    ("/ 3, sign", "/ 4, sign", False),
    ("--ratio-cap 2", "--ratio-cap 3", False),
    ("goal=0.5", "goal=0.6", False),
    ("from statistics import mean", "from statistics import mean, median  # a comment", True),
    ("Not testable here: all", "Testable: not all", False),
    ("steps to 0.5", "steps", True),
])  # fmt: skip
def test_a_verdict_knows_what_it_was_judged_by(old, new, same, tmp_path, monkeypatch):
    """Arms, metric, threshold and testability change the hash; comments, imports and the picture do not."""
    name = "cispo_is_twice_as_fast"
    text = (court.HERE / f"{name}.py").read_text()
    assert old in text
    (tmp_path / f"{name}.py").write_text(text.replace(old, new))
    assert court.record(name)["judged_by"] == judged_by(name)
    monkeypatch.setattr(register, "HERE", tmp_path)
    assert (court.record(name)["judged_by"] == judged_by(name)) == same


def test_versions_are_complete():
    """Versions are numbered in order, their dates ascend, and each but the first gives a reason."""
    for name, of_claim in versions().items():
        assert [version["version"] for version in of_claim] == list(range(1, len(of_claim) + 1)), name
        dates = [version["date"] for version in of_claim]
        assert dates == sorted(dates), name
        assert not of_claim[0]["known"] and not of_claim[0]["why"], name
        assert all(len(version["why"]) > 30 for version in of_claim[1:]), name
        assert all(version["known"] in (None, *court.VERDICTS, *FORMER) for version in of_claim), name
    assert versions().keys() == {*court.names(), *IDENTITIES}


def renamed(text):
    """With the words for verdicts and responses that came with the version of 2026-11-24."""
    return text.replace("refuted", court.CONTRADICTED).replace("right response", "correct response")


def git(*words):
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.skipif(git("rev-parse", "--is-shallow-repository").stdout != "false\n", reason="needs the whole history")
@pytest.mark.parametrize("version", ALL, ids=lambda v: f"{v['claim']}-{v['version']}")
def test_a_version_is_that_of_its_commit(version):
    """Each version has the words and code of its commit, the last one at least statement and rule.

    The last one's code may have another form by now; its result keeps the hash of what it was judged by. `known` is the
    verdict that was stored before the commit.
    """
    name, commit = version["claim"], version["commit"]
    source = git("show", f"{commit}:claims/{version.get('was', name)}.py").stdout
    assert source, f"{commit} has no claims/{name}.py"
    assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0, f"{commit} was rewritten by a rebase"
    last = version is versions()[name][-1]  # other words about its source and test are no new version
    for part in ("statement", "rule") if last else ("statement", "source", "tested", "rule"):
        then, now = " ".join(source.split()), version[part]
        assert renamed(now) in renamed(then) if last else now in then, part
    assert last or version["code"] == code_hash(source)
    imported = re.search(r"import .*\bARMS\b", source)  # from a claim about another world
    assert imported or all(f'"{arm}"' in source for arm in version.get("arms", {}))
    stored = f"{version.get('was', name)}.json"
    folders = ("claims/results", "reports/claims")  # the earlier and the present folder of reports
    before = "".join(git("show", f"{commit}~1:{folder}/{stored}").stdout for folder in folders)
    assert (version["known"] is None) == (not before)
    assert not before or f'"verdict": "{version["known"]}"' in before


def test_history_and_page(capsys):
    main(Args(claims=("whitening_is_harmless",), history=True))
    output = capsys.readouterr().out
    assert output == history("whitening_is_harmless") + "\n"
    assert "2. 2026-11-22, 29b9992, when the verdict was refuted. The first rule, below 1 degree at every B" in output
    assert output.count("rule: reproduced if the angle") == 3 and output.count("statement: ") == 1
    main(Args(history=True))
    output, text = capsys.readouterr().out, page()
    for version in changed_after_a_result():
        assert version["claim"] in output and version["why"] in output and version["why"] in text
    with pytest.raises(SystemExit):
        main(Args(claims=("nothing",), history=True))
    assert "nothing is not a claim" in capsys.readouterr().err
