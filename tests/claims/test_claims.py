"""Every claim has its four parts, exact ones are computed anew, and the page shows the stored verdicts."""

import io
import math
import re
import subprocess
import sys

import grpo
from claims import court
from claims.__main__ import Args, main
from tools.reports import today
from tools.scripts import ROOT, docstring

import pytest
import torch
from kinds import JUDGED, OF_KIND
from matplotlib import image


def numbers(value, path=""):
    """All numbers of a result by their path."""
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: x for name, item in items for key, x in numbers(item, f"{path}/{name}").items()}
    return {path: value} if isinstance(value, int | float) else {}


@pytest.mark.parametrize("name", court.names())
def test_the_docstring_has_its_four_parts(name):
    claim, *rest = docstring(court.HERE / f"{name}.py").split("\n\n")
    assert claim.endswith(".") and "\n" not in claim
    assert [part for paragraph in rest for part in court.PARTS if paragraph.startswith(part)] == list(court.PARTS)


def test_only_claims_by_runs_wait_for_a_verdict():
    assert {*OF_KIND["exact"], *OF_KIND["model"]} <= {*JUDGED}


SECONDS = ("maxrl_keeps_pass_at_k", "whitening_is_harmless")  # exact claims that take more than one


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SECONDS)) for n in OF_KIND["exact"]])
def test_an_exact_claim_computed_anew(name):
    stored, claim = court.record(name), court.load(name)
    result = court.rounded(claim.compute())
    assert claim.verdict(result) == stored["verdict"]
    assert numbers(result) == pytest.approx(numbers(stored["result"]), rel=1e-4, abs=1e-7)


LONG = (  # claims on the model that take half a minute or more
    "clip_is_rarely_active", "clip_keeps_ratios_within_its_bounds", "gspo_tolerates_the_engines_precision",
    "sampled_values_beat_a_critic",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OF_KIND["model"] if name not in LONG])
def test_a_claim_on_the_model_computed_anew(name):
    """Other kernels round otherwise, so a few sampled tokens may differ."""
    stored, claim = court.record(name), court.load(name)
    result = court.rounded(claim.compute())
    assert claim.verdict(result) == stored["verdict"]
    assert numbers(result) == pytest.approx(numbers(stored["result"]), rel=0.1, abs=0.01)


@pytest.mark.parametrize("name", JUDGED)
def test_what_is_stored_agrees_with_itself(name):
    """Verdict and effect follow from the numbers, and the picture is there, small enough to load at once."""
    stored, claim = court.record(name), court.load(name)
    assert stored["verdict"] in court.VERDICTS
    assert stored["verdict"] == claim.verdict(stored["result"])
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
        (-0.5, 0.1, court.REFUTED),  # the sign flipped
        (0.1, 0.5, court.WITHIN_NOISE),  # an interval over 0
        (0.5, 0.6, court.WITHIN_NOISE),
        (0.1, 0.05, court.REFUTED),  # there, but not worth naming
        (0.0, 0.01, court.REFUTED),  # too narrow an interval around 0 for an effect worth naming
        (0.18, 0.05, court.WITHIN_NOISE),  # perhaps worth naming
    ],
)
def test_verdicts(effect, half, verdict):
    assert court.judge(effect, half, smallest=0.2) == verdict


def test_a_claim_of_several_parts_is_as_good_as_its_worst():
    assert court.judge_all(court.REPRODUCED, court.REPRODUCED) == court.REPRODUCED
    assert court.judge_all(court.REPRODUCED, court.WITHIN_NOISE) == court.WITHIN_NOISE
    assert court.judge_all(court.WITHIN_NOISE, court.REFUTED, court.REPRODUCED) == court.REFUTED


def test_a_flipped_claim_is_refuted():
    claim, result = court.load("tis_repairs_the_gradient"), court.record("tis_repairs_the_gradient")["result"]
    fraction, half = result["removed"]["response, C = 2"]
    for sign, verdict in ((1, court.REPRODUCED), (-1, court.REFUTED)):
        assert claim.verdict({"removed": {"token, C = 2": [sign * fraction, half]}}) == verdict


def test_updates_on_one_rollout_batch():
    """The policy that sampled clips nothing; a high learning rate then does. No draw comes from outside."""
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
    """Probabilities add up to 1, and the scores are the gradients of the log-probs, with expectation 0."""
    logits = torch.randn(1 + 3 + 9, 3, dtype=torch.float64, requires_grad=True)
    tokens, logp, scores = court.tree(logits, 3)
    assert len({tuple(row) for row in tokens.tolist()}) == 27
    chance = logp.sum(1).exp().detach()
    assert chance.sum().item() == pytest.approx(1)
    assert (chance[:, None] * scores.sum(1)).sum(0).abs().max() < 1e-12
    (by_autograd,) = torch.autograd.grad(logp[17].sum(), logits)
    torch.testing.assert_close(scores[17].sum(0).detach(), by_autograd.flatten())


def test_the_command_lists_all_claims():
    listed = subprocess.run([sys.executable, "-m", "claims"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = listed.stdout.splitlines()
    assert [line.split()[0] for line in lines] == court.names()
    assert all((court.record(line.split()[0]) or {"verdict": "not run yet"})["verdict"] in line for line in lines)


def test_stored_results_are_readable(tmp_path, monkeypatch):
    """Without decoding, as the other files of reports/."""
    result = court.record("k3_penalizes_the_kl")["result"]
    monkeypatch.setattr(court, "RESULTS", tmp_path)
    court.store("k3_penalizes_the_kl", "2026-11-24", result)
    assert "KL(π_ref ‖ π_θ)" in (tmp_path / "k3_penalizes_the_kl.json").read_text()


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
    assert court.PAGE.read_text() == court.page(), "reports/claims.md: python -m claims --page"


def test_the_readme_shows_the_stored_verdicts():
    """Their number, and each verdict that it names beside numbers of a claim with that verdict."""
    text, stored = (ROOT / "README.md").read_text(), [court.record(name) for name in JUDGED]
    assert f"[{len(JUDGED)} verdicts](reports/claims.md)" in text
    named = re.findall(rf"^- \*(.+?)\*: ({'|'.join(court.VERDICTS)})\. (.+)", text, re.M)
    assert named
    for claim, verdict, numbers in named:
        found = [s for s in stored if all(number in s["effect"] for number in re.findall(r"\d\.\d+", numbers))]
        assert verdict in [s["verdict"] for s in found], f"README.md calls this {verdict}: {claim}"
