"""Each decimal and percentage in the answers of the page of claims is what its source gives, in their order."""

import re
import statistics
from collections import defaultdict

from claims import court, fair
from claims.questions import QUESTIONS
from claims.register import versions
from claims.runs import difference
from tools.reports import read_report
from tools.scripts import ROOT

import pytest

FIGURE = re.compile(r"[+-]?\d+\.\d+(?: ± \d+\.\d+)?%?|\b\d+%")
VERB = re.compile(
    r"\b(?:(gives? back|gains|lengthen\w*|longer|differs by)|costs?|lowers|below|shorter)\b"
)  # up, or down
CLIP, CLIP_ON_SEARCH, SUMS, SEARCH = "clip_needs_both_bounds", "clip_on_search_needs_both_bounds", ", sums", ", search"
INT4, INT4_ON_SEARCH = "sampler_anchor_suits_a_quantized_sampler", "sampler_anchor_on_quantized_search"
STALE, STALE_ON_SEARCH = "stale_rollouts_are_harmless", "stale_search_is_harmless"
HABITS = "habits_decide_what_rl_gains"
LENGTHS, LENGTHS_ON_SEARCH = "response_mean_lengthens_wrong_answers", "response_mean_lengthens_search"


def change(claim, a, b, world="", at_equal_tokens=False):
    """A mean difference with its interval, as the page writes it."""
    result, pair = court.record(claim)["result"], f"{a}{world} → {b}{world}"
    mean, half, _ = result["equal_tokens"][pair]["difference"] if at_equal_tokens else result["differences"][pair]
    digits = 1 if half >= 1 else 3
    return f"{mean:+.{digits}f} ± {half:.{digits}f}"


class Gain(str):
    """A difference above 0, written without its sign."""


class Loss(str):
    """A difference below 0, written without its sign."""


def gain(*arms):
    return Gain(change(*arms).replace("+", "", 1))


def loss(*arms):
    return Loss(change(*arms).replace("-", "", 1))


def mean(claim, arm):
    return f"{statistics.mean(court.record(claim)['result']['arms'][arm]['values']):.3f}"


def percent(value, digits=0):
    return f"{100 * value:.{digits}f}%"


def said(claim, pattern):
    """The part of a claim's effect that the group of a pattern matches."""
    return re.search(pattern, court.record(claim)["effect"]).group(1)


def clipped(claim, arms):
    """The largest fraction of the loss weight that one of the arms clips."""
    return max(of_arm["clipped"] for name, of_arm in court.record(claim)["result"]["arms"].items() if arms in name)


def swept(arm, rate):
    """The accuracy of an arm of the claim on the clip, with two seeds at another learning rate."""
    return percent(read_report(fair.REPORT)[fair.arms_of("sums", court.load(CLIP).ARMS)[arm]][rate])


def more_responses(claim, world):
    """By which fraction stale arms have more responses."""
    fresh, stale = (court.record(claim)["result"]["arms"][arm + world]["responses"] for arm in ("fresh", "with TIS"))
    return stale / fresh - 1


def lengthened():
    """By which fraction the mean over each response lengthens incorrect answers on search."""
    found = court.record(LENGTHS_ON_SEARCH)["result"]
    before = statistics.mean(found["arms"]["constant, search"]["values"])
    return percent(found["differences"]["constant, search → mean, search"][0] / before)


def base_pass_at_16():
    """The base model's on the hardest search problems, which were others than those of the claims."""
    text = (ROOT / "worlds" / "search" / "README.md").read_text()
    found = re.search(r"On `search-hard` \(128 problems\) avg@16 is \S+ and pass@16 (0\.\d+)\.", text)
    return percent(float(found.group(1)))


