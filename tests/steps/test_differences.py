"""How the scripts differ: outside the declared sections every line equals the parent's."""

import ast
import difflib
import itertools
import re
import subprocess
from typing import Annotated, get_args, get_origin, get_type_hints

from tools import compare
from tools.scripts import ROOT, docstring, load, parents, script_path

import pytest

METHOD_TAG = r"    # ([\w. +@-]+)"  # the method's name, in the comment above its own settings
SHARED_TAG = "    # The same in every script"


def sections(text):
    """(line, kind) for every line after the docstring; kinds: import, args, objective, check, main, other.

    A setting that all scripts have, with its help, has its name as kind.
    """
    tree, lines = ast.parse(text), text.splitlines()
    kinds = ["other"] * len(lines)
    for node in tree.body[1:]:
        start, end = node.lineno - 1, node.end_lineno
        if isinstance(node, ast.Import | ast.ImportFrom):
            kinds[start:end] = ["import"] * (end - start)
        elif isinstance(node, ast.ClassDef) and node.name == "Args":
            shared = next(i for i in range(start, end) if lines[i] == SHARED_TAG)
            kinds[start + 1 : shared] = ["args"] * (shared - start - 1)
            for field, help_text in itertools.pairwise(node.body):
                if isinstance(field, ast.AnnAssign) and field.lineno > shared:
                    kinds[field.lineno - 1 : help_text.end_lineno] = [field.target.id] * 2
        elif isinstance(node, ast.FunctionDef) and node.name == "main":
            begin = next(i for i in range(start, end) if lines[i].startswith("    with Run("))
            checks = [statement for statement in node.body if statement.lineno <= begin and refuses(statement)]
            kinds[start + 1 : end] = ["main"] * (end - start - 1)
            for check in checks:
                kinds[check.lineno - 1 : check.end_lineno] = ["check"] * (check.end_lineno - check.lineno + 1)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign):
            kinds[start:end] = ["objective"] * (end - start)
    after = tree.body[0].end_lineno
    return list(zip(lines, kinds, strict=True))[after:]


def refuses(statement):
    """Whether a statement only refuses or warns about settings: `if ...: fail(...)`, a check, or loops of these."""
    if isinstance(statement, ast.If | ast.For):
        return not statement.orelse and all(map(refuses, statement.body))
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] in ("fail", "check", "pattern", "print")


