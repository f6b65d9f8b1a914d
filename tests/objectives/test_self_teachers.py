"""Self-distillation: the teacher is the same model, and differs only by the feedback in its prompt."""

import json

from common.data import filled_template, make_problem
from common.models import load_model
from common.records import Rollouts
from methods import opsd, sdpo, self_reward
from methods.self_teacher import SelfTeacher, filled

import pytest
import torch
from runs import on_tiny, refused, run


@pytest.mark.parametrize("kl", ["full", "sampled"])
def test_a_teacher_that_is_told_nothing_teaches_nothing(kl, tiny_model, half_correct, tmp_path, capsys):
    """On-policy, the KL to a teacher without feedback has no gradient; with feedback it has one."""
    settings = on_tiny(tiny_model) | {"num_minibatches": 1, "kl": kl, "steps": 1, "answer_format": "last-number"}
    norms = {}
    for feedback in ("", " = 7"):
        _, rows = run("sdpo", tmp_path / f"told{feedback}", feedback=feedback, **settings)
        assert 0 < rows[1]["feedback"] <= 1
        norms[feedback] = rows[1]["grad_norm"]
    assert norms[""] < 1e-5 < 1e-2 < norms[" = 7"]


def test_reward_functions_teach_where_no_response_is_correct(tiny_model, tmp_path, capsys):
    norms, settings = {}, on_tiny(tiny_model) | {"num_minibatches": 1, "steps": 1, "reward_feedback": " = {text}"}
    for said in (" ", "7"):
        _, rows = run("sdpo", tmp_path / f"said{said}", reward=("correct", lambda *_: (0.0, said)), **settings)  # noqa: B023
        assert rows[1]["accuracy"] == 0 and rows[1]["feedback"] == float(said == "7")
        norms[said] = rows[1]["grad_norm"]
    assert norms[" "] == 0 and norms["7"] > 1e-2


def test_feedback_is_cut_to_the_context(tiny_model, half_correct, tmp_path, capsys):
    settings = on_tiny(tiny_model) | {"answer_format": "last-number", "steps": 1}
    _, rows = run("sdpo", tmp_path / "run", feedback="7" * 1000, **settings)
    assert rows[1]["feedback"] > 0


def test_reward_feedback_without_its_place(capsys, tmp_path):
    error = refused(capsys, tmp_path, sdpo, reward_feedback=" = {answer}")
    assert "--reward-feedback must contain {text}" in error


def test_a_question_of_chat_messages(chat_model):
    """The last message has the text for the teacher, as it has the text for the judge of self_reward.py."""
    chat = [{"role": "system", "content": "Add."}, {"role": "user", "content": "1+1?"}]
    longer = [chat[0], {"role": "user", "content": "1+1? = 2"}]
    args = sdpo.Args(model=str(chat_model), max_response_tokens=8)
    model, tokenizer = load_model(args)
    problem = make_problem((chat, "2"), args, tokenizer, [])
    rollouts = Rollouts([[5, 6]], [[-1.0, -1.0]], [False], [[True, True]])
    batch = SelfTeacher(args, model, tokenizer).batch([problem], rollouts, [" = 2"])
    assert tokenizer.decode(batch.tokens[0, : batch.prompt_lengths[0]]) == filled_template(longer, tokenizer)
    judged = self_reward.to_judge(problem, "2", self_reward.Args(judge_prompt=" = {answer}"), tokenizer, [])
    assert judged.prompt == filled_template(longer, tokenizer)


def test_templates():
    """Other braces stay, also those in what is put in."""
    assert filled("{a} {b} {}", a="{b}") == "{b} {b} {}"


def test_the_sampled_form_is_the_full_one_in_expectation():
    """Over a vocabulary of 6, the sampled KL's expected gradient is the full KL's, with GRPO's part at weight 0."""
    generator = torch.Generator().manual_seed(0)
    logits, teacher = torch.randn(2, 4, 6, generator=generator)
    logits.requires_grad_()
    policy, teacher = logits.log_softmax(-1), teacher.log_softmax(-1)  # (4, 6)
    mask = torch.ones(1, 4, dtype=torch.bool)
    full = torch.autograd.grad(0.7 * sdpo.full_kl(policy, teacher, mask).sum(), logits, retain_graph=True)[0]
    own, args, expected = torch.full((1, 1), 0.7), sdpo.Args(), 0.0
    for token in range(6):
        logp, teacher_logp = policy[None, :, token], teacher[None, :, token]  # (1, 4)
        old_logp = logp.detach()
        advantages = sdpo.compute_advantages(torch.ones(1, 1), teacher_logp, old_logp, own, args)
        loss, _ = sdpo.policy_loss(logp, old_logp, advantages)
        expected = expected + torch.autograd.grad((old_logp.exp() * loss).sum(), logits, retain_graph=True)[0]
    torch.testing.assert_close(full, expected, rtol=1e-4, atol=1e-5)
    assert full.abs().max() > 0.01


def test_grpo_takes_its_part():
    rewards, own = torch.tensor([[1.0, 0.0, 0.0, 1.0]]), torch.tensor([[0.0], [0.75], [0.75], [0.0]])
    logps = torch.tensor([[-1.0, -2.0]] * 4), torch.tensor([[-1.5, -1.0]] * 4)
    advantages = sdpo.compute_advantages(rewards, *logps, own, sdpo.Args(grpo_weight=0.25))
    expected = torch.tensor([[0.125, 0.125], [0.25, -0.875], [0.25, -0.875], [0.125, 0.125]])
    torch.testing.assert_close(advantages, expected)


def test_a_response_is_shown_another_correct_one_of_its_group():
    correct = [True, False, True, False, False, False, False, True, False]
    assert sdpo.demonstrations(correct, 3) == [2, 0, 0, None, None, None, 7, None, 7]


class TestOPSD:
    """The same for OPSD, whose teacher sees the data set's solution."""

    def test_every_response_is_taught_without_rewards(self, tiny_model, tmp_path, capsys):
        """Incorrect responses are taught too; a teacher without the solution has no gradient here either."""
        settings = on_tiny(tiny_model) | {"num_minibatches": 1, "steps": 1, "responses_per_prompt": 1}
        norms = {}
        for feedback in ("", " = {solution}"):
            _, rows = run("opsd", tmp_path / f"told{feedback}", feedback=feedback, **settings)
            assert rows[1]["accuracy"] == 0
            norms[feedback] = rows[1]["grad_norm"]
        assert norms[""] < 1e-5 < 1e-2 < norms[" = {solution}"]

    def test_held_out_problems_come_without_solutions(self, tiny_model, tmp_path, capsys):
        run("opsd", tmp_path / "run", feedback=" = {solution}", **on_tiny(tiny_model))
        shown = "".join(path.read_text() for path in (tmp_path / "run/samples").iterdir())
        assert "=?" in shown and "=? =" not in shown

    def test_a_world_without_solutions_is_refused(self, capsys, tmp_path):
        error = refused(capsys, tmp_path, opsd, model="products", dataset="products")
        assert "comes without solutions" in error

    def test_a_question_without_a_solution_is_named(self, tiny_model, tmp_path, capsys):
        rows = [json.loads(line) for line in (tiny_model / "problems.jsonl").read_text().splitlines()]
        rows[3]["solution"] = None
        (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        settings = on_tiny(tiny_model) | {"dataset": str(tmp_path / "some.jsonl"), "eval_problems": 1}
        assert "1 of 39 training problems have no solution: '3+3=?'" in refused(capsys, tmp_path, opsd, **settings)
