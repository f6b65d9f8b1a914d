"""Recipes are sums of components: each can be taken away, without all of them the plain method is left."""

import itertools
import json
import math
import multiprocessing
import os
import shutil
import signal
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import cispo
import dapo
import dr_grpo
import grpo
import reinforce
from common.batch import collate
from common.data import generated_problems, load_problems, make_prompt, sample_problems
from common.engines import TransformersEngine, prompt_seeds
from common.models import load_model
from common.records import Problem
from common.run import Run
from common.verification.verifier import Verifier
from methods import reinforce_pp
from recipes import olmo3, pipeline_rl, r1, scalerl, scaling_fit
from recipes.overlap import Generator
from tools.plots import read_metrics
from tools.scripts import components

import numpy as np
import pytest
import torch
import tyro
from conftest import SMALL
from runs import results, without_times
from test_errors import refused
from test_identities import OFF, close, gradient, rows
from test_scripts import ROOT, load_file, run
from test_steps import AdamW, Model, check_adam, clipped, rate
from test_steps import close as close_tensors


def settings(script, flags):
    """What flags of the command line set."""
    defaults, given = vars(script.Args()), vars(tyro.cli(script.Args, args=" ".join(flags).split()))
    return {name: value for name, value in given.items() if value != defaults[name]}


class TestOlmo3:
    def test_without_its_components_it_is_grpo(self, tmp_path, capsys):
        """All seven flags of the docstring's table: GRPO with its KL and without TIS, to the bit."""
        plain = settings(olmo3, components("olmo3").values())
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
        for flag in components("olmo3").values():
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
        monkeypatch.setattr("common.verification.verifier.Verifier.judge", lambda self, responses, golds, cut: [True] * len(responses))
        weights, logged = run("olmo3", tmp_path / "run", max_rounds=3, weight_decay=0.0)
        assert "only 0 of 4 groups have signal" in capsys.readouterr().out
        assert logged[1]["sampled_prompts"] == 12 and logged[1]["kept_groups"] == logged[1]["grad_norm"] == 0
        initial = load_file(ROOT / "worlds/sums/model/model.safetensors")
        assert all(torch.equal(weights[key], initial[key]) for key in weights)
        state = torch.load(tmp_path / "run" / "checkpoint-000002" / "state.pt", weights_only=True)
        assert state["kept"] == []


def few_problems(folder, count):
    """A data set of sums of two and of four terms, a fifth of which is held out."""
    pairs = [(f"{i}+17-3+8=?" if i % 2 else f"{i}+22=?", str(i + 22)) for i in range(count)]
    rows = [{"question": question, "answer": answer} for question, answer in pairs]
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"dataset": str(folder / "few.jsonl")}


@pytest.fixture(scope="module")
def sampled():
    """Responses of the embedded model, and what else `interrupt` needs."""
    args = scalerl.Args(**SMALL | {"max_response_tokens": 96, "prompts_per_step": 16})
    model, tokenizer = load_model(args)
    problems = load_problems(args, model, tokenizer)[0][:16]
    engine, prompts = TransformersEngine(model, tokenizer), [p.prompt_ids for p in problems]
    return prompts, engine.generate(prompts, 4, 96, 1.0, prompt_seeds(16, 1)), engine, tokenizer


