"""Every claim has its four parts, exact claims are recomputed, and the page shows the stored verdicts."""

import io
import json
import math
import re
from functools import partial
from types import SimpleNamespace

import grpo
from claims import court
from claims.__main__ import Args, main
from claims.page import PAGE, adjusted, page
from claims.questions import QUESTIONS
from claims.register import PARTS, UNTESTABLE, not_testable
from common.records import Episode, Rollouts
from tools.reports import today
from tools.scripts import ROOT, docstring

import pytest
import torch
from kinds import JUDGED, OF_KIND
from matplotlib import image
from scipy import stats


def numbers(value, path=""):
    """All numbers in a result, by path."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: x for name, item in items for key, x in numbers(item, f"{path}/{name}").items()}
    return {path: value} if isinstance(value, int | float) else {}


@pytest.mark.parametrize("name", court.names())
def test_the_docstring_has_its_four_parts(name):
    claim, *rest = docstring(court.HERE / f"{name}.py").split("\n\n")
    assert claim.endswith(".") and "\n" not in claim
    parts = [*PARTS, UNTESTABLE][: len(PARTS) + bool(not_testable(name))]
    assert [part for paragraph in rest for part in parts if paragraph.startswith(part)] == parts


def test_only_claims_by_runs_wait_for_a_verdict():
    assert {*OF_KIND["exact"], *OF_KIND["model"]} <= {*JUDGED}


SECONDS = (  # exact claims that take more than a second
    "maxrl_keeps_pass_at_k", "pass_at_k_training_keeps_pass_at_k", "same_state_turns_learn_faster",
    "same_state_turns_pay_in_long_episodes", "whitening_is_harmless",
)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SECONDS)) for n in OF_KIND["exact"]])
def test_an_exact_claim_computed_anew(name):
    stored, claim = court.record(name), court.load(name)
    result = court.rounded(claim.compute())
    assert stored["verdict"] in (claim.verdict(result), court.NOT_TESTABLE)
    assert numbers(result) == pytest.approx(numbers(stored["result"]), rel=1e-4, abs=1e-7)


LONG = (  # claims on the model that take at least half a minute
    "clip_is_rarely_active", "clip_keeps_ratios_within_its_bounds", "gspo_tolerates_the_engines_precision",
    "process_rewards_credit_each_step", "sampled_values_beat_a_critic", "sampled_values_credit_each_step",
    "same_state_turns_get_truer_credit",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.all_problems
@pytest.mark.parametrize("name", [name for name in OF_KIND["model"] if name not in LONG])
def test_a_claim_on_the_model_computed_anew(name):
    """A recomputed claim agrees up to a few sampled tokens, because other kernels round differently."""
    stored, claim = court.record(name), court.load(name)
    result = court.rounded(claim.compute())
    assert stored["verdict"] in (claim.verdict(result), court.NOT_TESTABLE)
    assert numbers(result) == pytest.approx(numbers(stored["result"]), rel=0.1, abs=2e-4)


def test_a_long_claim_measures_both_models(monkeypatch):
    claim = court.load("gspo_tolerates_the_engines_precision")
    monkeypatch.setattr(claim, "trial", lambda name, seed: SimpleNamespace(weights=f"{name} {seed}"))
    monkeypatch.setattr(claim, "measure", lambda **settings: {"responses": settings})
    assert claim.compute() == {"responses": {}, "trained": {"responses": {"model": "grpo 1"}}}


def test_a_long_claim_samples_what_it_says(monkeypatch):
    """The true values and each estimate use different seeds and numbers of continuations."""
    claim, asked = court.load("sampled_values_beat_a_critic"), []

    def estimate_values(problems, rollouts, steps, engine, verifier, seed, args):
        asked.append((args.value_samples, seed))
        if len(asked) == 4:
            raise StopIteration
        return [[0.0] * len(ends) for ends in steps], 0

    monkeypatch.setattr(claim, "PROBLEMS", 2)
    monkeypatch.setattr(claim, "train_critic", lambda *_: None)
    monkeypatch.setattr(claim.vineppo, "estimate_values", estimate_values)
    with pytest.raises(StopIteration):
        claim.compute()
    assert asked == [(64, 1), (1, 2), (3, 4), (9, 10)]


def test_a_long_claim_counts_what_was_won(monkeypatch):
    """Guess 5 wins three of four games, guess 6 wins one of four, and the rare guess 7 wins its only game."""
    claim = court.load("same_state_turns_get_truer_credit")
    monkeypatch.setattr(claim, "OFTEN", 4)
    won = {"5?x": (1, 1, 1, 0), "6?x": (1, 0, 0, 0), "7?x": (1,)}
    texts = [text for text, rewards in won.items() for _ in rewards]
    later = ["a", "b", "a", "b", "c", "a", "a", "d", "a"]  # the last one belongs to the next group of 8
    episodes = [
        Episode([0, 2], ["", state], reward) for state, reward in zip(later, sum(won.values(), ()), strict=True)
    ]
    rollouts, tokenizer = Rollouts(tokens=texts, episodes=episodes), SimpleNamespace(decode=str)
    mean = 5 / 9
    assert claim.true_advantages(rollouts, tokenizer) == pytest.approx(
        {((0, ""), "5"): 0.75 - mean, ((0, ""), "6"): 0.25 - mean, ((1, "a"), "x"): 0.0}
    )
    assert claim.shared(rollouts) == 6 / 9


def test_what_is_stored_can_be_read(tmp_path, monkeypatch):
    """Storing a result again keeps its content, and non-ASCII letters are not escaped."""
    name = "cispo_is_twice_as_fast"
    stored = court.record(name)
    monkeypatch.setattr(court, "RESULTS", tmp_path)
    court.store(name, stored["result"])
    again = (tmp_path / f"{name}.json").read_text()
    assert "→" in again or "±" in again
    assert json.loads(again)["result"] == stored["result"]


@pytest.mark.parametrize("name", JUDGED)
def test_what_is_stored_agrees_with_itself(name):
    """The stored numbers give the stored verdict and effect, and the picture exists and loads quickly."""
    stored, claim = court.record(name), court.load(name)
    assert stored["verdict"] in court.VERDICTS
    assert stored["verdict"] == (court.NOT_TESTABLE if not_testable(name) else claim.verdict(stored["result"]))
    assert stored["effect"] == claim.effect(stored["result"])
    assert all(math.isfinite(x) for x in numbers(stored["result"]).values())
    assert 5_000 < (court.RESULTS / f"{name}.png").stat().st_size < 60_000, f"size of reports/claims/{name}.png"
    for panel in claim.draw(stored["result"]).axes:
        assert panel.get_legend() is not None, f"reports/claims/{name}.png: a panel without a legend"


@pytest.mark.slow
@pytest.mark.parametrize("name", JUDGED)
def test_the_picture_shows_the_stored_numbers(name):
    drawn = io.BytesIO()
    court.load(name).draw(court.record(name)["result"]).savefig(drawn, dpi=80)
    drawn.seek(0)
    pixels, stored = image.imread(drawn), image.imread(court.RESULTS / f"{name}.png")
    same = pixels.shape == stored.shape and abs(pixels - stored).max() < 0.1
    assert same, f"draw it again: python -m claims {name} --redraw"


@pytest.mark.parametrize(
    "effect,half,verdict",
    [
        (0.5, 0.1, court.REPRODUCED),
        (-0.5, 0.1, court.CONTRADICTED),  # the opposite sign
        (0.1, 0.5, court.INCONCLUSIVE),  # the interval contains 0
        (0.5, 0.6, court.INCONCLUSIVE),
        (0.1, 0.05, court.INCONCLUSIVE),  # an effect, but not worth naming
        (0.0, 0.01, court.CONTRADICTED),  # the interval around 0 excludes effects worth naming
        (0.18, 0.05, court.INCONCLUSIVE),  # perhaps worth naming
    ],
)
def test_verdicts(effect, half, verdict):
    assert court.judge(effect, half, smallest=0.2) == verdict


@pytest.mark.parametrize(
    "loss,half,verdict",
    [
        (-0.5, 0.1, court.REPRODUCED),  # a gain
        (0.1, 0.05, court.REPRODUCED),  # a loss that is not worth naming
        (0.5, 0.1, court.CONTRADICTED),
        (0.18, 0.05, court.INCONCLUSIVE),  # perhaps worth naming
        (0.5, 0.6, court.INCONCLUSIVE),
    ],
)
def test_verdicts_on_claims_that_nothing_is_lost(loss, half, verdict):
    assert court.judge_lossless(loss, half, smallest=0.2) == verdict


def test_a_claim_of_several_parts_is_as_good_as_its_worst():
    assert court.judge_all(court.REPRODUCED, court.REPRODUCED) == court.REPRODUCED
    assert court.judge_all(court.REPRODUCED, court.INCONCLUSIVE) == court.INCONCLUSIVE
    assert court.judge_all(court.INCONCLUSIVE, court.CONTRADICTED, court.REPRODUCED) == court.CONTRADICTED


def test_a_flipped_claim_is_refuted():
    claim, result = court.load("tis_repairs_the_gradient"), court.record("tis_repairs_the_gradient")["result"]
    fraction, half = result["removed"]["response, C = 2"]
    for sign, verdict in ((1, court.REPRODUCED), (-1, court.CONTRADICTED)):
        assert claim.verdict({"removed": {"token, C = 2": [sign * fraction, half]}}) == verdict


@pytest.mark.slow
def test_updates_on_one_rollout_batch():
    """The first update clips nothing, later ones at a high learning rate do; outside seeds have no influence."""
    args, found = grpo.Args(lr=1e-3, num_minibatches=2, update_epochs=2, prompts_per_step=4), []
    for seed in (1, 2):
        model, batch, correct = court.embedded(4, 8, args)
        advantages = grpo.compute_advantages(correct, args).view(-1, 1).expand(batch.response_mask.shape)  # (B, T)
        torch.manual_seed(seed)
        found.append((court.updates(model, batch, advantages, args), model.lm_head.weight.detach().clone()))
    (clipped, weight), (again, same) = found
    assert clipped == again and torch.equal(weight, same)
    assert len(clipped) == 4 and clipped[0] == 0 and all(0 < share < 1 for share in clipped[1:])


def test_the_tree_is_a_policy():
    """Probabilities sum to 1, and the scores are the log-probs' gradients, with expectation 0."""
    logits = torch.randn(1 + 3 + 9, 3, dtype=torch.float64, requires_grad=True)
    tokens, logp, scores = court.tree(logits, 3)
    assert len({tuple(row) for row in tokens.tolist()}) == 27
    chance = logp.sum(1).exp().detach()
    assert chance.sum().item() == pytest.approx(1)
    assert (chance[:, None] * scores.sum(1)).sum(0).abs().max() < 1e-12
    (by_autograd,) = torch.autograd.grad(logp[17].sum(), logits)
    torch.testing.assert_close(scores[17].sum(0).detach(), by_autograd.flatten())


