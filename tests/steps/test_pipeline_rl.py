"""PipelineRL: its components one by one, its corrections, and a generator that never waits."""

import itertools
from typing import get_args, get_type_hints

import grpo
from common.run import Run
from recipes import asynchronous, pipeline_rl
from tools.scripts import components

import pytest
import torch
from runs import assert_same_rows, assert_same_weights, differing, run, settings_of
from test_identities import OFF, close, gradient, rows

OF_QUEUE = {"age", "oldest", "generator_idle", "sampled_prompts", "dropped_groups", "queued_groups"}
# Responses long enough to get new weights twice.
LONG = {"steps": 4, "lr": 5e-4, "max_response_tokens": 32, "staleness": 2, "tis_cap": 5.0, "training_tokens": 8}
LONG |= {"in_flight_prompts": 4}
CORRECTIONS = get_args(get_type_hints(pipeline_rl.Args)["correction"])


class TestPipelineRL:
    @pytest.mark.slow
    def test_without_its_components_it_is_grpo(self, tmp_path, capsys):
        """With all four flags of the table it equals GRPO without TIS bit for bit; with token-tis and a cap, GRPO."""
        plain = settings_of(pipeline_rl, components("pipeline_rl").values())
        assert len(plain) == 4
        for own, of_grpo in (plain, {"tis_cap": 0.0}), (plain | {"correction": "token-tis", "tis_cap": 2.0}, {}):
            weights, logged = run("pipeline_rl", tmp_path / f"own-{len(of_grpo)}", **own)
            expected, rows_ = run("grpo", tmp_path / f"grpo-{len(of_grpo)}", **of_grpo)
            assert_same_weights(weights, expected)
            assert_same_rows(logged, rows_, more={"ess", "tis_masked", *OF_QUEUE})

    @pytest.mark.slow
    def test_each_component_can_be_removed(self, tmp_path, monkeypatch, capsys):
        """Removing any component changes the result."""
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        away = [{}, *(settings_of(pipeline_rl, [flag]) for flag in components("pipeline_rl").values())]
        ends = [run("pipeline_rl", tmp_path / str(i), **LONG | s)[0] for i, s in enumerate(away)]
        for one, other in itertools.combinations(ends, 2):
            assert differing(one, other), "a component without effect"

    @pytest.mark.parametrize("correction", CORRECTIONS)
    def test_nothing_to_correct(self, correction):
        """Without mismatch no correction acts, and the gradient is GRPO's."""
        logp, old, _, a, mask = rows(0)
        close(gradient(pipeline_rl, (logp, old, old, a, mask), correction=correction, tis_cap=5.0),
              gradient(grpo, (logp, old, old, a, mask)))  # fmt: skip

    @pytest.mark.parametrize("seed", range(3))
    def test_corrections_in_closed_form(self, seed):
        """Each correction multiplies GRPO's gradient by its weight; masks keep some tokens and drop others."""
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
        """Without a cap it is AReaL's Eq. 5, π_prox / π_behav min(u A, clip(u) A); with r = 1, PipelineRL's Eq. 5."""
        logp, old, mu, a, mask = inputs = rows(seed)
        each = mask / (len(mask) * mask.double().sum(1, keepdim=True))
        u = torch.exp(logp - old)
        flows = torch.where(a > 0, u <= 1.2, u >= 0.8)
        assert not flows[mask].all()
        close(gradient(pipeline_rl, inputs, tis_cap=OFF), -each * torch.exp(old - mu) * u * a * flows)
        weight = torch.exp(old - mu).clamp(max=1.3)
        close(gradient(pipeline_rl, (old, old, mu, a, mask), tis_cap=1.3), -each * weight * a)

    def test_only_weights_of_whole_responses_are_unbiased(self):
        """On enumerated two-token responses, E_μ[ρ R ∇log π] is ∇E_π[R]; with per-token weights it is not."""
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
            for mine, truth in zip(expected(correction), exact, strict=True):
                close(mine, truth)
        for correction in ("token-tis", "none"):
            assert any(
                (mine - truth).abs().max() > 0.01 for mine, truth in zip(expected(correction), exact, strict=True)
            )

    def test_effective_sample_size(self):
        """The effective sample size is 1 on-policy, and 1/n if only one of n tokens counts."""
        old, mask = torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool)
        assert pipeline_rl.effective_sample_size(old, old - 0.7, mask) == pytest.approx(1.0)
        far = torch.full((2, 3), 30.0)
        far[0, 0] = 0.0
        assert pipeline_rl.effective_sample_size(old, far, mask) == pytest.approx(1 / 6)
        assert pipeline_rl.effective_sample_size(old, far, mask & (far > 0)) == pytest.approx(1.0)


