"""What the pages of the scripts say, read from docstrings, settings, reports, claims and notebooks."""

import dataclasses
import json
import re
import statistics
import textwrap
from functools import cache
from typing import Any, get_type_hints

from claims import court
from common.help import GROUPS, field_docs, flags, group_title, metavar, shown
from tools import compare, fingerprint
from tools.reports import REPORTS, read_report
from tools.scripts import ROOT, components, docstring, load, module_name, parents, script_path

from pygments import lexers
from pygments.formatters import HtmlFormatter

CURVES = {"eval/avg": "held-out accuracy", "length": "tokens per response", "entropy": "entropy, nats per token"}
FORMATTER = HtmlFormatter(nowrap=True)


def highlighted(text: str) -> list[str]:
    """The lines of Python code as HTML; each closes what it opens."""
    return [line.rstrip("\n") for _, line in FORMATTER._format_lines(lexers.PythonLexer().get_tokens(text))]


@cache
def parts(name: str) -> dict[str, Any]:
    """The docstring of a script in parts: title, where, formula, before, head, differs, details."""
    found: dict[str, Any] = {"head": "", "differs": [], "details": [], "before": []}
    found["formula"] = textwrap.dedent(compare.formula(name))
    first, *paragraphs = docstring(script_path(name)).split("\n\n")
    first = " ".join(first.split())
    found["title"], _, found["where"] = first.partition(": " if ": " in first else ". ")
    for paragraph in paragraphs:
        lines = paragraph.split("\n")
        if lines[0].startswith("    "):
            continue
        elif any(line.startswith("- ") for line in lines):
            head, *bullets = re.split(r"\n- ", paragraph)
            last, *rest = re.split(r"\n(?! )", bullets[-1], maxsplit=1)
            found["differs"] += [" ".join(bullet.split()) for bullet in [*bullets[:-1], last]]
            found["details"] += [" ".join(text.split()) for text in rest]
            found["head"] = " ".join(head.split())
        elif not lines[0].startswith("| "):
            found["before"].append(" ".join(paragraph.split()))
    return found


def change(name: str) -> str:
    """What a script changes in its parent, in one sentence: how each bullet of its docstring begins."""
    if parents()[name] is None:
        return parts(name)["head"]
    cut = r"[:;]\s|\.\s| \(|, (?:and|so|as|which|where|in units|because|instead|like)\b"
    sentence = "; ".join(re.split(cut, bullet)[0].rstrip(".;") for bullet in parts(name)["differs"])
    return sentence[0].upper() + sentence[1:] + "."


def year(name: str) -> str:
    first = docstring(script_path(name)).split("\n\n")[0]
    return (re.findall(r"\b(?:19|20)\d\d\b(?=[),])", first) or [""])[0]


def papers(name: str) -> list[str]:
    """arXiv numbers in the docstring's first paragraph."""
    return re.findall(r"\b\d{4}\.\d{5}\b", docstring(script_path(name)).split("\n\n")[0])


def citation(name: str) -> str:
    """BibTeX of the papers, as far as the docstring knows them."""
    entries = [
        f"@misc{{{name}{number.replace('.', '_')},\n  title = {{{parts(name)['title']}}},\n  eprint = {{{number}}},\n"
        f"  archivePrefix = {{arXiv}},\n  url = {{https://arxiv.org/abs/{number}}}\n}}"
        for number in papers(name)
    ]
    return "\n".join(entries)


def limits(annotation: Any) -> str:
    """The range of a number, from its annotation."""
    found = []
    for one in getattr(annotation, "__metadata__", ()):
        for attribute, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
            value = getattr(one, attribute, None)
            if value is not None and value not in (1e6, float("inf")):
                found.append(f"{sign} {value:g}")
    return ", ".join(found)


def settings(name: str) -> list[tuple[str, list[dict[str, str]]]]:
    """Groups of settings, the method's own first: flag, range, default, help."""
    kind = load(name).Args
    owners = [c for c in reversed(kind.__mro__) if dataclasses.is_dataclass(c)]
    help_of, hints, groups = {}, get_type_hints(kind, include_extras=True), {}
    for owner in owners:
        help_of |= field_docs(owner)
    for field in dataclasses.fields(kind):
        first = next(owner for owner in owners if field.name in owner.__annotations__)
        text = {"flag": flags(field.name, metavar(hints[field.name])), "range": limits(hints[field.name])}
        text |= {"default": shown(field), "help": help_of.get(field.name, "")}
        groups.setdefault(group_title(first), []).append(text)
    return sorted(groups.items(), key=lambda group: GROUPS.index(group[0]) if group[0] in GROUPS else -1)


@cache
def logged() -> list[tuple[list[str], str]]:
    """Names of metrics and what they are, from the tables of docs/runs.md."""
    rows = re.findall(r"^\| (`.+?`.*?) \| (.+?) \|$", (ROOT / "docs/runs.md").read_text(), re.M)
    return [(re.findall(r"`([\w/@.]+)`", names), text) for names, text in rows]


def metrics(name: str) -> list[tuple[list[str], str]]:
    """The numbers that a script's own file names, with their explanation."""
    text = script_path(name).read_text()
    return [row for row in logged() if any(re.search(rf'["\']{re.escape(n)}["\']|\b{n}=', text) for n in row[0])]


