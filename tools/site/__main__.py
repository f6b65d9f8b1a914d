"""Build the website of this repository into a folder of static files.

pip install -r requirements-site.txt
python -m tools.site                    # site/index.html; it opens from a file
"""

import html
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from claims.page import identities
from common.cli import fail, say
from common.help import parse_args
from tools import fingerprint
from tools.scripts import ROOT, parents
from tools.site import lines, reading, scripts, tables
from tools.site.pages import Renderer, claims, slug

import torch
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

HERE = Path(__file__).parent
READINGS = ("reinforce", "grpo")
NAV = [("index.html", "Methods"), ("compare.html", "Compare"), ("read-grpo.html", "Read"), ("sliders.html", "Sliders")]
NAV += [("claims.html", "Claims"), ("lessons.html", "Lessons"), ("docs.html", "Docs")]
COLUMNS = {
    "folder": "folder",
    "year": "year",
    "baseline": "baseline",
    "ratio": "ratio of",
    "stops": "when the ratio leaves 1",
}
COLUMNS |= {
    "averages": "average",
    "long": "token weight in a response twice as long",
    "updates": "updates",
    "critic": "critic",
}


def prose(text: str) -> Markup:
    """Text of a docstring or a table as HTML: `code`, links, flags, and links to scripts."""
    text = html.escape(text, quote=False)
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"(?<![\w`>-])(--[a-z][\w-]+)", r"<code>\1</code>", text)

    def script(match: re.Match[str]) -> str:
        return f'<a href="{match[1]}.html">{match[0]}</a>' if match[1] in parents() else match[0]

    return Markup(re.sub(r"\b(?:methods/|recipes/)?(\w+)\.py\b", script, text))


def spark(name: str) -> Markup:
    """Two small pictures: the advantage by the number of correct responses, the factor by the ratio of a token."""
    curves, drawn = scripts.curves(name), []
    factors = {kind: (curves["token"] or {}).get(sign, [])[::8] for sign, kind, *_ in fingerprint.KINDS}
    for of_kind, low, high, what in (
        (curves["advantages"] or {}, -2.6, 2.6, "advantage"),
        (factors, -0.1, 2.1, "factor"),
    ):
        svg = ""
        for kind, color in (("correct", "pos"), ("incorrect", "neg")):
            values = of_kind.get(kind, [])
            points = [
                (72 * i / (len(values) - 1), min(max(v, low), high)) for i, v in enumerate(values) if v is not None
            ]
            path = " ".join(f"{x:.0f},{25 - 24 * (y - low) / (high - low):.1f}" for x, y in points)
            svg += f'<polyline points="{path}" fill="none" stroke="var(--{color})" stroke-width="1.6"/>'
        drawn.append(f'<svg viewBox="0 0 72 26" role="img" aria-label="{what} of {name}">{svg}</svg>')
    return Markup("".join(drawn))


