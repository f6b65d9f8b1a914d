"""Make the autograder that Gradescope runs: `notebooks.exercises.grade` with the files it needs.

    python -m notebooks.exercises.gradescope autograder.zip
    python -m notebooks.exercises.gradescope autograder.zip --key SECRET --bugs

Upload the file under "Configure Autograder" with a base image of Ubuntu 22.04 or newer. Choose a container with 1.5 GB
of memory or more and a timeout of 20 minutes: an endless loop in every function takes 15. Students' functions run in
the same sandbox as here, and cannot read the key, which the file holds. If the container's kernel does not allow the
sandbox, the autograder fails without a result. It never runs a function unconfined.

setup.sh has not been tried on Gradescope. A test unpacks the file and runs run_autograder with this machine's Python.
https://gradescope-autograders.readthedocs.io/en/latest/specs/ says what Gradescope expects.
"""

import re
import shlex
import zipfile
from dataclasses import dataclass
from pathlib import Path

from common.cli import fail, say
from common.help import parse_args
from notebooks.exercises.exercises import SCRIPTS
from notebooks.exercises.key import check_key
from tools.scripts import ROOT

import tyro

PARTS = (
    *(f"{script}.py" for script in SCRIPTS),
    "common/*.py",
    "notebooks/__init__.py",
    "notebooks/exercises/*.py",
    "tools/__init__.py",
    "tools/scripts.py",
    "worlds/__init__.py",
    "LICENSE",
)
PACKAGES = ("numpy", "pydantic", "tyro")  # and torch
PYTHON = "/opt/grader/bin/python"  # in Gradescope's container
SETUP = f"""#!/usr/bin/env bash
# Runs once, as root, when Gradescope builds the container.
set -euo pipefail
apt-get update
for version in 3.13 3.12 3.11; do  # the newest that this Ubuntu has
    if apt-get install -y "python$version-venv"; then break; fi
done
"python$version" -m venv {Path(PYTHON).parent.parent}
{PYTHON} -m pip install --no-cache-dir {{torch}} --index-url https://download.pytorch.org/whl/cpu
{PYTHON} -m pip install --no-cache-dir {{packages}}
"""
RUN = f"""#!/usr/bin/env bash
# Gradescope copies this file to /autograder and runs it there, once for each submission.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export OMP_NUM_THREADS=1
cd "$here/source"  # not where a student's files could be imported
exec "${{GRADER_PYTHON:-{PYTHON}}}" -m notebooks.exercises.grade \\
    "$here/submission" --json "$here/results/results.json" "$@"
"""


@dataclass
class Args:
    path: tyro.conf.Positional[Path]
    """The zip file to create."""
    key: str | None = None
    """The key of the class, as for notebooks.exercises.grade."""
    bugs: bool = False
    """Also grade the silent bugs that the key draws."""

    def __post_init__(self) -> None:
        if self.path.suffix != ".zip":
            fail("name the file to create: python -m notebooks.exercises.gradescope autograder.zip")
        if not self.path.absolute().parent.is_dir():
            fail(f"{self.path.parent} is not a folder: create it, or write {self.path.name} elsewhere.")
        check_key(self.key, self.bugs)


def run_autograder(args: Args) -> str:
    options = ["--key", shlex.quote(args.key)] if args.key is not None else []
    return RUN.replace('"$@"', " ".join([*options, *["--bugs"] * args.bugs, '"$@"']))


def setup() -> str:
    """setup.sh, with the versions of requirements.txt."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = {re.split("[=<>]", line)[0]: line for line in (line.split("#")[0].strip() for line in lines)}
    return SETUP.format(torch=pins["torch"], packages=" ".join(pins[name] for name in PACKAGES))


def make(args: Args) -> None:
    """Write the zip file; every pattern of PARTS must match."""
    with zipfile.ZipFile(args.path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in (("setup.sh", setup()), ("run_autograder", run_autograder(args))):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text, zipfile.ZIP_DEFLATED)
        for pattern in PARTS:
            found = sorted(ROOT.glob(pattern))
            assert found, f"{pattern} matches no file"
            for file in found:
                archive.write(file, file.relative_to(ROOT))


def main(args: Args) -> None:
    make(args)
    say(f"{args.path}: upload it to Gradescope; setup.sh installs Python and torch there.")


if __name__ == "__main__":
    main(parse_args(Args, __doc__))
