"""Every number of an evaluation is recomputed from the sampled tokens: in runs, on the terminal, in tools."""

import json
import math
import re
from collections import Counter
from contextlib import closing
from itertools import combinations
from statistics import fmean, pstdev, stdev

import grpo
from common import evaluation
from common.data import load_problems
from common.engines import Engine, prompt_seeds
from common.metrics import read_metrics
from common.models import load_model
from common.transformers_engine import TransformersEngine
from common.verification import Verifier
from tools import evaluate
from worlds.search.behavior import measure

import pytest
from conftest import SMALL
from scipy import stats


def verdict(text, cut):
    """A pseudo-random verdict, always the same for the same response."""
    return sum(map(ord, text)) % 3 == 0 and not cut


@pytest.fixture
def sampled(monkeypatch):
    """Pseudo-random verdicts, and a list of what engines sample: (prompts, n, limits, temperature, seeds, rollouts)."""
    record, sample_shards = [], Engine.sample_shards

    def recorded(self, request):
        rollouts = sample_shards(self, request)
        record.append((request.prompts, request.n, request.limits, request.temperature, request.seeds, rollouts))
        return rollouts

    def judge(self, responses, golds, cut):
        return [float(verdict(*pair)) for pair in zip(responses, cut, strict=True)]

    monkeypatch.setattr(Engine, "sample_shards", recorded)
    monkeypatch.setattr(Verifier, "judge", judge)
    return record


def outcomes(call, tokenizer):
    """For each problem, (length, correct, truncated) of each of its responses."""
    _, n, _, _, _, rollouts = call
    texts = tokenizer.batch_decode(rollouts.tokens, skip_special_tokens=True)
    flat = [
        (len(tokens), verdict(text, cut), cut)
        for tokens, text, cut in zip(rollouts.tokens, texts, rollouts.truncated, strict=True)
    ]
    return [flat[i : i + n] for i in range(0, len(flat), n)]


def mean_or_none(values):
    return fmean(values) if values else None


def figures(of_problems, greedy, ks):
    """What an evaluation reports, by definition; pass@k counts the k-subsets with a correct sample."""
    flat = [one for of_problem in of_problems for one in of_problem]
    means = [fmean(ok for _, ok, _ in of_problem) for of_problem in of_problems]
    return {
        "n": len(of_problems[0]),
        "avg": fmean(ok for _, ok, _ in flat),
        "standard_error": stdev(means) / math.sqrt(len(means)),
        "greedy": fmean(ok for ((_, ok, _),) in greedy),
        "length_correct": mean_or_none([length for length, ok, _ in flat if ok]),
        "length_incorrect": mean_or_none([length for length, ok, _ in flat if not ok]),
        "truncated": fmean(cut for _, _, cut in flat),
    } | {
        f"pass@{k}": fmean(
            any(ok for _, ok, _ in chosen) for of_problem in of_problems for chosen in combinations(of_problem, k)
        )
        for k in ks
    }


def close(actual, expected):
    assert actual.keys() == expected.keys(), f"in one only: {sorted(actual.keys() ^ expected.keys())}"
    wrong = {k: (actual[k], v) for k, v in expected.items() if v != pytest.approx(actual[k]) and actual[k] is not v}
    assert not wrong, f"reported and expected: {wrong}"


def write_problems(path, numbers):
    path.write_text("".join(json.dumps({"question": f"{i}+{i}=?", "answer": str(2 * i)}) + "\n" for i in numbers))
    return str(path)


def run_with_evaluations(sampled, tiny_model, folder, **settings):
    """The evaluation rows of a run, and what each evaluation sampled: n responses and greedy ones."""
    settings = SMALL | {"model": str(tiny_model), "max_response_tokens": 10, "eval_every": 1} | settings
    grpo.main(grpo.Args(run_dir=folder, temperature=0.8, **settings))
    rows = [row for row in read_metrics(folder) if "eval/avg" in row]
    calls = [call for call in sampled if call[1] != settings["responses_per_prompt"]]
    return rows, list(zip(calls[::2], calls[1::2], strict=True))