class TestScaleRL:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)

    def test_without_its_components_it_is_cispo(self, tmp_path, capsys):
        """All eight flags of the docstring's table: CISPO without TIS, to the bit; with two updates, off-policy too."""
        plain = settings(scalerl, components("scalerl").values())
        assert len(plain) == 8
        same = {"num_minibatches": 2, "lr": 1e-3}
        weights, logged = run("scalerl", tmp_path / "scalerl", **plain, **same)
        expected, of_cispo = run("cispo", tmp_path / "cispo", tis_cap=0.0, **same)
        assert all(torch.equal(weights[key], expected[key]) for key in expected)
        for row, row_ in zip(without_times(logged), without_times(of_cispo), strict=True):
            assert row_.items() <= row.items() and row.keys() - row_.keys() <= {"interrupted", "solved_prompts"}

    def test_each_trick_can_be_taken_away(self, tmp_path, monkeypatch, capsys):
        """Without any one of them a run ends at another place: in bf16, on few problems, which come back."""
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        plain = settings(scalerl, components("scalerl").values())
        same = few_problems(tmp_path, 20) | {"steps": 3, "prompts_per_step": 8, "lr": 1e-3, "learner_precision": "bf16"}
        same |= {"rollout_precision": "bf16", "no_resampling_pass_rate": 0.5, "save_every": 0}
        settings_of = [same, *(same | {name: value} for name, value in plain.items())]
        ends = [run("scalerl", tmp_path / str(i), **s)[0] for i, s in enumerate(settings_of)]
        for i, j in itertools.combinations(range(9), 2):
            assert any(not torch.equal(ends[i][key], ends[j][key]) for key in ends[i]), (settings_of[i], settings_of[j])

    # The objective

    @pytest.mark.parametrize("seed", range(3))
    def test_on_policy_without_a_cap_it_is_reinforce(self, seed):
        """One group, one update, and nothing between sampler and learner."""
        logp, *_, a, mask = rows(seed)
        inputs = logp, logp, logp, a, mask
        token_mean = mask.double() / mask.sum()
        ours = gradient(scalerl, inputs, responses_per_prompt=len(mask), ratio_cap=math.inf)
        close(ours, gradient(reinforce, inputs, token_mean))

    @pytest.mark.parametrize("seed", range(3))
    def test_the_weight_is_the_ratio_to_the_sampler(self, seed):
        """Capped, without a lower bound, and without a gradient of its own."""
        logp, _, rollout, a, mask = rows(seed)
        ratio = torch.exp(logp - rollout)
        assert (ratio[mask] > 1.5).any() and (ratio[mask] < 0.5).any()
        actual = gradient(scalerl, (logp, rollout, rollout, a, mask), average="token", ratio_cap=1.5)
        close(actual, -mask.double() / mask.sum() * ratio.clamp(max=1.5) * a)

    @pytest.mark.parametrize("seed", range(3))
    def test_each_prompt_counts_the_same(self, seed):
        """The mean of what DAPO's Eq. 8 gives for each group; with one group the token mean, as with equal lengths."""
        inputs = rows(seed)
        groups = [gradient(cispo, [x[i : i + 8] for x in inputs]) for i in range(0, 40, 8)]
        ours = gradient(scalerl, inputs)
        close(ours, torch.cat(groups) / 5)
        token_mean = gradient(cispo, inputs)
        assert not torch.allclose(ours, token_mean)
        close(gradient(scalerl, inputs, responses_per_prompt=40), token_mean)
        equal = (*inputs[:4], torch.ones_like(inputs[4]))
        close(gradient(scalerl, equal), gradient(cispo, equal))

    def test_other_averages(self):
        mask = rows(0)[-1]
        for average, script in (("token", cispo), ("response", grpo)):
            weights = scalerl.token_weights(mask.double(), scalerl.Args(average=average))
            close(weights, script.token_weights(mask.double(), script.Args()))

    @pytest.mark.parametrize("average", ["prompt", "token", "response"])
    def test_leaving_groups_out_changes_the_denominator_alone(self, average):
        """What has no signal has no gradient either way: the direction stays, the length grows."""
        logp, old, rollout, a, mask = rows(0)
        silent = torch.arange(len(mask))[:, None] >= 24
        a = a * ~silent
        every, some = (gradient(scalerl, (logp, old, rollout, a, m), average=average) for m in (mask, mask & ~silent))
        factor = mask.sum().item() / mask[:24].sum().item() if average == "token" else 40 / 24
        close(some, factor * every)

    def test_advantages_have_the_std_of_the_batch(self):
        """1 over the responses with signal, or over all of them; that of raw rewards, as in Lite PPO, is another."""
        for filtered, counted in ((True, slice(0, 2)), (False, slice(0, 3))):
            for ddof in (0, 1):
                args = scalerl.Args(filter_groups=filtered, ddof=ddof)
                advantages = scalerl.compute_advantages(self.rewards, args)
                assert advantages.mean(1).abs().max() < 1e-12
                assert advantages[counted].std(correction=ddof).item() == pytest.approx(1, abs=1e-5)
        lite = reinforce_pp.compute_advantages(self.rewards, reinforce_pp.Args(baseline="group", std="rewards"))
        assert (advantages / lite)[0, 0] > 1.1

    def test_rewards_of_plus_minus_one_are_the_same(self):
        for std in ("batch", "group"):
            both = (scalerl.compute_advantages(r, scalerl.Args(std=std)) for r in (self.rewards, 2 * self.rewards - 1))
            torch.testing.assert_close(*both, rtol=1e-5, atol=0.0)

    def test_easy_and_hard_groups_have_the_same_spread(self):
        """A right answer is as far above a wrong one in every group; under the group's std it is not."""
        for std, same in (("batch", True), ("group", False)):
            advantages = scalerl.compute_advantages(self.rewards, scalerl.Args(std=std))
            spread = (advantages.max(1).values - advantages.min(1).values)[:2]
            assert (spread[0] == spread[1]) == same

    # Prompts that are not drawn again

    problems = tuple(Problem(f"{i}?", str(i), f"{i}?\n", [i]) for i in range(7))

    def test_without_solved_prompts_the_stream_is_that_of_all_scripts(self):
        """And with a pass rate above 1 none is ever solved."""
        args, position = scalerl.Args(prompts_per_step=3), 0
        for step in range(1, 9):
            drawn, position = scalerl.draw_problems(self.problems, set(), position, args)
            assert drawn == sample_problems(self.problems, args.seed, 3 * (step - 1), 3)

    def test_solved_prompts_leave_the_stream(self):
        """It stays in its order; each of the others comes once in every pass."""
        args, solved, position, drawn = scalerl.Args(prompts_per_step=4), {"2?\n", "5?\n"}, 0, []
        for _ in range(5):
            problems, position = scalerl.draw_problems(self.problems, solved, position, args)
            assert len(problems) == 4
            drawn += problems
        expected = [p for p in sample_problems(self.problems, args.seed, 0, 28) if p.prompt not in solved]
        assert drawn == expected and position == 28

    def test_easy_prompts_run_out_after_one_pass(self, tmp_path, monkeypatch, capsys):
        """The run ends with one sentence, and the step before is saved; with a pass rate above 1 it goes on."""
        monkeypatch.setattr("common.verification.verifier.Verifier.judge", lambda self, responses, golds, cut: [True] * len(responses))
        data = few_problems(tmp_path, 10) | {"steps": 4, "eval_every": 0}  # eight to train on, four a step
        with pytest.raises(SystemExit) as stop:
            run("scalerl", tmp_path / "run", **data)
        assert stop.value.code == 1
        error = capsys.readouterr().err
        assert "all 8 problems have reached --no-resampling-pass-rate" in error and "Traceback" not in error
        assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-000002"]
        _, logged = run("scalerl", tmp_path / "on", no_resampling_pass_rate=1.01, **data)
        assert logged[-1]["step"] == 4 and logged[-1]["solved_prompts"] == 0

    # Interruptions

    def interrupted(self, sampled, inserted=None, **changed):
        prompts, rollouts, engine, tokenizer = sampled
        args = types.SimpleNamespace(**vars(scalerl.Args(responses_per_prompt=4)) | changed)
        inserted = scalerl.tokens_to_insert(tokenizer, args) if inserted is None else inserted
        return rollouts, scalerl.interrupt(prompts, rollouts, inserted, engine, tokenizer, 1, args), inserted

    def test_those_that_think_too_long_are_told_to_answer(self, sampled):
        """Up to a random place a response is what it was, then comes the text, which was not sampled, and an answer."""
        tokenizer, places = sampled[-1], set()
        before, after, text = self.interrupted(sampled, interrupt_from=0.1, interrupt_to=0.2)
        assert tokenizer.decode(text) == "\n\\boxed{"
        for i, (old, new, was, logps) in enumerate(
            zip(before.tokens, after.tokens, after.sampled, after.logps, strict=True)
        ):
            assert len(new) == len(was) == len(logps) <= 96
            if all(was):  # it had ended, or written its answer, by the last place at the latest
                assert new == old and logps == before.logps[i] and after.truncated[i] == before.truncated[i]
                assert len(old) <= 19 or "\\boxed{" in tokenizer.decode(old[:19])
                continue
            place = was.index(False)
            places.add(place)
            assert 9 <= place <= 19 and "\\boxed{" not in tokenizer.decode(old[:place])
            assert new[:place] == old[:place] and logps[:place] == before.logps[i][:place]
            end = place + len(text)
            assert new[place:end] == text and not any(was[place:end]) and not any(logps[place:end])
            assert all(was[end:]) and len(new) > end and all(logp <= 0 for logp in logps[end:])
        assert len(places) > 5

    def test_what_was_inserted_has_no_weight(self, sampled):
        prompts, *_ = sampled
        _, after, _ = self.interrupted(sampled, interrupt_from=0.1, interrupt_to=0.2)
        batch = collate(prompts, after, "cpu")
        assert (batch.mask & ~batch.sampled).sum() > 50
        for average in ("prompt", "token", "response"):
            args = scalerl.Args(average=average, responses_per_prompt=4)
            weights = scalerl.token_weights(batch.sampled, args)
            assert torch.equal(weights > 0, batch.sampled) and weights.sum().item() == pytest.approx(1)

    def test_a_budget_of_the_whole_length_changes_nothing(self, sampled):
        before, after, _ = self.interrupted(sampled, [1, 2, 3], interrupt_from=1.0, interrupt_to=1.0)
        assert vars(after) == vars(before)

    def test_told_nothing_a_greedy_response_is_what_it_was(self, sampled):
        prompts, _, engine, tokenizer = sampled
        greedy = engine.generate(prompts, 4, 96, 0.0, prompt_seeds(16, 1))
        same = prompts, greedy, engine, tokenizer
        before, after, _ = self.interrupted(same, [], temperature=0.0, interrupt_from=0.03, interrupt_to=0.05)
        assert (before.tokens, before.truncated) == (after.tokens, after.truncated)
        assert before.logps != after.logps, "none went on from a place in its middle"

    @pytest.mark.parametrize(
        "changed,words",
        [
            ({"interrupt_from": 0.6, "interrupt_to": 0.5}, "--interrupt-to must not be less than --interrupt-from"),
            ({"interrupt_to": 0.8}, "25 tokens and the 8 of --interrupt-text"),
        ],
    )
    def test_refused(self, changed, words, capsys, tmp_path):
        assert words in refused(capsys, tmp_path, scalerl, **changed)


