"""Recipes are sums of tricks: each can be taken away, without all of them the plain method is left."""

import itertools
import json
import math
import os
import re
import signal
from dataclasses import replace

import dapo
import dr_grpo
import grpo
from common.data import arithmetic_problems, load_problems
from common.models import load_model
from common.plots import read_metrics
from common.run import Run
from common.verify import Verifier
from recipes import olmo3, r1

import pytest
import torch
import tyro
from conftest import SMALL
from test_errors import refused
from test_identities import close, gradient, rows
from test_scripts import ROOT, load_file, results, run, without_times
from test_steps import AdamW, Model, check_adam, clipped, rate, tiny_model  # noqa: F401
from test_steps import close as close_tensors


def flags(script):
    """The flags in the table of a recipe's docstring, one for each trick."""
    return re.findall(r"^\| .+ \| .+ \| (--.+) \|$", script.__doc__, re.M)


def settings(script, flags):
    """What flags of the command line set."""
    defaults, given = vars(script.Args()), vars(tyro.cli(script.Args, args=" ".join(flags).split()))
    return {name: value for name, value in given.items() if value != defaults[name]}


class TestOlmo3:
    def test_without_its_tricks_it_is_grpo(self, tmp_path, capsys):
        """All seven flags of the docstring's table: GRPO with its KL and without TIS, to the bit."""
        plain = settings(olmo3, flags(olmo3))
        assert len(plain) == 7
        weights, logged = run("olmo3", tmp_path / "olmo3", **plain)
        expected, of_grpo = run("grpo", tmp_path / "grpo", kl_beta=plain["kl_beta"], tis_cap=0.0)
        assert all(torch.equal(weights[key], expected[key]) for key in expected)
        for row, row_ in zip(without_times(logged), without_times(of_grpo), strict=True):
            assert row_.items() <= row.items() and row.keys() - row_.keys() <= {"sampled_prompts", "kept_groups"}

    def test_each_trick_can_be_taken_away(self, tmp_path, monkeypatch, capsys):
        """Without any one of them, a step ends at another place; clip-higher acts between the bounds alone."""
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        one_round, settings_of = {"max_rounds": 1}, [{}]
        for flag in flags(olmo3):
            ((name, value),) = settings(olmo3, [flag]).items()
            if name != "clip_eps_high":  # with one round there are groups to be left out
                settings_of.append({name: value} | (one_round if name == "filter_groups" else {}))
        ends = [run("olmo3", tmp_path / str(i), steps=1, lr=1e-3, **s)[0] for i, s in enumerate(settings_of)]
        assert len(ends) == 7
        for i, j in itertools.combinations(range(7), 2):
            assert any(not torch.equal(ends[i][key], ends[j][key]) for key in ends[i]), (settings_of[i], settings_of[j])
        logp, old, _, a, mask = inputs = rows(0)
        between = mask & (a > 0) & (logp - old > math.log(1.2)) & (logp - old < math.log(1.272))
        assert between.any()
        assert torch.equal(gradient(olmo3, inputs) != gradient(olmo3, inputs, clip_eps_high=0.2), between)

    @pytest.mark.parametrize("seed", range(3))
    def test_it_is_dapo_but_for_tis_and_bounds(self, seed):
        """With the same advantages, bounds, and nothing to correct for."""
        inputs = rows(seed)
        close(gradient(olmo3, inputs, clip_eps_high=0.28), gradient(dapo, inputs))
        close(gradient(olmo3, inputs, average="response", clip_eps_high=0.2), gradient(grpo, inputs))

    def test_in_one_update_only_tis_acts(self):
        """As the Think models are trained: the gradient of a token is min(ρ, C) A over their number."""
        inputs = rows(0, spread=0.0)
        _, old, rollout, a, mask = inputs
        rho = torch.exp(old - rollout)
        assert (rho[mask] > 1.2).any(), "a cap has something to do"
        close(gradient(olmo3, inputs, tis_cap=1.2), -mask.double() / mask.sum() * rho.clamp(max=1.2) * a)

    def test_advantages(self):
        """Those of Dr. GRPO, or of GRPO, to the bit."""
        rewards = (torch.rand(6, 5, generator=torch.Generator().manual_seed(0)) < 0.4).float()
        assert torch.equal(
            olmo3.compute_advantages(rewards, olmo3.Args()), dr_grpo.compute_advantages(rewards, dr_grpo.Args())
        )
        for ddof in (0, 1):
            ours = olmo3.compute_advantages(rewards, olmo3.Args(std="group", ddof=ddof))
            assert torch.equal(ours, grpo.compute_advantages(rewards, grpo.Args(ddof=ddof)))

    @pytest.mark.parametrize("average", ["token", "response"])
    def test_leaving_groups_out_changes_the_denominator_alone(self, average):
        """What has no signal has no gradient either way: the direction stays, the length grows."""
        logp, old, rollout, a, mask = rows(0)
        silent = torch.arange(len(mask))[:, None] >= 24
        a = a * ~silent
        every, some = (gradient(olmo3, (logp, old, rollout, a, m), average=average) for m in (mask, mask & ~silent))
        factor = mask.sum().item() / mask[:24].sum().item() if average == "token" else len(mask) / 24
        assert factor > 1.3
        close(some, factor * every)

    def test_no_group_with_signal_is_thrown_away(self, tmp_path, monkeypatch, capsys):
        """Each is trained on once, in the order in which they were generated, in its step or the next."""
        generated, trained, step = [], [], 0  # (step, prompt, tokens) of each group

        def seed_step(seed, number):
            nonlocal step
            step = number
            return original(seed, number)

        class Watched(olmo3.Verifier):
            def __call__(self, problems, rollouts):
                verdicts = super().__call__(problems, rollouts)
                for i, (problem, group) in enumerate(zip(problems, rollouts.split(4), strict=True)):
                    if 0 < sum(verdicts[4 * i : 4 * i + 4]) < 4:
                        generated.append((step, problem.prompt_ids, group.tokens))
                return verdicts

        def collate(prompts, rollouts, device):
            trained.extend((step, *pair) for pair in zip(prompts, [r.tokens for r in rollouts.split(4)], strict=True))
            return collated(prompts, rollouts, device)

        original, collated = olmo3.seed_step, olmo3.collate
        monkeypatch.setattr(olmo3, "seed_step", seed_step)
        monkeypatch.setattr(olmo3, "Verifier", Watched)
        monkeypatch.setattr(olmo3, "collate", collate)
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        _, logged = run("olmo3", tmp_path / "run", steps=3, lr=1e-3, max_rounds=50, prompts_per_step=8)
        state = torch.load(tmp_path / "run" / "checkpoint-000003" / "state.pt", weights_only=True)
        waiting = [(4, prompt, group["tokens"]) for prompt, group, _ in state["kept"]]
        assert len(trained) == 3 * 8 and len(waiting) < 8
        assert [group[1:] for group in generated] == [group[1:] for group in trained + waiting]
        steps = [(before, after) for (before, *_), (after, *_) in zip(generated, trained + waiting, strict=True)]
        assert {after - before for before, after in steps} == {0, 1}, "some groups wait, none longer than a step"
        # TIS has to correct for more than the sampler's numerics where groups have waited.
        for row in logged:
            waited = any(before != after == row["step"] for before, after in steps)
            assert (row["mismatch_max"] > 1e-3) == waited

    def test_a_model_that_is_always_right(self, tmp_path, monkeypatch, capsys):
        """The rounds run out; groups without signal fill the batch, teach nothing, and wait for nothing."""
        monkeypatch.setattr("common.verify.Verifier.judge", lambda self, responses, golds, cut: [True] * len(responses))
        weights, logged = run("olmo3", tmp_path / "run", max_rounds=3, weight_decay=0.0)
        assert "only 0 of 4 groups have signal" in capsys.readouterr().out
        assert logged[1]["sampled_prompts"] == 12 and logged[1]["kept_groups"] == logged[1]["grad_norm"] == 0
        initial = load_file(ROOT / "models/arithmetic/model.safetensors")
        assert all(torch.equal(weights[key], initial[key]) for key in weights)
        state = torch.load(tmp_path / "run" / "checkpoint-000002" / "state.pt", weights_only=True)
        assert state["kept"] == []


