"""Methods that use the data set's solutions: as hints in prompts (POPE) and as responses (LUFFY)."""

import json
import re

from common.data import load_problems
from common.models import load_model
from methods import luffy, pope, spin
from methods.solutions import load_demonstrations, load_solutions
from worlds import generated_problems

import pytest
import torch
from runs import assert_same_rows, assert_same_weights, differing, ended, on_tiny, refused, run
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer


class TestSolutions:
    @pytest.mark.parametrize("dataset", ["sums", "search", "search-hard"])
    def test_those_of_generated_problems_are_correct(self, dataset, monkeypatch):
        """Long solutions end with a correct box; short ones are only the answer, unless the answer is a number."""
        pairs = generated_problems(dataset, "train")[:300]
        monkeypatch.setattr("worlds.generated_problems", lambda *_: pairs)
        answers = dict(pairs)
        args = spin.Args(dataset=dataset)
        long, short = load_solutions(args), load_solutions(args, short=True)
        assert long.keys() == short.keys() == answers.keys()
        for question, check in answers.items():
            boxed = re.fullmatch(r"[^{]+\\boxed\{(.+)\}", long[question])[1]
            assert check(boxed) if callable(check) else check == boxed, f"{question}: {long[question]}"
            assert check(short[question]) if callable(check) else short[question] == long[question]
        assert load_solutions(args) == long, "a writer writes something else the second time"

    def test_those_of_a_file(self, tmp_path, capsys):
        path = tmp_path / "own.jsonl"
        rows = [{"q": f"{i}?", "answer": str(i), "why": f"because {i}"} for i in range(20)]
        path.write_text("".join(map(lambda row: json.dumps(row) + "\n", rows)))
        args = spin.Args(dataset=str(path), question_column="q", solution_column="why")
        assert load_solutions(args) == {f"{i}?": f"because {i}" for i in range(20)}
        args.solution_column = "whence"
        error = ended(capsys, lambda: load_solutions(args))
        assert "has no column 'whence': use --solution-column with one of q, answer, why." in error

    def test_a_world_without_solutions_is_refused(self, capsys):
        error = ended(capsys, lambda: load_solutions(spin.Args(model="products", dataset="products")))
        assert "--dataset products comes without solutions: take sums, sums-hard, search, search-hard" in error

    def test_a_question_without_a_solution_has_no_demonstration(self, tiny_model, tmp_path, capsys):
        rows = [json.loads(line) for line in (tiny_model / "problems.jsonl").read_text().splitlines()]
        rows[3]["solution"] = None
        (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        args = spin.Args(model=str(tiny_model), dataset=str(tmp_path / "some.jsonl"), eval_problems=1)
        args.max_response_tokens = 8
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        error = ended(capsys, lambda: load_demonstrations(train + held_out, model, tokenizer, args))
        assert "1 of 40 training problems have no solution: '3+3=?'" in error


class TestPOPE:
    def test_a_hint_is_a_part_of_the_solution(self):
        """A hint has one or more signed numbers, up to the allowed part; there is none without a solution."""
        solutions = {f"{i}": "52+7-11-3" for i in range(200)} | {"text": "First, add 3 and 4. Then stop."}
        hints = [pope.hint(question, solutions, pope.Args()) for question in [*solutions][:200]]
        assert {*hints} == {" start 52", " start 52+7", " start 52+7-11"}
        assert min(map(hints.count, {*hints})) > 40
        assert pope.hint("other", solutions, pope.Args()) == pope.hint("0", solutions, pope.Args(max_prefix=0)) == ""
        whole = {pope.hint("text", solutions, pope.Args(max_prefix=1, seed=seed)) for seed in range(50)}
        assert " start First, add" in whole and " start First, add 3 and 4. Then stop" in whole and len(whole) == 7

    def test_without_a_prefix_it_is_grpo(self, tiny_model, tmp_path, half_correct, capsys):
        """Without a prefix the run equals GRPO's bit for bit; with one, it ends with other weights."""
        settings = on_tiny(tiny_model) | {"responses_per_prompt": 2, "lr": 1e-2}
        (theirs, rows), (ours, own) = (
            run(name, tmp_path / name, **settings | more) for name, more in (("grpo", {}), ("pope", {"max_prefix": 0}))
        )
        assert_same_weights(ours, theirs)
        assert_same_rows(own, rows, more=("sampled_prompts", "plain_accuracy", "tokens_per_second/generate"))
        hinted, _ = run("pope", tmp_path / "hinted", **settings)
        assert differing(hinted, ours) and differing(ours, load_file(tiny_model / "model.safetensors"))

    def test_the_hint_needs_a_place(self, capsys, tmp_path):
        assert "--hint must contain {prefix}" in refused(capsys, tmp_path, pope, hint=" start here")

    def test_held_out_problems_have_no_hint(self, tiny_model, tmp_path, monkeypatch, capsys):
        """Neither held-out problems nor prompts with a correct response get a hint."""
        asked = []
        monkeypatch.setattr(
            "common.verification.Verifier.judge",
            lambda self, texts, golds, cut: asked.append(len(texts)) or [1.0] * len(texts),
        )
        _, rows = run("pope", tmp_path / "run", **on_tiny(tiny_model))
        assert rows[1]["sampled_prompts"] == 4 and rows[1]["plain_accuracy"] == 1
        assert " start" not in "".join(path.read_text() for path in (tmp_path / "run/samples").iterdir())


class TestLUFFY:
    def test_without_demonstrations_it_is_grpo(self, tiny_model, tmp_path, half_correct, capsys):
        """Without demonstrations the run equals GRPO's bit for bit."""
        settings = on_tiny(tiny_model) | {"lr": 1e-2}
        (theirs, rows), (ours, own) = (
            run(name, tmp_path / name, **settings | more)
            for name, more in (("grpo", {}), ("luffy", {"demonstrations": 0}))
        )
        assert_same_weights(ours, theirs)
        assert_same_rows(own, rows)
        assert differing(ours, load_file(tiny_model / "model.safetensors"))

    @pytest.mark.parametrize("gamma", [0.02, 0.1, 0.5])
    def test_the_gradient_is_largest_at_gamma(self, gamma):
        """A solution token's gradient is γ π / (π + γ)² and not clipped; without f it would be π."""
        prob = torch.linspace(0.002, 0.998, 499, dtype=torch.float64)[None]
        logp, old = prob.log().requires_grad_(), torch.full_like(prob, -40.0)  # the ratio is far outside any clip
        mask, advantages = torch.zeros(prob.shape, dtype=torch.bool), torch.full_like(prob, 2.0)
        loss, metrics = luffy.policy_loss(logp, old, advantages, mask, luffy.Args(gamma=gamma))
        (slope,) = torch.autograd.grad(loss.sum(), logp)
        torch.testing.assert_close(slope, -2 * gamma * prob / (prob + gamma) ** 2)
        assert prob[0, slope.argmin()] == pytest.approx(gamma) and metrics["clip_pos"].sum() == 0
        unlikely = prob < gamma / 10
        assert (slope.abs() > 2 * prob)[unlikely].all(), "unlikely tokens have more than π"

    def test_it_imitates_where_the_policy_fails(self, tiny_model, tmp_path, capsys):
        """If all responses are incorrect, correct solutions become likelier, and incorrect ones do not."""
        gains = {}
        for form in ("last-number", "boxed"):  # a solution such as 17+17=34 has no box, so it is incorrect
            settings = on_tiny(tiny_model) | {"lr": 3e-2, "steps": 4, "warmup_steps": 0, "answer_format": form}
            run("luffy", tmp_path / form, **settings)
            gains[form] = self.mean_logp(tmp_path / form / "checkpoint-000004") - self.mean_logp(tiny_model)
        assert gains["last-number"] > 0.2 and gains["boxed"] == 0, gains

    @staticmethod
    def mean_logp(folder):
        model = AutoModelForCausalLM.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        total = []
        for i in range(10, 30):
            prompt, solution = tokenizer(f"{i}+{i}=?\n")["input_ids"], tokenizer(f"{i}+{i}={2 * i}")["input_ids"]
            logits = model(torch.tensor([prompt + solution])).logits[0, len(prompt) - 1 : -1]
            total.append(logits.log_softmax(-1).gather(1, torch.tensor(solution)[:, None]).mean().item())
        return sum(total) / len(total)

    def test_too_few_solutions_are_refused(self, capsys, tmp_path):
        assert "comes without solutions" in refused(capsys, tmp_path, luffy, model="products", dataset="products")
