"""A page of runs that updates itself while they go on: overlaid curves, and the responses of any step.

    python -m tools.watch RUN RUN ...

A folder of runs stands for all of them, even those that start later; copied folders work too. The page is served on
this machine only and makes no request elsewhere. To see runs on another machine, forward the port:
`ssh -L 8000:localhost:8000 MACHINE`.
"""

import json
import math
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from common.cli import fail, say
from common.help import parse_args
from common.metrics import read_metrics
from tools.plots import BEHAVIOR_PANELS, PANELS

import tyro
from annotated_types import Interval
from plotly.offline import get_plotlyjs

HERE = Path(__file__).parent
JSON, LINES, SCRIPT = "application/json", "application/x-ndjson", "text/javascript"
GZIP = b"\x1f\x8b"  # how compressed files begin
PAGE = {"/": ("page.html", "text/html"), "/page.css": ("page.css", "text/css"), "/page.js": ("page.js", SCRIPT)}
# The page runs its own files and nothing else, whatever a run folder holds.
POLICY = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:"
LOCAL = ("localhost", "127.0.0.1")  # refuses other names, which a website could give this machine


@dataclass
class Args:
    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run folders, or folders of run folders."""
    port: Annotated[int, Interval(ge=0, le=65535)] = 8000
    """Port of the page; 0: any free one."""


def find_runs(folders: tuple[Path, ...]) -> dict[str, Path]:
    """The run folders by name; those without a log are left out."""
    found = {}
    for folder in folders:
        inside = [folder] if (folder / "metrics.jsonl").is_file() else sorted(folder.glob("*/"))
        found |= {str(path): path for path in inside if (path / "metrics.jsonl").is_file()}
    return found


def state(folder: Path) -> dict[str, Any]:
    """What changes as a run goes on: its log, and the steps whose responses are saved."""
    log, saved = (folder / "metrics.jsonl").stat(), folder.glob(f"rollouts/step-{'[0-9]' * 6}.jsonl.gz")
    steps = sorted(int(path.name.split(".")[0].removeprefix("step-")) for path in saved)
    return {"version": f"{log.st_mtime_ns} {log.st_size}", "steps": steps}


def rows(folder: Path) -> list[dict[str, float | None]]:
    """A run's log, a row per step. JSON has no number that is not finite."""

    def finite(value: float | None) -> float | None:
        return value if value is None or math.isfinite(value) else None

    return [{name: finite(value) for name, value in row.items()} for row in read_metrics(folder)]


def responses(folder: Path, step: int) -> bytes:
    """A file of a run's responses. A copied folder may hold a link to another file, or a pipe; neither is read."""
    file = folder / f"rollouts/step-{step:06d}.jsonl.gz"
    if not file.is_file() or folder.resolve() not in file.resolve().parents:
        raise FileNotFoundError(file)
    return file.read_bytes()


class Server(ThreadingHTTPServer):
    """Serves the page, on this machine only."""

    def __init__(self, args: Args) -> None:
        super().__init__(("127.0.0.1", args.port), Handler)
        self.folders = args.runs


class Handler(BaseHTTPRequestHandler):
    """Answers the page's requests."""

    def do_GET(self) -> None:
        with suppress(ConnectionError):  # the page has been closed
            if (self.headers["Host"] or "").partition(":")[0] not in LOCAL:
                return self.send_error(403)
            try:
                url = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(url.query).items()}
                content, kind = self.answer(url.path, query)
            except (OSError, KeyError, ValueError):  # a folder was removed, or the request is not the page's
                return self.send_error(404)
            self.send(content, kind)

    def answer(self, path: str, query: dict[str, str]) -> tuple[bytes, str]:
        """What is at a path, and its content type."""
        if path in PAGE:
            name, kind = PAGE[path]
            return (HERE / name).read_bytes(), kind
        if path == "/plotly.js":
            return get_plotlyjs().encode(), SCRIPT
        if path == "/panels":
            return json.dumps([*PANELS, *BEHAVIOR_PANELS]).encode(), JSON
        runs = find_runs(self.server.folders)
        if path == "/runs":
            return json.dumps({name: state(folder) for name, folder in runs.items()}).encode(), JSON
        if path == "/metrics":
            return json.dumps(rows(runs[query["run"]])).encode(), JSON
        if path == "/rollouts":
            return responses(runs[query["run"]], int(query["step"])), LINES
        raise KeyError(path)

    def send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        if content.startswith(GZIP):
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Do not print requests."""


def main(args: Args) -> None:
    for folder in args.runs or fail("no run folders are given: python -m tools.watch RUN RUN ..."):
        if not (folder / "config.json").exists() and not find_runs((folder,)):
            fail(f"{folder} is not a run folder and holds none.")
    try:
        server = Server(args)
    except OSError as error:
        fail(f"--port {args.port}: {error.strerror}. Name another one, or 0 for any free one.")
    say(f"http://localhost:{server.server_port}  (Ctrl-C ends it)")
    with suppress(KeyboardInterrupt), server:
        server.serve_forever()


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
