"""Whole runs of every script: each optimizer update of `main` is computed again, slowly, from what was recorded.

The reference (see `oracles/`) takes the responses that were sampled, their verdicts, the minibatches and the weights
before each update. Row by row and in float64 it finds advantages, losses and gradients, clips them, and applies AdamW
by hand. The sampler's weights are shifted, the temperature is not 1, the learning rate warms up, gradients are clipped.
"""

import math
from collections import defaultdict
from itertools import product

from common.run import Run
from tools.scripts import ROOT, load, parents, script_path

import pytest
import torch
from conftest import PROBLEMS, needed
from oracles import Response, Row, oracle
from transformers import AutoModelForCausalLM, DynamicCache

SETTINGS = dict(
    steps=2, prompts_per_step=4, responses_per_prompt=4, num_minibatches=2, update_epochs=2, max_response_tokens=10,
    temperature=0.8, lr=1e-2, warmup_steps=3, weight_decay=0.1, max_grad_norm=0.3, micro_batch_tokens=60,
    engine="transformers", eval_problems=2, seed=3,
)  # fmt: skip
# Settings that all scripts have in common; each changes every step.
SHARED_CASES = [
    {"staleness": 1, "steps": 3},
    {"lr_schedule": "cosine", "steps": 3, "warmup_steps": 0, "max_grad_norm": 1e6, "fp32_lm_head": True},
    {"put_in": True},  # not a setting: some tokens of the responses count as not sampled
]