def of_evaluation(row):
    return {name.removeprefix("eval/"): value for name, value in row.items() if name.startswith("eval/")}


def test_every_number_of_evaluations(sampled, tiny_model, tmp_path, capsys):
    """With two data sets, the first and last evaluations take n samples per problem, the others a quarter of n."""
    files = tuple(write_problems(tmp_path / f"{name}.jsonl", r) for name, r in (("a", range(30)), ("b", range(30, 60))))
    problems = {"dataset": files, "eval_problems": 7, "eval_samples": 8, "eval_seed": 3}
    rows, calls = run_with_evaluations(sampled, tiny_model, tmp_path / "run", **problems)
    tokenizer = load_model(grpo.Args(model=str(tiny_model)))[1]
    assert [row["eval/n"] for row in rows] == [8, 2, 8] and len(calls) == 3
    prompts, *_, seeds, _ = calls[0][0]
    assert seeds == prompt_seeds(7, 3) and len(set(seeds)) == 7
    for row, (many, greedy) in zip(rows, calls, strict=True):
        assert many[0] == greedy[0] == prompts and many[4] == greedy[4] == seeds, "other problems, or other seeds"
        assert many[2] == greedy[2] == [10] * 7 and (many[3], greedy[3], greedy[1]) == (0.8, 0.0, 1)
        of_problems = outcomes(many, tokenizer)
        expected = figures(of_problems, outcomes(greedy, tokenizer), [1, 2, 4, 8][: 2 if row["eval/n"] == 2 else 4])
        sets = [int(re.match(r"\d+", tokenizer.decode(prompt))[0]) // 30 for prompt in prompts]
        assert Counter(sets) == {0: 4, 1: 3}
        for i, name in enumerate("ab"):
            own = [one for s, of_problem in zip(sets, of_problems, strict=True) for one in of_problem if s == i]
            expected[f"avg/{name}"] = fmean(ok for _, ok, _ in own)
        close(of_evaluation(row), expected | {"verifier_failures": 0})
    assert len({row["eval/avg"] for row in rows}) > 1 and any(0 < row["eval/truncated"] < 1 for row in rows)
    check_printed(capsys.readouterr().out, rows)


def check_printed(output, rows):
    """The printed numbers are those of the log."""
    lines = re.findall(
        r"^step +(\d+)  held out: avg@(\d+) ([\d.]+) ± ([\d.]+), greedy ([\d.]+), pass@(\d+) ([\d.]+) "
        r"\(avg@(\d+) a ([\d.]+), b ([\d.]+)\)$",
        output,
        re.M,
    )
    names = ("avg", "standard_error", "greedy", "pass@k", "avg/a", "avg/b")
    for row, (step, n, avg, error, greedy, k, passed, again, a, b) in zip(rows, lines, strict=True):
        assert (int(step), int(n), int(k), int(again)) == (row["step"], *[row["eval/n"]] * 3)
        printed = dict(zip(names, map(float, (avg, error, greedy, passed, a, b)), strict=True))
        for name, value in printed.items():
            assert value == pytest.approx(row[f"eval/{name.replace('@k', '@' + n)}"], abs=6e-4), name
    found = re.search(r"held-out accuracy +([\d.]+) → ([\d.]+) ± ([\d.]+) \(avg@8 → avg@8\)", output)
    shown = rows[0]["eval/avg"], rows[-1]["eval/avg"], rows[-1]["eval/standard_error"]
    assert tuple(map(float, found.groups())) == pytest.approx(shown, abs=6e-4)
    found = re.search(r"greedy accuracy +([\d.]+) → ([\d.]+)", output)
    shown = rows[0]["eval/greedy"], rows[-1]["eval/greedy"]
    assert tuple(map(float, found.groups())) == pytest.approx(shown, abs=6e-4)


def test_a_printed_step_has_the_numbers_of_the_log(sampled, tiny_model, tmp_path, capsys):
    data = {"model": str(tiny_model), "dataset": str(tiny_model / "problems.jsonl"), "max_response_tokens": 10}
    grpo.main(grpo.Args(run_dir=tmp_path / "run", **SMALL | data | {"lr": 0.05, "warmup_steps": 0, "update_epochs": 2}))
    rows = {row["step"]: row for row in read_metrics(tmp_path / "run")}
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if re.match(r" *\d+/2 ", line)]
    assert [line[0] for line in lines] == ["1/2", "2/2"] and any(row.get("clip_pos") for row in rows.values())
    for line in lines:
        row = rows[int(line[0].split("/")[0])]
        of_training = [v for name, v in row.items() if name.startswith("seconds/") and name != "seconds/evaluate"]
        shown = [row[name] for name in ("accuracy", "length", "truncated", "zero_std_groups", "entropy")]
        shown += [row["clip_pos"] + row["clip_neg"], row["grad_norm"], row["response_tokens"] / sum(of_training)]
        roundings = (6e-4, 0.06, 6e-3, 6e-3, 6e-4, 6e-4, 6e-3, 0.6)
        for cell, value, rounding in zip(line[1:9], shown, roundings, strict=True):
            assert float(cell) == pytest.approx(value, abs=rounding), line


