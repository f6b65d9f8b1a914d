"""What the pages of the scripts say, read from docstrings, settings, reports, claims and notebooks."""

import ast
import dataclasses
import json
import re
import statistics
import textwrap
from collections import Counter
from functools import cache
from typing import Any, get_type_hints

from claims import court
from common.help import GROUPS, field_docs, flags, group_title, metavar, shown
from tools import compare, fingerprint
from tools import traits as words
from tools.reports import REPORTS, read_report
from tools.scripts import ROOT, components, docstring, load, module_name, parents, parse, script_path
from tools.site import lines

CURVES = {"eval/avg": "held-out accuracy", "length": "tokens per response", "entropy": "entropy, nats per token"}
docs_of = cache(field_docs)
ALWAYS = ("num_minibatches", "update_epochs", "responses_per_prompt")  # shared settings that every page lists
FILTERS = {"stops": r"nothing|no gradient|capped|fades", "updates": r"\w+-policy"}  # the part of a trait to filter by


@cache
def parts(name: str) -> dict[str, Any]:
    """The docstring of a script in parts: title, where, formula, before, head, differs, details, command."""
    found: dict[str, Any] = {"head": "", "differs": [], "details": [], "before": [], "command": ""}
    found["formula"] = textwrap.dedent(compare.formula(name))
    first, *paragraphs = docstring(script_path(name)).split("\n\n")
    first = " ".join(first.split())
    found["title"], _, found["where"] = first.partition(": " if ": " in first else ". ")
    for paragraph in paragraphs:
        lines = paragraph.split("\n")
        if lines[0].startswith("    python"):
            found["command"] = textwrap.dedent(paragraph)
        elif lines[0].startswith("    "):
            continue
        elif any(line.startswith("- ") for line in lines):
            head, *bullets = re.split(r"\n- ", paragraph)
            last, *rest = re.split(r"\n(?! )", bullets[-1], maxsplit=1)
            found["differs"] += [" ".join(bullet.split()) for bullet in [*bullets[:-1], last]]
            found["details"] += [sentence for text in rest for sentence in sentences(" ".join(text.split()))]
            found["head"] = " ".join(head.split())
        elif not lines[0].startswith("| "):
            found["before"].append(" ".join(paragraph.split()))
    return found


def sentences(text: str) -> list[str]:
    """A paragraph in sentences; the period of an abbreviation does not end one."""
    return re.split(r"(?<=\.)(?<!\b(?:Eq|al|Dr)\.)(?<!\b(?:Sec|App)\.) (?=[A-Z\"`Âτ]|verl\b|methods/)", text)


@cache
def remarks(name: str) -> list[tuple[str, int, str]]:
    """The notes beside a script's code: function, line and text.

    All but the first paragraph of the functions' docstrings, and the comments; in `main`, those that its parent lacks.
    """
    text, above, found = script_path(name).read_text(), parents()[name], []
    heard = script_path(above).read_text() if above else ""
    for node in (node for node in parse(text).body if isinstance(node, ast.FunctionDef)):
        _, *others = (ast.get_docstring(node) or "").split("\n\n")
        found += [(node.name, node.lineno, " ".join(other.split())) for other in others]
        source = "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
        for block in re.finditer(r"^( *# .+\n)+", source, re.M):
            if node.name != "main" or block[0] not in heard:
                line = node.lineno + source.count("\n", 0, block.start())
                found.append((node.name, line, " ".join(re.sub(r"^ *# ", "", block[0], flags=re.M).split())))
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
    """BibTeX of the papers, as far as the docstring knows them: a quoted title, or the name before the number."""
    first, entries = " ".join(docstring(script_path(name)).split("\n\n")[0].split()), []
    if article := re.search(r'(\w+), "([^"]+)", ([A-Z][\w ]+?) (\d+) \(((?:19|20)\d\d)\)', first):
        names = ("author", "title", "journal", "volume", "year")
        entries.append(("article", f"{name}{article[5]}", dict(zip(names, article.groups(), strict=True))))
    before = [re.split(r"[;()]", text)[-1] for text in re.split(r"\b\d{4}\.\d{5}\b", first)]
    for number, text in zip(papers(name), before, strict=False):
        quoted = re.findall(r'"([^"]+)"', text)
        called = re.findall(r"[A-Z][\w+'-]*(?: (?!in\b)[\w'-]+)*", text)
        own = parts(name)["where"].startswith(number)
        title = quoted[-1] if quoted else parts(name)["title"] if own else called[-1]
        address = {"archivePrefix": "arXiv", "url": f"https://arxiv.org/abs/{number}"}
        fields = {"title": title, "year": f"20{number[:2]}", "eprint": number} | address
        entries.append(("misc", f"{name}{number.replace('.', '_')}", fields))
    return "\n".join(
        f"@{kind}{{{key},\n" + ",\n".join(f"  {k} = {{{v}}}" for k, v in fields.items()) + "\n}"
        for kind, key, fields in entries
    )


def limits(annotation: Any) -> str:
    """The range of a number, from its annotation."""
    found = []
    for one in getattr(annotation, "__metadata__", ()):
        for attribute, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
            value = getattr(one, attribute, None)
            if value is not None and value not in (1e6, float("inf")):
                found.append(f"{sign} {value:g}")
    return ", ".join(found)


def paper_value(text: str) -> str:
    """What a help text says about the paper: "Paper X.", "Papers X.", "Usual X." or "Authors' code X."; else ""."""
    said = r"(?:^|\. )(Papers?|Usual|(?:The a|A)uthors' code(?= \d)):? (\"[^\"]+\"|.+?)[.;:]?(?:(?<=[.;:])\s|$)"
    found = re.search(said, text)
    if not found:
        return ""
    kind = {"U": "usual ", "T": "authors' code ", "A": "authors' code "}.get(found[1][0], "")
    return kind + found[2].rstrip(".;:")


