"""ScaleRL is the sum of its components: without any of them it is CISPO. Also the fit of its curve."""

import itertools
import json
import math
import types

import cispo
import grpo
import reinforce
from common.batch import collate
from common.data import load_problems, problem_stream
from common.engines import prompt_seeds
from common.models import load_model
from common.records import Problem, Rollouts
from common.run import Run
from common.transformers_engine import TransformersEngine
from methods import lite_ppo
from recipes import scalerl, scaling_fit
from recipes.asynchronous import Worker, draw
from tools.scripts import components

import numpy as np
import pytest
import torch
from conftest import SMALL
from runs import assert_same_rows, assert_same_weights, differing, refused, run, settings_of
from test_identities import close, gradient, rows
from test_pipeline_rl import OF_QUEUE


def few_problems(folder, count):
    """A data set of sums of two and of four terms, a fifth of which is held out."""
    pairs = [(f"{i}+17-3+8=?" if i % 2 else f"{i}+22=?", str(i + 22)) for i in range(count)]
    rows = [{"question": question, "answer": answer} for question, answer in pairs]
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"dataset": str(folder / "few.jsonl")}


@pytest.fixture(scope="module")
def sampled():
    """Responses of the embedded model, and the other inputs of `interrupt`."""
    args = scalerl.Args(**SMALL | {"max_response_tokens": 96, "prompts_per_step": 16})
    model, tokenizer = load_model(args)
    problems = load_problems(args, model, tokenizer)[0][:16]
    engine = TransformersEngine(args, model, tokenizer)
    return problems, engine.generate(problems, 4, 1), engine, tokenizer


