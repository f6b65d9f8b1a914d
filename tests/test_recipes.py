"""Recipes are sums of tricks: each can be taken away, without all of them the plain method is left."""

import itertools
import math
import re

import dapo
import dr_grpo
import grpo
from common.run import Run
from recipes import olmo3

import pytest
import torch
import tyro
from test_identities import close, gradient, rows
from test_scripts import ROOT, load_file, run, without_times


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
