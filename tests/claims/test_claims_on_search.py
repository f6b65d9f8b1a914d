"""Claims on the world of search compare what they state."""

import json
from pathlib import Path

from claims import court, fair, runs
from worlds import generated_problems

import pytest
import torch


def ended(rows):
    """A run with these rows, starting at step 0."""
    made = runs.Trial(Path("nowhere"))
    settings = {"steps": len(rows) - 1, "prompts_per_step": 1, "responses_per_prompt": 1, "num_minibatches": 1}
    made.__dict__.update(
        rows=[{"step": i} | row for i, row in enumerate(rows)], settings=settings | {"update_epochs": 1}
    )
    return made


@pytest.fixture
def trials(monkeypatch):
    """Every run has the rows that the test puts into the list, with seed / 100 more per step in each value."""
    rows = []

    def trial(arm, seed):
        more = seed / 100
        return ended([{key: value + more * i for key, value in row.items()} for i, row in enumerate(rows)])

    monkeypatch.setattr(runs, "trial", trial)
    monkeypatch.setattr(fair, "at_best_rate", lambda words: f"{words} --lr 1e-4")
    return rows


def test_a_gain_is_over_the_runs_own_base_model(trials):
    trials += [{"eval/avg": 0.2}, {"eval/avg": 0.5}]
    result = court.load("random_rewards_teach").compute(3)
    assert all(arm["values"] == pytest.approx([0.31, 0.32, 0.33]) for arm in result["arms"].values())
    assert all(arm["before"] == pytest.approx(0.2) for arm in result["arms"].values())


@pytest.mark.parametrize(
    "sums,search,verdict",
    [(0.06, 0.07, court.REPRODUCED), (-0.01, 0.0, court.CONTRADICTED), (0.06, 0.02, court.INCONCLUSIVE)],
)
def test_random_rewards_are_judged_by_their_own_gain(sums, search, verdict):
    """The verdict depends on the gain from random rewards, not on the gain from correct ones."""
    gains = {"sums": sums, "search": search}
    arms = {f"coin flips, {world}": {"values": [gain - 0.001, gain, gain + 0.001]} for world, gain in gains.items()}
    arms |= {f"correct rewards, {world}": {"values": [0.5, 0.5, 0.5]} for world in gains}
    claim = court.load("random_rewards_teach")
    assert claim.verdict({"arms": arms}) == verdict
    assert f"sums {sums:+.3f}" in claim.deciding({"arms": arms}) and f"search {search:+.3f}" in claim.deciding(
        {"arms": arms}
    )


def test_pass_at_256_before_and_after(trials):
    claim = court.load("base_catches_up_at_large_k")
    trials += [{f"eval/pass@{k}": 0.1 + k / 1000 for k in claim.KS}, {f"eval/pass@{k}": 0.5 for k in claim.KS}]
    result = claim.compute(3)
    assert result["arms"]["before"]["values"] == pytest.approx([0.356] * 3)
    assert result["arms"]["after"]["values"] == pytest.approx([0.51, 0.52, 0.53])
    assert claim.curve(result, "before") == pytest.approx([0.1 + k / 1000 for k in claim.KS])
    assert claim.curve(result, "after") == pytest.approx([0.52] * 9)
    assert claim.verdict(result) == court.CONTRADICTED


@pytest.mark.parametrize("once,verdict", [(0.3, court.REPRODUCED), (0.1, court.CONTRADICTED)])
def test_pass_at_1_must_rise(once, verdict):
    arms = {"after": {"pass@1 before": 0.2, "pass@1 after": once}}
    result = {"arms": arms, "differences": {"before → after": [-0.03, 0.01, 0.01]}}
    assert court.load("base_catches_up_at_large_k").verdict(result) == verdict


@pytest.mark.parametrize("name", ["response_mean_lengthens_search", "response_mean_lengthens_wrong_answers"])
def test_lengths_of_incorrect_responses_over_ten_steps(name, trials):
    trials += [{"length_incorrect": 50 - i, "length_correct": 20 - i, "eval/avg": 0.5} for i in range(13)]
    result = court.load(name).compute(2)
    steps = range(3, 13)
    for arm in result["arms"].values():
        assert arm["values"] == pytest.approx([sum(50 - i + s * i / 100 for i in steps) / 10 for s in (1, 2)])
        assert arm["correct"] == pytest.approx(sum(20 - i + 1.5 * i / 100 for i in steps) / 10)


@pytest.mark.parametrize(
    "name,world", [("stale_rollouts_are_harmless", "sums"), ("stale_search_is_harmless", "search")]
)
@pytest.mark.parametrize("lost,verdict", [(-0.06, court.CONTRADICTED), (-0.01, court.REPRODUCED)])
def test_staleness_is_judged_where_the_ratio_corrects_for_it(name, world, lost, verdict):
    differences = {f"fresh, {world} → uncorrected, {world}": [-0.03, 0.02, 0.03]}
    differences[f"fresh, {world} → corrected, {world}"] = [lost, 0.02, 0.03]
    arms = dict.fromkeys(f"{arm}, {world}" for arm in ("fresh", "uncorrected", "corrected"))
    assert court.load(name).verdict({"arms": arms, "differences": differences}) == verdict


