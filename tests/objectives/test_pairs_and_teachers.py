"""DPO and SPIN, which learn from pairs, and OPD, which learns from a teacher."""

import math
import re

import grpo
from common.batch import collate
from common.data import load_problems
from common.logprobs import vocabulary_logps
from common.models import load_model
from common.records import Problem, Rollouts
from methods import dpo, opd, spin
from methods.solutions import as_responses, before_groups, load_demonstrations

import pytest
import torch
import torch.nn.functional as F
from conftest import teacher_of
from runs import assert_same_weights, refused, run
from test_identities import close, gradient, rows


class TestDPO:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0, 1.0], [0.0] * 5], dtype=torch.float64)

    def advantages(self, rewards, seed=None, **settings):
        generator = torch.Generator().manual_seed(seed or 0)
        scores = torch.randn(rewards.shape, generator=generator, dtype=torch.float64) * (seed is not None)
        return dpo.compute_advantages(scores, rewards, dpo.Args(**settings))[0]

    def test_two_responses_are_grpo(self):
        """At the reference, DPO on a group of two is GRPO with token sums, times β/√2."""
        rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
        ours = self.advantages(rewards, kl_beta=0.3)
        close(2 * ours, 0.3 / 2**0.5 * grpo.compute_advantages(rewards, grpo.Args()) * (1 + 1e-6 * 2**0.5))
        assert (ours[2:] == 0).all()

    def test_at_the_reference_every_group_has_the_direction_of_grpo(self):
        """For any group size, DPO's advantages are GRPO's times a factor per group."""
        ours, theirs = self.advantages(self.rewards), grpo.compute_advantages(self.rewards, grpo.Args())
        for a, b in zip(ours[:2], theirs[:2], strict=True):
            close(a / a.norm(), b / b.norm())
        assert (ours[2] == 0).all() and ours.sum().abs() < 1e-12

    @pytest.mark.parametrize("seed", range(3))
    def test_it_is_the_gradient_of_the_papers_loss(self, seed):
        """The gradient is autograd's of Eq. 7 over all pairs of all groups, through sums of token log-probs."""
        logp, ref, _, _, mask = rows(seed)
        logp = logp.clone().requires_grad_()
        scores = ((logp - ref) * mask).sum(1)
        correct = torch.randn(40, generator=torch.Generator().manual_seed(seed)) > 0
        losses = [
            -F.logsigmoid(0.7 * (scores[w] - scores[x]))
            for start in range(0, 40, 8)
            for w in range(start, start + 8)
            for x in range(start, start + 8)
            if correct[w] and not correct[x]
        ]
        expected = torch.stack(losses).mean()
        args = dpo.Args(kl_beta=0.7)
        advantages, loss = dpo.compute_advantages(scores.detach().view(5, 8), correct.double().view(5, 8), args)
        assert loss.item() == pytest.approx(expected.item())
        inputs = logp, ref, ref, advantages.view(-1, 1).expand(mask.shape), mask
        close(gradient(dpo, inputs), torch.autograd.grad(expected, logp)[0])

    def test_pairs_that_are_told_apart_pull_less(self):
        """The weight β σ(-m) is β/2 at the reference, 0 for a clearly correct order, and β for a clearly wrong one."""
        rewards = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        for score, pull in ((0.0, 0.25), (1000.0, 0.0), (-1000.0, 0.5)):
            advantages, _ = dpo.compute_advantages(score * rewards, rewards, dpo.Args(kl_beta=0.5))
            assert advantages[0].tolist() == pytest.approx([pull, -pull], abs=1e-12)

    def test_only_differences_to_the_reference_count(self):
        scores = torch.randn(3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        ours, shifted = (dpo.compute_advantages(s, self.rewards, dpo.Args()) for s in (scores, scores + 7.0))
        close(ours[0], shifted[0])
        close(ours[1], shifted[1])

    def test_spin_begins_as_imitation(self):
        """At the opponent, Eq. 4.7's gradient is β/2 times: up for the solution, down for the policy's responses."""
        scores, preferred = torch.zeros(4, 3, dtype=torch.float64), torch.tensor([[1.0, 0.0, 0.0]] * 4)
        ours, _ = spin.compute_advantages(scores, preferred, spin.Args(kl_beta=0.3))
        close(ours, 0.3 / 2 / 4 * torch.tensor([[1.0, -0.5, -0.5]] * 4, dtype=torch.float64))

    @pytest.mark.parametrize("seed", range(3))
    def test_spin_ends_where_both_are_the_same(self, seed):
        """A response equal to the data set's solution gives a pair without a gradient, for any policy."""
        logp, ref, _, _, mask = (x[:2] for x in rows(seed))
        logp, ref, mask = logp[:1].repeat(2, 1), ref[:1].repeat(2, 1), mask[:1].repeat(2, 1)
        scores, preferred = ((logp - ref) * mask).sum(1).view(1, 2), torch.tensor([[1.0, 0.0]])
        advantages, loss = spin.compute_advantages(scores, preferred, spin.Args())
        inputs = logp, ref, ref, advantages.view(-1, 1).expand(mask.shape), mask
        each = gradient(spin, inputs)
        assert each.abs().max() > 0 and each.sum(0).abs().max() == 0 and loss.item() == pytest.approx(math.log(2))

    def test_spin_puts_the_solution_in_front(self, capsys):
        """Each group starts with a whole solution, EOS included, marked as not sampled; the other responses stay."""
        args = spin.Args()
        model, tokenizer = load_model(args)
        train, _ = load_problems(args, model, tokenizer)
        problems = train[:2]
        solutions = load_demonstrations(problems, model, tokenizer, args)
        own = Rollouts(
            [[5, 1], [6, 1], [7], [8, 1]], [[-1.0] * 2, [-2.0] * 2, [-3.0], [-4.0] * 2], [False, False, True, False]
        )
        own.sampled = [[True] * len(tokens) for tokens in own.tokens]
        paired = before_groups(as_responses(problems, solutions), own)
        assert [paired.tokens[i] for i in (1, 2, 4, 5)] == own.tokens and len(paired.tokens) == 6
        assert paired.truncated == [False, False, False, False, True, False]
        for i, problem in ((0, problems[0]), (3, problems[1])):
            assert paired.tokens[i][-1] == tokenizer.eos_token_id and not any(paired.sampled[i])
            text = tokenizer.decode(paired.tokens[i][:-1])
            assert text.splitlines()[-1] == f"\\boxed{{{problem.answer}}}"
            assert text.count("\n") == sum(map(problem.question.count, "+-")), "all steps are there"

    def test_spin_on_real_data(self, chat_model, gsm8k_file, tmp_path, capsys):
        """The whole column is the solution, and one that does not fit is refused."""
        settings = {"model": str(chat_model), "dataset": str(gsm8k_file), "solution_column": "answer"}
        weights, logged = run("spin", tmp_path / "run", **settings)
        assert logged[1]["dpo_loss"] == pytest.approx(math.log(2), abs=1e-3) and logged[1]["grad_norm"] > 0
        own = tmp_path / "own.py"
        own.write_text("def half(problem, text, tokens, truncated): return 0.5")
        same, _ = run("spin", tmp_path / "half", **settings, reward=(f"{own}:half",))
        assert_same_weights(weights, same)  # rewards do not count
        args = spin.Args(**settings, max_response_tokens=96)
        model, tokenizer = load_model(args)
        train, _ = load_problems(args, model, tokenizer)
        texts = tokenizer.batch_decode([*load_demonstrations(train[:3], model, tokenizer, args).values()])
        assert all(re.search(r"= <<\d+\+\d+=\d+>>\d+ apples\.\n#### [\d,]+<\|im_end\|>$", text) for text in texts)
        model.config.max_position_embeddings = 100
        with pytest.raises(SystemExit):
            load_demonstrations(train, model, tokenizer, args)
        assert "error: a solution of" in capsys.readouterr().err


class TestOPD:
    def test_a_teacher_that_agrees_teaches_nothing(self):
        logp, old, _, _, _ = rows(0)
        loss, _ = opd.policy_loss(logp, old, opd.compute_advantages(old, old))
        assert (loss == 0).all()

    def test_sampled_kl_has_the_gradient_of_the_kl(self):
        """Over four enumerated tokens, E[-r A] has the value and the gradient of KL(π‖teacher)."""
        logits = torch.tensor([0.3, -0.5, 1.1, 0.2], dtype=torch.float64, requires_grad=True)
        logp = logits.log_softmax(0)
        teacher = torch.tensor([0.1, 0.4, -0.3, 0.9], dtype=torch.float64).log_softmax(0)
        old = logp.detach()
        loss, _ = opd.policy_loss(logp, old, opd.compute_advantages(teacher, old))
        sampled, exact = (old.exp() * loss).sum(), (logp.exp() * (logp - teacher)).sum()
        assert sampled.item() == pytest.approx(exact.item())
        close(*(torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (sampled, exact)))

    def test_full_kl(self):
        """The KL is exact at each response token and 0 on padding; only the student has a gradient."""
        args = opd.Args(temperature=0.7)
        model, tokenizer = load_model(args)
        args.teacher = teacher_of("worlds/sums/model")
        teacher = opd.load_teacher(args, tokenizer)
        prompt, responses = tokenizer("7+5=?\n")["input_ids"], [[5, 6, 7, 1], [8, 1]]
        logps, sampled = [[0.0] * len(r) for r in responses], [[True] * len(r) for r in responses]
        batch = collate(
            [Problem("7+5=?", "12", "7+5=?\n", prompt)], Rollouts(responses, logps, [False] * 2, sampled), "cpu"
        )
        pair = [vocabulary_logps(m, batch, torch.arange(2), len(tokenizer), args) for m in (model, teacher)]
        kl = opd.full_kl(*pair, batch.token_mask)
        for i, response in enumerate(responses):
            tokens = torch.tensor([prompt + response])
            p, q = ((m(input_ids=tokens).logits[0, len(prompt) - 1 : -1] / 0.7).softmax(-1) for m in (model, teacher))
            expected = (p * (p / q).log()).sum(-1)
            torch.testing.assert_close(kl[i, : len(response)], expected, rtol=1e-3, atol=1e-5)
            assert (expected > 1e-3).any()
        assert (kl[1, 2:] == 0).all()
        kl.sum().backward()
        assert any(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
        assert all(p.grad is None for p in teacher.parameters())

    @pytest.mark.parametrize("seed", range(3))
    def test_within_the_clip_it_is_grpo(self, seed):
        """With the same advantages OPD is GRPO without a clip."""
        inputs = rows(seed)
        close(gradient(opd, inputs), gradient(grpo, inputs, clip_eps=1e6))

    def test_the_teacher_must_fit(self, capsys, tmp_path, chat_model):
        assert "name a teacher with --teacher" in refused(capsys, tmp_path, opd)
        error = refused(capsys, tmp_path, opd, teacher="./nowhere")
        assert error.startswith("error: --teacher ") and "nowhere: no such model folder" in error
        assert "has another tokenizer than --model" in refused(capsys, tmp_path, opd, teacher=str(chat_model))
        full = {"teacher": "sums", "kl": "full", "ratio_anchor": "engine", "tis_cap": 0.0}
        assert "--kl full has no ratio: leave out --ratio-anchor" in refused(capsys, tmp_path, opd, **full)
