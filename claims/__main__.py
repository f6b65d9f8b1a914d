"""Claims of the literature, tested one by one: each is a file of this folder, with its rule and its verdict.

python -m claims                               # all claims with their verdicts
python -m claims std_favors_extremes           # compute one anew, judge it, draw its picture
python -m claims std_favors_extremes --redraw  # only the picture, from the stored result
python -m claims --page                        # the table of verdicts, docs/claims.md
"""

from dataclasses import dataclass

from claims import court
from common.cli import fail

import tyro


@dataclass
class Args:
    claims: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of claims to compute; without any, all are listed."""
    redraw: bool = False
    """Only draw the pictures again."""
    page: bool = False
    """Only write the table of verdicts, docs/claims.md, from the stored results."""


def main(args: Args) -> None:
    if args.redraw and not args.claims:
        fail("--redraw needs the names of claims: python -m claims lists them.")
    if args.page:
        court.PAGE.write_text(court.page())
    elif not args.claims:
        width = max(map(len, court.names()))
        for name in court.names():
            stored = court.record(name) or {"verdict": "not run yet", "effect": court.statement(name)}
            print(f"{name:{width}}  {stored['verdict']:12}  {stored['effect']}")
    for name in args.claims:
        if not args.redraw:
            court.run(name)
        court.draw(name)
        stored = court.record(name)
        print(f"{court.statement(name)}\n{stored['verdict']}: {stored['effect']}")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