SOURCES = {
    QUESTIONS[0].title: [
        "1%",  # the chance that is asked about
        said("std_favors_extremes", r"(\S+) \(G = 64\)"),
        said("std_favors_extremes", r"(\S+) \(G = 8\)"),
        loss("dynamic_sampling_pays", "all groups", "refilled", SUMS),
        loss("dynamic_sampling_pays", "all groups", "refilled", SEARCH),
        change("dynamic_sampling_pays", "all groups", "all groups again", SUMS),
        change("dynamic_sampling_pays", "all groups", "all groups again", SEARCH),
    ],
    QUESTIONS[1].title: [
        percent(float(said("clip_keeps_ratios_within_its_bounds", r"(\S+)% after 16")) / 100),
        loss(CLIP_ON_SEARCH, "both", "lower alone", SEARCH),
        loss(CLIP, "both", "lower alone", SUMS),
        loss(CLIP, "both", "upper alone", SUMS),
        loss(CLIP_ON_SEARCH, "both", "upper alone", SEARCH),
        str(court.load(CLIP).SMALLEST),
        percent(clipped(CLIP, SUMS)),
        percent(clipped(CLIP_ON_SEARCH, SEARCH), 1),
        loss(CLIP, "both", "none", SUMS),
        swept("both", "1e-4"),
        swept("lower alone", "1e-4"),
        swept("upper alone", "1e-4"),
        swept("none", "1e-4"),
        said("gspo_clips_more_and_learns_as_well", r"clipped \S+ (\S+),"),
        change("gspo_clips_more_and_learns_as_well", "GRPO", "GSPO", SUMS),
        change("reusing_responses_pays", "one pass", "four passes", SUMS),
        change("reusing_responses_pays", "one pass", "four passes", SEARCH),
    ],
    QUESTIONS[2].title: [
        *(
            loss(claim, "fresh", arm, world)
            for arm in ("with TIS", "uncorrected", "corrected")
            for claim, world in ((STALE, SUMS), (STALE_ON_SEARCH, SEARCH))
        ),
        *(percent(more_responses(claim, world)) for claim, world in ((STALE, SUMS), (STALE_ON_SEARCH, SEARCH))),
    ],
    QUESTIONS[3].title: [
        mean(INT4, "recomputed, sums"),
        mean(INT4_ON_SEARCH, "recomputed, search"),
        mean(INT4, "anchored, sums"),
        mean(INT4_ON_SEARCH, "anchored, search"),
        mean("critic_is_unnecessary", "GRPO, sums"),
        mean("critic_is_unnecessary", "GRPO, search"),
        loss(INT4, "recomputed", "with TIS", SUMS),
        gain(INT4_ON_SEARCH, "recomputed", "with TIS", SEARCH),
        gain(INT4_ON_SEARCH, "recomputed", "with TIS", SEARCH, True),
        mean(INT4_ON_SEARCH, "with TIS, search"),
        said("tis_repairs_the_gradient", r"(\d+%) ± \d+% by weights of tokens"),
        said("tis_repairs_the_gradient", r"(\d+%) ± \d+% by weights of responses"),
    ],
    QUESTIONS[4].title: [
        gain("thinking_lengthens_because_it_pays", "shuffled", "true rewards"),
        gain(LENGTHS, "std, constant", "std, mean", SUMS),
        gain(LENGTHS_ON_SEARCH, "constant", "mean", SEARCH),
        lengthened(),
        gain(LENGTHS_ON_SEARCH, "mean", "mean again", SEARCH),
        gain(LENGTHS, "no std, constant", "no std, mean", SUMS),
    ],
    QUESTIONS[5].title: [
        said("rl_trades_pass_at_k_for_pass_at_1", r"pass@1 (\S+) before"),
        said("rl_trades_pass_at_k_for_pass_at_1", r"before, (\S+) after"),
        change("rl_trades_pass_at_k_for_pass_at_1", "before", "after"),
        base_pass_at_16(),
        percent(float(mean("maxrl_keeps_pass_at_k_on_search", "GRPO, search-hard"))),
        percent(court.chance("search-hard", 16)),
        said(HABITS, r"before training(?: \S+,){3} (\S+);"),
        mean(HABITS, "all habits"),
        mean(HABITS, "guess"),
        said(HABITS, r"random expressions (\S+)$"),
        re.search(r"they gave (\S+ ± \S+),", versions()["rl_trades_pass_at_k_for_pass_at_1"][-1]["why"]).group(1),
        base_pass_at_16(),
        mean(HABITS, "wrong answers"),
        loss("negatives_suffice", "all", "incorrect", SUMS),
        loss("negatives_suffice", "all", "incorrect", SEARCH),
        loss("negatives_suffice", "all", "incorrect", SUMS, True),
        loss("negatives_suffice", "all", "incorrect", SEARCH, True),
        said("maxrl_keeps_pass_at_k", r"maxrl (\d\.\d+)"),
        said("maxrl_keeps_pass_at_k", r"grpo (\d\.\d+)"),
        change("maxrl_keeps_pass_at_k_on_search", "GRPO", "MaxRL", ", search-hard"),
        change("maxrl_keeps_pass_at_k_in_training", "GRPO", "MaxRL", ", sums-hard"),
        said("random_rewards_teach", r"by coin flips sums ([^,]+), "),
        said("random_rewards_teach", r"by coin flips .*, search ([^;]+);"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.title)
def test_figures_have_their_sources(question):
    text = f"{question.answer} {question.conditions}"
    assert FIGURE.findall(text) == SOURCES[question.title]
    verbs = [(verb.start(), Gain if verb.group(1) else Loss) for verb in VERB.finditer(text)]
    for found, source in zip(FIGURE.finditer(text), SOURCES[question.title], strict=True):
        if isinstance(source, Gain | Loss):
            _, said = min(verbs, key=lambda verb: abs(verb[0] - found.start()))
            assert isinstance(source, said), text[max(0, found.start() - 60) : found.end() + 40]


def test_worlds_agree_as_the_page_says():
    """Of the questions with a claim for each world, three are contradicted in both, and two are open."""
    for one, other in ((CLIP, CLIP_ON_SEARCH), (STALE, STALE_ON_SEARCH), (INT4, INT4_ON_SEARCH)):
        assert court.record(one)["verdict"] == court.record(other)["verdict"] == court.CONTRADICTED
    assert court.record(LENGTHS)["verdict"] == court.INCONCLUSIVE
    assert court.record(LENGTHS_ON_SEARCH)["verdict"] == court.REPRODUCED
    maxrl = ("maxrl_keeps_pass_at_k_in_training", "maxrl_keeps_pass_at_k_on_search")
    assert [court.record(name)["verdict"] for name in maxrl] == [court.CONTRADICTED, court.INCONCLUSIVE]


def test_rollouts_with_tis_by_the_rule_of_stale_rollouts():
    """By that rule, the arm with TIS loses nothing on sums and loses accuracy on search."""
    found = {}
    for claim in (STALE, STALE_ON_SEARCH):
        result, smallest = court.record(claim)["result"], court.load(claim).SMALLEST
        found |= fair.in_each_world(result, ("fresh", "with TIS"), smallest, lossless=True)
    assert found == {"sums": court.REPRODUCED, "search": court.CONTRADICTED}


def test_who_loses_by_stale_rollouts():
    """On the stress page, only REINFORCE and GMPO lose significantly from stale rollouts."""
    values = defaultdict(list)
    for run in read_report("stress", []):
        values[run["method"], run["condition"]].append(run["accuracy"])
    stale, fresh = "rollouts 8 batches old, 4 updates", "fresh rollouts, 4 updates"
    lost = {name: difference(values[name, fresh], values[name, stale], paired=False) for name, _ in values}
    assert {name for name, change in lost.items() if change.mean + change.half < 0} == {"reinforce", "gmpo"}
