"""reports/claims.md: questions with their answers and claims, then all other claims."""

import math
import re
import textwrap
from collections import Counter, defaultdict
from itertools import groupby
from typing import Any

from claims import court, problems
from claims.bootstrap import stays
from claims.fair import AGAIN, worlds_of
from claims.questions import IDENTITIES, QUESTIONS
from claims.register import changed_after_a_result, versions
from claims.runs import by_todays_code, measures, p_values
from tools.reports import REPORTS, heading

BORDERLINE = 0.75  # a verdict that stays in fewer draws of the seeds
PAGE = REPORTS / "claims.md"
REST = {
    "exact": "Further claims, by enumeration or simulation",
    "model": "Further claims, on the embedded model: a few passes or updates, at most one short run",
    "runs": "Further claims, by training runs",
}
HEAD = (
    "| verdict | claim | effect, with 95 % interval | p, adjusted | worth naming | stays | spent by a run |",
    "|---|---|---|---|---|---|---|",
)
INTRODUCTION = """
What papers and write-ups say about these methods, each tested by one file of `claims/`. Its docstring gives the source
of the claim, the test and the decision rule; `python -m claims NAME` computes it. A verdict holds for what was measured
here, on a policy that can be enumerated or on the embedded model, not for large models.

A → B +x ± y means that B has x more than A, with a 95 % interval, so an effect that is claimed to be a decrease is
negative. [How verdicts are reached](#how-verdicts-are-reached) explains the columns. G is the size of a group, p the
chance of a correct response, w(p) the weight of a prompt, β and C settings of the scripts
([glossary](../docs/glossary.md)).
"""
RULES = """
## How verdicts are reached

- **reproduced**: the effect goes the claimed way, its interval excludes 0, and its mean is at least the smallest effect
  worth naming. A claim that nothing is lost is reproduced if the interval excludes a loss worth naming.
- **contradicted**: the interval excludes every effect worth naming, and does not lie above 0; for a claim that nothing
  is lost, the mean loss is worth naming and the interval excludes 0.
- **inconclusive**: everything else: the interval holds effects that are worth naming and effects that are not, an
  effect is certain but smaller than worth naming, or the two worlds of a fair trial have different verdicts.
- **void**: a claim about clipping, tested where less than 1% of the loss weight is clipped. Exceptions are
  clip_needs_both_bounds and clip_on_search_needs_both_bounds, where little clipping at the best learning rates is an
  answer; gspo_clips_more_and_learns_as_well, which compares how much is clipped; and few_negatives_destabilize, which
  claims that little is masked.
- **not testable here**: this world cannot show the effect; the claim's file says why.

A claim of several parts has the verdict of the worst. Claims without training runs are decided by the rule in their
file; those on the embedded model have one seed.

Fair trials (`claims/fair.py`) compare each arm at its best learning rate with 16 seeds, in the world named before the
arms (sums, sums-hard, search or search-hard). Each rate is about three times the one before, and rates were compared on
two other seeds, with problems from the same 512. Two rates whose sweeps differ by less than about 0.04 may be in the
wrong order by chance, and the intervals do not include this. Every run has its own half of the same 512 held-out
problems, so intervals include which of these were drawn, and hold for these 512. For new problems too (`--problems`, a
bootstrap over runs and problems), intervals of accuracy are wider by up to {wider}. This was computed where it could
change most, for {drawn}. With these intervals, and with all others of accuracy wider by as much, verdicts are the
same{changed}. The first arm is compared with itself (*again*), which shows what no difference looks like. Claims with
the same first arm share its runs: the same 16 are the first arm of {sums} claims on sums, and 16 others that of
{search} claims on search, so if these came out high or low by chance, all of those claims are affected. Arms have equal
numbers of responses, except that stale arms get 8 batches more and dynamic sampling ends at the nearest step. The
difference *at equal tokens* is what remains if the arm that was trained on more tokens ends earlier, where the other
has at least 5% fewer (`--tokens`, 8 seeds); it decides nothing. It is given where a claim is about accuracy at the end
alone, but not for coin flips, which teach nothing.

A verdict *on sums* or *on search* is about one world; some questions have a claim for each. Both worlds contradict that
the clip needs both bounds, that stale rollouts are harmless, and that the engine's log-probs suit a quantized engine.
On the length bias of GRPO's mean, and on MaxRL's pass@k in training, they differ, which leaves these open.

*Paired* claims compare arms on the same seeds: the same problems and seeds of the engine. Most are about something that
the learning rate itself would move: entropy, length, a KL, rounding, the shape of a curve; few_negatives_destabilize is
about a collapse, which the best rate avoids. Except in four claims, all arms have one rate. base_catches_up_at_large_k
has the best of three and rl_trades_pass_at_k_for_pass_at_1 that of a fair trial; both compare runs before and after
training, and evaluate each run on its own problems. In habits_decide_what_rl_gains and priming_with_wrong_answers,
which compare base models, each has its best of three. All runs of the others are measured on the same held-out
problems, on their own training responses or on fixed prompts, so the intervals are those of new seeds, not of new
problems. With 16 other seeds GRPO differs from itself by {itself} (grpo_against_itself).

*Stays* is the fraction of 100 draws of the seeds, with replacement, that give the same verdict; below 75% a verdict is
*borderline*. p-values, in the order of the differences, are those of two-sided t-tests, adjusted for all differences of
the page (Holm); the difference of an arm from itself (–) is among them only in grpo_against_itself, which is about it.
They decide no verdict, but a reproduced effect whose p is large could be chance among so many; for a claim that nothing
is lost, p says nothing. A verdict with † was made by earlier scripts. {repeated} of {count} results by runs gave the
numbers of their first seeds again, to the bit (`python -m claims NAME --check`, {checked}; `common/` may have changed
since). The first rule of each claim was frozen in a commit before its runs; what changed later stands in the last
section. For {lost}, these commits were lost before they could be published. Values by seed, commands, and budgets in
responses, tokens and updates are in `reports/claims/`.

Which effect is worth naming: 0.05 of accuracy is a tenth of what 30 steps of `grpo.py` gain; 0.03 and 0.02 are used
where the paper itself reports gains of a few points for one component, as DAPO's Table 1 does; on sums 2 tokens are a
twentieth of a response, and 5 an eighth, on search 5 are a fortieth of an incorrect one; 0.2 on the world of search is
a quarter of what the default run gains; 0.602 in log10 is a factor of 4. A third, a tenth, and a quarter refer to the
first arm's mean. 0.01 and 0.02 of pass@k, of a prediction, of a chance or of the responses, and 0.05 of a correlation
or of an error of prediction, are our choice.
"""
CHANGED = """
## Changed after a result

What these claims say, or how they are judged, was changed when a verdict was known. `python -m claims NAME --history`
shows each version; all are in `claims/register.jsonl`. In parentheses is the verdict that was known. Until 2026-11-24
"contradicted" was called "refuted" and "inconclusive" "within noise", and a certain effect smaller than worth naming
counted as refuted. With eight seeds instead of five, response_mean_lengthens_wrong_answers and
false_positives_damage_training moved from "reproduced" to "within noise"; with 16 instead of eight,
sigmoid_predicts_the_end moved from "inconclusive" to "contradicted".

Claims whose scripts had changed after their verdict were run again with the scripts of 2026-11-27. Two verdicts
changed: few_negatives_destabilize was "reproduced" by five seeds, and is "inconclusive" by the same five and by 16;
rl_trades_pass_at_k_for_pass_at_1 was "reproduced", gave "inconclusive" by the same five seeds, and is now judged by 16
others at the best learning rate. Of twelve whose old first seeds were compared with the new ones, ten differed, mostly
by at most 0.1 of accuracy, or 0.4 where runs collapse: sums in another order round differently, and training amplifies
that. So a verdict on runs that collapse needs many seeds.
"""