class TestQueue:
    """Admission, age, and what happens to groups that are too old."""

    def generator(self, **settings):
        """A generator, without an engine, for P = 2 prompts per step."""
        made = object.__new__(asynchronous.Generator)
        made.args = pipeline_rl.Args(prompts_per_step=2, **settings)
        made.train = [asynchronous.Problem(f"{i}?", str(i), f"{i}?", [i]) for i in range(40)]
        made.submitted = made.dropped = made.position = 0
        made.positions, made.problems, made.queue, made.worker = (
            {},
            {},
            [],
            asynchronous.Worker.__new__(asynchronous.Worker),
        )
        made.worker.waiting = []
        return made

    def end(self, generator, number, version):
        generator.queue.append(asynchronous.Group(number, version, None))

    @pytest.mark.parametrize("staleness", [0, 1, 3])
    def test_admission(self, staleness):
        """By version v, (v + η + 1) P prompts are submitted: the next ones of the stream, each once."""
        generator = self.generator(staleness=staleness)
        for version in (0, 0, 1, 4):
            generator.submit(version, frozenset())
            numbers = [number for number, _, _ in generator.worker.waiting]
            assert numbers == list(range(2 * (version + staleness + 1)))
        expected = asynchronous.problem_stream(generator.train, generator.args.seed, 0, len(numbers))
        assert [ids for _, ids, _ in generator.worker.waiting] == [problem.prompt_ids for problem in expected]

    def test_old_groups_are_dropped_and_replaced(self):
        generator = self.generator(staleness=1)
        generator.submit(0, frozenset())
        for number, version in ((0, 0), (3, 0), (1, 1)):
            self.end(generator, number, version)
        generator.submit(1, frozenset())
        assert (generator.dropped, generator.submitted) == (0, 6)
        generator.submit(2, frozenset())
        assert (generator.dropped, generator.submitted) == (2, 10)
        assert [group.number for group in generator.queue] == [1] and not {0, 3} & generator.positions.keys()

    def test_the_oldest_are_taken_first(self):
        generator = self.generator(staleness=1)
        for number in (3, 0, 2):
            self.end(generator, number, 0)
        assert [group.number for group in generator.take()] == [0, 2]
        assert [group.number for group in generator.queue] == [3]

    def test_excluded_prompts_are_not_submitted(self):
        generator = self.generator(staleness=19)
        excluded = {"3?", "7?"}
        generator.submit(0, excluded)
        ids = [ids[0] for _, ids, _ in generator.worker.waiting]
        assert sorted(ids) == sorted([*(set(range(40)) - {3, 7}), *ids[38:]]) and not {3, 7} & set(ids)

    @pytest.mark.all_problems
    def test_long_responses_are_dropped(self, tmp_path, monkeypatch, capsys):
        """With η = 1 and as many tokens per step as the longest response, some groups are too old and dropped."""
        monkeypatch.setattr(Run, "evaluate", lambda *_: None)
        late = LONG | {"staleness": 1, "training_tokens": 24, "in_flight_prompts": 2, "steps": 6}
        _, logged = run("pipeline_rl", tmp_path / "run", **late)
        assert sum(row["dropped_groups"] for row in logged) > 0
        assert all(row["oldest"] <= 1 for row in logged)
        assert sum(row["sampled_prompts"] for row in logged) == 4 * 7 + sum(row["dropped_groups"] for row in logged)