class Site:
    """The folder, its templates, and what search finds."""

    def __init__(self, out: Path, repository: str) -> None:
        self.out, self.renderer, self.index, self.repository = out, Renderer(out, repository), [], repository
        self.templates = Environment(loader=FileSystemLoader(HERE / "templates"), autoescape=True, trim_blocks=True)
        self.templates.filters |= {"prose": prose, "slug": slug}
        self.templates.globals |= {"nav": NAV, "repository": repository, "spark": spark}
        self.templates.globals |= {"route": self.renderer.routes.get, "readings": READINGS}

    def write(self, url: str, template: str, title: str, active: str = "", **context: Any) -> None:
        text = self.templates.get_template(template).render(title=title, active=active or url, **context)
        (self.out / url).write_text(text)
        main = text[text.index("<main") : text.index("</main>")]
        main = re.sub(r'<pre class="source".*?</pre>|<svg.*?</svg>|<select.*?</select>', " ", main, flags=re.S)
        for part in re.split(r"(?=<h[12][ >]|<article )", main):
            anchor = re.match(r'<\w+[^>]*? id="([^"]+)"', part)
            heading = re.search(r"<h[123][^>]*>(.*?)</h[123]>", part, re.S)
            words = html.unescape(" ".join(re.sub(r"<[^>]+>", " ", part).split()))
            if heading and words:
                name = html.unescape(re.sub(r"<[^>]+>", "", heading[1]))
                address = f"{url}#{anchor[1]}" if anchor else url
                self.index.append([name if name == title else f"{title}: {name}", address, words])

    def assets(self) -> None:
        axes = {"ratios": fingerprint.RATIOS, "lengths": fingerprint.LENGTHS, "curves": scripts.CURVES}
        constants = f"const AXES = {json.dumps(axes)}, SOURCE = {json.dumps(self.renderer.address('blob'))};"
        text = (HERE / "assets/site.js").read_text()
        (self.out / "site.js").write_text(text.replace('"use strict";', f'"use strict";\n{constants}'))
        for name in ("site.css", "sliders.js"):
            shutil.copy(HERE / "assets" / name, self.out / name)
        (self.out / ".nojekyll").touch()

    def methods(self) -> None:
        """The front page, a page per script, and the comparison with its data."""
        found = {name: scripts.page(name) for name in parents()}
        columns = [(k, label, sorted({s["coarse"][k] for s in found.values()})) for k, label in COLUMNS.items()]
        text = next(p for p in (ROOT / "README.md").read_text().split("\n\n") if not p.startswith(("#", "[")))
        intro = self.renderer.relink(self.renderer.markdown.render(text), "README.md")
        root = next(name for name, above in parents().items() if above is None)
        self.write("index.html", "index.html", "Methods", scripts=found, columns=columns, intro=intro, root=root)
        self.write("compare.html", "compare.html", "Compare two scripts", scripts=found, columns=columns)
        for name, page in found.items():
            curves = bool(scripts.runs().get(name))
            self.write(
                f"{name}.html",
                "script.html",
                page["title"],
                "index.html",
                name=name,
                s=page,
                columns=columns,
                curves=curves,
            )
            self.script(f"data/{name}.js", f"Site.data[{json.dumps(name)}] = ", scripts.data(name), ";")
        self.script("lines.js", "Site.lines = ", {"code": [*lines.numbers()], "marks": lines.marks()}, ";")
        self.write("flags.html", "shared.html", "Flags of every script", "docs.html", groups=scripts.shared_settings())
        for name in READINGS:
            context = {"pieces": reading.segments(name), "path": found[name]["path"]}
            shown = {"rows": reading.ROWS, "columns": reading.COLUMNS}
            self.write(
                f"read-{name}.html", "read.html", f"Reading {found[name]['path']}", "read-grpo.html", **context, **shown
            )
        self.write("sliders.html", "sliders.html", "What happens to a token", scripts=found, step=tables.STEP)
        self.script("tables.js", "Site.tables = ", tables.tables(), ";")

    def script(self, url: str, before: str, content: Any, after: str) -> None:
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        (self.out / url).write_text(before + text + after + "\n")

    def texts(self) -> None:
        """Claims, lessons, worlds, docs and reports."""
        groups, counts = claims(), {}
        for claim in (claim for group in groups for claim in group["claims"]):
            claim["image"] = self.renderer.picture(claim["picture"]) if (ROOT / claim["picture"]).exists() else ""
            counts[claim["verdict"]] = counts.get(claim["verdict"], 0) + 1
        self.write(
            "claims.html", "claims.html", "Claims by question", groups=groups, counts=counts, identities=identities()
        )
        titles: dict[str, list[str]] = {}
        for file, url in self.renderer.routes.items():
            if file.endswith((".md", ".ipynb")) and url != "claims.html":
                kind = (
                    "Lessons"
                    if file.startswith("notebooks/")
                    else file.split("/")[0].capitalize()
                    if "/" in file
                    else "Repository"
                )
                title, body = (self.renderer.notebook if file.endswith(".ipynb") else self.renderer.page)(file)
                active = "lessons.html" if kind == "Lessons" else "docs.html"
                self.write(url, "base.html", title, active, body=body)
                titles.setdefault(kind, []).append(f'<li><a href="{url}">{html.escape(title)}</a></li>')
        lessons = titles.pop("Lessons")
        titles["Docs"].append('<li><a href="flags.html">Flags of every script</a></li>')
        self.write("lessons.html", "base.html", "Lessons", body=f"<h1>Lessons</h1><ul>{''.join(lessons)}</ul>")
        body = "".join(
            f'<h2 id="{kind.lower()}">{kind}</h2><ul>{"".join(items)}</ul>' for kind, items in titles.items()
        )
        self.write("docs.html", "base.html", "Docs", body=f"<h1>Docs</h1>{body}")


@dataclass
class Args:
    out: Path = ROOT / "site"
    """The folder to write; an earlier site in it is replaced."""
    repository: str = os.environ.get("GITHUB_SERVER_URL", "") and "{GITHUB_SERVER_URL}/{GITHUB_REPOSITORY}".format(
        **os.environ
    )
    """Address of the repository on GitHub, for links to lines; GitHub's workflows set it."""


def main(args: Args) -> None:
    if args.out.exists() and any(args.out.iterdir()) and not (args.out / "site.css").exists():
        fail(f"--out {args.out} is not empty and holds no site: name another folder.")
    shutil.rmtree(args.out, ignore_errors=True)
    (args.out / "data").mkdir(parents=True)
    torch.manual_seed(0)
    site = Site(args.out, args.repository.rstrip("/"))
    site.assets()  # first: an interrupted build leaves a folder that the next one recognizes
    site.methods()
    site.texts()
    site.script("search.js", "Site.index = ", site.index, ";")
    files = [path for path in args.out.rglob("*") if path.is_file()]
    say(f"{args.out}/index.html: {len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.1f} MB")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
