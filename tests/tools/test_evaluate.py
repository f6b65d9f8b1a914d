"""tools.evaluate, and data sets by name: numbers come from the samples, even after an interruption."""

import json
import statistics
from pathlib import Path

import grpo
from common.data import load_problems
from common.evaluation import pass_at_k
from common.metrics import read_metrics
from common.models import load_model
from common.rows import STANDARD, pairs_of
from common.transformers_engine import TransformersEngine
from recipes import agent
from tools import evaluate
from tools.scripts import ROOT
from tools.stats import fraction_interval

import datasets
import numpy as np
import pytest
from conftest import SMALL
from runs import ended


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_model):
    """A run of two steps on a file, with some rows held out."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    settings = SMALL | {"eval_problems": 7, "eval_samples": 8, "max_response_tokens": 8}
    grpo.main(grpo.Args(model=str(tiny_model), dataset=str(tiny_model / "problems.jsonl"), run_dir=folder, **settings))
    return folder


def test_problems_with_both_kinds_of_responses_are_kept_as_the_page_says(tmp_path, monkeypatch):
    """The code in docs/tasks.md reads an evaluation and writes a file that can be trained on."""
    monkeypatch.chdir(tmp_path)
    block = (ROOT / "docs/tasks.md").read_text().split("neither too easy nor too hard")[1].split("```python\n")[1]
    rows = [{"question": f"{n}+1=?", "answer": str(n + 1), "correct": [i < n for i in range(8)]} for n in range(9)]
    Path("base").mkdir()
    Path("base/samples.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    exec(block.split("```")[0], {})
    pairs = pairs_of("mixed.jsonl", "train", grpo.Args(dataset="mixed.jsonl"))
    assert [pair[:2] for pair in pairs] == [(f"{n}+1=?", str(n + 1)) for n in range(1, 8)]


def settings_of(trained, tiny_model):
    return {
        "model": str(trained / "checkpoint-000002"), "dataset": str(tiny_model / "problems.jsonl"),
        "max_response_tokens": 8, "k": (1, 8), "eval_problems": 7, "held_out": True,
    }  # fmt: skip


def test_a_checkpoint_has_the_figures_that_its_run_logged(trained, tiny_model, tmp_path, capsys):
    evaluate.main(evaluate.Args(run_dir=tmp_path / "run", **settings_of(trained, tiny_model)))
    found = json.loads((tmp_path / "run" / "results.json").read_text())["all"]
    logged = read_metrics(trained)[-1]
    names = [
        "n",
        "avg",
        "standard_error",
        "greedy",
        "length_correct",
        "length_incorrect",
        "truncated",
        "pass@1",
        "pass@8",
    ]
    assert {name: found[name] for name in names} == {name: logged[f"eval/{name}"] for name in names}
    assert found["pass@1"] == pytest.approx(found["avg"], abs=1e-12)
    table = capsys.readouterr().out
    assert f"{found['pass@8']:.3f} [{found['pass@8_interval'][0]:.3f}" in table and "samples of each problem" in table


@pytest.mark.slow
def test_episodes_have_the_figures_that_their_run_logged(tmp_path):
    """With the run's environment the numbers are those of its log; without it they differ."""
    settings = SMALL | {"steps": 1, "eval_problems": 6, "eval_samples": 4, "max_response_tokens": 60}
    agent.main(agent.Args(run_dir=tmp_path / "run", max_turns=4, **settings))
    logged, found = read_metrics(tmp_path / "run")[0], {}
    same = {"model": "guessing", "dataset": "guessing", "k": (4,), "eval_problems": 6, "held_out": True}
    same |= {"max_response_tokens": 60}
    for environment in ("guessing", None):
        folder = tmp_path / str(environment)
        evaluate.main(evaluate.Args(run_dir=folder, environment=environment, max_turns=4, **same))
        found[environment] = json.loads((folder / "results.json").read_text())["all"]
    for name in ("avg", "greedy", "length_incorrect", "pass@4"):
        assert found["guessing"][name] == logged[f"eval/{name}"], name
    assert found["guessing"]["length_incorrect"] != found[None]["length_incorrect"]


