"""Looking at models and runs without training: tools.evaluate, tools.chat, tools.plots, and data sets by name."""

import io
import json
import statistics
from pathlib import Path

import grpo
from common.data import STANDARD, load_problems
from common.evaluation import pass_at_k
from common.folders import write_config
from common.metrics import read_metrics
from common.models import load_model
from common.transformers_engine import TransformersEngine
from tools import chat, evaluate, plots, scripts
from tools.scripts import parents
from tools.stats import fraction_interval

import datasets
import numpy as np
import pytest
from conftest import SMALL


def ended(capsys, call, code=2):
    """The sentence that a call ends with."""
    with pytest.raises(SystemExit) as stop:
        call()
    error = capsys.readouterr().err.strip()
    assert stop.value.code == code and error.startswith("error: ") and "\n" not in error, error
    return error


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_model):
    """A run of two steps on a file, some of whose rows it holds out."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    settings = SMALL | {"eval_problems": 7, "eval_samples": 8, "max_response_tokens": 8}
    grpo.main(grpo.Args(model=str(tiny_model), dataset=str(tiny_model / "problems.jsonl"), run_dir=folder, **settings))
    return folder


# tools.evaluate


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


def test_figures_come_from_the_samples_in_the_files(trained, tiny_model, tmp_path):
    """Of all rows of the file, and by a column; every figure computed again from samples.jsonl."""
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
    """Interrupted in the third chunk, with half a chunk and half a line in the file besides."""
    monkeypatch.setattr(evaluate, "MAX_ROWS", 16)  # two problems at a time
    settings = settings_of(trained, tiny_model)
    evaluate.main(evaluate.Args(run_dir=tmp_path / "whole", **settings))
    sample, calls = TransformersEngine.sample_shards, []

    def third_time(*args, **kwargs):
        calls.append(len(args[1]))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return sample(*args, **kwargs)

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
        ({"difficulty_column": "level"}, "--difficulty-column belongs to a data set of your own"),
        ({"model": "./no-such-model"}, "--model"),
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
    """Sums have terms, and a countdown its numbers."""
    args = evaluate.Args(eval_problems=20)
    problems = evaluate.load_evaluation(args, *load_model(args))
    name, terms = evaluate.difficulty(args)
    assert name == "terms" and len(problems) == 20
    assert all(terms(p) == len(p.question.removesuffix("=?").replace("-", "+").split("+")) for p in problems)


def test_intervals_of_fractions():
    """Wilson's for values of 0 and 1; of others it holds the truth nine times in ten, also close to 0."""
    low, high = fraction_interval([1.0] * 8 + [0.0] * 2, 0.95)
    t, p, n = 2.2621571628, 0.8, 9  # with the sample variance, 10 values count as 9
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
    """The right name, configuration, split and columns are asked for, whatever lies in the folder."""
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
    args = evaluate.Args(model=str(chat_model), dataset=name).checked()
    model, tokenizer = load_model(args)
    problems = evaluate.load_evaluation(args, model, tokenizer)
    assert asked == [(hub, config, splits[-1])]
    assert [int(p.answer) for p in problems] == list(range(6))
    assert problems[0].prompt.startswith(f"<|im_start|>user\n{splits[-1]} 0?\nPlease reason step by step")
    if name == "math500":
        column, level = evaluate.difficulty(args)
        assert column == "level" and [level(p) for p in problems] == [0, 1, 0, 1, 0, 1]
    asked.clear()
    training = grpo.Args(model=str(chat_model), dataset="gsm8k", eval_dataset=name, eval_problems=4).checked()
    if name == "gsm8k":
        training.eval_dataset = None
        train, held_out = load_problems(training, model, tokenizer)
        assert asked == [(hub, config, split) for split in splits]
        assert train[0].question == "train 0?" and [p.question for p in held_out] == [f"test {i}?" for i in range(4)]
    else:
        training.dataset, training.eval_dataset = name, None
        assert f"{name} is for evaluation only" in ended(capsys, lambda: load_problems(training, model, tokenizer))