def test_rewards_of_an_evaluation(sampled, tiny_model, tmp_path, capsys):
    """The reward is the mean over all samples; the first samples of some problems are saved with their rewards."""
    reward = tmp_path / "digits.py"
    reward.write_text(
        "def count(problem, text, tokens, truncated):\n    return float(sum(c.isdigit() for c in text))\n"
    )
    data = {"dataset": write_problems(tmp_path / "a.jsonl", range(30)), "reward": ("correct", f"{reward}:count")}
    folder = tmp_path / "run"
    rows, calls = run_with_evaluations(sampled, tiny_model, folder, eval_problems=5, eval_samples=2, steps=1, **data)
    tokenizer = load_model(grpo.Args(model=str(tiny_model)))[1]
    for row, (many, _) in zip(rows, calls, strict=True):
        texts = tokenizer.batch_decode(many[-1].tokens, skip_special_tokens=True)
        pairs = zip(texts, many[-1].truncated, strict=True)
        rewards = [sum(c.isdigit() for c in text) + verdict(text, cut) for text, cut in pairs]
        assert row["eval/reward"] == pytest.approx(fmean(rewards)) and row["eval/reward"] > row["eval/avg"]
        digits = [sum(c.isdigit() for c in text) for text in texts]
        found = [row[f"eval/reward/count{part}"] for part in ("", "/std", "/in_time")]
        assert found == pytest.approx([fmean(digits), pstdev(digits), 1]), "without the greedy responses"
        assert row["eval/reward/correct"] == row["eval/avg"]
        kept = (folder / "samples" / f"step-{row['step']:06d}.md").read_text()
        assert [float(x) for x in re.findall(r"reward ([\d.]+)", kept)] == rewards[:8:2]
        fences = re.findall(r"```text\n(.*?)\n```", kept, re.S)
        assert fences[1::3] == texts[:8:2], "not the first response to each problem"


