"""Whole runs of every script: each optimizer update of `main` is recomputed slowly from the records.

The reference (see `oracles/`) takes the sampled responses, their verdicts, the minibatches and the weights before each
update. Row by row and in float64 it computes advantages, losses and gradients, clips them, and applies AdamW by hand.
The engine's weights are shifted, the temperature is not 1, the learning rate warms up, and gradients are clipped.
"""

from collections import defaultdict
from dataclasses import replace
from itertools import product

from common.metrics import read_metrics
from tools.scripts import load, parents

import pytest
import torch
from conftest import PROBLEMS, needed
from expected import Expected
from oracles import Row, oracle
from recorder import Recorder
from slow import AdamW, Model, check_adam, clipped, close, entropy, explained_variance, norm, numbers, of_sampled, rate

SETTINGS = dict(
    steps=2, prompts_per_step=4, responses_per_prompt=4, num_minibatches=2, update_epochs=2, max_response_tokens=10,
    temperature=0.8, lr=1e-2, warmup_steps=3, weight_decay=0.1, max_grad_norm=0.3, micro_batch_tokens=60,
    engine="transformers", eval_problems=2, seed=3,
)  # fmt: skip
# Settings that all scripts share, plus `insert`, which marks some response tokens as not sampled.
SHARED_CASE = {
    "staleness": 1, "steps": 3, "lr_schedule": "cosine", "warmup_steps": 0, "max_grad_norm": 1e6, "fp32_lm_head": True,
    "insert": True,
}  # fmt: skip