def test_the_command_lists_all_claims(capsys):
    main(Args())
    for name, line in zip(court.names(), capsys.readouterr().out.splitlines(), strict=True):
        verdict = (court.record(name) or {"verdict": "not run yet"})["verdict"]
        assert line == f"{verdict}: {court.statement(name)} ({name})"


def test_the_command_runs_a_claim(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(court, "RESULTS", tmp_path)
    main(Args(claims=("std_favors_extremes",)))
    written, claim = capsys.readouterr().out, court.record("std_favors_extremes")
    assert court.statement("std_favors_extremes") in written and f"reproduced: {claim['effect']}" in written
    assert claim["date"] == today()
    (tmp_path / "std_favors_extremes.png").unlink()
    main(Args(claims=("std_favors_extremes",), redraw=True))
    assert (tmp_path / "std_favors_extremes.png").exists()


@pytest.mark.parametrize(
    "args,words",
    [
        (Args(claims=("sdt_favors",)), "is not a claim"),
        (Args(redraw=True), "needs the names"),
        (Args(claims=("std_favors_extremes",), seeds=1), "--seeds must be"),
        (Args(claims=("std_favors_extremes",), redraw=True), "no result to draw yet"),
    ],
)
def test_bad_input_gets_one_sentence(args, words, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(court, "RESULTS", tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(args)
    message = capsys.readouterr().err
    assert ended.value.code == 2 and message.startswith("error: ") and words in message and message.count("\n") == 1


def test_the_page_shows_the_stored_verdicts():
    assert PAGE.read_text() == page(), "reports/claims.md: python -m claims --page"


def test_p_values_are_adjusted_as_holm_says():
    """Holm's rule: the rank-k p-value (k from 0) times n - k, at most 1 and never below the previous one.

    Of n differences none is that of an arm from itself, and one that two claims share counts once.
    """
    raw = {(name, pair): p for name in JUDGED if name in OF_KIND["runs"] for pair, p in p_of(name).items()}
    found = adjusted()
    assert {pair for _, pair in raw.keys() - found.keys()} == {pair for _, pair in raw if " again, " in pair}
    twice = {
        ("clip_needs_both_bounds", "one pass, sums → both, sums"): "reusing_responses_pays",
        ("clip_on_search_needs_both_bounds", "one pass, search → both, search"): "reusing_responses_pays",
    }
    for pair in ("uncorrected, sums → corrected, sums", "uncorrected, sums → with TIS, sums"):
        twice["importance_sampling_helps_stale_rollouts", pair] = "stale_rollouts_are_harmless"
    order = sorted(found.keys() - twice.keys(), key=raw.get)
    times = [min(1.0, raw[key] * (len(order) - rank)) for rank, key in enumerate(order)]
    expected = [max(times[: rank + 1]) for rank in range(len(order))]
    assert [found[key] for key in order] == pytest.approx(expected, rel=1e-3, abs=0)
    for (name, pair), first in twice.items():
        assert found[name, pair] == pytest.approx(found[first, pair.replace("both, ", "four passes, ")], rel=1e-12)


def p_of(name):
    """p-values of scipy's t-tests on the stored values: paired, or Welch's where the arms are independent.

    scipy gives NaN where no seed differs; that is no evidence, so p is 1. Some verdicts depend on accuracy too.
    """
    found, stored = {}, court.record(name)["result"]
    for metric, result in {"": stored, "accuracy, ": stored.get("accuracy", {"arms": {}, "differences": {}})}.items():
        values = {arm: of_arm["values"] for arm, of_arm in result["arms"].items()}
        test = partial(stats.ttest_ind, equal_var=False) if "degrees" in result else stats.ttest_rel
        for pair in result["differences"]:
            a, b = pair.split(" → ")
            p = test(values[b], values[a]).pvalue
            found[metric + pair] = 1.0 if math.isnan(p) else p
    return found


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.title)
def test_a_question_has_two_sentences_of_answer(question):
    assert len(re.split(r"(?<=[.!?]) (?=[A-Z])", question.answer)) == 2, question.answer
    assert len(set(question.claims)) == len(question.claims) and {*question.claims} <= {*court.names()}


def test_each_claim_is_on_the_page_once():
    lines = [line for line in page().splitlines() if line.startswith("| ")]
    for name in court.names():
        assert sum(f"](../claims/{name}.py)" in line for line in lines) == 1, name


def test_a_verdict_by_more_seeds_is_kept(tmp_path, monkeypatch, capsys):
    name = "random_rewards_teach"
    before = (court.RESULTS / f"{name}.json").read_bytes()
    with pytest.raises(SystemExit):
        main(Args(claims=(name,), seeds=2))
    assert "has a verdict by 16 seeds" in capsys.readouterr().err
    assert (court.RESULTS / f"{name}.json").read_bytes() == before


def test_the_readme_shows_the_stored_verdicts():
    """The README has the number of results, and the verdict and figures of each claim that it names."""
    text = (ROOT / "README.md").read_text()
    untestable = sum(court.record(name)["verdict"] == court.NOT_TESTABLE for name in JUDGED)
    assert f"[{len(JUDGED)} results](reports/claims.md), {untestable} of them not testable here" in text
    form = rf"^- \*.+?\* \(`(?:python -m claims )?(\w+)`\): ({'|'.join(court.VERDICTS)})\. ((?:.+\n)+?)(?=-|\n)"
    named = re.findall(form, text, re.M)
    assert len(named) == 3
    for claim, verdict, numbers in named:
        stored = court.record(claim)
        assert verdict == stored["verdict"], f"README.md calls this {verdict}: {claim}"
        for number in re.findall(r"\d\.\d+", numbers):
            assert number in stored["effect"], f"README.md has {number} of {claim}"