def adjusted() -> dict[tuple[str, str], float]:
    """Holm's adjusted p-value of each difference of the claims by runs, by claim and pair of arms.

    An arm's difference from itself is left out, and one that two claims share counts once.
    """
    found, same = {}, defaultdict(list)
    for name in court.names():
        if court.load(name).KIND == "runs" and (stored := court.record(name)):
            commands = {arm: of_arm["command"] for arm, of_arm in stored["result"]["arms"].items()}
            for metric, compared in measures(stored["result"]).items():
                for pair, p in p_values(compared).items():
                    if f" {AGAIN}, " not in pair:
                        same[p, metric, *map(commands.get, pair.split(" → "))].append((name, metric + pair))
    largest = 0.0
    for rank, (key, pairs) in enumerate(sorted(same.items(), key=lambda item: item[0][0])):
        largest = max(largest, min(1.0, key[0] * (len(same) - rank)))
        found |= dict.fromkeys(pairs, largest)
    return found


def interval(mean: float, half: float) -> str:
    """A mean ± half, with as many decimals as two digits of the half have, at least one."""
    decimals = max(1, 1 - math.floor(math.log10(half))) if half else 1
    return f"{mean:+.{decimals}f} ± {half:.{decimals}f}"


def probability(p: float | None) -> str:
    return "–" if p is None else "< 0.001" if p < 0.001 else f"{p:.2g}"