class Replay:
    """Compares every update of a recorded run with the reference."""

    def __init__(self, recorder, args, folder, reference):
        self.recorder, self.args, self.folder, self.reference = recorder, args, folder, reference
        self.learner, self.frozen, self.engine = Model(folder), Model(folder), Model(folder)
        taught = hasattr(reference, "teacher_prompts")  # self-distillation: the teacher is the model itself
        self.teacher = Model(folder if taught else args.teacher) if taught or hasattr(args, "teacher") else None
        self.critic = reference.critic(folder) if hasattr(reference, "critic") else None
        self.current = [p.detach().float() for p in self.frozen.parameters]  # the policy's weights after each update
        self.adams, self.at_start, self.prompts, self.left_out = defaultdict(AdamW), {}, set(), 0
        self.log = None  # what the current step must log

    def compare(self):
        shapes = [p.shape for p in self.current]
        for step in sorted({update[0] for update in self.recorder.updates}):
            updates = [update for update in self.recorder.updates if update[0] == step]
            # The critic has a scalar head instead of an output layer.
            of_policy = [update for update in updates if [p.shape for p in update[2]] == shapes]
            of_critic = [update for update in updates if [p.shape for p in update[2]] != shapes]
            self.log = Expected(self.args, self.reference, step)
            self.compare_step(step, of_policy, of_critic)
            self.log.compare(next(row for row in read_metrics(self.args.run_dir) if row["step"] == step))
        assert (self.left_out > 0) == self.reference.leaves_out(), f"{self.left_out} responses have no part in the loss"

    def compare_step(self, step, of_policy, of_critic):
        args, reference = self.args, self.reference
        rounds = self.recorder.groups(step)
        if hasattr(reference, "check_second_model"):  # it learns before the policy
            reference.check_second_model(of_critic, rounds, self.folder)
            of_critic = []
        groups = reference.batch(rounds)
        responses = [response for group in groups for response in group]
        self.check_problems(step, responses)
        self.check_engine(step, responses)
        rows, kl = self.make_rows(step, responses)
        if reference.renews_reference(step, rows, responses):
            self.frozen.set(self.current)
            rows, kl = self.make_rows(step, responses)
            if reference.restarts_optimizer():
                self.adams.clear()
        old_values = returns = None
        if self.critic:
            self.critic.set(of_critic[0][2])
            with torch.no_grad():
                old_values = [numbers(self.critic.values(response)) for response in responses]
            advantages, returns = reference.token_advantages(responses, kl, old_values)
        else:
            advantages = self.advantages(groups, kl)
        for row, response, values in zip(rows, responses, advantages, strict=True):
            row.advantages = of_sampled(response, values)
        self.log.numbers |= reference.step_numbers(rounds, groups, rows)
        if self.recorder.schedule:
            self.log.numbers |= self.recorder.schedule.numbers(step, args)
        self.log_rollouts(groups, rows, kl)
        if self.critic:
            self.log.numbers["explained_variance"] = explained_variance(responses, old_values, returns)
        reference.prepare(rows)
        self.log.add_at_rollout([row for row, r in zip(rows, responses, strict=True) if reference.counts(r)])

        passes, minibatches = reference.passes(rows), self.recorder.minibatches[step]
        count = len(minibatches)
        assert count == args.num_minibatches * args.update_epochs, f"step {step}: {count} minibatches"
        expected = len(passes) * count if reference.learns(step) else 0
        assert len(of_policy) == expected, f"step {step}: {len(of_policy)} updates of the policy, expected {expected}"
        assert len(of_critic) == (count if self.critic else 0), f"step {step}: {len(of_critic)} updates of the critic"
        for number, (part, minibatch) in enumerate(product(passes, minibatches)):
            counted = [i for i in minibatch if reference.counts(responses[i])]
            self.left_out += len(minibatch) - len(counted)
            some = [(rows[i], responses[i], part[i]) for i in counted]
            update = of_policy[number] if of_policy else None
            self.compare_update(update, some, f"step {step}, update {number}")
            if self.critic:
                targets = [(responses[i], old_values[i], returns[i]) for i in counted]
                lengths = [reference.length(rows[i]) for i in counted]
                self.compare_critic(of_critic[number], targets, lengths, f"step {step}, update {number} of the critic")
        if hasattr(reference, "renew_teacher"):
            reference.renew_teacher(self.teacher, self.current)

    def check_problems(self, step, responses):
        """Problems are new as long as there are unused ones."""
        self.prompts |= {tuple(response.prompt) for response in responses}
        different = min(step * self.args.prompts_per_step, PROBLEMS - self.args.eval_problems)
        if not any(hasattr(self.args, name) for name in ("max_rounds", "pool", "replay_fraction")):
            assert len(self.prompts) == different, f"step {step}: {len(self.prompts)} problems so far, not {different}"

    def check_engine(self, step, responses):
        """The engine has the learner's weights from k steps ago, shifted here, and samples at the same temperature."""
        self.at_start[step] = self.current
        oldest = step if self.recorder.schedule else max(1, step - self.args.staleness)
        for number, weights in enumerate(self.recorder.rounds[step][-1][3], oldest):
            same = all(map(torch.equal, weights, self.at_start[number]))
            assert same, f"step {step}: the engine did not get the weights before step {number}"
        for response in [r for r in responses if r.step][::5]:  # some may be from an earlier step
            versions = self.recorder.rounds[response.step][-1][4]
            with torch.no_grad():
                logps = numbers(self.engine.sampled_logps(response, self.args.temperature, versions))
            actual, expected = of_sampled(response, response.logps), of_sampled(response, logps)
            assert actual == pytest.approx(expected, abs=1e-4), f"step {step}: log-probs of the engine"

    def make_rows(self, step, responses):
        """The responses as rows at the rollout weights, and log π_old - log π_ref for every token."""
        self.learner.set(self.current)
        rows, kl, T = [], [], self.args.temperature
        taught = hasattr(self.reference, "teacher_prompts")
        prompts = self.reference.teacher_prompts(responses) if taught else [r.prompt for r in responses]
        with torch.no_grad():
            for i, response in enumerate(responses):
                every = self.learner.distributions(response, T)
                old = [d[token].item() for d, token in zip(every, response.tokens, strict=True)]
                ref = numbers(self.frozen.logps(response, T))
                known = old, response.logps, ref, response.top, response.tokens, numbers(map(entropy, every))
                own = [of_sampled(response, values) for values in known]
                rows.append(Row([], own[0], own[1], [], own[2], [], *own[3:]))
                differences = [o - r if was else 0.0 for o, r, was in zip(old, ref, response.sampled, strict=True)]
                kl.append(differences if self.args.kl_beta else [0.0] * len(old))
                rows[-1].old_routers = of_sampled(response, self.learner.routers(response))
                if step in self.recorder.chosen:
                    chosen = self.recorder.chosen[step][i, : len(response.tokens)].tolist()
                    rows[-1].chosen = of_sampled(response, chosen)
                if self.teacher:
                    asked = replace(response, prompt=prompts[i])
                    rows[-1].teacher = of_sampled(response, self.teacher.distributions(asked, T))
        return rows, kl

    def advantages(self, groups, kl):
        """Advantages of every token of every response, for methods without a critic."""
        responses = [response for group in groups for response in group]
        if hasattr(self.reference, "token_advantages"):
            return self.reference.token_advantages(responses)
        sums, G = [sum(row) for row in kl], len(groups[0])
        rewards = self.reference.rewards(groups, [sums[i : i + G] for i in range(0, len(sums), G)])
        flat = [a for row in self.reference.advantages(rewards) for a in row]
        return [[a] * len(response.tokens) for a, response in zip(flat, responses, strict=True)]

    def log_rollouts(self, groups, rows, kl):
        """Add what the log says about the sampled responses."""
        reference, pairs = self.reference, list(zip(rows, (r for group in groups for r in group), strict=True))
        sums, G = [sum(row) for row in kl], len(groups[0])
        rewards = reference.logged_rewards(groups, [sums[i : i + G] for i in range(0, len(sums), G)])
        counted = [row for row, response in pairs if reference.counts(response) and response.step]
        groups = [[response for response in group if response.step] for group in groups]
        self.log.add_rollouts(groups, rewards, counted)

    def compare_update(self, update, some, what):
        """Compare a policy update on a minibatch: its rows, responses, and which of their tokens have a loss.

        Without an update, while the policy waits for its critic, only add what is logged.
        """
        if update:
            before = update[2]
            assert all(map(torch.equal, before, self.current)), f"{what}: the weights moved since the last one"
        expected = self.policy_gradient(some)
        if update:
            step, optimizer, before, gradients, self.current = update
            lr = rate(self.args, step)
            if hasattr(self.reference, "check_step"):  # without AdamW
                self.log.add_numbers(self.reference.check_step(self.learner, some, expected, update, lr, what))
                return
            close(gradients, clipped(expected, self.args.max_grad_norm), f"gradient, {what}")
            check_adam(self.adams[optimizer], before, gradients, self.current, lr, self.args.weight_decay, what)

    def policy_gradient(self, some):
        """The gradient of a minibatch's loss at the current weights, before clipping."""
        self.learner.set(self.current)
        self.learner.model.zero_grad()
        reference, of_rows = self.reference, []
        for row, response, _ in some:
            every = of_sampled(response, self.learner.distributions(response, self.args.temperature))
            logps = [d[token] for d, token in zip(every, row.tokens, strict=True)]
            of_rows.append((logps, every))
            row.new = numbers(logps)
            row.routers = of_sampled(response, self.learner.routers(response))
            row.top_new = [{v: d[v].item() for v in top} for d, top in zip(every, row.top_rollout, strict=False)]
        rows, responses, parts = zip(*some, strict=True) if some else ((), (), ())
        reference.prepare_update(list(rows), list(responses))
        lengths, total = [reference.length(row) for row in rows], 0.0
        for i, (row, part, (logps, every)) in enumerate(zip(rows, parts, of_rows, strict=True)):
            losses, slopes = reference.with_kl(row)
            weight, more = reference.weight(lengths, i), reference.slope_beside(list(responses), i)
            terms = list(zip(slopes, reference.entropy_slopes(row), logps, every, part, strict=True))
            beside = weight * reference.distribution_loss(row, every)
            loss = sum(has * ((weight * a + more) * logp + weight * b * entropy(d)) for a, b, logp, d, has in terms)
            (loss + beside).backward()
            values = zip(losses, terms, strict=True)
            total += torch.as_tensor(beside).item() + sum(
                has * (weight * value + more * logp.item() + weight * b * entropy(d).item())
                for value, (_, b, logp, d, has) in values
            )
        expected = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.learner.parameters]
        self.log.add_update(rows, parts, responses, total, norm(expected))
        return expected

    def compare_critic(self, update, targets, lengths, what):
        """Compare an update of the critic on responses with their old values and returns."""
        step, optimizer, before, gradients, after = update
        self.critic.set(before)
        self.critic.zero_grad()
        for i, (response, old_values, returns) in enumerate(targets):
            everything = self.critic.values(response), old_values, returns
            values, old, wanted = (of_sampled(response, x) for x in everything)
            slopes = self.reference.value_slopes(numbers(values), old, wanted)
            weight = self.reference.weight(lengths, i)
            of_tokens = self.reference.value_losses(numbers(values), old, wanted)
            self.log.weighted["value_loss"] += [(weight, loss) for loss in of_tokens]
            sum(weight * slope * v for slope, v in zip(slopes, values, strict=True)).backward()
        expected = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.critic.parameters]
        self.log.of_updates["critic_grad_norm"].append(norm(expected))
        close(gradients, clipped(expected, self.args.max_grad_norm), f"gradient, {what}")
        lr = rate(self.args, step) * self.args.critic_lr / self.args.lr
        check_adam(self.adams[optimizer], before, gradients, after, lr, self.args.weight_decay, what)


