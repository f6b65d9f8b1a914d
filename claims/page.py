"""reports/claims.md: questions with their answers and claims, then all other claims."""

import math
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from claims import court
from claims.bootstrap import stays
from claims.fair import AGAIN, worlds_of
from claims.register import changed_after_a_result
from claims.runs import by_todays_code, p_values
from tools.reports import REPORTS, heading

PAGE = REPORTS / "claims.md"


@dataclass(frozen=True)
class Question:
    """What people argue about: two sentences of answer, its conditions, and the claims; the first gives the picture."""

    title: str
    answer: str
    conditions: str
    claims: tuple[str, ...]


QUESTIONS = (
    Question(
        "What do the group's baseline, size and standard deviation do?",
        "Dividing by the group's standard deviation gives prompts that are nearly never or nearly always solved more "
        "weight: with 64 responses per prompt, one that is solved 1% of the time has 3.39 times the weight of one that "
        "is solved half of the time, with 8 responses 1.41 times. With equal numbers of responses, groups of 2 do as "
        "well as groups of 8, GRPO does as well as PPO with its default critic or better, and replacing groups without "
        "signal is not worth the extra responses.",
        "With 2 or 3 responses per prompt, the group's standard deviation gives no prompt more weight, and that of the "
        "batch gives all nearly the same (batch_std_weighs_prompts_alike). On one prompt, groups of 2 have twice the "
        "variance of groups of 64 at equal responses; in training they are spread over more prompts. Groups without "
        "signal were replaced in rounds of 8 prompts. Over equal responses that lowers the mean accuracy by 0.026 ± "
        "0.011 on sums and 0.038 ± 0.018 on search, where the same arm with other seeds differs by +0.003 ± 0.012 and "
        "-0.016 ± 0.016; over equal steps nothing is lost.",
        (
            "std_favors_extremes",
            "small_groups_are_noisier",
            "small_groups_suffice",
            "critic_is_unnecessary",
            "dynamic_sampling_pays",
        ),
    ),
    Question(
        "What does the clip do?",
        "It stops the gradient of a token that has moved past the bounds in the direction of its advantage, but it "
        "does not keep the token inside: after 16 updates from a fresh optimizer 8% of the tokens are outside. With 16 "
        "updates from each batch and each arm at its best learning rate, dropping the upper bound costs 0.022 ± 0.028 "
        "on sums and 0.081 ± 0.022 on search, and dropping the lower one 0.022 ± 0.024 and 0.006 ± 0.034.",
        "At those rates the clip acts on at most 1% of the loss on sums and 0.1% on search. Dropping both costs 0.013 "
        "± 0.021 on sums; on search this was not tried. At 1e-4, three times the best rate on sums, two seeds end at "
        "50% with both bounds, at 14% and 25% with one, at 4% with none; at 3e-4 all collapse. On sums GSPO, with "
        "61.1% of the loss clipped, ends as high as GRPO (-0.003 ± 0.017). With a fresh optimizer, nearly all that the "
        "clip silences are tokens where a response forks (clip_silences_the_forks). With both bounds, four passes over "
        "a batch instead of one change accuracy by +0.023 ± 0.022 on sums and -0.019 ± 0.022 on search.",
        (
            "clip_needs_both_bounds",
            "clip_on_search_needs_both_bounds",
            "clip_keeps_ratios_within_its_bounds",
            "reusing_responses_pays",
            "gspo_clips_more_and_learns_as_well",
        ),
    ),
    Question(
        "How old may rollouts be?",
        "Rollouts that are 8 batches old cost GRPO 0.189 ± 0.040 of accuracy on sums and 0.217 ± 0.024 on search if "
        "nothing corrects for it. Of this, TIS, the default, gives back 0.163 ± 0.039 on sums and 0.136 ± 0.027 on "
        "search; the log-probs of the weights that sampled, used in ratio and clip, give back 0.107 ± 0.038 and 0.112 "
        "± 0.020.",
        "Each arm has its best learning rate, and makes four updates from each batch; stale arms get about a quarter "
        "more responses, since their first batches are the base model's. On the [stress page](stress.md), with six "
        "seeds, DPPO, RLOO, MaxRL, Dr. GRPO and CISPO end no lower with such rollouts than with fresh ones.",
        (
            "stale_rollouts_are_harmless",
            "anchoring_on_the_sampler_repairs_staleness",
            "stale_search_is_harmless",
        ),
    ),
    Question(
        "How exact must the engine's log-probs be?",
        "With 4-bit weights in the engine, the learner must compute them again: GRPO without TIS then reaches 0.734 on "
        "sums and 0.745 on search, but 0.600 and 0.531 with the engine's log-probs in the ratio. Rounding changes the "
        "log-probs of rare tokens most, and FP16 leaves an eighth of BF16's mismatch.",
        "Each arm with 4-bit weights has its best learning rate. With an engine in full precision GRPO reaches 0.743 "
        "and 0.837 (critic_is_unnecessary). The engine's log-probs in the ratio help where the engine is merely old. "
        "With a 4-bit engine, TIS per token costs 0.039 ± 0.022 on sums and gains 0.055 ± 0.026 on search, where "
        "accuracy reaches 0.800. It removes only a sixth of the bias in a small exact example, which has neither "
        "updates nor a clip.",
        (
            "fp16_removes_the_mismatch",
            "tis_repairs_the_gradient",
            "sampler_anchor_suits_a_quantized_sampler",
            "sampler_anchor_on_quantized_search",
        ),
    ),
    Question(
        "What makes responses long?",
        "True rewards do: after 30 steps responses on sums are 17.6 ± 2.8 tokens longer than with the same rewards "
        "shuffled in each group. GRPO's mean over each response may lengthen incorrect answers too, by 1.9 ± 1.3 "
        "tokens on sums with filler text and by 10.1 ± 8.4, or 5%, on search, where the same arm with other seeds "
        "differs by 6.2 ± 7.6.",
        "The first is less than worth naming and neither is certain once adjusted for all comparisons, so the two "
        "worlds leave that claim open. The expected gradient has this bias. Without the division by the standard "
        "deviation it is 4.6 ± 1.3 tokens on sums, the only effect of that mean in training that is certain after the "
        "adjustment; there the best learning rates of each pair differ, which may change lengths too. True and "
        "shuffled rewards were compared at one learning rate.",
        (
            "thinking_lengthens_because_it_pays",
            "token_mean_removes_length_bias",
            "response_mean_lengthens_wrong_answers",
            "response_mean_lengthens_search",
        ),
    ),
    Question(
        "Does reinforcement learning teach anything new?",
        "No gain was seen that more samples from the base model, or from random expressions, would not give: on sums "
        "of 5 to 8 terms pass@1 rises from 0.081 to 0.327 and pass@32 stays (+0.010 ± 0.014), and on the hardest "
        "search problems pass@16 rises from 7% to 41%, but 16 random expressions reach 62%. What is gained depends on "
        "the base model: one with all habits of search rises from 0.234 to 0.833 on search, one that only guesses "
        "stays at 0.131, which is chance (0.138).",
        "At three times the best learning rate pass@32 of the sums had fallen, in five seeds on the same problems "
        "(`--history`); k above 32 was not tested there. The 7% are those of 128 other problems "
        "([search](../worlds/search/README.md)). A base model that was taught to box incorrect answers, whatever its "
        "search finds, ends at 0.138. Incorrect responses alone give most of the gain, but end 0.051 ± 0.022 (sums) "
        "and 0.112 ± 0.025 (search) below all responses. MaxRL, which weighs hard prompts more, has a higher pass@64 "
        "than GRPO in an exact example (maxrl_keeps_pass_at_k: 0.699 and 0.635 at the same pass@1); in training it "
        "changes pass@16 by +0.025 ± 0.025 on the hardest search problems and pass@32 by -0.008 ± 0.021 on sums of 5 "
        "to 8 terms. Rewards that are coin flips did not help: they change accuracy by -0.002 ± 0.003 on sums and "
        "-0.002 ± 0.014 on search at the learning rate that suits them best, on sums the lowest that was tried, and "
        "lower it at higher ones. Almost nothing was clipped, and the paper credits what they may gain to the clip.",
        (
            "habits_decide_what_rl_gains",
            "negatives_suffice",
            "rl_trades_pass_at_k_for_pass_at_1",
            "maxrl_keeps_pass_at_k_in_training",
            "maxrl_keeps_pass_at_k_on_search",
            "random_rewards_teach",
        ),
    ),
)
IDENTITIES = (  # what follows from the formulas of the scripts; the tests compute them anew
    "leave_one_out_with_std",
    "loss_constants_are_a_learning_rate",
    "maxrl_weighs_by_one_over_p",
    "one_response_gives_nothing",
    "own_reward_in_the_baseline_biases",
    "ppo_is_a_mask",
    "ppo_without_discount_is_reinforce",
    "rewards_of_plus_minus_one_matter",
    "std_cancels_the_reward_scale",
)
REST = {
    "exact": "Further claims, by enumeration",
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

A claim of several parts has the verdict of the worst. Claims by enumeration are decided by the threshold in their file;
those on the embedded model have one seed. A → B +x ± y means that B has x more than A, so an effect that is claimed to
be a decrease is negative. G is the size of a group, p the chance of a correct response, w(p) the weight of a prompt, β
and C settings of the scripts ([glossary](../docs/glossary.md)).

Fair trials (`claims/fair.py`), whose arms name their world (sums, sums-hard, search or search-hard), compare each arm
at its best learning rate with 16 seeds. The rates are apart by factors of about 3, and were compared on two other
seeds. Every run has its own half of 512 held-out problems, and the first arm is compared with itself, which shows what
no difference looks like; claims with the same first arm share its runs. rl_trades_pass_at_k_for_pass_at_1 compares such
runs before and after training; it is paired and has no control. Two rates whose sweeps differ by less than about 0.04
may have changed places by chance, and the intervals do not include this. Some questions have a claim for each world.
Both worlds contradict that the clip needs both bounds, that stale rollouts are harmless, and that the engine's
log-probs suit a quantized engine; on the length bias of GRPO's mean they differ, which leaves it open. Of the claims by
runs, {repeated} gave the numbers of their first seeds again, to the bit (`python -m claims NAME --check`).

Other claims by runs compare arms on the same seeds: the same problems and seeds of the engine (other problems where
arms have different numbers of prompts). Most are about something that the learning rate itself would move: entropy,
length, a KL, rounding, the shape of a curve; few_negatives_destabilize is about a collapse, which the best rate avoids.
All their arms have one rate. It is the best of three for base_catches_up_at_large_k; habits_decide_what_rl_gains and
priming_with_wrong_answers, which compare base models, have the best of three for each. All but
base_catches_up_at_large_k are evaluated on the same held-out problems, so the intervals are those of new seeds, not of
new problems. With 16 other seeds GRPO differs from itself by +0.016 ± 0.021 (grpo_against_itself).

*Stays* is the fraction of 100 draws of the seeds, with replacement, that give the same verdict: near a half, the
verdict hangs on its threshold. p-values, in the order of the arrows, are those of two-sided t-tests, adjusted for all
differences of the page (Holm); an arm's difference from itself (–) is not among them. They decide no verdict, but a
reproduced effect whose p is large could be chance among so many; for a claim that nothing is lost, p says nothing. A
verdict with † was made by earlier scripts; changes of `common/` alone give no †. Values by seed, commands, and budgets
in responses, tokens and updates are in `reports/claims/`.

Which effect is worth naming: 0.05 of accuracy is a tenth of what 30 steps of `grpo.py` gain; 0.03 and 0.02 stand where
the paper itself reports gains of a few points for one component, as DAPO's Table 1 does; on sums 2 tokens are a
twentieth of a response, and 5 an eighth, on search 5 are a fortieth of an incorrect one; 0.2 on the world of search is
a quarter of what the default run gains; 0.602 in log10 is a factor of 4. A third, a tenth, and a quarter refer to the
first arm's mean. 0.01 and 0.02 of pass@k or of a prediction are our choice.
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
others at the best learning rate. Of twelve whose first seeds were compared, ten gave other numbers, mostly by at most
0.1 of accuracy, or 0.4 where runs collapse: sums in another order round differently, and training amplifies that. So a
verdict on runs that collapse needs many seeds.
"""


def measures(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The comparisons of a result: of its metric, and of accuracy where the verdict depends on that too."""
    return {"": result} | ({"accuracy, ": result["accuracy"]} if "accuracy" in result else {})


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


def cells(name: str, p: dict[tuple[str, str], float]) -> dict[str, str]:
    """Effect, p-values and smallest effect of a claim that has a result; `p` is `adjusted()`."""
    stored, claim = court.record(name), court.load(name)
    if claim.KIND != "runs":
        return {"effect": stored["effect"], "p": "", "smallest": "", "stays": "", "spent": ""}
    metric, differences = stored["effect"].partition(":")[0], {}
    for of, compared in measures(stored["result"]).items():
        differences |= {of + pair: found for pair, found in compared["differences"].items()}
    smallest = getattr(claim, "SMALLEST", "")
    parts = [claim.deciding(stored["result"])] if hasattr(claim, "deciding") else []
    parts += [f"{pair} {interval(mean, half)}" for pair, (mean, half, _) in differences.items()]
    if hasattr(claim, "of_worlds") and len({*(of_worlds := claim.of_worlds(stored["result"])).values()}) > 1:
        parts += [f"{world} {verdict}" for world, verdict in of_worlds.items()]
    return {
        "effect": f"{metric}: {'; '.join(parts)}",
        "p": ", ".join(probability(p.get((name, pair))) for pair in differences),
        "smallest": smallest if isinstance(smallest, str) else f"{smallest:.3g}",
        "stays": f"{again:.0%}" if (again := stays(name)) is not None else "",
        "spent": spent(stored["result"]),
    }


def row(name: str, p: dict[tuple[str, str], float]) -> str:
    """The line of a claim."""
    stored, link = court.record(name), f"[{court.statement(name)}](../claims/{name}.py)"
    if stored is None:
        return f"| not run yet | {link} | | | | | |"
    shown = cells(name, p)
    verdict = f"[{stored['verdict']}](claims/{name}.png)"
    if court.load(name).KIND == "runs" and not by_todays_code(stored["result"]):
        verdict += " †"
    effect = shown["effect"].replace("|", "\\|")
    rest = " | ".join(shown[key] for key in ("p", "smallest", "stays", "spent"))
    return f"| {verdict} | {link} | {effect} | {rest} |"


def rest(kind: str) -> list[str]:
    """The claims of a kind that are under no question, identities apart."""
    answered = {*IDENTITIES, *(name for question in QUESTIONS for name in question.claims)}
    return [name for name in court.names() if kind == court.load(name).KIND and name not in answered]


def page() -> str:
    p = adjusted()
    results = [stored for name in court.names() if (stored := court.record(name))]
    dates, repeated = [stored["date"] for stored in results], sum("repeated" in stored for stored in results)
    about = INTRODUCTION.rstrip().format(repeated=repeated)
    lines = [heading("The court of claims", "python -m claims --page", dates) + about]
    for question in QUESTIONS:
        lines += ["", f"## {question.title}", "", question.answer, ""]
        lines += [
            f"![What was measured: {court.statement(question.claims[0])}](claims/{question.claims[0]}.png)",
            "",
            question.conditions,
            "",
        ]
        lines += [*HEAD, *(row(name, p) for name in question.claims)]
    for kind, title in REST.items():
        lines += ["", f"## {title}", "", *HEAD, *(row(name, p) for name in rest(kind))]
    lines += ["", "## Identities, which the tests compute anew", "", *HEAD, *(row(name, p) for name in IDENTITIES)]
    lines += ["", CHANGED.strip(), ""]
    for (date, why), changed in groupby(
        sorted(changed_after_a_result(), key=lambda v: (v["date"], v["why"])), lambda v: (v["date"], v["why"])
    ):
        claims = ", ".join(f"[{v['claim']}](../claims/{v['claim']}.py) ({v['known']})" for v in changed)
        lines.append(f"- {date}, {claims}: {why}")
    return "\n".join(lines) + "\n"
