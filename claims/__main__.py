"""Claims of the literature, tested one by one: each is a file of this folder with its decision rule.

python -m claims                               # all verdicts
python -m claims std_favors_extremes           # compute one, judge it, draw its picture
python -m claims std_favors_extremes --redraw  # only judge and draw the stored result
python -m claims std_favors_extremes --history # what it said, from when on, and why that changed
python -m claims --page                        # reports/claims.md, the table of verdicts
python -m claims habits_decide_what_rl_gains --sweep  # each arm's accuracy by learning rate, on other seeds
python -m claims critic_is_unnecessary --tokens  # the same arms after equal numbers of tokens
python -m claims critic_is_unnecessary --problems  # intervals for new problems as well as new seeds
python -m claims small_groups_suffice --check  # whether its first seed gives the stored numbers again, to the bit
python -m claims --kind runs                   # all claims of a kind; those by runs take up to two hours each
"""

import shutil
import signal
from dataclasses import dataclass
from typing import Annotated, Literal

from claims import court, fair, problems, runs, tokens
from claims.page import PAGE, page
from claims.register import changed_after_a_result, history
from claims.runs import accuracy, check, sweep
from common.cli import fail, say
from common.help import parse_args
from common.settings import validated

import tyro
from annotated_types import Ge


@dataclass
class Args:
    claims: tyro.conf.Positional[tuple[str, ...]] = ()
    """Names of claims to compute; without any, all claims are listed."""
    kind: Literal["exact", "model", "runs"] | None = None
    """Compute all claims of a kind."""
    seeds: Annotated[int, Ge(2)] = 16
    """Number of seeds of a claim by runs, from 1 on."""
    sweep: bool = False
    """Only compare learning rates, for each arm of claims by runs. The best goes into the arm before it is judged."""
    check: bool = False
    """Only repeat the first seed of every arm of claims by runs, and compare it with the stored result."""
    tokens: bool = False
    """Only compare the arms of fair trials again at equal numbers of tokens, where these differ by more than 5 %."""
    problems: bool = False
    """Only compute intervals of fair trials for new problems as well as new seeds, by a bootstrap over both."""
    redraw: bool = False
    """Only judge and draw the stored results again."""
    history: bool = False
    """Only print all versions of the claims, by default of those that were changed after a result."""
    page: bool = False
    """Only write reports/claims.md from the stored results."""


def main(args: Args) -> None:
    args = validated(Args, vars(args))
    claims = args.claims or tuple(name for name in court.names() if args.kind == court.load(name).KIND)
    if args.redraw and not claims:
        fail("--redraw needs the names of claims or their --kind: python -m claims lists them.")
    if args.history:
        for name in claims or dict.fromkeys(version["claim"] for version in changed_after_a_result()):
            say(history(name), keep="\n")
        return
    if args.page:
        PAGE.write_text(page())
    elif not claims:
        for name in court.names():
            verdict = (court.record(name) or {"verdict": "not run yet"})["verdict"]
            print(f"{verdict}: {court.statement(name)} ({name})")
    if args.check:
        shutil.rmtree(runs.CHECKS, ignore_errors=True)  # its runs are made anew
    for name in claims:
        if args.sweep:
            if hasattr(court.load(name), "fair"):
                fair.sweep(court.load(name))
                continue
            if not hasattr(court.load(name), "ARMS"):
                fail(f"{name} has no arms to sweep: python -m claims {name} computes it.")
            for arm, words in court.load(name).ARMS.items():
                say(f"{arm}: {sweep(words.partition(' --lr')[0], accuracy)}")
            continue
        if args.check:
            say(f"{name}: {check(name)}")
            continue
        if args.tokens:
            say(f"{name}: {tokens.compare(name) or 'the arms have as many tokens'}")
            continue
        if args.problems:
            say(f"{name}: {problems.compare(name)}")
            continue
        if not args.redraw:
            court.run(name, args.seeds)
        court.redraw(name)
        stored = court.record(name)
        print(f"{court.statement(name)}\n{stored['verdict']}: {stored['effect']}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it silently
    main(parse_args(Args, __doc__))
