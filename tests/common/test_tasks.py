"""Several data sets, tasks of reasoning-gym, examples in the prompt, and strings that end a response."""

import json
import random
import shutil
from collections import Counter

import grpo
import maxrl
from common.data import load_problems, make_prompt, problem_stream
from common.engines import Request, prompt_seeds
from common.models import load_model
from common.records import Problem, Rollouts
from common.transformers_engine import TransformersEngine
from common.verification import verifier as verification
from common.verification.verifier import Verifier
from tools.plots import read_metrics
from worlds.reasoning_gym.problems import problems

import pytest
from conftest import SMALL
from transformers import AutoTokenizer

# The part of reasoning-gym that we use; its scorer gives partial scores, fails, or hangs.
STAND_IN = """
import time
from reasoning_gym.factory import DATASETS

def create_dataset(name, size, seed):
    words = [chr(97 + i % 26) * (i // 26 % 80 + 1) for i in range(size)]
    hashed = hash("differs between processes")
    rows = [{"question": f"{hashed}{word}?", "answer": word[::-1]} for word in words]
    return [row | {"metadata": {"pair": (row["answer"], seed)}} for row in rows]

def get_score_answer_fn(name):
    def score(answer, entry):
        assert isinstance(entry["metadata"]["pair"], tuple)
        if answer == "hang":
            time.sleep(60)
        if answer == "raise":
            raise KeyError("raised")
        return 1.0 if answer == entry["answer"] else 0.25 if entry["answer"][0] in answer else 0.0
    return score
"""


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def two_sets(tmp_path):
    """Files with 30 sums and 20 differences, with different column names; three questions are in both."""
    sums = [{"question": f"{i}+{i}=?", "answer": str(2 * i)} for i in range(30)]
    rest = [{"problem": f"{2 * i}-{i}=?", "solution": str(i)} for i in range(17)]
    rest += [{"problem": row["question"], "solution": row["answer"]} for row in sums[:3]]
    return write(tmp_path / "sums.jsonl", sums), write(tmp_path / "others.jsonl", rest)


COLUMNS = {"question_column": ("question", "problem"), "answer_column": ("answer", "solution")}


def refused(capsys, folder, script=grpo, **settings):
    with pytest.raises(SystemExit):
        script.main(script.Args(run_dir=folder / "refused", **SMALL | settings))
    return capsys.readouterr().err


def test_a_mix_has_its_weights_and_can_start_anywhere():
    """Each data set keeps its own order, a stream can start anywhere, and the weights hold on average."""
    parts = {
        name: [Problem(f"{name}{i}", "", "", [], name, weight) for i in range(size)]
        for name, weight, size in (("a", 0.7, 9), ("b", 0.2, 50), ("c", 0.1, 7))
    }
    problems = [problem for part in parts.values() for problem in part]
    stream = problem_stream(problems, 3, 0, 4000)
    counts = Counter(problem.dataset for problem in stream)
    for name, part in parts.items():
        # Four standard deviations of a binomial fraction.
        assert abs(counts[name] / 4000 - part[0].weight) < 4 * (part[0].weight * (1 - part[0].weight) / 4000) ** 0.5
        assert [p for p in stream if p.dataset == name] == problem_stream(part, 3, 0, counts[name])
    assert problem_stream(problems, 3, 33, 200) == stream[33:233]
    assert [p.dataset for p in problem_stream(problems, 4, 0, 99)] != [p.dataset for p in stream[:99]]
    # A single data set.
    passes = [random.Random(f"3-{epoch}").sample(range(7), 7) for epoch in (0, 1)]
    assert [p.question for p in problem_stream(parts["c"], 3, 5, 4)] == [f"c{i}" for i in passes[0][5:] + passes[1][:2]]