def test_known_columns_of_a_local_copy(chat_model, tmp_path):
    """MATH-500 as a file of one's own."""
    rows = [{"problem": f"{i}?", "answer": f"\\frac{{{i}}}{{7}}", "level": i % 5 + 1} for i in range(1, 9)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    known = STANDARD["math500"]
    args = evaluate.Args(
        model=str(chat_model), dataset=str(tmp_path / "test.jsonl"), question_column=known.question_column,
        answer_column=known.answer_column, difficulty_column=known.difficulty_column,
    ).checked()  # fmt: skip
    problems = evaluate.load_evaluation(args, *load_model(args))
    assert [p.answer for p in problems] == [row["answer"] for row in rows]
    assert list(map(evaluate.difficulty(args)[1], problems)) == [row["level"] for row in rows]


# tools.chat


def talk(monkeypatch, typed, **settings):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    chat.main(chat.Args(**settings))


def test_a_chat_asks_as_training_does(monkeypatch, capsys):
    """The response to a typed sum is the engine's own to the prompt of training, and a second one comes after it."""
    args = chat.Args(temperature=0.0)
    model, tokenizer = load_model(args)
    question = "8+33+33+7=?"
    engine = TransformersEngine(args, model, tokenizer)
    greedy = engine.sample([tokenizer(f"{question}\n").input_ids], 1, [96], 0.0, [0])
    expected = tokenizer.decode(greedy.tokens[0], skip_special_tokens=True)
    talk(monkeypatch, f"{question}\n\n{question}\n", temperature=0.0)
    out = capsys.readouterr().out
    assert out.count(f"> {expected}\n") == 2 and "cut off" not in out
    talk(monkeypatch, question + "\n", temperature=0.0, max_response_tokens=3)
    assert "[cut off after 3 tokens]" in capsys.readouterr().out


def test_a_stop_string_in_two_pieces_ends_a_response(monkeypatch, capsys):
    """As one within a piece does: nothing behind it is shown."""
    monkeypatch.setattr(chat, "PIECE", 6)
    for stop, shown in (("oxe", "\\boxe"), ("ed{8", "\\boxed{8")):  # of the greedy \boxed{81}, a token a character
        talk(monkeypatch, "8+33+33+7=?\n", temperature=0.0, stop=(stop,))
        out = capsys.readouterr().out
        assert f"> {shown}\n" in out and "cut off" not in out


def test_a_conversation_keeps_what_was_said(chat_model, monkeypatch, capsys):
    """Shown without control characters, cut short by Ctrl-C, and put before the next question as it was said."""
    prompts, seeds, real = [], [], TransformersEngine.extend

    def scripted(engine, prompt_ids, begun, *rest):
        seeds.extend(rest[-1])
        prompts.append(tokenizer.decode(prompt_ids[0]))
        if len(prompts) == 3:
            raise KeyboardInterrupt
        begun = real(engine, prompt_ids, begun, *rest)
        begun.tokens[0] = tokenizer("a\x1b[31mb" + "c" * 20 * len(prompts)).input_ids
        return begun

    tokenizer = load_model(chat.Args(model=str(chat_model)))[1]
    monkeypatch.setattr(TransformersEngine, "extend", scripted)
    settings = {"model": str(chat_model), "conversation": True, "max_response_tokens": 32, "system_prompt": "Be brief."}
    talk(monkeypatch, "one\ntwo\n", **settings)
    out = capsys.readouterr().out
    assert "a\\x1b[31mb" in out and "\x1b" not in out and "[stopped]" in out
    assert len(set(seeds)) == len(seeds) == 3, "the same random numbers again"
    assert prompts[0].count("<|im_start|>") == 3 and "step by step" not in prompts[0]
    assert prompts[-1].startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\none<|im_end|>\n")
    assert "<|im_start|>assistant\na\x1b[31mbccc" in prompts[2] and "user\ntwo<|im_end|>" in prompts[2]
    assert "--conversation is for chat models" in ended(capsys, lambda: talk(monkeypatch, "", conversation=True))
    assert "--prompt must contain" in ended(capsys, lambda: talk(monkeypatch, "", prompt="?"))


# tools.plots


def write_run(folder, method="grpo", seed=1, final=0.5, steps=4, **settings):
    folder.mkdir()
    write_config(folder, method, grpo.Args(seed=seed, steps=steps, **settings))
    rows = [{"step": 0, "eval/avg": 0.25, "seconds/evaluate": 2.0}]
    rows += [{"step": s, "accuracy": s / 10 + seed, "reward": 1.0, "length": 5.0, "entropy": 1.0, "seconds/train": 1.0}
             for s in range(1, steps + 1)]  # fmt: skip
    rows[-1]["eval/avg"] = final
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_runs_are_grouped_by_what_differs(tmp_path, capsys):
    runs = [write_run(tmp_path / f"a{s}", seed=s, final=0.5 + s / 10) for s in (1, 2, 3)]
    runs += [write_run(tmp_path / f"b{s}", seed=s, lr=1e-5) for s in (1, 2)]
    runs.append(write_run(tmp_path / "c", "dr_grpo", steps=6))
    groups = plots.grouped(tuple(runs))
    assert [(g.label, sorted(g.logs)) for g in groups] == [
        ("grpo --lr 0.0001", [1, 2, 3]), ("grpo --lr 1e-05", [1, 2]), ("dr_grpo", [1]),
    ]  # fmt: skip
    plots.main(plots.Args(tuple(runs), tmp_path / "all.png"))
    out = capsys.readouterr().out.splitlines()
    assert out[1].split() == ["grpo", "--lr", "0.0001", "3", "0.250", "0.700", "±", "0.248", "4", "6"]
    assert out[3].split() == ["dr_grpo", "1", "0.250", "0.500", "6", "8"]
    assert (tmp_path / "all.png").stat().st_size > 10_000
    band = plots.overlay(groups).axes[0].collections[0].get_paths()[0].vertices
    assert (band[:, 1].min(), band[:, 1].max()) == pytest.approx((1.1, 3.4)), "from the lowest to the highest seed"
    styles = [style for group in (groups, groups[1:]) for style in plots.styles(group)]
    assert len(set(styles[:3])) == 3 and styles[3:] == [plots.method_style("grpo"), plots.method_style("dr_grpo")]


def test_any_number_of_methods_has_a_style():
    """A style follows from the name alone, and lines in one picture look different even if two styles are the same."""
    top = {name: plots.method_style(name) for name in plots.FIXED}
    assert len(set(top.values())) == len(top), "two of the eleven look the same"
    names = [f"method_{i}" for i in range(200)]
    found = [plots.method_style(name) for name in names]
    assert len(set(found)) > 100 and not set(found) & set(top.values())
    assert found == [plots.method_style(name) for name in names]
    groups = [plots.Group(name, {}, {}) for name in names]
    assert len(set(plots.styles(groups))) == len(names), "of 200 lines in one picture two look the same"


def test_a_new_method_changes_no_style(monkeypatch):
    """Also where scripts are found while it is there: nothing looks at the list of methods."""
    before = {name: plots.method_style(name) for name in parents()}
    monkeypatch.setattr(scripts, "parents", lambda: {"a_new_method": "grpo", **before})
    assert {name: plots.method_style(name) for name in before} == before
    assert plots.method_style("a_new_method") not in [before[name] for name in plots.FIXED]


def test_mistakes_in_plots(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    again = write_run(tmp_path / "again")
    empty, evaluation = tmp_path / "empty", tmp_path / "evaluation"
    for folder, method in ((empty, "grpo"), (evaluation, "evaluate")):
        folder.mkdir()
        write_config(folder, method, grpo.Args())
    for runs, out, words in (
        ((), "a.png", "no run folders are given"),
        ((tmp_path / "none",), "a.png", "is not a run folder"),
        ((empty,), "a.png", "has logged no steps yet"),
        ((evaluation,), "a.png", "is an evaluation"),
        ((run, again), "a.png", "has the same seed 1 and settings as another run"),
        ((run,), "a.txt", "must end in .png"),
        ((run,), "none/a.png", "cannot be written: No such file"),
    ):
        assert words in ended(capsys, lambda runs=runs, out=out: plots.main(plots.Args(runs, tmp_path / out)))
