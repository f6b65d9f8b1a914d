"""The project's leaderboard uses only what it can recompute or read from the records."""

import json
import re
import shutil
from dataclasses import replace

import grpo
from common.data import make_prompt
from common.engines import make_engine
from common.models import load_model
from common.records import Problem
from methods import vineppo
from notebooks import leaderboard
from tools.stats import interval
from worlds import generated_problems

import pytest
from conftest import SMALL

ARGS = leaderboard.Args("mine", (), hidden_seed="secret", budget=32, problems=12, samples=2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Three runs with different seeds, of two steps with 16 responses each."""
    folder = tmp_path_factory.mktemp("runs")
    for seed in (1, 2, 3):
        args = grpo.Args(seed=seed, dataset=ARGS.dataset, engine="transformers", run_dir=folder / str(seed), **SMALL)
        grpo.main(replace(args, max_response_tokens=96))
    return folder


@pytest.fixture
def runs(trained, tmp_path):
    """Copies of the runs that a test may damage."""
    shutil.copytree(trained, tmp_path / "runs")
    return tuple(tmp_path / "runs" / str(seed) for seed in (1, 2, 3))


def change(run, **settings):
    config = json.loads((run / "config.json").read_text())
    config["args"] |= settings
    (run / "config.json").write_text(json.dumps(config))


def refused(capsys, **changes):
    """The error message of a refused entry; no model is loaded."""
    with pytest.raises(SystemExit) as end:
        leaderboard.main(replace(ARGS, **changes))
    assert end.value.code == 2
    return capsys.readouterr().err


def test_table(runs, tmp_path, monkeypatch):
    """An entry has its runs' mean accuracy with an interval; better ones come first, and a name is replaced."""
    table, accuracy, judged = tmp_path / "board.md", leaderboard.accuracy, []
    monkeypatch.setattr(leaderboard, "accuracy", lambda model, *more: judged.append(model) or accuracy(model, *more))
    leaderboard.main(replace(ARGS, runs=runs, table=table))
    board = json.loads(table.with_suffix(".json").read_text())
    assert judged == [run / "checkpoint-000002" for run in runs]
    (entry,) = board["entries"]
    mean, half = interval(entry["accuracies"])
    assert entry == entry | {"name": "mine", "script": "grpo", "seeds": 3, "responses": 32, "mean": mean, "half": half}
    assert f"| 1 | mine | grpo | {mean:.3f} | ± {half:.3f} | 3 | 32 |" in table.read_text()
    assert "secret" not in table.read_text() + json.dumps(board)

    better = entry | {"name": "better", "mean": mean + half + 0.1, "half": 0.01}
    table.with_suffix(".json").write_text(json.dumps(board | {"entries": [entry, better]}))
    leaderboard.main(replace(ARGS, runs=runs, table=table))
    rows = table.read_text().splitlines()[-2:]
    assert rows[0].startswith("| 1 | better |") and rows[1].startswith("| 2 | mine |")
    assert json.loads(table.with_suffix(".json").read_text())["entries"] == [better, entry]


def test_entries_that_overlap_share_a_place():
    def entry(name, mean, half):
        return {"name": name, "script": "grpo", "mean": mean, "half": half, "seeds": 3, "responses": 1}

    table = leaderboard.render([entry("a", 0.9, 0.02), entry("b", 0.87, 0.02), entry("c", 0.8, 0.02)])
    assert re.findall(r"^\| (\d) \| (\w)", table, re.M) == [("1", "a"), ("1", "b"), ("3", "c")]


def test_first_round(runs, tmp_path, monkeypatch, capsys):
    """Entries have one run with the same seed and no interval, and never share a table with the final round."""
    accuracies = iter((0.4, 0.6))
    monkeypatch.setattr(leaderboard, "accuracy", lambda *_: next(accuracies))
    given = {"table": tmp_path / "first.md", "first_round": 2}
    leaderboard.main(replace(ARGS, name="a", runs=runs[1:2], **given))
    leaderboard.main(replace(ARGS, name="b", runs=runs[1:2], **given))
    text = (tmp_path / "first.md").read_text()
    assert text.startswith("# First round, one run with seed 2: sums-hard, 32 responses\n")
    assert re.findall(r"^\| \d .*", text, re.M) == [
        "| 1 | b | grpo | 0.600 | none | 1 | 32 |",
        "| 2 | a | grpo | 0.400 | none | 1 | 32 |",
    ]
    for wrong in (runs[:1], runs, ()):
        assert "an entry is one run with seed 2" in refused(capsys, runs=wrong, **given)
    assert "made with another --first-round" in refused(capsys, runs=runs, table=tmp_path / "first.md")
    assert "made with another --first-round" in refused(capsys, runs=runs[:1], **given | {"first_round": 1})


def test_accuracy_is_that_of_the_weights(runs):
    """The accuracy equals one recomputed here from the number in the last box."""
    pairs = leaderboard.hidden_problems(ARGS.dataset, "a", 40)
    settings = grpo.Args(max_response_tokens=96, seed=0)  # as in an evaluation
    model, tokenizer = load_model(settings)
    prompts = [make_prompt(question, None, tokenizer) for question, _ in pairs]
    problems = [Problem(*pair, *prompt) for pair, prompt in zip(pairs, prompts, strict=True)]
    engine = make_engine(settings, model, tokenizer, problems)
    engine.load_weights(model)
    rollouts = engine.generate(problems, 2)
    texts = tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
    boxes = [re.findall(r"\\boxed\{(\d+)\}", text)[-1:] for text in texts]
    right = sum(box == [pairs[i // 2][1]] and not rollouts.truncated[i] for i, box in enumerate(boxes))
    assert leaderboard.accuracy("sums", pairs, ARGS) == pytest.approx(right / 80) and right > 0


def test_hidden_problems_are_new():
    """Hidden problems depend on the seed, have the data set's lengths and correct answers, and are not in it."""
    mine, yours = (leaderboard.hidden_problems(ARGS.dataset, seed, 300) for seed in ("a", "b"))
    assert mine == leaderboard.hidden_problems(ARGS.dataset, "a", 300)
    questions = {question for question, _ in mine}
    assert len(questions) == 300 and len(questions & {question for question, _ in yours}) < 10
    known = {question for split in ("train", "eval") for question, _ in generated_problems(ARGS.dataset, split)}
    assert not questions & known

    def terms(question):
        return [int(term) for term in re.findall(r"[+-]?\d+", question)]

    assert {len(terms(question)) for question in questions} == {len(terms(question)) for question in known}
    assert all(sum(terms(question)) == int(answer) for question, answer in mine)


def test_known_problems_are_left_out(monkeypatch):
    """If the data set already has the first 200 problems, the hidden ones start at the 201st."""
    before = leaderboard.hidden_problems(ARGS.dataset, "a", 300)
    splits = {"train": before[:150], "eval": before[150:200]}
    monkeypatch.setattr(leaderboard, "generated_problems", lambda name, split: splits[split])
    after = leaderboard.hidden_problems(ARGS.dataset, "a", 300)
    assert after[:100] == before[200:] and not set(after) & set(before[:200])


def test_what_counts_as_a_response():
    """A step counts P·G responses, plus discarded groups and continuations."""
    settings = {"prompts_per_step": 4, "responses_per_prompt": 8, "steps": 2}
    rows = [{"step": 1}, {"step": 2}]

    def count(*more):
        merged = [row | extra for row, extra in zip(rows, more, strict=True)]
        return leaderboard.Submission(None, "grpo", settings, merged).responses

    assert count({}, {}) == 2 * 32
    assert count({"sampled_prompts": 12}, {"sampled_prompts": 4}) == 12 * 8 + 4 * 8
    assert count({"continuations": 100}, {}) == 2 * 32 + 100


@pytest.mark.slow
def test_continuations_are_recorded(tmp_path):
    """VinePPO's continuations, at least value_samples per prompt, count as responses."""
    args = vineppo.Args(value_samples=3, engine="transformers", run_dir=tmp_path / "run", **SMALL | {"steps": 1})
    vineppo.main(args)
    run = leaderboard.read_submission(tmp_path / "run")
    assert run.responses == 16 + run.rows[0]["continuations"] and run.rows[0]["continuations"] >= 3 * 4


def test_budget(runs, capsys):
    assert "sampled 32 responses, more than the budget of 31" in refused(capsys, runs=runs, budget=31)
    rows = (runs[1] / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in rows if not ('"response_tokens"' in line and '"step": 2' in line)]
    (runs[1] / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    assert "1 of 2 steps are recorded" in refused(capsys, runs=runs)
    for run in runs:  # the settings state fewer prompts than the run had
        change(run, prompts_per_step=2)
    assert "contradicts the settings" in refused(capsys, runs=(runs[0], runs[2]))


def test_seeds_and_settings(runs, capsys):
    c = runs[2]
    assert "at least 3 runs" in refused(capsys, runs=runs[:2])
    change(c, lr=1e-3)
    assert "differ in lr: only the seed may" in refused(capsys, runs=runs)
    change(c, lr=grpo.Args.lr, seed=1)
    assert "the same seed" in refused(capsys, runs=runs)


def test_copies_of_one_run(runs, capsys):
    """Copies of a run with another seed in the settings are refused, because their weights are equal."""
    copies = [shutil.copytree(runs[0], runs[0].with_name(f"copy{seed}")) for seed in (7, 8)]
    for seed, copy in zip((7, 8), copies, strict=True):
        change(copy, seed=seed)
    assert "the same weights" in refused(capsys, runs=(runs[0], *copies))


@pytest.mark.parametrize(
    "settings,sentence",
    [
        ({"model": "some/model"}, "starts from some/model"),
        ({"teacher": "some/teacher"}, "starts from some/teacher"),
        ({"dataset": "sums.jsonl"}, "was trained on sums.jsonl"),
        ({"steps": 3}, "2 of 3 steps are recorded"),
    ],
)
def test_rules(settings, sentence, runs, capsys):
    change(runs[2], **settings)
    assert sentence in refused(capsys, runs=runs)


def test_checkpoints(runs, capsys):
    weights = runs[0] / "checkpoint-000002" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    assert "has changed since it was written: model.safetensors" in refused(capsys, runs=runs)
    shutil.rmtree(weights.parent)
    assert "is missing or incomplete" in refused(capsys, runs=runs)
    assert "is not a run folder" in refused(capsys, runs=(*runs[1:], runs[0].with_name("none")))


def test_other_rules(runs, tmp_path, capsys):
    """Entries judged on other problems or with another budget cannot be in one table."""
    pairs = leaderboard.hidden_problems(ARGS.dataset, "secret", 12)
    rules = leaderboard.rules_of(ARGS, pairs)
    (tmp_path / "board.json").write_text(json.dumps({"rules": rules, "entries": []}))
    given = {"runs": runs, "table": tmp_path / "board.md"}
    assert "made with another --hidden-seed" in refused(capsys, hidden_seed="other", **given)
    assert "made with another --budget" in refused(capsys, budget=64, **given)
    (tmp_path / "board.json").write_text("{")
    assert "is damaged" in refused(capsys, **given)
    assert "without |" in refused(capsys, name="a|b", **given)