class TestScalingFit:
    # (R_0, A, B, C_mid), and the compute of the evaluations: a run here, and ScaleRL's of 8B (Table 1)
    CURVES = (((0.25, 0.92, 3.1, 9.0), np.arange(2, 41, 2)), ((0.2, 0.61, 1.92, 2542.0), np.linspace(1500, 16000, 40)))

    @pytest.mark.parametrize("curve,compute", CURVES)
    def test_the_curve(self, curve, compute):
        """It starts at R_0, ends at A, and is half-way at C_mid, where its slope in log C is B (A - R_0) / 4."""
        r0, a, b, c_mid = curve
        far = scaling_fit.sigmoid(c_mid * np.array([1e-9, 1.0, 1e9]), *curve)
        assert far == pytest.approx([r0, (r0 + a) / 2, a])
        low, high = scaling_fit.sigmoid(c_mid * np.exp([-1e-4, 1e-4]), *curve)
        assert (high - low) / 2e-4 == pytest.approx(b * (a - r0) / 4)

    @pytest.mark.parametrize("curve,compute", CURVES)
    def test_a_noisy_curve_is_recovered(self, curve, compute):
        """A within the paper's ±0.02, from accuracies with a standard error of 0.01."""
        noise = 0.01 * np.random.default_rng(0).standard_normal(len(compute))
        r0, a, b, c_mid = curve
        fit = scaling_fit.fit(compute, scaling_fit.sigmoid(compute, *curve) + noise, r0)
        assert abs(fit.A - a) <= 0.02 and fit.error < 0.013
        assert abs(fit.B / b - 1) < 0.15 and abs(fit.C_mid / c_mid - 1) < 0.1

    def folder(self, path, steps, curve):
        """A run folder with evaluations on a curve, at 10 seconds a step."""
        rows = [{"step": 0, "eval/avg": curve[0], "seconds/evaluate": 99.0}]
        for step in range(1, max(steps) + 1):
            rows.append({"step": step, "seconds/train": 8.0, "seconds/generate": 2.0})
            if step in steps:
                accuracy = scaling_fit.sigmoid(np.array(float(step)), *curve)
                rows.append({"step": step, "eval/avg": float(accuracy), "seconds/evaluate": 99.0})
        path.mkdir()
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    def test_runs(self, tmp_path, capsys):
        """What the first steps foretell, in steps or in seconds; a run that has not bent yet is no basis for that."""
        curve = 0.25, 0.95, 3.0, 8.0
        run = self.folder(tmp_path / "run", range(2, 31, 2), curve)
        scaling_fit.main(scaling_fit.Args(runs=(run,), until=20, skip=3))
        line, _, _ = capsys.readouterr().out.partition("\n")
        assert "A 0.95" in line and "over 9 evaluations" in line
        assert float(line.split("off by ")[1].split()[0]) < 0.01
        assert (run / "scaling.png").read_bytes().startswith(b"\x89PNG")
        r0, seconds, accuracy = scaling_fit.evaluations(run, "seconds")
        assert r0 == 0.25 and seconds.tolist() == list(range(20, 301, 20)) and len(accuracy) == 15
        begun = self.folder(tmp_path / "begun", range(1, 6), (0.25, 0.95, 2.0, 100.0))
        scaling_fit.main(scaling_fit.Args(runs=(begun,)))
        assert "half of the gain is still to come" in capsys.readouterr().out

    def test_refused(self, tmp_path, capsys):
        few = self.folder(tmp_path / "few", (5, 10, 15), (0.2, 0.9, 2.0, 8.0))
        late = tmp_path / "late"
        late.mkdir()
        (late / "metrics.jsonl").write_text('{"step": 5, "eval/avg": 0.5}\n')
        cases = ((), "name a run folder"), ((tmp_path,), "is no run folder"), ((late,), "before training")
        for runs, words in (*cases, ((few,), "3 evaluations to fit to, 4 are needed")):
            with pytest.raises(SystemExit) as stop:
                scaling_fit.main(scaling_fit.Args(runs=runs))
            assert stop.value.code == 2 and words in capsys.readouterr().err


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

    def test_every_update_of_sft(self, tiny_model, tmp_path, monkeypatch, capsys):
        """Mean of -log π over the tokens of the solutions, EOS included and questions not, by hand in float64."""
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
        solutions += [{"question": "1+1=?", "solution": "7" * 30}] * 9  # too long: they are no part of an epoch
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
        assert starts == ["sums", ends[0], "sums", ends[2], str(whole / "student")]
        base, student = (load_model(r1.Args(model=name))[0] for name in ("sums", starts[4]))
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
        answers = dict(generated_problems("sums", "train"))
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

    def test_what_is_learned_from(self, tmp_path, capsys):
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
        few = tmp_path / "few.jsonl"
        few.write_text('{"question": "2+2=?", "answer": "4"}')
        (prompt, _), *_ = r1.sft_examples([others], *given[:4], replace(args, few_shot=str(few)))
        assert prompt == make_prompt(others["question"], None, tokenizer, None, [("2+2=?", "4")])[1] != examples[1][0]
        assert "none of 2 solutions" in capsys.readouterr().err

    @pytest.mark.slow
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