@pytest.mark.parametrize(
    "name,world", [("clip_needs_both_bounds", "sums"), ("clip_on_search_needs_both_bounds", "search")]
)
@pytest.mark.parametrize(
    "lower,upper,verdict",
    [
        (-0.06, -0.08, court.REPRODUCED),
        (-0.06, 0.01, court.CONTRADICTED),
        (0.0, -0.08, court.CONTRADICTED),
        (-0.06, -0.04, court.INCONCLUSIVE),
    ],
)
def test_each_bound_of_the_clip_must_be_needed(name, world, lower, upper, verdict):
    arms = dict.fromkeys(f"{arm}, {world}" for arm in ("both", "lower alone", "upper alone"))
    differences = {f"both, {world} → lower alone, {world}": [lower, 0.02, 0.03]}
    differences[f"both, {world} → upper alone, {world}"] = [upper, 0.02, 0.03]
    assert court.load(name).verdict({"arms": arms, "differences": differences}) == verdict


def test_the_96_sums_are_the_generators_first():
    rows = [json.loads(line) for line in (court.HERE / "sums_96.jsonl").read_text().splitlines()]
    assert [(row["question"], row["answer"]) for row in rows] == [
        p[:2] for p in generated_problems("sums", "train")[:96]
    ]


def test_what_is_left_out_is_counted_at_the_end(trials):
    trials += [{"eval/avg": 0.2}] + [{"zero_std_groups": 0.9}] * 5
    trials += [{"zero_std_groups": 0.1, "solved_prompts": 40, "eval/avg": 0.5}] * 20
    claim = court.load("no_positive_resampling_raises_the_end")
    result = claim.compute(2)
    for arm in result["arms"].values():
        assert arm["left out"] == pytest.approx(40 + 1.5 * 0.25)
        assert arm["no signal"] == pytest.approx(0.1 + 1.5 * 0.155)  # the mean of steps 6 to 25


@pytest.mark.parametrize("once,verdict", [(0.48, court.REPRODUCED), (0.46, court.INCONCLUSIVE)])
def test_maxrl_on_search_may_lose_less_than_003_at_pass_at_1(once, verdict):
    arms = {"GRPO, search-hard": {"pass@1": 0.5}, "MaxRL, search-hard": {"pass@1": once}}
    differences = {"GRPO, search-hard → MaxRL, search-hard": [0.1, 0.01, 0.02]}
    claim = court.load("maxrl_keeps_pass_at_k_on_search")
    assert claim.verdict({"arms": arms, "differences": differences}) == verdict
    assert claim.METRIC(ended([{}, {"eval/avg": 0.1, "eval/pass@16": 0.7}])) == 0.7


def test_credit_is_a_correlation():
    correlation = court.load("sampled_values_credit_each_step").correlation
    truth = [0.5, -0.25, 0.0, 0.25]
    assert correlation(truth, [2 * a + 1 for a in truth]) == pytest.approx(1)
    assert correlation(truth, [-a for a in truth]) == pytest.approx(-1)
    assert correlation(truth, [0.3] * 4) == 0.0


@pytest.mark.slow
def test_true_advantages_credit_lines_best(monkeypatch):
    """With the truth's own continuations VinePPO's correlation is 1; with others it is less, and above GRPO's."""
    claim = court.load("sampled_values_credit_each_step")
    monkeypatch.setattr(claim, "PROBLEMS", 6)
    monkeypatch.setattr(claim, "SAMPLES", (16,))
    monkeypatch.setattr(claim, "TRUE", 16)
    estimate = claim.vineppo.estimate_values
    other = claim.compute()["correlation"]
    monkeypatch.setattr(claim.vineppo, "estimate_values", lambda *given: estimate(*given[:5], 1, given[6]))
    same = claim.compute()["correlation"]
    assert same["VinePPO, 16 continuations"] == pytest.approx(1) and same["GRPO"] == other["GRPO"]
    assert other["GRPO"] + 0.05 < other["VinePPO, 16 continuations"] < 0.999


@pytest.mark.slow
def test_a_reward_model_that_knows_the_values(monkeypatch):
    """Its process rewards credit lines as the values of other continuations do, and its correlation with them is 1."""
    claim, known = court.load("process_rewards_credit_each_step"), {}
    estimate = claim.vineppo.estimate_values

    def estimate_values(problems, rollouts, steps, *rest):
        if rest[2] == 2:  # other continuations than those of the true advantages
            known.update(rollouts=rollouts, steps=steps, values=estimate(problems, rollouts, steps, *rest)[0])
            return known["values"], 0
        return estimate(problems, rollouts, steps, *rest)

    def logits(reward_model, batch, args):
        found = torch.zeros(batch.response_mask.shape)
        for row, (ends, before) in enumerate(zip(known["steps"], known["values"], strict=True)):
            after = torch.tensor([*before[1:], known["rollouts"].correct[row]]).double()
            found[row, [end - 1 for end in ends]] = torch.logit(after).float()
        return found

    monkeypatch.setattr(claim, "PROBLEMS", 3)
    monkeypatch.setattr(claim, "TRUE", 4)
    monkeypatch.setattr(claim.vineppo, "estimate_values", estimate_values)
    monkeypatch.setattr(claim.process_rewards, "train_reward_model", lambda *given: None)
    monkeypatch.setattr(claim, "in_micro_batches", logits)
    found = claim.compute()
    assert found["reward model"] == pytest.approx(1)
    assert found["correlations"][claim.LEARNED] == pytest.approx(found["correlations"][claim.EXACT], abs=1e-4)
    assert found["correlations"]["GRPO"] != pytest.approx(found["correlations"][claim.EXACT], abs=1e-2)
