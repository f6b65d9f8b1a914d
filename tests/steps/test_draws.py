"""Random draws of a run: new problems in every round, and evaluations that do not depend on its seed."""

import json
from dataclasses import replace

import dapo
import grpo
from common.data import load_problems, sample_problems
from common.models import load_model
from recipes import olmo3

import pytest
from conftest import PROBLEMS
from recorder import Recorder
from runs import on_tiny


@pytest.mark.parametrize("script", [dapo, olmo3])
def test_every_round_of_every_step_has_new_problems(script, tiny_model, tmp_path, monkeypatch, capsys):
    """Every round of three steps draws new problems, within one pass over the data."""
    recorder = Recorder(monkeypatch, script, "", insert=False)
    settings = on_tiny(tiny_model) | {"steps": 3, "prompts_per_step": 4, "responses_per_prompt": 2, "max_rounds": 3}
    script.main(
        script.Args(run_dir=tmp_path / "run", **settings | {"overlong_cache": 0} if script is dapo else settings)
    )
    rounds = [prompts for step in (1, 2, 3) for prompts, *_ in recorder.rounds[step]]
    assert len(rounds) > 3 and len(recorder.rounds) == 3, "no step had a second round"
    problems = [tuple(prompt) for prompts in rounds for prompt in prompts]
    assert len(problems) <= PROBLEMS and len(set(problems)) == len(problems)
    seeds = [seed for calls in recorder.seeds.values() for call in calls for seed in call]
    assert len(set(seeds)) == len(seeds) == len(problems)


def write(path, count):
    path.write_text("".join(json.dumps({"question": f"{i}+{i}=?", "answer": str(2 * i)}) + "\n" for i in range(count)))
    return str(path)


@pytest.mark.parametrize("kind", ["generated", "one file", "two files", "a second file"])
def test_held_out_problems_do_not_depend_on_the_seed(kind, tmp_path):
    """The seed only decides the order of training problems, not which problems are held out."""
    one, other = write(tmp_path / "one.jsonl", 60), write(tmp_path / "other.jsonl", 20)
    settings = {
        "generated": {},
        "one file": {"dataset": one},
        "two files": {"dataset": (one, other)},
        "a second file": {"dataset": one, "eval_dataset": other},
    }[kind]
    args = grpo.Args(**settings, eval_problems=9).checked()
    model, tokenizer = load_model(args)
    loaded = [load_problems(replace(args, seed=seed), model, tokenizer) for seed in (1, 2, 3)]
    assert loaded[0] == loaded[1] == loaded[2] and len(loaded[0][1]) == 9
    train, held_out = loaded[0]
    assert not {problem.question for problem in train} & {problem.question for problem in held_out}
    drawn = [[p.question for p in sample_problems(train, 6, 1, replace(args, seed=seed))] for seed in (1, 2, 3)]
    assert len({tuple(questions) for questions in drawn}) == 3


def test_evaluations_have_the_same_samples_whatever_the_seed(tiny_model, tmp_path, monkeypatch, capsys):
    """Evaluations before the first step have the same samples for any seed, because the model is the same."""
    calls, make_engine = [], grpo.make_engine

    def watched(*args):
        engine = make_engine(*args)
        sample_shards = engine.sample_shards

        def recorded(request):
            rollouts = sample_shards(request)
            calls.append((request.prompts, request.n, request.temperature, tuple(request.seeds), rollouts.tokens))
            return rollouts

        engine.sample_shards = recorded
        return engine

    monkeypatch.setattr(grpo, "make_engine", watched)
    monkeypatch.setattr("common.run.Run.summarize", lambda run: None)
    for seed in (1, 2):
        settings = on_tiny(tiny_model) | {"steps": 1, "seed": seed, "eval_problems": 4, "eval_samples": 3}
        grpo.main(grpo.Args(run_dir=tmp_path / str(seed), **settings))
    first, second = calls[: len(calls) // 2], calls[len(calls) // 2 :]
    assert len(first) == 5 and first[:2] == second[:2], "the base model's evaluation differs from run to run"
    for before, after in zip(first[:2], first[3:], strict=True):
        assert before[:4] == after[:4], "the last evaluation has other problems or other seeds than the first"
    assert first[2][0] != second[2][0] and not set(first[2][3]) & set(second[2][3]), "the seed changes nothing"
    assert not set(first[2][3]) & set(first[0][3]), "training has an evaluation's random numbers"