# Responses that are long enough to get new weights twice.
LONG_GRPO = {"steps": 4, "lr": 5e-4, "max_response_tokens": 32, "staleness": 2, "tis_cap": 5.0}
LONG = LONG_GRPO | {"in_flight_every": 8}
CORRECTIONS = get_args(get_type_hints(pipeline_rl.Args)["correction"])


class TestPipelineRL:
    def test_without_its_components_it_is_grpo(self, tmp_path, capsys):
        """All four flags of the docstring's table: GRPO without TIS, to the bit; with token-tis and its cap, GRPO."""
        plain = settings(pipeline_rl, components("pipeline_rl").values())
        assert len(plain) == 4
        for own, of_grpo in (plain, {"tis_cap": 0.0}), (plain | {"correction": "token-tis", "tis_cap": 2.0}, {}):
            weights, logged = run("pipeline_rl", tmp_path / f"own-{len(of_grpo)}", **own)
            expected, rows_ = run("grpo", tmp_path / f"grpo-{len(of_grpo)}", **of_grpo)
            assert all(torch.equal(weights[key], expected[key]) for key in expected)
            for row, row_ in zip(without_times(logged), without_times(rows_), strict=True):
                assert row_.items() <= row.items()
                assert row.keys() - row_.keys() <= {"ess", "tis_masked"}

    def test_each_trick_can_be_taken_away(self, tmp_path, monkeypatch, capsys):
        """Without any one of them a run ends at another place."""
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        away = [{}, *(settings(pipeline_rl, [flag]) for flag in components("pipeline_rl").values())]
        ends = [run("pipeline_rl", tmp_path / str(i), **LONG | s)[0] for i, s in enumerate(away)]
        for one, other in itertools.combinations(ends, 2):
            assert any(not torch.equal(one[key], other[key]) for key in one)

    def test_without_new_weights_in_flight_it_is_stale_grpo(self, tmp_path, capsys):
        weights, _ = run("pipeline_rl", tmp_path / "own", **LONG | {"in_flight_every": 0})
        expected, _ = run("grpo", tmp_path / "grpo", **LONG_GRPO)
        assert all(torch.equal(weights[key], expected[key]) for key in expected)

    def test_weights_that_never_change_are_no_new_weights(self, tmp_path, monkeypatch, capsys):
        """In flight, from keys and values of before, the engine goes on as if nothing had happened, to the bit."""
        monkeypatch.setattr(torch.optim.AdamW, "step", lambda *_: None)
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        _, changing = run("pipeline_rl", tmp_path / "changing", **LONG)
        _, fixed = run("pipeline_rl", tmp_path / "fixed", **LONG | {"staleness": 0, "in_flight_every": 0})
        assert without_times(changing) == without_times(fixed)

    @pytest.mark.parametrize("correction", CORRECTIONS)
    def test_nothing_to_correct(self, correction):
        """Where the sampler is the learner all corrections are none, and the gradient is GRPO's."""
        logp, old, _, a, mask = rows(0)
        close(gradient(pipeline_rl, (logp, old, old, a, mask), correction=correction, tis_cap=5.0),
              gradient(grpo, (logp, old, old, a, mask)))  # fmt: skip

    @pytest.mark.parametrize("seed", range(3))
    def test_corrections_in_closed_form(self, seed):
        """Each times the gradient of GRPO; masks have tokens on both sides."""
        inputs = rows(seed)
        _, old, mu, _, mask = inputs
        plain = gradient(grpo, inputs)
        rho = torch.exp(old - mu)
        whole = torch.where(mask, rho, 1.0).prod(1, keepdim=True)
        mean = whole ** (1 / mask.sum(1, keepdim=True))
        expected = {
            "none": torch.ones_like(rho),
            "token-tis": rho.clamp(max=1.2),
            "sequence-tis": whole.clamp(max=1.2).expand(rho.shape),
            "icepop": rho * ((rho >= 0.9) & (rho <= 1.2)),
            "sequence-mask": (whole * (whole <= 1.2)).expand(rho.shape),
            "geometric-mask": ((mean >= 0.9) & (mean <= 1.1)).double().expand(rho.shape),
        }
        for correction, weight in expected.items():
            if "mask" in correction or correction == "icepop":
                assert (weight[mask] == 0).any() and (weight[mask] > 0).any()
            close(gradient(pipeline_rl, inputs, correction=correction, tis_cap=1.2, icepop_low=0.9), plain * weight)

    @pytest.mark.parametrize("seed", range(3))
    def test_areal_and_pipeline_rl(self, seed):
        """AReaL's Eq. 5, π_prox / π_behav min(u A, clip(u) A) without a cap; PipelineRL's Eq. 5 where r is 1."""
        logp, old, mu, a, mask = inputs = rows(seed)
        each = mask / (len(mask) * mask.double().sum(1, keepdim=True))
        u = torch.exp(logp - old)
        flows = torch.where(a > 0, u <= 1.2, u >= 0.8)
        assert not flows[mask].all()
        close(gradient(pipeline_rl, inputs, tis_cap=OFF), -each * torch.exp(old - mu) * u * a * flows)
        weight = torch.exp(old - mu).clamp(max=1.3)
        close(gradient(pipeline_rl, (old, old, mu, a, mask), tis_cap=1.3), -each * weight * a)

    def test_only_weights_of_whole_responses_are_unbiased(self):
        """By enumeration: E_μ[ρ R ∇log π] is ∇E_π[R] for two-token responses; with weights per token it is not."""
        generator = torch.Generator().manual_seed(0)
        first, second, mu_first, mu_second = (
            torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((3,), (3, 3)) * 2
        )
        parameters = [first.requires_grad_(), second.requires_grad_()]
        every = [(i, j) for i in range(3) for j in range(3)]

        def logps(a, b):
            one, two = a.log_softmax(0), b.log_softmax(1)
            return torch.stack([torch.stack([one[i], two[i, j]]) for i, j in every])  # (9, 2)

        rewards = torch.tensor([float((i + j) % 3 == 0) for i, j in every], dtype=torch.float64)[:, None]
        logp, mu = logps(*parameters), logps(mu_first, mu_second)
        exact = torch.autograd.grad((logp.sum(1, keepdim=True).exp() * rewards).sum(), parameters, retain_graph=True)
        mask = torch.ones(9, 2, dtype=torch.bool)

        def expected(correction):
            args = pipeline_rl.Args(correction=correction, tis_cap=OFF)
            weight = pipeline_rl.tis_weight(logp.detach(), mu, mask, args)
            total = (mu.sum(1, keepdim=True).exp() * weight * rewards * logp).sum()
            return torch.autograd.grad(total, parameters, retain_graph=True)

        for correction in ("sequence-tis", "sequence-mask"):
            for mine, right in zip(expected(correction), exact, strict=True):
                close(mine, right)
        for correction in ("token-tis", "none"):
            assert any(
                (mine - right).abs().max() > 0.01 for mine, right in zip(expected(correction), exact, strict=True)
            )

    def test_effective_sample_size(self):
        """1 on-policy; with one of n tokens that counts alone, 1/n."""
        old, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
        assert pipeline_rl.effective_sample_size(old, old - 0.7, mask) == pytest.approx(1.0)
        far = torch.full((2, 3), 30.0)
        far[0, 0] = 0.0
        assert pipeline_rl.effective_sample_size(old, far, mask) == pytest.approx(1 / 6)
        assert pipeline_rl.effective_sample_size(old, far, mask & (far > 0)) == pytest.approx(1.0)