def functions(text):
    """Names of the functions that a script defines."""
    return {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def marked_lines(rows, tags):
    """Numbers of the lines of `main` with a method's name in a comment, or below such a comment in its paragraph."""
    found, covered = set(), False
    for i, (line, kind) in enumerate(rows):
        mark = any(re.search(rf"#.*\b{re.escape(tag)}(?!\w)", line) for tag in tags)
        covered = bool(line.strip()) and (covered or (mark and line.strip().startswith("#")))
        if kind == "main" and (mark or covered):
            found.add(i)
    return found


def without_arguments(rows, names):
    """The lines joined into one text, without the arguments of calls of these functions."""
    text = " ".join(line.strip() for line, _ in rows)
    for name in names:
        text = re.sub(rf"\b{name}\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)", f"{name}(...)", text)
    return text


def words(rows):
    """The names in these lines, without keywords and keys."""
    return set(re.findall(r"\w+", re.sub(r'"\w+": |\b\w+=(?=\w)', "", " ".join(line for line, _ in rows))))


def check_difference(old_text, new_text):
    """Outside the declared sections lines are identical; hunks of `main` have a method's name in a comment.

    Without it, only the arguments of calls of the script's own functions may differ, and names that a marked hunk
    assigns may be added or missing. A shared setting for which a method has its own default is among its own settings.
    """
    old, new = sections(old_text), sections(new_text)
    tags = [re.search(f"^{METHOD_TAG}$", text, re.M)[1] for text in (old_text, new_text)]
    marked_old, marked_new = marked_lines(old, tags), marked_lines(new, tags)
    own_functions, assigned = functions(old_text) & functions(new_text), set()
    own = {line.split(":")[0].strip() for line, kind in new if kind == "args" and re.match(r"    \w+: ", line)}
    matcher = difflib.SequenceMatcher(None, [x for x, _ in old], [x for x, _ in new], autojunk=False)
    undeclared = []
    for change, i1, i2, j1, j2 in matcher.get_opcodes():
        if change == "equal":
            continue
        gone, added = old[i1:i2], new[j1:j2]
        for line, kind in gone + added:
            moved = kind in own and (line, kind) in gone
            allowed = kind in ("import", "args", "objective", "check", "main") or moved or not line.strip()
            assert allowed, f"a difference outside the declared sections: {line}"
        if marked_old & {*range(i1, i2)} or marked_new & {*range(j1, j2)}:
            for line, _ in gone + added:
                assigned |= (
                    set(re.findall(r"\w+", match[1])) if (match := re.match(r"([\w, ]+) \|?= ", line)) else set()
                )
        elif any(kind == "main" for _, kind in gone + added):
            undeclared.append((gone, added))
    for gone, added in undeclared:
        same_calls = without_arguments(gone, own_functions) == without_arguments(added, own_functions)
        passed_on = words(gone) ^ words(added) <= assigned
        shown = "\n".join([*(f"- {line}" for line, _ in gone), *(f"+ {line}" for line, _ in added)])
        assert same_calls or (gone and added and passed_on), f"an unmarked difference in main:\n{shown}"


def source(name):
    return script_path(name).read_text()


@pytest.mark.parametrize("name", [name for name, above in parents().items() if above])
def test_differs_from_its_parent_in_the_method_only(name):
    check_difference(source(parents()[name]), source(name))


@pytest.mark.parametrize(
    "shared,drifted,message",
    [
        ("warmup_steps: CountOrZero = 5", "warmup_steps: CountOrZero = 6", "outside the declared sections"),
        ("engine samples with the weights", "engine samples with weights", "outside the declared sections"),
        ("def main(args: Args)", "def main(args: Args, x=1)", "outside the declared sections"),
        ("    with Run(args", "    args.lr = 1\n    with Run(args", "unmarked difference in main"),
        ("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=True)", "unmarked difference in main"),
        ("# (b,) rows of whole groups", "# (b,) rows of groups", "unmarked difference in main"),
        ("loss = tis[rows] * loss", "loss = tis * loss", "unmarked difference in main"),
        ("(w * loss).sum()", "(w * loss).mean()", "unmarked difference in main"),
        ("            engine.sleep()", "            x = 1\n            engine.sleep()", "unmarked difference in main"),
        ("tis_weight(learner_logp, rollout_logp, args)", "2 * tis_weight(mask)", "unmarked difference in main"),
    ],
)
def test_the_rule_finds_drift(shared, drifted, message):
    assert shared in source("cispo"), f"cispo.py has no {shared!r}"
    with pytest.raises(AssertionError, match=message):
        check_difference(source("grpo"), source("cispo").replace(shared, drifted))


def test_the_rule_allows_other_arguments_and_marked_hunks():
    text = source("cispo").replace("tis_weight(learner_logp, rollout_logp, args)", "tis_weight(learner_logp, mask)")
    assert text != source("cispo")
    check_difference(source("grpo"), text)
    check_difference(source("grpo"), source("cispo").replace("(w * loss).sum()", "(w * loss).mean()  # CISPO"))


def test_every_script_has_its_place():
    assert [name for name, above in parents().items() if above is None] == ["reinforce"]
    top = {path.stem for path in ROOT.glob("*.py")}
    assert top == {
        "reinforce", "ppo", "grpo", "rloo", "dr_grpo", "dapo", "cispo", "gspo", "gmpo", "dppo", "maxrl"
    }  # fmt: skip
    for name in parents():
        usage = re.escape(f"python {script_path(name).relative_to(ROOT)}")
        found = re.search(rf"^    {usage}( --.*)?$", docstring(script_path(name)), re.MULTILINE)
        assert found, f"the docstring of {name}.py does not say how it is run"


def test_every_number_has_a_range():
    """Every numeric setting has a range in its type; otherwise any number would be accepted."""
    bare = [
        f"{name}.py: {setting}"
        for name in parents()
        for setting, kind in get_type_hints(load(name).Args, include_extras=True).items()
        if {int, float} & {kind, *(() if get_origin(kind) is Annotated else get_args(kind))}
    ]
    assert not bare, f"settings without a range: {bare}"


def test_sync_carries_a_shared_line_into_all_scripts(tmp_path, monkeypatch, capsys):
    """--sync copies a changed line into all scripts that share it, and reports one that a script has changed."""
    for name in ("grpo", "cispo", "gspo"):
        (tmp_path / f"{name}.py").write_text(source(name))
    for git in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *git], cwd=tmp_path, check=True)
    monkeypatch.setattr(compare, "ROOT", tmp_path)
    monkeypatch.setattr(compare, "script_path", lambda name: tmp_path / f"{name}.py")
    monkeypatch.setattr(compare, "parents", lambda: dict.fromkeys(["grpo", "cispo", "gspo"]))
    text = source("grpo").replace("warmup_steps: CountOrZero = 5", "warmup_steps: CountOrZero = 6")
    (tmp_path / "grpo.py").write_text(text)
    compare.main(["--sync", "grpo"])
    for name in ("cispo", "gspo"):
        expected = source(name).replace("warmup_steps: CountOrZero = 5", "warmup_steps: CountOrZero = 6")
        assert (tmp_path / f"{name}.py").read_text() == expected, f"{name}.py did not get the changed line"
    assert capsys.readouterr().out == "cispo: changed\ngspo: changed\n"
    (tmp_path / "grpo.py").write_text(source("grpo").replace("clip_eps: Positive = 0.2", "clip_eps: Positive = 0.3"))
    (tmp_path / "cispo.py").write_text(source("cispo"))
    compare.main(["--sync", "grpo"])
    assert "cispo: 1 conflicts, nothing was changed" in capsys.readouterr().out
    assert (tmp_path / "cispo.py").read_text() == source("cispo")
    (tmp_path / "gmpo.py").write_text(source("gmpo"))
    with pytest.raises(SystemExit):
        compare.main(["--sync", "gmpo"])
    assert "which has no gmpo.py" in capsys.readouterr().err