class Recorder:
    """Watches a run: what was generated and judged in each step, the minibatches, and every optimizer update."""

    def __init__(self, monkeypatch, script, put_in):
        self.rounds, self.minibatches, self.updates, self.chosen = defaultdict(list), defaultdict(list), [], {}
        self.step, self.loads = 0, []  # weights that the engine got, as they were and shifted
        recorder, make_engine, verifier = self, script.make_engine, script.Verifier
        adam_step, minibatches, seed_step = torch.optim.AdamW.step, script.minibatches, script.seed_step
        monkeypatch.setattr(Run, "evaluate", lambda *args: None)
        monkeypatch.setattr(Run, "summarize", lambda *args: None)

        def next_step(seed, step):
            recorder.step = step
            return seed_step(seed, step)

        def shifted(args, *rest):
            """An engine whose weights are a little off the learner's."""
            engine = make_engine(args, *rest)
            load_weights, generate = engine.load_weights, engine.generate

            def load_shifted(weights):
                weights = list(weights)
                noise = torch.Generator().manual_seed(0)
                moved = [(name, w.detach() + 0.05 * torch.randn(w.shape, generator=noise)) for name, w in weights]
                recorder.loads.append(([w.detach().clone() for _, w in weights], [weight for _, weight in moved]))
                load_weights(moved)

            def recorded(prompts, n, *rest, **more):
                recorder.loads = [] if more.get("in_flight") else recorder.loads[-1:]  # an engine loads those itself
                rollouts = generate(prompts, n, *rest, **more)
                if put_in:
                    for sampled, logps in zip(rollouts.sampled, rollouts.logps, strict=True):
                        for t in range(1, len(sampled) - 1, 3):
                            sampled[t], logps[t] = False, 0.0
                recorder.rounds[recorder.step].append([prompts, n, rollouts, *zip(*recorder.loads, strict=True)])
                return rollouts

            engine.load_weights, engine.generate = load_shifted, recorded
            return engine

        class Judge(verifier):
            """Verdicts by chance, but the same for the same response."""

            def judge(self, responses, golds, truncated):
                verdicts = [
                    sum(map(ord, text)) % 3 == 0 and not cut for text, cut in zip(responses, truncated, strict=True)
                ]
                next(r for r in recorder.rounds[recorder.step] if len(r) == 5).append(verdicts)
                return verdicts

        def recorded_minibatches(*args):
            for rows in minibatches(*args):
                recorder.minibatches[recorder.step].append(rows.tolist())
                yield rows

        def recorded_step(optimizer, *args):
            parameters = optimizer.param_groups[0]["params"]
            before = [p.detach().clone() for p in parameters]
            gradients = [p.grad.clone() for p in parameters]
            adam_step(optimizer, *args)
            after = [p.detach().clone() for p in parameters]
            recorder.updates.append((recorder.step, id(optimizer), before, gradients, after))

        def recorded_choice(*args):
            recorder.chosen[recorder.step] = choose(*args)
            return recorder.chosen[recorder.step]

        def published(generator, step, versions):
            recorder.loads.append([w.detach().clone() for _, w in versions[-1]])
            publish(generator, step, versions)

        def received(generator, step):
            """From a process whose weights nobody shifts."""
            problems, rollouts = receive(generator, step)
            k, n = generator.run.args.staleness, generator.run.args.responses_per_prompt
            versions = recorder.loads[max(0, step - 1 - k) : step]
            recorder.rounds[step].append([[p.prompt_ids for p in problems], n, rollouts, versions, versions])
            return problems, rollouts

        if hasattr(script, "Generator"):
            publish, receive = script.Generator.publish, script.Generator.receive
            monkeypatch.setattr(script.Generator, "publish", published)
            monkeypatch.setattr(script.Generator, "receive", received)
        if choose := getattr(script, "choose", None):
            monkeypatch.setattr(script, "choose", recorded_choice)
        monkeypatch.setattr(script, "seed_step", next_step)
        monkeypatch.setattr(script, "make_engine", shifted)
        monkeypatch.setattr(script, "Verifier", Judge)
        monkeypatch.setattr(script, "minibatches", recorded_minibatches)
        monkeypatch.setattr(torch.optim.AdamW, "step", recorded_step)

    def groups(self, step):
        """The responses of a step: rounds of groups."""
        rounds = []
        for prompts, n, rollouts, _, _, *judged in self.rounds[step]:
            verdicts = judged[0] if judged else [None] * len(rollouts.tokens)  # parts of responses have none
            responses = [
                Response(
                    prompts[i // n], tokens, rollouts.logps[i], rollouts.truncated[i], verdicts[i], rollouts.sampled[i],
                    [dict(zip(ids.tolist(), logps.tolist(), strict=True)) for ids, logps in
                     zip(rollouts.top_ids[i], rollouts.top_logps[i], strict=True)] if rollouts.top_ids else [], step,
                )
                for i, tokens in enumerate(rollouts.tokens)
            ]  # fmt: skip
            rounds.append([responses[i : i + n] for i in range(0, len(responses), n)])
        return rounds


class Model:
    """A model in float64 that computes one response at a time."""

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        self.parameters = list(self.model.parameters())

    def set(self, tensors):
        with torch.no_grad():
            for parameter, value in zip(self.parameters, tensors, strict=True):
                parameter.copy_(value)

    def distributions(self, response, temperature):
        """Log-probs (|o|, V) at each token of a response."""
        tokens = torch.tensor([response.prompt + response.tokens])
        logits = self.model(input_ids=tokens).logits[0, len(response.prompt) - 1 : -1]
        return (logits / temperature).log_softmax(-1)

    def logps(self, response, temperature):
        return [d[token] for d, token in zip(self.distributions(response, temperature), response.tokens, strict=True)]

    def sampled_logps(self, response, temperature, versions, reference):
        """Log-probs of the tokens, each under the version of the weights that sampled it."""
        logps, loaded, cache, unread = [], None, DynamicCache(), list(response.prompt)
        for t, token in enumerate(response.tokens):
            if (version := reference.version(t)) != loaded and version < len(versions):
                self.set(versions[version])
                loaded = version
                if not reference.keeps_cache():
                    cache, unread = DynamicCache(), response.prompt + response.tokens[:t]
            logits = self.model(input_ids=torch.tensor([unread]), past_key_values=cache).logits[0, -1]
            logps.append((logits / temperature).log_softmax(-1)[token])
            unread = [token]
        return logps

    def entropies(self, response, temperature):
        return [entropy(d) for d in self.distributions(response, temperature)]


def entropy(logps):
    return -(logps.exp() * logps).sum()


def numbers(tensors):
    return [t.item() for t in tensors]


def close(actual, expected, what, rounding=1e-7):
    """Two lists of tensors agree, as one vector, within what float32 leaves."""
    a, b = (torch.cat([t.flatten().double() for t in tensors]) for tensors in (actual, expected))
    assert (a - b).norm() <= 2e-4 * b.norm() + rounding, f"{what}: {(a - b).norm():.2e} of {b.norm():.2e}"


def of_sampled(response, values):
    """The values of the tokens that were sampled."""
    return [value for value, was in zip(values, response.sampled, strict=True) if was] if len(values) else []


def clipped(gradients, most):
    norm = math.sqrt(sum((g**2).sum().item() for g in gradients))
    return [g * min(1.0, most / (norm + 1e-6)) for g in gradients]


class AdamW:
    """AdamW by hand (1711.05101, Algorithm 2) on float64 copies."""

    def __init__(self):
        self.t, self.m, self.v = 0, None, None

    def step(self, parameters, gradients, lr, decay):
        self.t += 1
        if self.m is None:
            self.m, self.v = ([torch.zeros_like(g) for g in gradients] for _ in range(2))
        self.m = [0.9 * m + 0.1 * g for m, g in zip(self.m, gradients, strict=True)]
        self.v = [0.999 * v + 0.001 * g**2 for v, g in zip(self.v, gradients, strict=True)]
        new = []
        for p, m, v in zip(parameters, self.m, self.v, strict=True):
            direction = (m / (1 - 0.9**self.t)) / ((v / (1 - 0.999**self.t)).sqrt() + 1e-8)
            new.append(p * (1 - lr * decay) - lr * direction)
        return new


def check_adam(adam, before, gradients, after, lr, decay):
    """The weights moved as AdamW moves them with these gradients."""
    moved = adam.step([b.double() for b in before], [g.double() for g in gradients], lr, decay)
    actual = [a - b for a, b in zip(after, before, strict=True)]
    rounding = 1e-7 * math.sqrt(sum((b**2).sum().item() for b in before))  # weights are kept in float32
    close(actual, [m - b for m, b in zip(moved, before, strict=True)], "update of the weights", rounding)


def rate(args, step):
    """Learning rate of a step, from the definition of the schedules."""
    if step <= args.warmup_steps:
        return args.lr * step / args.warmup_steps
    x = (step - 1 - args.warmup_steps) / (args.steps - args.warmup_steps)
    return args.lr * (math.cos(math.pi * x) + 1) / 2 if args.lr_schedule == "cosine" else args.lr


def replay(recorder, args, folder, reference):
    """Compare every update of a recorded run with the reference."""
    learner, frozen, T = Model(folder), Model(folder), args.temperature
    current = [p.detach().float() for p in frozen.parameters]  # the policy's weights after the updates so far
    shapes = [p.shape for p in current]
    teacher = Model(args.teacher) if hasattr(args, "teacher") else None
    adams, at_start, prompts = defaultdict(AdamW), {}, set()
    pending, left_out = list(recorder.updates), 0
    while pending:
        step = pending[0][0]
        of_step = [update for update in pending if update[0] == step]
        pending = [update for update in pending if update[0] != step]
        # The critic has a head, and no output layer.
        policy_updates = [update for update in of_step if [p.shape for p in update[2]] == shapes]
        critic_updates = [update for update in of_step if [p.shape for p in update[2]] != shapes]
        groups = reference.batch(recorder.groups(step))
        responses = [response for group in groups for response in group]

        # Problems are new, as long as there are new ones.
        prompts |= {tuple(response.prompt) for response in responses}
        different = min(step * args.prompts_per_step, PROBLEMS - args.eval_problems)
        assert hasattr(args, "max_rounds") or len(prompts) == different, "problems of an earlier step"

        # The sampler has the learner's weights of k steps ago, here shifted, at the same temperature.
        at_start[step] = current
        for number, weights in enumerate(recorder.rounds[step][-1][3], max(1, step - args.staleness)):
            assert all(map(torch.equal, weights, at_start[number])), "the sampler's weights"
        sampler = Model(folder)
        for response in [r for r in responses if r.step][::5]:  # some of an earlier step perhaps, some of none
            versions = recorder.rounds[response.step][-1][4]
            with torch.no_grad():
                expected = of_sampled(response, numbers(sampler.sampled_logps(response, T, versions, reference)))
                assert expected == pytest.approx(of_sampled(response, response.logps), abs=1e-4)

        # Log-probs at the rollout weights.
        learner.set(current)
        rows, kl = [], []
        with torch.no_grad():
            for response in responses:
                old, ref = numbers(learner.logps(response, T)), numbers(frozen.logps(response, T))
                known = old, response.logps, ref, response.top, response.tokens, numbers(learner.entropies(response, T))
                own = [of_sampled(response, values) for values in known]
                rows.append(Row([], own[0], own[1], [], own[2], [], *own[3:]))
                differences = [o - r if was else 0.0 for o, r, was in zip(old, ref, response.sampled, strict=True)]
                kl.append(differences if args.kl_beta else [0.0] * len(old))

        critic = reference.critic(folder) if hasattr(reference, "critic") else None
        if critic:
            critic.set(critic_updates[0][2])
            with torch.no_grad():
                old_values = [numbers(critic.values(response)) for response in responses]
            advantages, returns = reference.token_advantages(responses, kl, old_values)
        elif hasattr(reference, "token_advantages"):
            advantages = reference.token_advantages(responses)
        else:
            sums, G = [sum(row) for row in kl], len(groups[0])
            rewards = reference.rewards(groups, [sums[i : i + G] for i in range(0, len(sums), G)])
            flat = [a for row in reference.advantages(rewards) for a in row]
            advantages = [[a] * len(response.tokens) for a, response in zip(flat, responses, strict=True)]
        for row, response, values in zip(rows, responses, advantages, strict=True):
            row.advantages = of_sampled(response, values)
        for row, response, chosen in zip(rows, responses, recorder.chosen.get(step, ()), strict=False):
            row.chosen = of_sampled(response, chosen[: len(response.tokens)].tolist())
        if teacher:
            for row, response in zip(rows, responses, strict=True):
                row.teacher = of_sampled(response, teacher.distributions(response, T).detach())
        reference.prepare(rows)

        passes, minibatches = reference.passes(rows), recorder.minibatches[step]
        assert len(minibatches) == args.num_minibatches * args.update_epochs
        assert len(policy_updates) == (len(passes) * len(minibatches) if reference.learns(step) else 0)
        assert len(critic_updates) == (len(minibatches) if critic else 0)
        for number, (part, minibatch) in enumerate(product(passes, minibatches)):
            counted = [i for i in minibatch if reference.counts(responses[i])]
            left_out += len(minibatch) - len(counted)
            lengths = [reference.length(rows[i]) for i in counted]
            if policy_updates:
                _, optimizer, before, gradients, after = policy_updates[number]
                assert all(map(torch.equal, before, current)), "the weights moved between two updates"
                current = after
                learner.set(before)
                learner.model.zero_grad()
                of_rows = []
                for i in counted:
                    every = of_sampled(responses[i], learner.distributions(responses[i], T))
                    logps = [d[token] for d, token in zip(every, rows[i].tokens, strict=True)]
                    of_rows.append((logps, every))
                    rows[i].new = numbers(logps)
                    rows[i].top_new = [
                        {v: d[v].item() for v in top} for d, top in zip(every, rows[i].top_rollout, strict=False)
                    ]
                reference.prepare_update([rows[i] for i in counted], [responses[i] for i in counted])
                for position, (i, (logps, every)) in enumerate(zip(counted, of_rows, strict=True)):
                    _, slopes = reference.with_kl(rows[i])
                    weight = reference.weight(lengths, position)
                    more = reference.slope_beside([responses[j] for j in counted], position)
                    terms = zip(slopes, reference.entropy_slopes(rows[i]), logps, every, part[i], strict=True)
                    loss = sum(
                        has * ((weight * a + more) * logp + weight * b * entropy(d)) for a, b, logp, d, has in terms
                    )
                    (loss + weight * reference.distribution_loss(rows[i], every)).backward()
                expected = [torch.zeros_like(p) if p.grad is None else p.grad for p in learner.parameters]
                close(gradients, clipped(expected, args.max_grad_norm), f"gradient, step {step}, update {number}")
                check_adam(adams[optimizer], before, gradients, after, rate(args, step), args.weight_decay)

            if critic:
                _, optimizer, before, gradients, after = critic_updates[number]
                critic.set(before)
                critic.zero_grad()
                for position, i in enumerate(counted):
                    everything = critic.values(responses[i]), old_values[i], returns[i]
                    values, old, targets = (of_sampled(responses[i], x) for x in everything)
                    slopes = reference.value_slopes(numbers(values), old, targets)
                    weight = reference.weight(lengths, position)
                    sum(weight * slope * v for slope, v in zip(slopes, values, strict=True)).backward()
                expected = [torch.zeros_like(p) if p.grad is None else p.grad for p in critic.parameters]
                close(gradients, clipped(expected, args.max_grad_norm), f"critic's gradient, step {step}")
                lr = rate(args, step) * args.critic_lr / args.lr
                check_adam(adams[optimizer], before, gradients, after, lr, args.weight_decay)
    assert (left_out > 0) == reference.leaves_out(), "responses without a part in the loss"


def whole_runs():
    for name in parents():
        own = type(oracle(name, load(name).Args())).CASES
        # Further methods share these parts of the loop with a parent, to the byte.
        marks = () if script_path(name).parent == ROOT else (pytest.mark.slow,)
        for case in [*own, *(own[0] | shared for shared in SHARED_CASES)]:
            identity = "-".join([name, *(f"{k}:{v}" for k, v in case.items())])
            yield pytest.param(name, case, id=identity, marks=() if case in own else marks)


@pytest.mark.parametrize("name,case", list(whole_runs()))
def test_every_update(name, case, tiny_model, tmp_path, monkeypatch, capsys):
    script, case = load(name), dict(case)
    recorder = Recorder(monkeypatch, script, put_in=case.pop("put_in", False))
    own = SETTINGS | ({"num_minibatches": 1, "update_epochs": 1} if script.Args.num_minibatches == 1 else {})
    if "num_minibatches" in case and script.Args.num_minibatches == 1:
        own |= {"num_minibatches": 2}
    data = {"model": str(tiny_model), "dataset": str(tiny_model / "problems.jsonl"), "run_dir": tmp_path / "run"}
    args = script.Args(**own | case | data | needed(script, tiny_model))
    script.main(args)
    assert [update[0] for update in recorder.updates][-1] == args.steps
    replay(recorder, args, tiny_model, oracle(name, args))
    moved = [
        (a - b).abs().max() for _, _, before, _, after in recorder.updates for a, b in zip(after, before, strict=True)
    ]
    assert max(moved) > 0, "nothing was learned"