def test_two_data_sets_are_held_out_from_each_other(two_sets, tiny_model):
    """A problem that one set holds out is in no training set; each set provides half of the held-out problems."""
    args = grpo.Args(
        model=str(tiny_model), dataset=two_sets, mix=(3, 1), eval_problems=7, max_response_tokens=8, **COLUMNS
    )
    train, held_out = load_problems(args, *load_model(args))
    assert Counter(p.dataset for p in held_out) == {"sums": 4, "others": 3}
    assert {(p.dataset, p.weight) for p in train} == {("sums", 0.75), ("others", 0.25)}
    questions = {p.question for p in held_out}
    assert not questions & {p.question for p in train}
    # All other rows of the 50 are trained on, except second copies of held-out questions.
    twice = {f"{i}+{i}=?" for i in range(3)} & questions
    assert len(train) == 50 - 7 - len(twice) and len(twice) > 0
    one = grpo.Args(model=str(tiny_model), dataset=two_sets[0], eval_problems=4, max_response_tokens=8)
    assert [p.question for p in load_problems(one, *load_model(one))[1]] == [
        p.question for p in held_out if p.dataset == "sums"
    ]


def test_a_run_on_two_data_sets_reports_and_resumes(two_sets, tiny_model, tmp_path):
    settings = SMALL | {"dataset": two_sets, "mix": (3, 1), "save_every": 1, "max_response_tokens": 12} | COLUMNS
    grpo.main(grpo.Args(model=str(tiny_model), run_dir=tmp_path / "run", **settings))
    rows = read_metrics(tmp_path / "run")
    assert rows[0]["eval/avg"] == (rows[0]["eval/avg/sums"] + rows[0]["eval/avg/others"]) / 2  # of two problems each
    shutil.rmtree(tmp_path / "run" / "checkpoint-000002")
    grpo.main(grpo.Args(resume=tmp_path / "run"))
    again = read_metrics(tmp_path / "run")
    timed = ("seconds", "tokens_per_second")
    assert [{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows] == [
        {k: v for k, v in row.items() if not k.startswith(timed)} for row in again
    ]


@pytest.mark.parametrize(
    "settings,words",
    [
        ({"dataset": ("sums", "sums")}, "names sums twice"),
        ({"dataset": ("sums", "sums-hard"), "mix": (1.0,)}, "--mix has 1 weights, but --dataset names 2"),
        ({"mix": (0.5, 0.5)}, "--mix has 2 weights, but --dataset names 1"),
        ({"dataset": ("sums", "x.jsonl"), "eval_split": ("test",)}, "--eval-split has 1 values for 2 data sets"),
        (
            {"dataset": ("sums", "countdown")},
            "pass a pretrained --model for --dataset countdown",
        ),
        ({"dataset": "reasoning-gym:sudoku"}, "a pretrained --model for --dataset reasoning-gym:sudoku"),
        (
            {"dataset": "gym:sudoku"},
            "there is no adapter gym. Use reasoning-gym or verifiers:TASK.",
        ),
        ({"dataset": ("sums", "sums-hard"), "eval_problems": 1}, "--eval-problems 1 leaves some of 2"),
        ({"stop": ("a", "")}, "--stop: an empty string"),
        ({"few_shot": "no.jsonl"}, "--few-shot no.jsonl: no such file"),
    ],
)
def test_mistakes(settings, words, capsys, tmp_path):
    error = refused(capsys, tmp_path, **settings)
    assert words in error.replace(str(tmp_path.cwd()) + "/", "") and error.count("\n") == 1


# Examples


def test_examples_stand_before_the_question(chat_model):
    """Examples are chat turns if there is a template, and otherwise text followed by an empty line."""
    plain = AutoTokenizer.from_pretrained("worlds/sums/model")
    examples = [("1+1=?", r"\boxed{2}"), ("2+2=?", r"\boxed{4}")]
    text, ids = make_prompt("3+3=?", None, plain, examples=examples)
    assert text == "1+1=?\n\\boxed{2}\n\n2+2=?\n\\boxed{4}\n\n3+3=?\n" and plain.decode(ids) == text
    text, _ = make_prompt("3+3=?", "{question} so", plain, examples=examples[:1])
    assert text == "1+1=? so \\boxed{2}\n\n3+3=? so"
    chat = AutoTokenizer.from_pretrained(chat_model)
    turn = "<|im_start|>{}\n{}<|im_end|>\n"
    start = turn.format("system", "Be brief.") + turn.format("user", "Q 1+1=?") + turn.format("assistant", r"\boxed{2}")
    end = turn.format("user", "Q 3+3=?") + "<|im_start|>assistant\n"
    text, ids = make_prompt("3+3=?", "Q {question}", chat, "Be brief.", examples[:1])
    assert text == start + end and chat.decode(ids) == text
    own = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Q 3+3=?"}]
    assert make_prompt(own, "Q {question}", chat, None, examples[:1])[0] == text


def test_an_example_is_neither_trained_on_nor_evaluated(two_sets, tiny_model, tmp_path, capsys):
    examples = [{"question": f"{i}+{i}=?", "answer": f"so {2 * i}"} for i in (0, 7)]
    args = grpo.Args(model=str(tiny_model), dataset=two_sets[0], max_response_tokens=8, eval_problems=5)
    args.few_shot = write(tmp_path / "examples.jsonl", examples)
    train, held_out = load_problems(args, *load_model(args))
    assert {p.question for p in train + held_out} == {f"{i}+{i}=?" for i in range(30)} - {"0+0=?", "7+7=?"}
    assert all(p.prompt == f"0+0=?\nso 0\n\n7+7=?\nso 14\n\n{p.question}\n" for p in train + held_out)
    assert "no answer in --few-shot has a \\boxed{}" in capsys.readouterr().out
    args.few_shot = write(tmp_path / "other.jsonl", [{"question": "1+1=?", "solution": "2"}])
    with pytest.raises(SystemExit):
        load_problems(args, *load_model(args))
    assert "has no column 'answer'" in capsys.readouterr().err


# Stop strings


def cut_behind(text_of, tokens, stop):
    """Number of tokens up to the first one that completes a stop string."""
    return next((i for i in range(1, len(tokens) + 1) if any(s in text_of(tokens[:i]) for s in stop)), len(tokens))


@pytest.mark.parametrize("model,stop", [("sums", ("=4", "d{1")), ("chat", ("an", "é"))])
def test_a_stop_string_ends_a_response(model, stop, chat_model):
    """Tokens and log-probs are unchanged up to the token that completes a stop string; this is no truncation."""
    args = grpo.Args(model=str(chat_model) if model == "chat" else model)
    model, tokenizer = load_model(args)
    prompts = [tokenizer(text)["input_ids"] for text in ("7+5-1=?\n", "12+30-4=?\n", "9+9+9+9=?\n")]
    request = Request(prompts, 24, [40] * 3, 1.0, prompt_seeds(3, 1))
    free = TransformersEngine(args, model, tokenizer).sample(request)
    args.stop = stop
    ended = TransformersEngine(args, model, tokenizer, max_rows=24).sample(request)
    lengths = [
        cut_behind(lambda ids: tokenizer.decode(ids, skip_special_tokens=True), tokens, stop) for tokens in free.tokens
    ]
    assert ended.tokens == [tokens[:n] for tokens, n in zip(free.tokens, lengths, strict=True)]
    for logps, own, n in zip(free.logps, ended.logps, lengths, strict=True):
        assert own == pytest.approx(logps[:n], abs=1e-5)
    texts = tokenizer.batch_decode(ended.tokens, skip_special_tokens=True)
    stopped = [any(s in text for s in stop) for text in texts]
    assert ended.truncated == [cut and not s for cut, s in zip(free.truncated, stopped, strict=True)]
    assert 5 < sum(stopped) < 70
    if args.model == "sums":  # tokens are characters, so nothing follows the stop string
        assert all(text.endswith(stop) for text, s in zip(texts, stopped, strict=True) if s)
    else:  # the last token is kept whole
        assert any(s and not text.endswith(stop) for text, s in zip(texts, stopped, strict=True))


def test_a_run_with_stop_strings(tiny_model, tmp_path):
    """The learner scores the sampled tokens, and a response that ends at a stop string is not truncated."""
    settings = SMALL | {"model": str(tiny_model), "dataset": str(tiny_model / "problems.jsonl"), "steps": 1}
    rows = {}
    for stop in ((), tuple("0123456789")):
        folder = tmp_path / f"run{len(stop)}"
        grpo.main(grpo.Args(run_dir=folder, stop=stop, **settings))
        rows[len(stop)] = read_metrics(folder)[1]
    assert rows[10]["mismatch_max"] < 1e-5
    assert rows[10]["length"] < rows[0]["length"] and rows[10]["truncated"] <= rows[0]["truncated"]


# reasoning-gym


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    package = tmp_path / "path" / "reasoning_gym"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(STAND_IN)
    (package / "factory.py").write_text("DATASETS = ['mirror', 'sudoku']")
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.syspath_prepend(str(package.parent))


def test_tasks_of_reasoning_gym_are_disjoint_and_always_the_same(stand_in, capsys):
    train, held_out = problems("mirror")
    questions = [question for question, _ in held_out + train]
    assert len(held_out) == 256 and len(train) == 26 * 80 - 256 and len(set(questions)) == len(questions)
    again = problems.__wrapped__("mirror")  # generated in another process, with other string hashes
    assert [question for question, _ in again[1] + again[0]] == questions
    with pytest.raises(SystemExit):
        problems("miror")
    sentence = "error: --dataset reasoning-gym:miror cannot be generated: there is no task 'miror', but mirror."
    assert capsys.readouterr().err.strip() == sentence


def test_the_scorer_of_a_task_gives_the_reward(stand_in, tmp_path, monkeypatch):
    """A score of 1 is correct, a lower one is a partial reward, and failures and time-outs count as 0."""
    monkeypatch.setattr(verification, "SCORE_LIMIT", 2.0)
    (question, answer), *_ = problems("mirror")[1]
    tokenizer = AutoTokenizer.from_pretrained("worlds/sums/model")
    problem, other = Problem(question, answer, "", []), Problem("1+1=?", "2", "", [])
    boxes = [answer.answer, f"{answer.answer}b", "raise", "hang", "b", None]
    texts = ["so" if box is None else f"\\boxed{{{box}}}" for box in boxes]
    rollouts = Rollouts(tokens=[tokenizer.encode(text) for text in texts], truncated=[False] * 6)
    verifier = Verifier(grpo.Args(), tokenizer, [problem, other])
    assert verifier([problem], rollouts).tolist() == [[1, 0.25, 0, 0, 0, 0]]
    assert rollouts.correct == [True, False, False, False, False, False]
    assert verifier.take_numbers()["verifier_failures"] == 2
    rollouts.truncated = [True] * 6
    assert not verifier([problem], rollouts).any() and not any(rollouts.correct)
    # Next to another data set in the same batch.
    both = Rollouts(tokens=[tokenizer.encode(f"\\boxed{{{x}}}") for x in (answer.answer, "2")], truncated=[False] * 2)
    assert verifier([problem, other], both).tolist() == [[1.0], [1.0]]
    verifier.close()
    (tmp_path / "own.py").write_text("def same_length(problem, *rest): return len(problem.answer) / 8")
    # `correct` among the user's rewards is 1 or 0.
    args = grpo.Args(reward=("correct=2", f"{tmp_path}/own.py:same_length"))
    verifier = Verifier(args, tokenizer, [problem])
    some = Rollouts(tokens=rollouts.tokens[:2], truncated=[False] * 2)
    assert verifier([problem], some).tolist() == [[2.125, 0.125]] and some.correct == [True, False]
    verifier.close()


def test_partial_scores_end_a_method_for_binary_rewards(stand_in, chat_model, tmp_path, capsys, monkeypatch):
    """A score between 0 and 1 ends MaxRL with one sentence; GRPO accepts it."""
    monkeypatch.setattr(verification, "last_boxed", lambda text: "abcdefghijklmnopqrstuvwxyz")  # has every letter
    settings = {"model": str(chat_model), "dataset": "reasoning-gym:mirror", "stop": tuple("aeiou"), "steps": 1}
    assert "a reward of 0.25, but MaxRL" in refused(capsys, tmp_path, maxrl, **settings)
    grpo.main(grpo.Args(run_dir=tmp_path / "run", **SMALL | settings))
    rows = read_metrics(tmp_path / "run")
    assert 0 < rows[1]["reward"] <= 0.25 and rows[1]["accuracy"] == 0


def test_without_the_package(chat_model, tmp_path, capsys, monkeypatch):
    problems.cache_clear()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    error = refused(capsys, tmp_path, model=str(chat_model), dataset="reasoning-gym:mirror")
    assert "reasoning-gym:mirror needs another package: pip install reasoning-gym" in error