def spent(result: dict[str, Any]) -> str:
    """The responses of a run, and the tokens trained on, of the arm with the fewest and the one with the most."""
    found = []
    for world in worlds_of(result) if "degrees" in result else [""]:
        own = [arm for name, arm in result["arms"].items() if name.endswith(world)]
        spans = []
        for key, unit, suffix in (("responses", 1, ""), ("tokens", 1000, "k")):
            ends = [f"{end(arm[key] for arm in own) / unit:,.0f}{suffix}" for end in (min, max)]
            spans.append(f"{' to '.join(dict.fromkeys(ends))} {key}")
        found.append(f"{world} {', '.join(spans)}".strip())
    return "; ".join(found)


def named(pair: str) -> str:
    """A pair of arms; an arm and itself with other seeds are one name."""
    of, first, second = re.fullmatch(r"(accuracy, )?(.*) → (.*)", pair).groups(default="")
    return of + (second if second == f"{first} {AGAIN}" else f"{first} → {second}")


def cells(name: str, p: dict[tuple[str, str], float]) -> dict[str, str]:
    """Effect, p-values and smallest effect of a claim that has a result; `p` is `adjusted()`."""
    stored, claim = court.record(name), court.load(name)
    smallest = getattr(claim, "SMALLEST", "any" if claim.KIND == "runs" else "")
    smallest = smallest if isinstance(smallest, str) else f"{smallest:.3g}"
    if claim.KIND != "runs":
        return {"effect": stored["effect"], "p": "", "smallest": smallest, "stays": "", "spent": ""}
    metric, differences = stored["effect"].partition(":")[0], {}
    for of, compared in measures(stored["result"]).items():
        differences |= {of + pair: found for pair, found in compared["differences"].items()}
    parts = [claim.deciding(stored["result"])] if hasattr(claim, "deciding") else []
    even, world = stored["result"].get("equal_tokens", {}), ""
    for pair, (mean, half, _) in differences.items():
        words = pair
        if "degrees" in stored["result"]:  # a fair trial, whose arms name their world: once is enough
            before, world = world, pair.rpartition(", ")[2]
            words = f"{world}: " * (world != before) + named(pair.replace(f", {world}", ""))
        left = f" (at equal tokens {interval(*even[pair]['difference'][:2])})" if pair in even else ""
        parts.append(f"{words} {interval(mean, half)}{left}")
    if hasattr(claim, "of_worlds") and len({*(of_worlds := claim.of_worlds(stored["result"])).values()}) > 1:
        parts += [f"{world} {verdict}" for world, verdict in of_worlds.items()]
    return {
        "effect": f"{metric}: {'; '.join(parts)}",
        "p": ", ".join(probability(p.get((name, pair))) for pair in differences),
        "smallest": smallest,
        "stays": f"{again:.0%}" if (again := stays(name)) is not None else "",
        "spent": spent(stored["result"]),
    }


def remarks(name: str, result: dict[str, Any]) -> str:
    """What stands behind a verdict: its world if there is one alone, and what makes it weaker."""
    if court.load(name).KIND != "runs":
        return ""
    fair, again = "degrees" in result, stays(name)
    words = f" on {worlds_of(result)[0]}" if fair and len(worlds_of(result)) == 1 else "" if fair else ", paired"
    words += ", borderline" if again is not None and again < BORDERLINE else ""
    return words + ("" if by_todays_code(result) else " †")


def row(name: str, p: dict[tuple[str, str], float]) -> str:
    """The line of a claim."""
    stored, link = court.record(name), f"[{court.statement(name)}](../claims/{name}.py)"
    if stored is None:
        return f"| not run yet | {link} | | | | | |"
    shown = cells(name, p)
    verdict = f"[{stored['verdict']}](claims/{name}.png){remarks(name, stored['result'])}"
    effect = shown["effect"].replace("|", "\\|")
    rest = " | ".join(shown[key] for key in ("p", "smallest", "stays", "spent"))
    return f"| {verdict} | {link} | {effect} | {rest} |"