def test_figures_come_from_the_samples_in_the_files(trained, tiny_model, tmp_path):
    """Numbers for all rows and by a column are recomputed from samples.jsonl."""
    rows = [json.loads(line) for line in (tiny_model / "problems.jsonl").open()]
    for row in rows:
        row["level"] = len(row["answer"])
    (tmp_path / "levels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = settings_of(trained, tiny_model) | {"dataset": str(tmp_path / "levels.jsonl"), "held_out": False}
    settings |= {"eval_problems": None, "k": (2,), "eval_samples": 6, "difficulty_column": "level"}
    evaluate.main(evaluate.Args(run_dir=tmp_path / "run", **settings))
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").open()]
    assert [line["question"] for line in lines] == [row["question"] for row in rows]
    groups = {"all": lines, **{f"level {n}": [x for x in lines if len(x["answer"]) == n] for n in (1, 2)}}
    assert list(found) == list(groups) and found["all"]["problems"] == 40
    for name, mine in groups.items():
        assert found[name]["avg"] == pytest.approx(statistics.mean(ok for x in mine for ok in x["correct"]))
        assert found[name]["truncated"] == pytest.approx(statistics.mean(cut for x in mine for cut in x["truncated"]))
        values = [pass_at_k(6, sum(x["correct"]), 2) for x in mine]
        assert found[name]["pass@2"] == pytest.approx(statistics.mean(values))
        assert found[name]["pass@2_interval"] == pytest.approx(list(fraction_interval(values)))
    for line in lines:
        assert len(line["responses"]) == len(line["lengths"]) == 6


def test_an_interrupted_evaluation_ends_with_the_same_figures(trained, tiny_model, tmp_path, monkeypatch, capsys):
    """An evaluation interrupted in its third chunk, with a partial chunk and line in the file, ends the same."""
    monkeypatch.setattr(evaluate, "MAX_ROWS", 16)  # two problems at a time
    settings = settings_of(trained, tiny_model)
    evaluate.main(evaluate.Args(run_dir=tmp_path / "whole", **settings))
    sample, calls = TransformersEngine.sample_shards, []

    def third_time(engine, request):
        calls.append(len(request.prompts))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return sample(engine, request)

    monkeypatch.setattr(TransformersEngine, "sample_shards", third_time)
    cut = tmp_path / "cut"
    error = ended(capsys, lambda: evaluate.main(evaluate.Args(run_dir=cut, **settings)), 130)
    assert f"python -m tools.evaluate --resume {cut}" in error
    whole = (tmp_path / "whole" / "samples.jsonl").read_text().splitlines()
    assert (cut / "samples.jsonl").read_text().splitlines() == whole[:4]
    with (cut / "samples.jsonl").open("a") as file:
        file.write(whole[4] + "\n" + whole[5][:30])
    evaluate.main(evaluate.Args(resume=cut))
    assert calls[3:] == [2, 1, 7], "the chunks are not the same, or what is done was sampled again"
    for name in ("samples.jsonl", "greedy.jsonl", "results.json"):
        assert (cut / name).read_text() == (tmp_path / "whole" / name).read_text()
    found, logged = json.loads((cut / "results.json").read_text())["all"], read_metrics(trained)[-1]
    assert all(found[name] == logged[f"eval/{name}"] for name in ("avg", "pass@8", "greedy", "length_incorrect"))
    assert "leave out --max-response-tokens" in ended(
        capsys, lambda: evaluate.main(evaluate.Args(resume=cut, max_response_tokens=9))
    )
    (cut / "samples.jsonl").write_text("".join(f"{line}\n" for line in reversed(whole)))
    assert "is damaged, or the data set has changed" in ended(capsys, lambda: evaluate.main(evaluate.Args(resume=cut)))


@pytest.mark.parametrize(
    "settings,words",
    [
        ({"k": (1, 64), "eval_samples": 16}, "--k 1 64 needs numbers from 1 to --eval-samples 16"),
        ({"k": ()}, "--k"),
        ({"held_out": True}, "--held-out needs the --eval-problems"),
        ({"dataset": ("sums", "sums-hard")}, "an evaluation uses one data set"),
        ({"difficulty_column": "level"}, "--difficulty-column belongs to a data set of your own"),
        ({"model": "./no-such-model"}, "--model"),
        ({"max_response_tokens": 1000}, "exceed the model's context of 256 tokens"),
        ({"resume": "no-such-run"}, "is not a run folder"),
        ({"dataset": "math500", "answer_column": "solution"}, "--answer-column is fixed for --dataset math500"),
    ],
)
def test_mistakes_in_an_evaluation(settings, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if "resume" in settings:
        settings["resume"] = tmp_path / settings["resume"]
    assert words in ended(capsys, lambda: evaluate.main(evaluate.Args(**settings)))
    assert not any((tmp_path / "runs").glob("*")), "a refused evaluation left its folder behind"


def test_no_question_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("all.jsonl").write_text('{"question": "1+1=?", "answer": "2"}\n{"question": "1+2=?", "answer": "3"}\n')
    args = evaluate.Args(dataset="all.jsonl", few_shot="all.jsonl")
    assert "--few-shot holds every question" in ended(capsys, lambda: evaluate.main(args))


def test_of_generated_problems_the_length_is_known(tmp_path):
    """The difficulty of sums is their number of terms."""
    args = evaluate.Args(eval_problems=20)
    problems = evaluate.load_evaluation(args, *load_model(args))
    name, terms = evaluate.difficulty(args)
    assert name == "terms" and len(problems) == 20
    assert all(terms(p) == len(p.question.removesuffix("=?").replace("-", "+").split("+")) for p in problems)


def test_intervals_of_fractions():
    """Intervals are Wilson's for values of 0 and 1; for others they hold the truth nine times in ten, even near 0."""
    low, high = fraction_interval([1.0] * 8 + [0.0] * 2, 0.95)
    t, p, n = 2.2621571628, 0.8, 9  # the sample variance makes 10 values count as 9
    roots = np.roots([1 + t * t / n, -(2 * p + t * t / n), p * p])
    assert (low, high) == pytest.approx(tuple(sorted(roots)), abs=1e-9)
    assert fraction_interval([1.0] * 30)[0] == pytest.approx(30 / (30 + 2.0452296421**2))
    assert fraction_interval([0.5]) == (0, 1)
    rng, hits, true = np.random.default_rng(0), 0, 0.2 / 4.2
    for _ in range(400):
        values = rng.binomial(16, rng.beta(0.2, 4, 30)) / 16
        low, high = fraction_interval(list(values))
        assert 0 <= low <= values.mean() <= high <= 1
        hits += low <= true <= high
    assert hits / 400 > 0.89, "Student's t has 0.88"


# Data sets by name


@pytest.mark.parametrize(
    "name,hub,config,splits",
    [
        ("gsm8k", "openai/gsm8k", "main", ["train", "test"]),
        ("math500", "HuggingFaceH4/MATH-500", None, ["test"]),
        ("aime24", "HuggingFaceH4/aime_2024", None, ["train"]),
    ],
)
def test_data_sets_by_name(name, hub, config, splits, chat_model, tmp_path, monkeypatch, capsys):
    """The data set's own name, configuration, split and columns are used, even if a local folder has that name."""
    asked = []

    def load(path, config, split):
        asked.append((path, config, split))
        if name == "gsm8k":
            rows = [{"question": f"{split} {i}?", "answer": f"so <<{i}>>\n#### {i}"} for i in range(6)]
        else:
            rows = [{"problem": f"{split} {i}?", "solution": "no", "answer": f"0{i}", "level": i % 2} for i in range(6)]
        return datasets.Dataset.from_list(rows)

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()
    args = evaluate.Args(model=str(chat_model), max_response_tokens=96, dataset=name).checked()
    model, tokenizer = load_model(args)
    problems = evaluate.load_evaluation(args, model, tokenizer)
    assert asked == [(hub, config, splits[-1])]
    assert [int(p.answer) for p in problems] == list(range(6))
    assert problems[0].prompt.startswith(f"<|im_start|>user\n{splits[-1]} 0?\nPlease reason step by step")
    if name == "math500":
        column, level = evaluate.difficulty(args)
        assert column == "level" and [level(p) for p in problems] == [0, 1, 0, 1, 0, 1]
    asked.clear()
    training = grpo.Args(
        model=str(chat_model), max_response_tokens=96, dataset="gsm8k", eval_dataset=name, eval_problems=4
    ).checked()
    if name == "gsm8k":
        training.eval_dataset = None
        train, held_out = load_problems(training, model, tokenizer)
        assert asked == [(hub, config, split) for split in splits]
        assert train[0].question == "train 0?" and [p.question for p in held_out] == [f"test {i}?" for i in range(4)]
    else:
        training.dataset, training.eval_dataset = name, None
        assert f"{name} is for evaluation only" in ended(capsys, lambda: load_problems(training, model, tokenizer))


def test_known_columns_of_a_local_copy(chat_model, tmp_path):
    """A local file in MATH-500's format works with its known columns."""
    rows = [{"problem": f"{i}?", "answer": f"\\frac{{{i}}}{{7}}", "level": i % 5 + 1} for i in range(1, 9)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = STANDARD["math500"]
    args = evaluate.Args(
        model=str(chat_model), max_response_tokens=96,
        dataset=str(tmp_path / "test.jsonl"), question_column=known.question_column,
        answer_column=known.answer_column, difficulty_column=known.difficulty_column,
    ).checked()  # fmt: skip
    problems = evaluate.load_evaluation(args, *load_model(args))
    assert [p.answer for p in problems] == [row["answer"] for row in rows]
    assert list(map(evaluate.difficulty(args)[1], problems)) == [row["level"] for row in rows]
    args.prompt = "Level {level}: {problem}"
    problems = evaluate.load_evaluation(args, *load_model(args))
    assert problems[0].question == "Level 2: 1?"
    assert list(map(evaluate.difficulty(args)[1], problems)) == [row["level"] for row in rows]


def test_greedy_and_parts_of_the_distribution(trained, tiny_model, tmp_path, capsys):
    """Temperature 0, top-k 1 and a tiny top-p all give the greedy responses; --temperature 0 needs --k 1."""
    common = settings_of(trained, tiny_model) | {"k": (1,)}
    found = {}
    for name, flags in {"cold": {"temperature": 0.0}, "top": {"top_k": 1}, "small": {"top_p": 1e-6}, "all": {}}.items():
        evaluate.main(evaluate.Args(run_dir=tmp_path / name, **common, **flags))
        rows = [json.loads(line) for line in (tmp_path / name / "samples.jsonl").read_text().splitlines()]
        found[name] = [row["responses"] for row in rows]
    assert found["cold"] == found["top"] == found["small"] != found["all"]
    capsys.readouterr()
    args = evaluate.Args(run_dir=tmp_path / "no", **common | {"k": (1, 4)}, temperature=0.0)
    assert "--temperature 0 gives the same response each time: use --k 1" in ended(capsys, lambda: evaluate.main(args))


def test_each_reward_function_is_reported(trained, tiny_model, tmp_path, capsys):
    (tmp_path / "own.py").write_text("def length(problem, text, tokens, truncated): return len(tokens)")
    reward = ("correct=2", f"{tmp_path / 'own.py'}:length=-1")
    evaluate.main(evaluate.Args(run_dir=tmp_path / "run", reward=reward, **settings_of(trained, tiny_model)))
    found = json.loads((tmp_path / "run/results.json").read_text())["all"]
    rows = [json.loads(line) for line in (tmp_path / "run/samples.jsonl").read_text().splitlines()]
    lengths = [length for row in rows for length in row["lengths"]]
    assert found["reward/length"] == pytest.approx(statistics.fmean(lengths))
    assert found["reward/length/std"] == pytest.approx(statistics.pstdev(lengths)) and found["reward/length/std"] > 0
    assert found["reward/correct"] == found["avg"] and found["reward/length/in_time"] == 1
    assert found["reward"] == pytest.approx(2 * found["avg"] - found["reward/length"])
    assert "reward/length/std" in capsys.readouterr().out
