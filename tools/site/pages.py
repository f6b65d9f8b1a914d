"""Markdown pages and notebooks as HTML: links that stay on the site, pictures, formulas as MathML."""

import base64
import html
import io
import json
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from claims import court
from claims.page import others
from claims.questions import QUESTIONS
from claims.register import paragraphs, versions
from tools.scripts import ROOT, parents, script_path
from tools.site.lines import highlighted

import latex2mathml.converter
from markdown_it import MarkdownIt
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from PIL import Image


def pages() -> dict[str, str]:
    """What has a page on the site: the file in the repository, and the page's name."""
    found = {"README.md": "start.html"}
    folders = ("docs/**/*.md", "reports/*.md", "worlds/*/README.md", "notebooks/*.md", "notebooks/*.ipynb", "*.md")
    for path in (path for pattern in folders for path in sorted(ROOT.glob(pattern))):
        file = str(path.relative_to(ROOT))
        found.setdefault(file, re.sub(r"\W+", "-", file.rsplit(".", 1)[0]).lower() + ".html")
    found |= {str(script_path(name).relative_to(ROOT)): f"{name}.html" for name in parents()}
    found |= {f"claims/{name}.py": f"claims.html#{name}" for name in court.names()}
    return found | {"reports/claims.md": "claims.html"}


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def mathml(text: str, options: dict[str, Any]) -> str:
    display = "block" if options.get("display_mode") else "inline"
    return latex2mathml.converter.convert(text, display=display)


class Renderer:
    """Markdown of one file of the repository; pictures go to `img/` of the site, links to its pages or to GitHub."""

    def __init__(self, out: Path, repository: str) -> None:
        self.out, self.repository, self.routes = out, repository, pages()
        (out / "img").mkdir(parents=True, exist_ok=True)
        self.markdown = MarkdownIt("commonmark", {"highlight": self.code}).enable("table").use(
            anchors_plugin, max_level=4, slug_func=slug
        )  # fmt: skip
        self.with_math = MarkdownIt("commonmark", {"highlight": self.code}).enable("table")
        self.with_math.use(anchors_plugin, max_level=4, slug_func=slug).use(dollarmath_plugin, renderer=mathml)

    @staticmethod
    def code(text: str, language: str, _: str) -> str:
        return "\n".join(highlighted(text.rstrip("\n"))) if language == "python" else html.escape(text.rstrip("\n"))

    def link(self, target: str, file: str) -> str:
        """Where a link in a file leads: on the site, on GitHub, or "" if neither has it."""
        if re.match(r"https?:|mailto:|#", target):
            return target
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), path))
        if path in self.routes:
            return self.routes[path] + (f"#{anchor}" if anchor else "")
        if path.endswith(".png") and (ROOT / path).exists():
            return self.picture(path)
        return self.source(path) if (ROOT / path).exists() else ""

    def address(self, kind: str) -> str:
        """Address of the repository's files ("blob") or folders ("tree") at the commit that the site is built from."""
        return f"{self.repository}/{kind}/{os.environ.get('GITHUB_SHA') or 'main'}" if self.repository else ""

    def source(self, path: str) -> str:
        address = self.address("tree" if (ROOT / path).is_dir() else "blob")
        return f"{address}/{path}" if address else ""

    def picture(self, path: str) -> str:
        return self.store((ROOT / path).read_bytes(), path.replace("/", "-"))

    def store(self, content: bytes, name: str) -> str:
        """Keep a PNG with 32 colors, which is a third of its size or less; its address."""
        target = self.out / "img" / name
        if not target.exists():
            Image.open(io.BytesIO(content)).convert("RGB").quantize(32, dither=0).save(target, optimize=True)
        return f"img/{name}"

    def relink(self, text: str, file: str) -> str:
        """Links and pictures of HTML that was made from a file."""

        def link(match: re.Match[str]) -> str:
            target = self.link(html.unescape(match[1]), file)
            return f'<a href="{html.escape(target)}">{match[2]}</a>' if target else match[2]

        def picture(match: re.Match[str]) -> str:
            target = self.link(match[1], file)
            return f'<img loading="lazy" src="{target}" alt="{match[2]}" />' if target else ""  # a badge of GitHub

        text = re.sub(r'<a href="([^"]*)">(.*?)</a>', link, text, flags=re.S)
        text = re.sub(
            r"<table>(.*?)</table>", r'<div class="wide" tabindex="0"><table>\1</table></div>', text, flags=re.S
        )
        return (
            re.sub(r'<img src="([^"]*)" alt="([^"]*)" ?/?>', picture, text)
            .replace("<pre>", '<pre tabindex="0">')
            .replace('class="math block"', 'class="math block" tabindex="0"')
        )

    def page(self, file: str) -> tuple[str, str]:
        """Title and HTML of a Markdown file."""
        text = (ROOT / file).read_text()
        if file == "README.md" and self.repository and "git clone" not in text:
            clone = f"git clone {self.repository} && cd {self.repository.rsplit('/', 1)[1]}"
            text = text.replace("```bash\n", f"```bash\n{clone}\n```\ngets the files.\n\n```bash\n", 1)
        title = re.search(r"^# (.+)$", text, re.M)
        return (title[1] if title else file), self.relink(self.markdown.render(text), file)

    def notebook(self, file: str) -> tuple[str, str]:
        """Title and HTML of a notebook with its outputs, without the answers to its questions."""
        parts, cells = [], json.loads((ROOT / file).read_text())["cells"]
        for cell in cells:
            text = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                text = re.sub(r"<details>.*?</details>", "", text, flags=re.S)
                parts.append(self.relink(self.with_math.render(text), file))
            else:
                code = "\n".join(highlighted(text))
                parts.append(f'<pre tabindex="0"><code>{code}</code></pre>')
                parts += [self.output(output, file, len(parts)) for output in cell.get("outputs", [])]
        return "".join(cells[0]["source"]).splitlines()[0].lstrip("# "), "\n".join(parts)

    def output(self, output: dict[str, Any], file: str, number: int) -> str:
        data = output.get("data", {})
        if "image/png" in data:
            # A name by content: outputs of one cell have the same number.
            content = base64.b64decode(data["image/png"])
            name = f"{Path(file).stem}-{number}-{len(content)}.png"
            return f'<img loading="lazy" src="{self.store(content, name)}" alt="Plot; its caption follows." />'
        if "text/markdown" in data:
            return self.relink(self.with_math.render("".join(data["text/markdown"])), file)
        text = "".join(output.get("text", data.get("text/plain", [])))
        return f'<pre tabindex="0" class="output">{html.escape(text)}</pre>'


def claims() -> list[dict[str, Any]]:
    """Groups of claims with a title and an answer or ""; each claim with docstring, verdict, effect and changes."""
    groups = [(question.title, question.answer, question.claims) for question in QUESTIONS]
    groups += [(title, "", names) for title, names in others().items()]
    return [{"title": title, "answer": answer, "claims": [*map(claim, names)]} for title, answer, names in groups]


def claim(name: str) -> dict[str, Any]:
    stored = court.record(name) or {"verdict": "not run yet"}
    statement, *others = paragraphs(name)
    return {
        "name": name,
        "statement": statement,
        "paragraphs": others,
        "picture": f"reports/claims/{name}.png",
        "changes": [version for version in versions()[name] if version["known"]],
    } | {key: stored.get(key, "") for key in ("verdict", "effect", "date")}