class TestOverlap:
    """A generator in a process of its own."""

    def test_the_result_is_the_same(self, tmp_path, capsys):
        """To the bit, and it was ahead: the learner waited for less than was generated."""
        weights, rows_ = run("pipeline_rl", tmp_path / "alone", **LONG)
        again, logged = run("pipeline_rl", tmp_path / "both", overlap=True, **LONG)
        assert all(torch.equal(weights[key], again[key]) for key in weights)
        assert without_times(rows_) == without_times(logged)
        assert all("seconds/overlap" in row for row in logged[1:])
        assert min(row["seconds/overlap"] for row in logged[1:]) < 0
        assert all(row["seconds/generate"] > 0 for row in logged[1:])

    def test_a_generator_that_is_killed(self, tmp_path, monkeypatch, capsys):
        """One sentence, nothing lost: the step before is saved though no checkpoint was due, and the run can go on."""
        record, steps = pipeline_rl.WeightHistory.record, []

        def kill(history):
            steps.append(1)
            if len(steps) == 2:
                for child in multiprocessing.active_children():
                    os.kill(child.pid, signal.SIGKILL)
            record(history)

        monkeypatch.setattr(pipeline_rl.WeightHistory, "record", kill)
        with pytest.raises(SystemExit) as stop:
            run("pipeline_rl", tmp_path / "cut", overlap=True, save_every=0, **LONG)
        assert stop.value.code == 1
        error = capsys.readouterr().err.strip()
        assert error.startswith("error: step ") and "\n" not in error
        assert "the generator's process has ended with exit code -9" in error and "--resume" in error
        monkeypatch.setattr(pipeline_rl.WeightHistory, "record", record)
        (saved,) = (tmp_path / "cut").glob("checkpoint-*")
        assert saved.name in ("checkpoint-000002", "checkpoint-000003")
        weights, rows_ = run("pipeline_rl", tmp_path / "whole", **LONG)
        pipeline_rl.main(pipeline_rl.Args(resume=tmp_path / "cut"))
        again, logged = results(tmp_path / "cut")
        assert all(torch.equal(weights[key], again[key]) for key in weights)
        assert without_times(rows_) == without_times(logged)

    def test_a_learner_that_is_killed(self):
        """The generator ends at once, in the middle of a batch."""
        context = multiprocessing.get_context("spawn")
        connection, other = context.Pipe()
        learner = context.Process(target=wait_for_a_batch, args=(other,))
        learner.start()
        generator = Path(f"/proc/{connection.recv()}")
        learner.kill()
        learner.join()
        deadline = time.monotonic() + 30
        while generator.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not generator.exists(), "the generator outlived the learner"

    def test_an_error_in_the_generator_is_the_learners(self, capsys):
        """With what it says there; lack of memory then ends the run with the sentence that it always does."""
        args = grpo.Args(steps=1)
        model, _ = load_model(args)
        stub = type("Stub", (), {"args": args, "seconds": {}})()
        generator = Generator(stub, lacks_memory, model, [])
        try:
            generator.publish(1, [list(model.named_parameters())])
            with pytest.raises(MemoryError, match="none left") as error:
                generator.receive(1)
            assert "in lacks_memory" in error.value.__notes__[0]
        finally:
            generator.close()

    @pytest.mark.parametrize("missing", ["core", "GPU", "process", "memory"])
    def test_what_it_needs(self, missing, tmp_path, monkeypatch, capsys):
        if missing == "core":
            monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
        if missing == "GPU":
            monkeypatch.setattr("torch.accelerator.is_available", lambda: True)
            monkeypatch.setattr("torch.accelerator.device_count", lambda: 1)
        if missing == "process":
            monkeypatch.setattr("recipes.overlap.world_size", lambda: 2)
        if missing == "memory":
            monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 1 << 20))
        sentence = refused(capsys, tmp_path, pipeline_rl, overlap=True)
        words = {"core": "needs a second CPU core", "GPU": "needs a second GPU", "process": "a run of one process"}
        assert (words | {"memory": "GB of shared memory"})[missing] in sentence


def lacks_memory(*_):
    raise MemoryError("none left")


def never_ends(*_):
    time.sleep(1000)


def wait_for_a_batch(connection):
    """A learner whose generator is at a batch that takes long."""
    args = grpo.Args(steps=1)
    model, _ = load_model(args)
    generator = Generator(type("Stub", (), {"args": args, "seconds": {}})(), never_ends, model, [])
    generator.publish(1, [list(model.named_parameters())])
    connection.send(generator.process.pid)
    generator.receive(1)