def others() -> dict[str, list[str]]:
    """The claims that are under no question, by heading."""
    shown = {name for question in QUESTIONS for name in question.claims}
    rest = [name for name in court.names() if name not in shown]
    return {title: [name for name in rest if kind == court.load(name).KIND] for kind, title in REST.items()}


def identities() -> list[tuple[str, str, str]]:
    """What was a claim and follows from the formulas: a sentence, the file of its test, and the test's name."""
    return [(words, *versions()[name][-1]["test"].split("::", 1)) for name, words in IDENTITIES.items()]


def linked(name: str) -> str:
    """A claim's name with a link to its file, or without one if it has become a test."""
    return name if name in IDENTITIES else f"[{name}](../claims/{name}.py)"


def for_new_problems(results: dict[str, Any]) -> dict[str, str]:
    """How much wider intervals are for new problems too, where this was computed, and what it would change."""
    trials = {name: stored for name, stored in results.items() if problems.fair_trial_of_accuracy(stored)}
    drawn = {name: stored["result"] for name, stored in trials.items() if "problems" in stored["result"]}
    times = problems.widest(drawn.values())
    found = {name: problems.verdict(name, stored["result"], times) for name, stored in trials.items()}
    other = [f"{name} would be {v}" for name, v in found.items() if v != trials[name]["verdict"]]
    return {
        "wider": " and ".join(f"{most - 1:.0%} on {world}" for world, most in times.items()),
        "drawn": f"{', '.join(list(drawn)[:-1])} and {list(drawn)[-1]}",
        "changed": f", except that {' and '.join(other)}" if other else "",
    }


def of_rules() -> dict[str, Any]:
    """What the text on how verdicts are reached says about all claims by runs."""
    results = {n: r for n in court.names() if court.load(n).KIND == "runs" and (r := court.record(n))}
    first = defaultdict(Counter)  # by world, how many claims have the same first arm
    for result in (stored["result"] for stored in results.values() if "degrees" in stored["result"]):
        for world in worlds_of(result):
            arm = next(arm for arm in result["arms"] if arm.endswith(f", {world}"))
            first[world][result["arms"][arm]["command"]] += 1
    checked = [stored["repeated"]["date"] for stored in results.values() if "repeated" in stored]
    mean, half, _ = results["grpo_against_itself"]["result"]["differences"]["GRPO → other seeds"]
    lost = [name for name, of in versions().items() if any("lost before it could be" in v["why"] for v in of)]
    shared = {world: first[world].most_common(1)[0][1] for world in ("sums", "search")}
    return {
        **shared,
        **for_new_problems(results),
        "count": len(results),
        "repeated": len(checked),
        "checked": f"{min(checked)} to {max(checked)}",
        "itself": f"{mean:+.3f} ± {half:.3f}",
        "lost": f"{', '.join(lost[:-1])} and {lost[-1]}",
    }


def filled(text: str) -> str:
    """Paragraphs in lines of 120 letters; lists and headings as they are."""
    lines = (p if p[0] in "-#" else textwrap.fill(p, 120, break_on_hyphens=False) for p in text.split("\n\n"))
    return "\n\n".join(lines)


def page() -> str:
    p = adjusted()
    dates = [stored["date"] for name in court.names() if (stored := court.record(name))]
    lines = [heading("The court of claims", "python -m claims --page", dates) + INTRODUCTION.rstrip()]
    for question in QUESTIONS:
        lines += ["", f"## {question.title}", "", question.answer, ""]
        lines += [
            f"![Results for the claim: {court.statement(question.claims[0])}](claims/{question.claims[0]}.png)",
            "",
            question.conditions,
            "",
        ]
        lines += [*HEAD, *(row(name, p) for name in question.claims)]
    for title, names in others().items():
        lines += ["", f"## {title}", "", *HEAD, *(row(name, p) for name in names)]
    lines += ["", "## Identities", "", "These follow from the formulas. Tests compute them; they have no verdict.", ""]
    lines += [f"- {words} [`{test}`](../{file})" for words, file, test in identities()]
    lines += ["", filled(RULES.strip().format(**of_rules())), "", CHANGED.strip(), ""]
    for (date, why), changed in groupby(
        sorted(changed_after_a_result(), key=lambda v: (v["date"], v["why"])), lambda v: (v["date"], v["why"])
    ):
        claims = ", ".join(f"{linked(v['claim'])} ({v['known']})" for v in changed)
        lines.append(f"- {date}, {claims}: {why}")
    return "\n".join(lines) + "\n"