class TestR1:
    stages = "cold-start", "rl", "rejection", "rl", "distill"
    small = SMALL | dict(
        eval_problems=2, cold_start_solutions=16, rejection_prompts=4, sft_batch=16, save_every=1, eval_every=1
    )

    @classmethod
    def run(cls, folder, **settings):
        """All stages; their folders."""
        r1.main(r1.Args(**cls.small | {"run_dir": folder, "stages": cls.stages} | settings))
        return sorted(path.parent for path in folder.glob("[0-9]-*/config.json"))

    @pytest.fixture(scope="class")
    @classmethod
    def whole(cls, tmp_path_factory):
        """The folder of all stages, one after the other."""
        folder = tmp_path_factory.mktemp("whole") / "run"
        cls.run(folder)
        return folder

    def test_rl_is_grpo(self, tmp_path, capsys):
        """R1-Zero is grpo.py, to the bit; and so is RL after a cold start, from its model and with its seed."""
        same = {"clip_eps": 0.2, "kl_beta": 0.01}
        zero, logged = run("r1", tmp_path / "zero", **same)
        expected, of_grpo = run("grpo", tmp_path / "grpo", **same)
        assert all(torch.equal(zero[key], expected[key]) for key in expected)
        assert without_times(logged) == without_times(of_grpo)
        first, second = self.run(tmp_path / "stages", stages=("cold-start", "rl"), seed=5, **same)
        (start,) = sorted(first.glob("checkpoint-*"))[-1:]
        weights, logged = results(second)
        expected, of_grpo = run(
            "grpo", tmp_path / "started", seed=6, model=str(start), eval_problems=2, save_every=1, eval_every=1, **same
        )
        assert all(torch.equal(weights[key], expected[key]) for key in expected)
        assert without_times(logged) == without_times(of_grpo)

    def test_every_update_of_sft(self, tiny_model, tmp_path, monkeypatch, capsys):  # noqa: F811
        """Mean of -log π over the tokens of the solutions, EOS included and questions not, by hand in float64."""
        monkeypatch.setattr(Run, "evaluate", lambda *args: None)
        monkeypatch.setattr(Run, "summarize", lambda *args: None)
        updates, adam_step = [], torch.optim.AdamW.step

        def recorded(optimizer, *rest):
            parameters = optimizer.param_groups[0]["params"]
            before, gradients = [p.detach().clone() for p in parameters], [p.grad.clone() for p in parameters]
            adam_step(optimizer, *rest)
            updates.append((before, gradients, [p.detach().clone() for p in parameters]))

        used, sampled = [], r1.sample_problems
        monkeypatch.setattr(torch.optim.AdamW, "step", recorded)
        monkeypatch.setattr(r1, "sample_problems", lambda *a: used.append(sampled(*a)) or used[-1])
        solutions = [{"question": f"{i}+{i}=?", "solution": "\\boxed{" + "7" * (1 + i % 4) + "}"} for i in range(20)]
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
            for prompt, answer in some:
                assert answer[-1] == 1 and answer.count(1) == 1, "each solution ends with EOS"
                logits = learner.model(input_ids=torch.tensor([prompt + answer])).logits[0]
                for t, token in enumerate(answer):
                    total = total - (logits[len(prompt) + t - 1] / 0.8).log_softmax(-1)[token]
            (total / sum(len(answer) for _, answer in some)).backward()
            expected = clipped([p.grad for p in learner.parameters], 0.3)
            close_tensors(gradients, expected, f"gradient of update {step}")
            check_adam(adam, before, gradients, after, rate(of_run, step), 0.1)

    def test_weights_of_sft(self):
        """Each token of the solutions counts the same, whatever the lengths; they sum to 1."""
        mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]).bool()
        assert torch.equal(r1.sft_weights(mask), mask * 0.2)

    def test_stages_start_where_the_docstring_says(self, whole):
        """Cold start and rejection from the base, RL from the stage before, distillation from the student."""
        folders = sorted(whole.glob("[0-9]-*/"))
        assert [f.name for f in folders] == ["1-cold-start", "2-rl", "3-rejection", "4-rl", "5-distill"]
        starts = [json.loads((f / "config.json").read_text())["args"]["model"] for f in folders]
        ends = [str(sorted(f.glob("checkpoint-*"))[-1]) for f in folders]
        assert starts == ["arithmetic", ends[0], "arithmetic", ends[2], str(whole / "student")]
        base, student = (load_model(r1.Args(model=name))[0] for name in ("arithmetic", starts[4]))
        assert student.num_parameters() < 0.75 * base.num_parameters()
        lines = (whole / "stages.md").read_text().splitlines()
        for folder, line in zip(folders, lines[2:], strict=True):
            before, *_, after = read_metrics(folder)
            accuracies = f"{before['eval/avg']:.3f} | {after['eval/avg']:.3f} ± {after['eval/standard_error']:.3f}"
            assert line.startswith(f"| {folder.name} | {accuracies} |")

    def test_the_solutions_are_right(self, tmp_path, capsys):
        """Those of the cold start, all steps written down, and those that rejection sampling keeps, each once."""
        args = r1.Args(**self.small | {"engine": "transformers", "rejection_prompts": 40, "responses_per_prompt": 8})
        model, tokenizer = load_model(args)
        train, _ = load_problems(args, model, tokenizer)
        answers = dict(arithmetic_problems("train"))
        verifier = Verifier(tokenizer, train[:1])
        path = tmp_path / "solutions.jsonl"
        r1.rejection_sample(args, path)
        sampled = [json.loads(line) for line in path.read_text().splitlines()]
        for rows_ in (r1.cold_start_solutions(args), sampled):
            texts, golds = [row["solution"] for row in rows_], [answers[row["question"]] for row in rows_]
            assert all(verifier.judge(texts, golds, [False] * len(rows_)))
        verifier.close()
        for row in r1.cold_start_solutions(args):
            assert row["solution"].count("\n") == sum(map(row["question"].count, "+-"))
        pairs = [(row["question"], row["solution"]) for row in sampled]
        assert len(set(pairs)) == len(pairs) > len({q for q, _ in pairs}) > 10, "several to a question, none twice"

    def test_what_is_learned_from(self, capsys):
        """Not from solutions to held-out questions, nor from those that do not fit."""
        args = r1.Args(max_response_tokens=8)
        model, tokenizer = load_model(args)
        train, held_out = load_problems(args, model, tokenizer)
        row = {"question": train[0].question, "solution": "1234567"}
        longer, asked = row | {"solution": "12345678"}, row | {"question": held_out[0].question}
        others = {"question": "1+1+1+1+1+1+1=?", "solution": "7"}  # a question that no data set has
        given = train, held_out, model, tokenizer, args
        examples = r1.sft_examples([row, longer, asked, others], *given)
        eos = tokenizer.eos_token_id
        assert examples[0] == (train[0].prompt_ids, [*tokenizer("1234567")["input_ids"], eos])
        assert examples[1:] == [(tokenizer("1+1+1+1+1+1+1=?\n")["input_ids"], [*tokenizer("7")["input_ids"], eos])]
        with pytest.raises(SystemExit):
            r1.sft_examples([longer, asked], *given)
        assert "none of 2 solutions" in capsys.readouterr().err

    def test_a_kill_at_any_stage(self, whole, tmp_path, monkeypatch, capsys):
        """Killed once in every stage, between its checkpoints or while it samples, it ends as if nothing had been."""
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
        assert f"recipes.r1 --resume {folder}\n" in capsys.readouterr().err, "of all stages, not of one"
        for target in ("1-cold-start", "", "", "3-rejection", ""):
            with pytest.raises(SystemExit) as stop:
                r1.main(r1.Args(resume=folder / target))
            assert stop.value.code == 130
        r1.main(r1.Args(resume=folder))
        assert killed == ["1-cold-start", "2-rl", "3-rejection.jsonl", "3-rejection", "4-rl", "5-distill"]
        assert (folder / "stages.md").read_text() == (whole / "stages.md").read_text()
        for expected in whole.glob("[0-9]-*/"):
            weights, logged = results(folder / expected.name)
            right, right_log = results(expected)
            assert all(torch.equal(weights[key], right[key]) for key in right), expected.name
            assert without_times(logged) == without_times(right_log)

    def test_an_interrupted_stage_ends_the_run(self, tmp_path, monkeypatch, capsys):
        """By a signal in the first stage: it is saved, the next one does not begin, and the rest can follow."""
        original = r1.collate
        monkeypatch.setattr(r1, "collate", lambda *args: (os.kill(os.getpid(), signal.SIGTERM), original(*args))[1])
        assert [f.name for f in self.run(tmp_path / "run")] == ["1-cold-start"]
        assert capsys.readouterr().out.endswith(
            f"to go on                  python -m recipes.r1 --resume {tmp_path / 'run'}\n"
        )
        assert [p.name for p in (tmp_path / "run" / "1-cold-start").glob("checkpoint-*")] == ["checkpoint-000001"]

    def test_real_model_and_data(self, chat_model, gsm8k_file, tmp_path, monkeypatch, capsys):
        """Another architecture with a chat template, solutions from a file, and a student with another tokenizer."""
        rows_ = [{"question": f"What is {i} and 1?", "solution": f"It is \\\\boxed{{{i + 1}}}"} for i in range(9)]
        (tmp_path / "solutions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_))
        monkeypatch.setattr(Verifier, "judge", lambda self, responses, *_: [len(r) % 2 == 0 for r in responses])
        given = {"model": str(chat_model), "dataset": str(gsm8k_file), "student": "arithmetic"}
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
            ({"sharded_checkpoints": True}, "does not go with several --stages"),
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
        assert "name a file of them with --cold-start" in refused(capsys, tmp_path, r1, stages=("cold-start",), **real)
        assert "name it with --student" in refused(capsys, tmp_path, r1, stages=("distill",), **real)
        given = {"stages": ("cold-start",), "cold_start": str(gsm8k_file)}
        assert "has no column 'solution'" in refused(capsys, tmp_path, r1, **real | given)

    def test_no_right_response(self, capsys, tmp_path, monkeypatch):
        monkeypatch.setattr(Verifier, "judge", lambda self, responses, *_: [False] * len(responses))
        with pytest.raises(SystemExit) as stop:
            self.run(tmp_path / "run", stages=("rejection",))
        assert stop.value.code == 1
        assert "none of 4 responses to each of 4 prompts is right" in capsys.readouterr().err