def test_every_number_of_the_evaluation_tool(sampled, tiny_model, tmp_path, capsys):
    """Numbers for all problems and for each difficulty are correct, with intervals, and the table shows them."""
    path = tmp_path / "levels.jsonl"
    rows = [{"question": f"{i}+{i}=?", "answer": str(2 * i), "level": i % 2} for i in range(9)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    args = evaluate.Args(
        model=str(tiny_model), dataset=str(path), max_response_tokens=10, k=(1, 3), eval_samples=5, temperature=0.7,
        difficulty_column="level", run_dir=tmp_path / "run",
    )  # fmt: skip
    evaluate.main(args)
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    many, greedy = (outcomes(call, load_model(args)[1]) for call in sampled)
    assert (sampled[0][1], sampled[0][3], sampled[1][1], sampled[1][3]) == (5, 0.7, 1, 0.0)
    assert found.keys() == {"all", "level 0", "level 1"}
    for name, own in {"all": slice(None), "level 0": slice(0, None, 2), "level 1": slice(1, None, 2)}.items():
        expected = figures(many[own], greedy[own], [1, 3])
        of_each = {f"pass@{k}": [figures([one, one], greedy, [k])[f"pass@{k}"] for one in many[own]] for k in (1, 3)}
        of_each |= {"avg": of_each["pass@1"], "greedy": [float(ok) for ((_, ok, _),) in greedy[own]]}
        intervals = {f"{key}_interval": wilson(values) for key, values in of_each.items()}
        more = {"verifier_failures": 0} if name == "all" else {}
        close(found[name], {"problems": len(many[own]), **expected, **intervals, **more})
    check_table(capsys.readouterr().out, found)


def wilson(values):
    """Solve (mean - p)² = t² p (1 - p) / n for p, with n such that the standard error is the sample's."""
    m, v, t = fmean(values), stdev(values) ** 2, stats.t(len(values) - 1).ppf(0.975)
    n = m * (1 - m) / v * len(values) if v else len(values)
    a, b, c = 1 + t * t / n, 2 * m + t * t / n, m * m
    root = math.sqrt(max(0.0, b * b - 4 * a * c))
    return [max(0.0, (b - root) / (2 * a)), min(1.0, (b + root) / (2 * a))]


def check_table(output, found):
    for name, row in found.items():
        line = next(line for line in output.splitlines() if line.startswith(name) and "[" in line)
        numbers = list(map(float, re.findall(r"\d+\.\d+", line)))
        shown = [x for key in ("avg", "pass@3", "greedy") for x in (row[key], *row[f"{key}_interval"])]
        lengths = [row[key] for key in ("truncated", "length_correct", "length_incorrect") if row[key] is not None]
        assert numbers == pytest.approx([*shown, *lengths], abs=0.06) and numbers[:10] == pytest.approx(
            [*shown, lengths[0]], abs=6e-4
        )


@pytest.mark.parametrize("dataset", ["search", "sums"])
def test_what_responses_do_is_in_an_evaluation(dataset, sampled):
    """Worlds that can measure behavior report the same numbers as from the texts; others report none."""
    args = grpo.Args(model=dataset, dataset=dataset, max_response_tokens=40).checked()
    model, tokenizer = load_model(args)
    problems = load_problems(args, model, tokenizer)[1][:4]
    engine = TransformersEngine(args, model, tokenizer)
    with closing(Verifier(args, tokenizer, problems)) as verifier:
        found, _ = evaluation.evaluate(engine, verifier, problems, 2, args)
    texts = tokenizer.batch_decode(sampled[0][-1].tokens, skip_special_tokens=True)
    expected = measure([problem.answer for problem in problems for _ in range(2)], texts) if dataset == "search" else {}
    assert {name: value for name, value in found.items() if "behavior" in name} == {
        f"eval/behavior/{name}": value for name, value in expected.items()
    }


@pytest.mark.parametrize("n", [1, 4, 7])
def test_pass_at_k_by_enumeration(n):
    """pass@k is the fraction of the n samples' k-subsets with a correct one."""
    for correct in range(n + 1):
        for k in range(1, n + 1):
            samples = [1] * correct + [0] * (n - correct)
            hits = sum(any(subset) for subset in combinations(samples, k))
            assert evaluation.pass_at_k(n, correct, k) == pytest.approx(hits / math.comb(n, k), abs=1e-12)


def test_pass_at_k_is_unbiased():
    p, n, k = 0.3, 6, 3
    expected = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * evaluation.pass_at_k(n, c, k) for c in range(n + 1))
    assert expected == pytest.approx(1 - (1 - p) ** k)


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_needs_k_samples(k):
    with pytest.raises(ValueError, match="between 1 and n"):
        evaluation.pass_at_k(4, 2, k)