def test_compare_shows_formulas_and_wraps_long_lines(monkeypatch, capsys):
    """At 120 columns, long differing lines are wrapped and lose no character."""
    monkeypatch.setenv("COLUMNS", "120")
    compare.main(["grpo", "gspo"])
    output = capsys.readouterr().out
    for formula in ("1/G Σ_i 1/|o_i| Σ_t", "min(s_i A_i, clip(s_i"):
        assert formula in output, f"the formula {formula} is missing"
    wide = [line for line in output.splitlines()[8:] if len(line) > 120]
    assert not wide, f"lines of more than 120 columns: {wide}"
    right = "".join(re.split("[│┃]", line)[-1].removeprefix(" ").removeprefix("    ") for line in output.splitlines())
    assert "1 + args.clip_eps_high" in re.sub("[«»]", "", right).replace("  ", " ")
    assert "«clip_eps_high»" in output


def test_code_counts_neither_docstrings_nor_comments():
    assert not any('"""' in line or "#" in line for line in compare.code("grpo"))
    ours, theirs = (compare.code(name) for name in ("dr_grpo", "grpo"))
    assert (
        0
        < compare.count("grpo", "dr_grpo")
        == len(list(difflib.ndiff(theirs, ours)))
        - sum(line.startswith((" ", "?")) for line in difflib.ndiff(theirs, ours))
    )


def test_every_script_is_in_the_readme():
    text = (ROOT / "README.md").read_text()
    paths = [str(script_path(name).relative_to(ROOT)) for name in parents()]
    assert not [path for path in paths if not re.search(rf"(?<![\w/]){re.escape(path)}", text)]


def test_the_family_tree_has_every_script_once(capsys):
    compare.main([])
    rows = [re.split(r"\s{2,}", line.strip()) for line in capsys.readouterr().out.splitlines()]
    assert sorted(path for path, _ in rows) == sorted(str(script_path(name).relative_to(ROOT)) for name in parents())
    assert dict(rows)["dapo.py"] == f"{compare.count('grpo', 'dapo')} lines from grpo.py"
