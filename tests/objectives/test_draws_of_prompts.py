"""Which prompts the curriculum draws."""

from collections import Counter

from common.records import Problem
from methods import curriculum

import numpy as np
import pytest
import torch
from runs import assert_same_rows, assert_same_weights, differing, on_tiny, refused, run
from safetensors.torch import load_file

POOL = [Problem(str(i), "", f"{i}?", [i]) for i in range(60)]


def drawn(posteriors, steps, **settings):
    """How often each of the pool's prompts is drawn."""
    args = curriculum.Args(**{"prompts_per_step": 6} | settings)
    return Counter(p.prompt for step in steps for p in curriculum.draw_problems(POOL, posteriors, step, args))


class TestCurriculum:
    def test_without_estimates_all_are_equal(self):
        """Without estimates, or with equal ones, all prompts are equally likely; seed and step decide the draw."""
        counts = drawn({}, range(2000))
        assert len(counts) == 60 and all(150 < count < 250 for count in counts.values())  # 200 ± 13.4
        assert drawn({p.prompt: [6.0, 6.0] for p in POOL}, range(2000)) == counts
        some = {p.prompt: [1.0, 50.0] for p in POOL[:30]}
        assert drawn(some, range(2000), uniform=True) == counts != drawn(some, range(2000))
        assert drawn({}, [7]) == drawn({}, [7]) != drawn({}, [8]) and drawn({}, [7]) != drawn({}, [7], seed=2)
        assert max(drawn({}, [7], prompts_per_step=60).values()) == 1

    @pytest.mark.parametrize("target", [0.5, 0.25, 1.0])
    @pytest.mark.parametrize("a,b", [(1.0, 1.0), (1.0, 9.0), (3.5, 2.0), (1.0, 17.0)])
    def test_the_weight_is_the_expected_variance_of_a_reward(self, a, b, target):
        """Prompts are drawn by E[p^2t (1 - p)^(2 - 2t)] under their posteriors: the variance if the target t is 0.5."""
        rng = np.random.default_rng(0)
        p, q = rng.beta(a, b, 200_000), rng.beta(1, 1, 200_000)
        expected, known = ((x ** (2 * target) * (1 - x) ** (2 - 2 * target)).mean() for x in (p, q))
        posteriors = {q.prompt: [a, b] for q in POOL[:30]}
        counts = drawn(posteriors, range(3000), prompts_per_step=1, target=target)
        first = sum(counts[q.prompt] for q in POOL[:30])
        assert first / 3000 == pytest.approx(expected / (expected + known), abs=0.03)  # 3 standard errors

    def test_mixed_groups_become_more_frequent(self):
        """Of three kinds of prompts, those with signal are drawn more often, even after the kinds switch."""
        args, posteriors, G = curriculum.Args(prompts_per_step=6), {}, 8
        rng, shares = np.random.default_rng(0), []
        for step in range(1, 251):
            problems = curriculum.draw_problems(POOL, posteriors, step, args)
            kinds = [(int(p.question) + (step > 80)) % 3 for p in problems]  # never, half the time, always correct
            correct = torch.tensor(np.array([rng.random(G) < kind / 2 for kind in kinds]))
            curriculum.update_posteriors(posteriors, [p.prompt for p in problems], correct, args)
            shares.append(np.mean([kind == 1 for kind in kinds]))
        start, before, after = np.mean(shares[:5]), np.mean(shares[50:80]), np.mean(shares[150:])
        assert abs(start - 1 / 3) < 0.15 and min(before, after) > 0.5, (start, before, after)

    def test_estimates_forget(self):
        """At each visit λ of the counts above the prior remain; the expectation is from before the visit."""
        prompts, hits = ["0?", "1?"], torch.tensor([[1, 1, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)
        for memory, after in ((0.0, [[4, 2], [1, 5]]), (0.5, [[5.5, 2.5], [1, 7]]), (1.0, [[7, 3], [1, 9]])):
            posteriors, args = {}, curriculum.Args(memory=memory)
            assert curriculum.update_posteriors(posteriors, prompts, hits, args) == 0.5
            expected = curriculum.update_posteriors(posteriors, prompts, hits, args)
            assert expected == pytest.approx((4 / 6 + 1 / 6) / 2) and [*posteriors.values()] == after

    def test_with_the_same_prompts_it_is_grpo(self, tiny_model, tmp_path, monkeypatch, half_correct, capsys):
        """With GRPO's prompts, weights and log equal GRPO's bit for bit."""
        theirs, rows = run("grpo", tmp_path / "grpo", **on_tiny(tiny_model))
        # The first problems of the stream are the pool, in this order.
        monkeypatch.setattr(curriculum, "draw_problems", lambda pool, _, step, args: pool[4 * step - 4 : 4 * step])
        ours, own = run("curriculum", tmp_path / "curriculum", **on_tiny(tiny_model))
        assert_same_weights(ours, theirs)
        assert_same_rows(own, rows, more=("expected_accuracy",))
        assert own[1]["expected_accuracy"] == 0.5 and differing(ours, load_file(tiny_model / "model.safetensors"))

    def test_a_pool_without_enough_problems_is_refused(self, capsys, tmp_path, tiny_model):
        assert "--pool 3 is smaller than --prompts-per-step 4" in refused(capsys, tmp_path, curriculum, pool=3)
        many = on_tiny(tiny_model) | {"prompts_per_step": 64}
        assert "only 38 training problems are different" in refused(capsys, tmp_path, curriculum, **many)