@cache
def settings(name: str) -> list[tuple[str, list[dict[str, str]]]]:
    """Groups of settings, the method's own first: name, flag, range, default, the paper's value, help."""
    kind = load(name).Args
    owners = [c for c in reversed(kind.__mro__) if dataclasses.is_dataclass(c)]
    help_of, hints, groups = {}, get_type_hints(kind, include_extras=True), {}
    for owner in owners:
        help_of |= docs_of(owner)
    for field in dataclasses.fields(kind):
        first = next(owner for owner in owners if field.name in owner.__annotations__)
        said = help_of.get(field.name, "")
        text = {"name": field.name, "flag": flags(field.name, metavar(hints[field.name]))}
        text |= {"range": limits(hints[field.name]), "default": shown(field), "paper": paper_value(said), "help": said}
        groups.setdefault(group_title(first), []).append(text)
    return sorted(groups.items(), key=lambda group: GROUPS.index(group[0]) if group[0] in GROUPS else -1)


@cache
def shared_settings() -> list[tuple[str, list[dict[str, str]]]]:
    """Groups of the settings that all scripts have, as most scripts have them; `most`: some have another default."""
    found: dict[str, dict[str, list[dict[str, str]]]] = {group: {} for group in GROUPS}
    for name in parents():
        for group, items in settings(name)[1:]:
            for item in items:
                found[group].setdefault(item["name"], []).append(item)
    made = []
    for group, of_name in found.items():
        items = []
        for several in of_name.values():
            usual = {key: Counter(item[key] for item in several).most_common(1)[0][0] for key in several[0]}
            items.append(usual | {"most": "yes" * (len({item["default"] for item in several}) > 1)})
        made.append((group, items))
    return made


def shared_of_its_own(name: str) -> list[dict[str, str]]:
    """The shared settings whose default is not that of most scripts, and those of ALWAYS."""
    usual = {item["name"]: item["default"] for _, items in shared_settings() for item in items}
    mine = [item for _, items in settings(name)[1:] for item in items]
    return [item for item in mine if item["name"] in ALWAYS or item["default"] != usual[item["name"]]]


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
    """The rows about a script in the tables of the reports, which give its name or its path."""
    found, names = [], (name, f"`{script_path(name).relative_to(ROOT)}`")
    for page, heading, header, rows in tables():
        mine = [row for row in rows if row[0] in names]
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
    """Whether a text names a script: its file, an import, a command that starts with it, or a function of it."""
    return bool(
        re.search(
            rf"\b{name}\.py\b|import ([\w, ]*, )?{name}\b|[\"'](methods/|recipes/)?{name}(?=[ +\"'])|\+{name}\.", text
        )
    )


@cache
def claims_naming(name: str) -> list[str]:
    """Claims whose file names a script, or whose statement names its method."""
    method = re.escape(parts(name)["title"].split(",")[0])
    return [
        claim
        for claim in court.names()
        if naming(name, (ROOT / f"claims/{claim}.py").read_text())
        or re.search(rf"(?<!Dr\. )\b{method}(?![\w+])", court.statement(claim))
    ]


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
    """The exercises that ask for a function of this script, its own first."""
    from notebooks.exercises.exercises import EXERCISES, code, functions

    text = script_path(name).read_text()
    mine = {n.name: ast.get_source_segment(text, n) for n in ast.parse(text).body if isinstance(n, ast.FunctionDef)}
    mine = {function: code(source) for function, source in mine.items()}
    found = [e for e in EXERCISES if mine.get(e.function) == code(functions(e.script)[e.function])]
    own = [e for e in EXERCISES if e.script == name]
    return own + [e for e in found if e not in own]


@cache
def curves(name: str) -> dict[str, Any]:
    """The fingerprint in five digits, without the bounds, which the table of methods has."""
    found = fingerprint.fingerprint(load(name))
    del found["bounds"]
    return json.loads(json.dumps(found), parse_float=lambda x: float(f"{float(x):.5g}"))


def data(name: str) -> dict[str, Any]:
    """The data for the pictures and diffs of the site."""
    return {
        "path": str(script_path(name).relative_to(ROOT)),
        "change": change(name),
        "formula": parts(name)["formula"],
        "code": lines.numbered(name),
        "below": lines.below(name),
        "fingerprint": curves(name),
        "curves": runs().get(name, {}),
        "diffs": lines.differences(name),
    }


@cache
def traits(name: str) -> dict[str, str]:
    """The cells of the table of methods, by column."""
    folder = script_path(name).parent
    return {"folder": folder.name if folder != ROOT else "the eleven", "year": year(name)} | words.traits(name)


def coarse(key: str, text: str) -> str:
    """What a column is filtered by: a trait, or the part of it that several scripts share."""
    found = re.search(FILTERS.get(key, ".*"), text)
    return found[0] if found else text


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
        "traits": traits(name),
        "coarse": {key: coarse(key, text) for key, text in traits(name).items()},
        "settings": settings(name),
        "shared": shared_of_its_own(name),
        "metrics": metrics(name),
        "components": components(name),
        "measured": measured(name),
        "remarks": remarks(name),
        "claims": [(claim, court.statement(claim), court.record(claim)) for claim in claims_naming(name)],
        "lessons": lessons_naming(name),
        "exercises": exercises(name),
    } | parts(name)