@cache
def tables() -> list[tuple[str, str, list[str], list[list[str]]]]:
    """The tables of reports/*.md: page, the heading above, header, rows."""
    found = []
    for path in sorted(REPORTS.glob("*.md")):
        heading, lines = "", path.read_text().splitlines()
        for i, line in enumerate(lines):
            heading = line.lstrip("# ") if line.startswith("#") else heading
            if line.startswith("|---"):
                rows = []
                for row in lines[i + 1 :]:
                    if not row.startswith("|"):
                        break
                    rows.append([cell.strip() for cell in row.strip("|").split("|")])
                found.append((path.name, heading, [c.strip() for c in lines[i - 1].strip("|").split("|")], rows))
    return found


def measured(name: str) -> list[dict[str, Any]]:
    """The rows about a script in the tables of the reports."""
    found = []
    for page, heading, header, rows in tables():
        mine = [row for row in rows if row[0] == name]
        if mine and len(mine) <= 12:
            found.append({"page": page, "heading": heading, "header": header, "rows": mine})
    return found


@cache
def runs() -> dict[str, dict[str, list[list[float]]]]:
    """Curves of the runs of benchmarks.methods: by script and metric, points (step, mean, lowest, highest)."""
    logs: dict[str, list[list[dict[str, Any]]]] = {}
    for run in read_report("methods", []):
        logs.setdefault(run["method"], []).append(run["log"])
    found: dict[str, dict[str, list[list[float]]]] = {}
    for name, of_name in logs.items():
        for metric in CURVES:
            values: dict[int, list[float]] = {}
            for row in (row for log in of_name for row in log if row.get(metric) is not None):
                values.setdefault(row["step"], []).append(row[metric])
            points = [[s, *(f(v) for f in (statistics.mean, min, max))] for s, v in sorted(values.items())]
            found.setdefault(name, {})[metric] = [[round(x, 4) for x in point] for point in points]
    return found


def naming(name: str, text: str) -> bool:
    """Whether a text names a script: its file, an import, or a command that starts with it."""
    return bool(re.search(rf"\b{name}\.py\b|import ([\w, ]*, )?{name}\b|[\"'](methods/)?{name}(?= |[\"'])", text))


@cache
def claims_naming(name: str) -> list[str]:
    return [claim for claim in court.names() if naming(name, (ROOT / f"claims/{claim}.py").read_text())]


@cache
def lessons_naming(name: str) -> list[tuple[str, str]]:
    """File and title of the lessons that use a script."""
    found = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = ["".join(cell["source"]) for cell in json.loads(path.read_text())["cells"]]
        if naming(name, "\n".join(cells)):
            found.append((path.name, cells[0].splitlines()[0].lstrip("# ")))
    return found


def exercises(name: str) -> list[Any]:
    """Those of the course that ask for a function of this script."""
    from notebooks.exercises.exercises import EXERCISES

    return [exercise for exercise in EXERCISES if exercise.script == name]


def differences(name: str) -> dict[str, list[list[Any]]]:
    """For every other script, what differs: [i1, i2, j1, j2, spans of each pair of lines]."""
    found, left = {}, compare.body(name)
    for other in parents():
        right = compare.body(other)
        ops = [op[1:] for op in compare.changes(name, other) if op[0] != "equal"]
        lines = [zip(left[i1:i2], right[j1:j2], strict=False) for i1, i2, j1, j2 in ops]
        spans = [[[*pair] if any(pair := compare.spans(*both)) else 0 for both in pairs] for pairs in lines]
        found[other] = [[*op, of_op] for op, of_op in zip(ops, spans, strict=True)]
    return found


def data(name: str) -> dict[str, Any]:
    """What the pictures and diffs of the site are drawn from."""
    text = script_path(name).read_text()
    curves = fingerprint.fingerprint(load(name))
    return {
        "path": str(script_path(name).relative_to(ROOT)),
        "formula": parts(name)["formula"],
        "code": highlighted(text),
        "below": len(text.splitlines()) - len(compare.body(name)),  # lines of the docstring
        "fingerprint": json.loads(json.dumps(curves), parse_float=lambda x: float(f"{float(x):.5g}")),
        "curves": runs().get(name, {}),
        "diffs": differences(name),
    }


def page(name: str) -> dict[str, Any]:
    """Everything on a script's page besides its pictures."""
    path, above = script_path(name), parents()[name]
    return {
        "name": name,
        "path": str(path.relative_to(ROOT)),
        "module": module_name(path),
        "parent": above,
        "children": [child for child, up in parents().items() if up == name],
        "lines": len(path.read_text().splitlines()),
        "differing": compare.count(above, name) if above else 0,
        "change": change(name),
        "year": year(name),
        "papers": papers(name),
        "cite": citation(name),
        "traits": {"folder": path.parent.name if path.parent != ROOT else "the eleven", "year": year(name)}
        | fingerprint.traits(name),
        "settings": settings(name),
        "metrics": metrics(name),
        "components": components(name),
        "measured": measured(name),
        "claims": [(claim, court.statement(claim), court.record(claim)) for claim in claims_naming(name)],
        "lessons": lessons_naming(name),
        "exercises": exercises(name),
    } | parts(name)
