"""R1's stages: what each starts from and learns from, and interruptions of the whole run."""

import json
import math
import os
import signal
from dataclasses import replace

from common.data import load_problems, make_prompt
from common.metrics import read_metrics
from common.models import load_model
from common.run import Run
from common.verification import Verifier
from recipes import r1
from tools.scripts import ROOT
from worlds import generated_problems

import pytest
import torch
from conftest import SMALL
from runs import assert_same_rows, assert_same_weights, refused, results, run
from slow import AdamW, Model, check_adam, clipped, rate
from slow import close as close_tensors


class TestR1:
    stages = "cold-start", "rl", "rejection", "rl", "distill"
    small = SMALL | dict(
        eval_problems=2, cold_start_solutions=16, rejection_prompts=4, sft_batch=16, save_every=1, eval_every=1
    )

    @classmethod
    def run(cls, folder, **settings):
        """Run all stages; return their folders."""
        r1.main(r1.Args(**cls.small | {"run_dir": folder, "stages": cls.stages} | settings))
        return sorted(path.parent for path in folder.glob("[0-9]-*/config.json"))

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tmp_path_factory):
        """The folder with all stages of a run."""
        folder = tmp_path_factory.mktemp("whole") / "run"
        cls.run(folder)
        return folder

    @pytest.mark.slow
    def test_rl_is_grpo(self, tmp_path, capsys):
        """R1-Zero equals grpo.py bit for bit, and so does RL after a cold start, with its model and seed."""
        same = {"clip_eps": 0.2, "kl_beta": 0.01}
        zero, logged = run("r1", tmp_path / "zero", **same)
        expected, of_grpo = run("grpo", tmp_path / "grpo", **same)
        assert_same_weights(zero, expected)
        assert_same_rows(logged, of_grpo)
        first, second = self.run(tmp_path / "stages", stages=("cold-start", "rl"), seed=5, **same)
        (start,) = sorted(first.glob("checkpoint-*"))[-1:]
        weights, logged = results(second)
        expected, of_grpo = run(
            "grpo", tmp_path / "started", seed=6, model=str(start), eval_problems=2, save_every=1, eval_every=1, **same
        )
        assert_same_weights(weights, expected)
        assert_same_rows(logged, of_grpo)

    def test_every_update_of_sft(self, tiny_model, tmp_path, monkeypatch, capsys):
        """Each SFT update follows the mean of -log π over the solutions' tokens with EOS, by hand in float64."""
        monkeypatch.setattr(Run, "evaluate", lambda *args: None)
        monkeypatch.setattr(Run, "summarize", lambda *args: None)
        updates, adam_step = [], torch.optim.AdamW.step

        def recorded(optimizer, *rest):
            parameters = optimizer.param_groups[0]["params"]
            before, gradients = [p.detach().clone() for p in parameters], [p.grad.clone() for p in parameters]
            adam_step(optimizer, *rest)
            updates.append((before, gradients, [p.detach().clone() for p in parameters]))

        used, sampled = [], r1.sample_rows
        monkeypatch.setattr(torch.optim.AdamW, "step", recorded)
        monkeypatch.setattr(r1, "sample_rows", lambda *a: used.append(sampled(*a)) or used[-1])
        solutions = [{"question": f"{i}+{i}=?", "solution": "\\boxed{" + "7" * (1 + i % 4) + "}"} for i in range(20)]
        solutions += [{"question": "1+1=?", "solution": "7" * 30}] * 9  # too long, so not in an epoch
        args = r1.Args(
            model=str(tiny_model), dataset=str(tiny_model / "problems.jsonl"), run_dir=tmp_path / "run",
            sft_epochs=2, sft_batch=7, sft_lr=1e-2, warmup_steps=3, weight_decay=0.1, max_grad_norm=0.3,
            temperature=0.8, micro_batch_tokens=60, max_response_tokens=20, eval_problems=2, engine="transformers",
            stages=("cold-start",),
        )  # fmt: skip
        r1.sft(args, solutions)
        learner, adam = Model(tiny_model), AdamW()
        of_run = replace(args, steps=len(updates), lr=1e-2)
        assert len(updates) == len(used) == math.ceil(2 * 20 / 7)
        seen = [tuple(answer) for some in used for _, answer in some]
        assert max(seen.count(answer) for answer in seen) >= 2
        for step, ((before, gradients, after), some) in enumerate(zip(updates, used, strict=True), 1):
            learner.set(before)
            learner.model.zero_grad()
            total = 0.0
            for problem, answer in some:
                assert answer[-1] == 1 and answer.count(1) == 1, "each solution ends with EOS"
                logits = learner.model(input_ids=torch.tensor([problem.prompt_ids + answer])).logits[0]
                for t, token in enumerate(answer):
                    total = total - (logits[len(problem.prompt_ids) + t - 1] / 0.8).log_softmax(-1)[token]
            (total / sum(len(answer) for _, answer in some)).backward()
            expected = clipped([p.grad for p in learner.parameters], 0.3)
            close_tensors(gradients, expected, f"gradient of update {step}")
            check_adam(adam, before, gradients, after, rate(of_run, step), 0.1, f"update {step}")

    def test_weights_of_sft(self):
        """Every solution token counts the same, for any lengths, and the weights sum to 1."""
        mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]).bool()
        assert torch.equal(r1.sft_weights(mask), mask * 0.2)

    @pytest.mark.slow
    def test_stages_start_where_the_docstring_says(self, whole):
        """Cold start and rejection start from the base, RL from the previous stage, distillation from the student."""
        folders = sorted(whole.glob("[0-9]-*/"))
        assert [f.name for f in folders] == ["1-cold-start", "2-rl", "3-rejection", "4-rl", "5-distill"]
        starts = [json.loads((f / "config.json").read_text())["args"]["model"] for f in folders]
        ends = [str(sorted(f.glob("checkpoint-*"))[-1]) for f in folders]
        assert starts == ["sums", ends[0], "sums", ends[2], str(whole / "student")]
        base, student = (load_model(r1.Args(model=name))[0] for name in ("sums", starts[4]))
        assert student.num_parameters() < 0.75 * base.num_parameters()
        lines = (whole / "stages.md").read_text().splitlines()
        for folder, line in zip(folders, lines[2:], strict=True):
            before, *_, after = read_metrics(folder)
            accuracies = f"{before['eval/avg']:.3f} | {after['eval/avg']:.3f} ± {after['eval/standard_error']:.3f}"
            assert line.startswith(f"| {folder.name} | {accuracies} |")

    @pytest.mark.slow
    def test_the_solutions_are_correct(self, tmp_path, capsys):
        """Cold-start solutions are correct with all steps; rejection sampling keeps correct ones without repeats."""
        args = r1.Args(**self.small | {"engine": "transformers", "rejection_prompts": 40, "responses_per_prompt": 8})
        model, tokenizer = load_model(args)
        train, _ = load_problems(args, model, tokenizer)
        answers = dict(generated_problems("sums", "train"))
        verifier = Verifier(args, tokenizer, train[:1])
        path = tmp_path / "solutions.jsonl"
        r1.rejection_sample(args, path)
        sampled = [json.loads(line) for line in path.read_text().splitlines()]
        for rows_ in (r1.cold_start_solutions(args), sampled):
            texts, golds = [row["solution"] for row in rows_], [answers[row["question"]] for row in rows_]
            assert all(verifier.judge(texts, golds, [False] * len(rows_))), "an incorrect solution"
        verifier.close()
        for row in r1.cold_start_solutions(args):
            assert row["solution"].count("\n") == sum(map(row["question"].count, "+-"))
        pairs = [(row["question"], row["solution"]) for row in sampled]
        assert len(set(pairs)) == len(pairs) > len({q for q, _ in pairs}) > 10, "several to a question, none twice"

    def test_what_is_learned_from(self, tmp_path, capsys):
        """Solutions to held-out questions and solutions that do not fit are left out."""
        args = r1.Args(max_response_tokens=8)
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        row = {"question": train[0].question, "solution": "1234567"}
        longer, asked = row | {"solution": "12345678"}, row | {"question": held_out[0].question}
        others = {"question": "1+1+1+1+1+1+1=?", "solution": "7"}  # a question that is in no data set
        given = train, held_out, model, tokenizer, args
        examples = r1.sft_examples([row, longer, asked, others], *given)
        eos = tokenizer.eos_token_id
        assert examples[0] == (train[0], [*tokenizer("1234567")["input_ids"], eos])
        ((problem, answer),) = examples[1:]
        assert problem.prompt_ids == tokenizer("1+1+1+1+1+1+1=?\n")["input_ids"]
        assert answer == [*tokenizer("7")["input_ids"], eos]
        with pytest.raises(SystemExit):
            r1.sft_examples([longer, asked], *given)
        few = tmp_path / "few.jsonl"
        few.write_text('{"question": "2+2=?", "answer": "4"}')
        ((shown, _),) = r1.sft_examples([others], *given[:4], replace(args, few_shot=str(few)))
        expected = make_prompt(others["question"], None, tokenizer, None, [("2+2=?", "4")])[1]
        assert shown.prompt_ids == expected != problem.prompt_ids
        assert "none of 2 solutions" in capsys.readouterr().err

    @pytest.mark.slow
    def test_a_kill_at_any_stage(self, whole, tmp_path, monkeypatch, capsys):
        """A run killed once in every stage, between checkpoints or while sampling, ends like an uninterrupted one."""
        folder, killed = tmp_path / "cut", []
        save, write = Run.save, r1.write_whole

        def once(name):
            if name not in killed:
                killed.append(name)
                raise KeyboardInterrupt

        def save_or_die(run, step, **extra):
            if step == run.args.steps:
                once(run.dir.name)
            return save(run, step, **extra)

        monkeypatch.setattr(Run, "save", save_or_die)
        monkeypatch.setattr(
            r1, "write_whole", lambda path, text: (path.suffix == ".jsonl" and once(path.name), write(path, text))
        )
        with pytest.raises(SystemExit):
            self.run(folder)
        assert f"python recipes/r1.py --resume {folder}\n" in capsys.readouterr().err, "of all stages, not of one"
        for target in ("1-cold-start", "", "", "3-rejection", ""):
            with pytest.raises(SystemExit) as stop:
                r1.main(r1.Args(resume=folder / target))
            assert stop.value.code == 130
        r1.main(r1.Args(resume=folder))
        assert killed == ["1-cold-start", "2-rl", "3-rejection.jsonl", "3-rejection", "4-rl", "5-distill"]
        assert (folder / "stages.md").read_text() == (whole / "stages.md").read_text()
        for expected in whole.glob("[0-9]-*/"):
            weights, logged = results(folder / expected.name)
            uninterrupted, of_uninterrupted = results(expected)
            assert_same_weights(weights, uninterrupted)
            assert_same_rows(logged, of_uninterrupted)

    @pytest.mark.slow
    def test_an_interrupted_stage_ends_the_run(self, tmp_path, monkeypatch, capsys):
        """After a signal in the first stage, that stage is saved, the next does not start, and the run can resume."""
        original = r1.collate
        monkeypatch.setattr(r1, "collate", lambda *args: (os.kill(os.getpid(), signal.SIGTERM), original(*args))[1])
        assert [f.name for f in self.run(tmp_path / "run")] == ["1-cold-start"]
        assert capsys.readouterr().out.endswith(
            f"to resume                 python recipes/r1.py --resume {tmp_path / 'run'}\n"
        )
        assert [p.name for p in (tmp_path / "run" / "1-cold-start").glob("checkpoint-*")] == ["checkpoint-000001"]

    @pytest.mark.slow
    def test_real_model_and_data(self, chat_model, gsm8k_file, tmp_path, monkeypatch, capsys):
        """All stages work with another architecture, a chat template, own solutions, and a student's own tokenizer."""
        rows_ = [{"question": f"What is {i} and 1?", "solution": f"It is \\\\boxed{{{i + 1}}}"} for i in range(9)]
        (tmp_path / "solutions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_))
        monkeypatch.setattr(Verifier, "judge", lambda self, responses, *_: [float(len(r) % 2 == 0) for r in responses])
        given = {"model": str(chat_model), "dataset": str(gsm8k_file), "student": "sums"}
        given |= {"cold_start": str(tmp_path / "solutions.jsonl"), "prompt": "{question}\n", "sft_epochs": 1}
        folders = self.run(tmp_path / "run", **given)
        assert len(folders) == 5
        kinds = [load_model(r1.Args(model=str(sorted(f.glob("check*"))[-1])))[0].config.model_type for f in folders]
        assert kinds == ["qwen3"] * 4 + ["llama"]

    @pytest.mark.parametrize(
        "settings,words",
        [
            ({"stages": ()}, "names no stage"),
            ({"stages": ("sleep",)}, "--stages must be"),
            ({"sharded_checkpoints": True}, "cannot be combined with several --stages"),
            ({"cold_start": "./none.jsonl"}, "--cold-start ./none.jsonl"),
            ({"student": "./nowhere"}, "--student ./nowhere"),
            ({"model": "./nowhere"}, "no such model folder"),
        ],
    )
    def test_settings(self, settings, words, capsys, tmp_path):
        error = refused(capsys, tmp_path, r1, **{"stages": self.stages} | settings)
        assert words.replace("./", "") in error.replace("./", "").replace(f"{ROOT}/", "")

    def test_what_a_stage_needs(self, capsys, tmp_path, gsm8k_file, chat_model):
        real = {"dataset": str(gsm8k_file), "model": str(chat_model)}
        assert "name a file with --cold-start" in refused(capsys, tmp_path, r1, stages=("cold-start",), **real)
        assert "name it with --student" in refused(capsys, tmp_path, r1, stages=("distill",), **real)
        given = {"stages": ("cold-start",), "cold_start": str(gsm8k_file)}
        assert "has no column 'solution'" in refused(capsys, tmp_path, r1, **real | given)

    def test_no_correct_response(self, capsys, tmp_path, monkeypatch):
        monkeypatch.setattr(Verifier, "judge", lambda self, responses, *_: [0.0] * len(responses))
        with pytest.raises(SystemExit) as stop:
            self.run(tmp_path / "run", stages=("rejection",))
        assert stop.value.code == 1
        assert "none of 4 responses to each of 4 prompts is correct" in capsys.readouterr().err