def check_draws(recorder, args):
    """All generations use different random numbers, and passes over a rollout batch use different minibatches."""
    seeds = [seed for calls in recorder.seeds.values() for call in calls for seed in call]
    assert len(set(seeds)) == len(seeds), "prompts, steps, rounds or continuations share random numbers"
    passes = []  # by step, each pass's minibatches
    for parts in recorder.minibatches.values():
        passes.append([parts[i : i + args.num_minibatches] for i in range(0, len(parts), args.num_minibatches)])
    first = [of_step[0] for of_step in passes]
    assert any(one != first[0] for one in first), "every step has the same minibatches"
    again = [of_step[1:] for of_step in passes if len(of_step) > 1]
    different = any(one != of_step[0] for of_step in passes for one in of_step[1:])
    assert different or not again, "every pass has the same minibatches"


def whole_runs():
    """Every script with every case of its oracle; the quick layer has each first case, and GRPO's shared case."""
    for name in parents():
        own = type(oracle(name, load(name).Args())).CASES
        for number, case in enumerate([*own, own[0] | SHARED_CASE]):
            marks = () if number == 0 or (name == "grpo" and number == len(own)) else (pytest.mark.slow,)
            identity = "-".join([name, *(f"{k}:{v}" for k, v in case.items())])
            yield pytest.param(name, case, id=identity, marks=marks)


@pytest.mark.parametrize("name,case", list(whole_runs()))
def test_every_update(name, case, tiny_model, tmp_path, monkeypatch, capsys):
    script, case = load(name), dict(case)
    choosing = type(oracle(name, None)).CHOOSES
    recorder = Recorder(monkeypatch, script, choosing, insert=case.pop("insert", False))
    own = SETTINGS | ({"num_minibatches": 1, "update_epochs": 1} if script.Args.num_minibatches == 1 else {})
    if "num_minibatches" in case and script.Args.num_minibatches == 1:
        own |= {"num_minibatches": 2}
    data = {"model": str(tiny_model), "dataset": str(tiny_model / "problems.jsonl"), "run_dir": tmp_path / "run"}
    args = script.Args(**own | case | data | needed(script, tiny_model))
    script.main(args)
    assert recorder.updates[-1][0] == args.steps, f"the last update belongs to step {recorder.updates[-1][0]}"
    Replay(recorder, args, args.model, oracle(name, args)).compare()
    check_draws(recorder, args)
    moved = [
        (a - b).abs().max() for _, _, before, _, after in recorder.updates for a, b in zip(after, before, strict=True)
    ]
    assert max(moved) > 0, "no update changed a weight"