class TestScaleRL:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], dtype=torch.float64)

    @pytest.mark.slow
    def test_without_its_components_it_is_cispo(self, tmp_path, capsys):
        """With all flags of the table it equals CISPO without TIS bit for bit, even with two updates."""
        plain = settings_of(scalerl, components("scalerl").values())
        assert len(plain) == 8
        same = {"num_minibatches": 2, "lr": 1e-3}
        weights, logged = run("scalerl", tmp_path / "scalerl", **plain, **same)
        expected, of_cispo = run("cispo", tmp_path / "cispo", tis_cap=0.0, **same)
        assert_same_weights(weights, expected)
        assert_same_rows(logged, of_cispo, more={"interrupted", "solved_prompts", *OF_QUEUE})

    @pytest.mark.slow
    def test_each_component_can_be_removed(self, tmp_path, monkeypatch, capsys):
        """Removing any component changes the result: in bf16, on few problems, which repeat."""
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        plain = settings_of(scalerl, components("scalerl").values())
        same = few_problems(tmp_path, 20) | {"prompts_per_step": 8, "lr": 1e-3, "learner_precision": "bf16"}
        same |= {"rollout_precision": "bf16", "no_resampling_pass_rate": 0.5, "save_every": 0}
        same |= {"steps": 4, "staleness": 1, "interrupt_from": 0.2}  # so that each component has an effect
        given = [same, *(same | {name: value} for name, value in plain.items())]
        ends = [run("scalerl", tmp_path / str(i), **s)[0] for i, s in enumerate(given)]
        for i, j in itertools.combinations(range(9), 2):
            assert differing(ends[i], ends[j]), f"the same end with {given[i]} and {given[j]}"

    # The objective

    @pytest.mark.parametrize("seed", range(3))
    def test_on_policy_without_a_cap_it_is_reinforce(self, seed):
        """With one group, one update and no mismatch, the gradient is REINFORCE's."""
        logp, *_, a, mask = rows(seed)
        inputs = logp, logp, logp, a, mask
        token_mean = mask.double() / mask.sum()
        ours = gradient(scalerl, inputs, responses_per_prompt=len(mask), ratio_cap=math.inf)
        close(ours, gradient(reinforce, inputs, token_mean))

    @pytest.mark.parametrize("seed", range(3))
    def test_the_weight_is_the_ratio_to_the_rollout_policy(self, seed):
        """The weight is the capped ratio to the rollout policy, without a lower bound or a gradient."""
        logp, _, rollout, a, mask = rows(seed)
        ratio = torch.exp(logp - rollout)
        assert (ratio[mask] > 1.5).any() and (ratio[mask] < 0.5).any()
        actual = gradient(scalerl, (logp, rollout, rollout, a, mask), average="token", ratio_cap=1.5)
        close(actual, -mask.double() / mask.sum() * ratio.clamp(max=1.5) * a)

    @pytest.mark.parametrize("seed", range(3))
    def test_each_prompt_counts_the_same(self, seed):
        """The average is the mean of DAPO's Eq. 8 over groups: with one group or equal lengths, the token mean."""
        logp, _, rollout, a, mask = rows(seed)
        inputs = logp, rollout, rollout, a, mask
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
            close(weights, script.token_weights(mask.double()))

    @pytest.mark.parametrize("average", ["prompt", "token", "response"])
    def test_leaving_groups_out_changes_the_denominator_alone(self, average):
        """Leaving out responses without signal only scales the gradient, because they add nothing to it."""
        logp, old, rollout, a, mask = rows(0)
        silent = torch.arange(len(mask))[:, None] >= 24
        a = a * ~silent
        every, some = (gradient(scalerl, (logp, old, rollout, a, m), average=average) for m in (mask, mask & ~silent))
        factor = mask.sum().item() / mask[:24].sum().item() if average == "token" else 40 / 24
        close(some, factor * every)

    def test_advantages_have_the_std_of_the_batch(self):
        """Std is 1 over the counted responses; Lite PPO's, divided by the std of raw rewards, is smaller."""
        for filtered, counted in ((True, slice(0, 2)), (False, slice(0, 3))):
            for ddof in (0, 1):
                args = scalerl.Args(filter_groups=filtered, ddof=ddof)
                advantages = scalerl.compute_advantages(self.rewards, args)
                assert advantages.mean(1).abs().max() < 1e-12
                assert advantages[counted].std(correction=ddof).item() == pytest.approx(1, abs=1e-5)
        lite = lite_ppo.compute_advantages(self.rewards)
        assert (advantages / lite)[0, 0] > 1.1

    def test_rewards_of_plus_minus_one_are_the_same(self):
        for std in ("batch", "group"):
            both = (scalerl.compute_advantages(r, scalerl.Args(std=std)) for r in (self.rewards, 2 * self.rewards - 1))
            torch.testing.assert_close(*both, rtol=1e-5, atol=0.0)

    def test_easy_and_hard_groups_have_the_same_spread(self):
        """Correct and incorrect answers are equally far apart in every group; with the group's std they are not."""
        for std, same in (("batch", True), ("group", False)):
            advantages = scalerl.compute_advantages(self.rewards, scalerl.Args(std=std))
            spread = (advantages.max(1).values - advantages.min(1).values)[:2]
            assert (spread[0] == spread[1]) == same

    # Prompts that are not drawn again

    problems = tuple(Problem(f"{i}?", str(i), f"{i}?\n", [i]) for i in range(7))

    def test_without_solved_prompts_the_stream_is_that_of_all_scripts(self):
        """If no prompt is solved, the problems are the stream of all other scripts."""
        args, position = scalerl.Args(), 0
        for step in range(1, 9):
            drawn, position = draw(self.problems, set(), position, 3, args.seed)
            assert drawn == {i: problem_stream(self.problems, args.seed, i, 1)[0] for i in drawn}
            found = problem_stream(self.problems, args.seed, 3 * step - 3, 3)
            assert list(drawn.values()) == found, f"step {step}"

    def test_solved_prompts_leave_the_stream(self):
        """Without solved prompts the stream keeps its order, with every other prompt once per pass."""
        args, solved, position, drawn = scalerl.Args(), {"2?\n", "5?\n"}, 0, []
        for _ in range(5):
            some, position = draw(self.problems, solved, position, 4, args.seed)
            assert some == {i: problem_stream(self.problems, args.seed, i, 1)[0] for i in some} and len(some) == 4
            drawn += some.values()
        stream = problem_stream(self.problems, args.seed, 0, 28)
        assert drawn == [p for p in stream if p.prompt not in solved] and position == 28

    @pytest.mark.slow
    def test_easy_prompts_run_out_after_one_pass(self, tmp_path, monkeypatch, capsys):
        """Once all are solved the run ends with one sentence and is saved; with a pass rate above 1 it goes on."""
        monkeypatch.setattr(
            "common.verification.verifier.Verifier.judge", lambda self, responses, *_: [1.0] * len(responses)
        )
        data = few_problems(tmp_path, 10) | {
            "steps": 4,
            "eval_every": 0,
            "staleness": 0,
        }  # eight to train on, four per step
        with pytest.raises(SystemExit) as stop:
            run("scalerl", tmp_path / "run", **data)
        assert stop.value.code == 1
        error = capsys.readouterr().err
        assert "all 8 problems have reached --no-resampling-pass-rate" in error and "Traceback" not in error
        assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-000002"]
        _, logged = run("scalerl", tmp_path / "on", no_resampling_pass_rate=1.01, **data)
        assert logged[-1]["step"] == 4 and logged[-1]["solved_prompts"] == 0

    # Interruptions

    def interrupted(self, sampled, **changed):
        """Rollouts without and with interruptions, all started at once, and the inserted text."""
        problems, rollouts, engine, tokenizer = sampled
        own = scalerl.Args(max_response_tokens=96, responses_per_prompt=4)
        args = engine.args = types.SimpleNamespace(**vars(own) | changed)
        worker = Worker(engine, tokenizer, args, scalerl.cut_long_thinking)
        worker.version, seeds = 0, prompt_seeds(16, args.seed, 1)
        worker.submit([(i, p.prompt_ids, seed) for i, (p, seed) in enumerate(zip(problems, seeds, strict=True))])
        groups = []
        while worker.has_work:
            groups += worker.step()
        groups = sorted(groups, key=lambda group: group.number)
        return rollouts, Rollouts.join(g.rollouts for g in groups), scalerl.tokens_to_insert(tokenizer, args)

    def test_responses_that_think_too_long_are_told_to_answer(self, sampled):
        """Up to a random place a response is unchanged; then come the inserted text and an answer."""
        tokenizer, places = sampled[-1], set()
        before, after, text = self.interrupted(sampled, interrupt_from=0.1, interrupt_to=0.2)
        assert tokenizer.decode(text) == "\n\\boxed{"
        for i, (old, new, was, logps) in enumerate(
            zip(before.tokens, after.tokens, after.sampled, after.logps, strict=True)
        ):
            assert len(new) == len(was) == len(logps) <= 96
            if all(was):  # it had ended or begun to answer before the last place
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
        problems, *_ = sampled
        _, after, _ = self.interrupted(sampled, interrupt_from=0.1, interrupt_to=0.2)
        batch = collate(problems, after, "cpu")
        assert (batch.token_mask & ~batch.response_mask).sum() > 50
        for average in ("prompt", "token", "response"):
            args = scalerl.Args(average=average, responses_per_prompt=4)
            weights = scalerl.token_weights(batch.response_mask, args)
            assert torch.equal(weights > 0, batch.response_mask) and weights.sum().item() == pytest.approx(1)

    def test_a_budget_of_the_whole_length_changes_nothing(self, sampled):
        before, after, _ = self.interrupted(sampled, interrupt_text="123", interrupt_from=1.0, interrupt_to=1.0)
        assert vars(after) == vars(before)

    def test_told_nothing_a_greedy_response_is_what_it_was(self, sampled):
        problems, _, engine, tokenizer = sampled
        engine.args = types.SimpleNamespace(**vars(engine.args) | {"temperature": 0.0})
        greedy = engine.generate(problems, 4, 1)
        same = problems, greedy, engine, tokenizer
        changed = {"interrupt_text": "", "temperature": 0.0, "interrupt_from": 0.03, "interrupt_to": 0.05}
        before, after, _ = self.interrupted(same, **changed)
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
    # (R_0, A, B, C_mid) and the evaluations' compute, for a run here and for ScaleRL's 8B run (Table 1)
    CURVES = (((0.25, 0.92, 3.1, 9.0), np.arange(2, 41, 2)), ((0.2, 0.61, 1.92, 2542.0), np.linspace(1500, 16000, 40)))

    @pytest.mark.parametrize("curve,compute", CURVES)
    def test_the_curve(self, curve, compute):
        """The curve starts at R_0, ends at A, and is halfway at C_mid, with slope B (A - R_0) / 4 in log C."""
        r0, a, b, c_mid = curve
        far = scaling_fit.sigmoid(c_mid * np.array([1e-9, 1.0, 1e9]), *curve)
        assert far == pytest.approx([r0, (r0 + a) / 2, a])
        low, high = scaling_fit.sigmoid(c_mid * np.exp([-1e-4, 1e-4]), *curve)
        assert (high - low) / 2e-4 == pytest.approx(b * (a - r0) / 4)

    @pytest.mark.parametrize("curve,compute", CURVES)
    def test_a_noisy_curve_is_recovered(self, curve, compute):
        """A is recovered within the paper's ±0.02 from accuracies with a standard error of 0.01."""
        noise = 0.01 * np.random.default_rng(0).standard_normal(len(compute))
        r0, a, b, c_mid = curve
        fit = scaling_fit.fit(compute, scaling_fit.sigmoid(compute, *curve) + noise, r0)
        assert abs(fit.A - a) <= 0.02 and fit.error < 0.013
        assert abs(fit.B / b - 1) < 0.15 and abs(fit.C_mid / c_mid - 1) < 0.1

    def folder(self, path, steps, curve):
        """A run folder with evaluations on a curve, 10 seconds per step."""
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
        """A fit to the first steps predicts the end; a curve that has not bent yet predicts nothing."""
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
