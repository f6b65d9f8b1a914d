"""OlmoRL is the sum of its components: each can be removed, and without any of them it is GRPO."""

import itertools
import math

import common.run
import dapo
import dr_grpo
import grpo
from common.run import Run
from recipes import olmo3
from tools.scripts import components

import pytest
import torch
from runs import assert_same_rows, assert_same_weights, base_weights, differing, run, settings_of
from test_identities import close, gradient, rows


class TestOlmo3:
    def test_without_its_components_it_is_grpo(self, tmp_path, capsys):
        """With all seven flags of the docstring's table, it equals GRPO with KL and without TIS, bit for bit."""
        plain = settings_of(olmo3, components("olmo3").values())
        assert len(plain) == 7
        weights, logged = run("olmo3", tmp_path / "olmo3", **plain)
        expected, of_grpo = run("grpo", tmp_path / "grpo", kl_beta=plain["kl_beta"], tis_cap=0.0)
        assert_same_weights(weights, expected)
        assert_same_rows(logged, of_grpo, more={"sampled_prompts", "kept_groups"})

    @pytest.mark.slow
    def test_each_component_can_be_removed(self, tmp_path, monkeypatch, capsys):
        """Removing any component changes the result; clip-higher acts only between the two bounds."""
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        one_round, given = {"max_rounds": 1}, [{}]
        for flag in components("olmo3").values():
            ((name, value),) = settings_of(olmo3, [flag]).items()
            if name != "clip_eps_high":  # with one round, some groups are left out
                given.append({name: value} | (one_round if name == "filter_groups" else {}))
        ends = [run("olmo3", tmp_path / str(i), steps=1, lr=1e-3, **s)[0] for i, s in enumerate(given)]
        assert len(ends) == 7
        for i, j in itertools.combinations(range(7), 2):
            assert differing(ends[i], ends[j]), f"the same end with {given[i]} and {given[j]}"
        logp, old, _, a, mask = inputs = rows(0)
        between = mask & (a > 0) & (logp - old > math.log(1.2)) & (logp - old < math.log(1.272))
        assert between.any()
        assert torch.equal(gradient(olmo3, inputs) != gradient(olmo3, inputs, clip_eps_high=0.2), between)

    @pytest.mark.parametrize("seed", range(3))
    def test_it_is_dapo_but_for_tis_and_bounds(self, seed):
        """With the same advantages and bounds, and no mismatch, the gradient is DAPO's or GRPO's."""
        inputs = rows(seed)
        close(gradient(olmo3, inputs, clip_eps_high=0.28), gradient(dapo, inputs))
        close(gradient(olmo3, inputs, average="response", clip_eps_high=0.2), gradient(grpo, inputs))

    def test_in_one_update_only_tis_acts(self):
        """With one update, as for the Think models, a token's gradient is min(ρ, C) A over the number of tokens."""
        inputs = rows(0, spread=0.0)
        _, old, rollout, a, mask = inputs
        rho = torch.exp(old - rollout)
        assert (rho[mask] > 1.2).any(), "a cap has something to do"
        close(gradient(olmo3, inputs, tis_cap=1.2), -mask.double() / mask.sum() * rho.clamp(max=1.2) * a)

    def test_advantages(self):
        """Advantages equal Dr. GRPO's or GRPO's bit for bit."""
        rewards = (torch.rand(6, 5, generator=torch.Generator().manual_seed(0)) < 0.4).float()
        assert torch.equal(olmo3.compute_advantages(rewards, olmo3.Args()), dr_grpo.compute_advantages(rewards))
        for ddof in (0, 1):
            ours = olmo3.compute_advantages(rewards, olmo3.Args(std="group", ddof=ddof))
            assert torch.equal(ours, grpo.compute_advantages(rewards, grpo.Args(ddof=ddof)))

    @pytest.mark.parametrize("average", ["token", "response"])
    def test_leaving_groups_out_changes_the_denominator_alone(self, average):
        """Leaving out responses without signal only scales the gradient, because they add nothing to it."""
        logp, old, rollout, a, mask = rows(0)
        silent = torch.arange(len(mask))[:, None] >= 24
        a = a * ~silent
        every, some = (gradient(olmo3, (logp, old, rollout, a, m), average=average) for m in (mask, mask & ~silent))
        factor = mask.sum().item() / mask[:24].sum().item() if average == "token" else len(mask) / 24
        assert factor > 1.3
        close(some, factor * every)

    def test_no_group_with_signal_is_thrown_away(self, tmp_path, monkeypatch, capsys):
        """Every group with signal is trained on once, in order of generation, in its step or the next."""
        generated, trained, step = [], [], 0  # (step, prompt, tokens) of each group

        def seed_step(seed, number):
            nonlocal step
            step = number
            return original(seed, number)

        class Watched(olmo3.Verifier):
            def __call__(self, problems, rollouts):
                rewards = super().__call__(problems, rollouts)
                for problem, group in zip(problems, rollouts.split(4), strict=True):
                    if 0 < sum(group.correct) < 4:
                        generated.append((step, problem.prompt, group.tokens))
                return rewards

        def collate(problems, rollouts, device):
            trained.extend(
                (step, problem.prompt, group.tokens) for problem, group in zip(problems, rollouts.split(4), strict=True)
            )
            return collated(problems, rollouts, device)

        original, collated = common.run.seed_step, olmo3.collate
        monkeypatch.setattr(common.run, "seed_step", seed_step)
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
        # TIS corrects for more than the engine's rounding where groups have waited.
        for row in logged:
            waited = any(before != after == row["step"] for before, after in steps)
            assert (row["mismatch_max"] > 1e-3) == waited

    @pytest.mark.slow
    def test_a_model_that_is_always_correct(self, tmp_path, monkeypatch, capsys):
        """With no signal the rounds run out; the batch's groups teach nothing, and none waits for a later step."""
        monkeypatch.setattr(
            "common.verification.verifier.Verifier.judge", lambda self, responses, *_: [1.0] * len(responses)
        )
        weights, logged = run("olmo3", tmp_path / "run", max_rounds=3, weight_decay=0.0)
        assert "only 0 of 4 groups have signal" in capsys.readouterr().out
        assert logged[1]["sampled_prompts"] == 12 and logged[1]["kept_groups"] == logged[1]["grad_norm"] == 0
        assert_same_weights(weights, base_weights())
        state = torch.load(tmp_path / "run" / "checkpoint-000002" / "state.pt", weights_only=True)
        assert state["kept"] == []
