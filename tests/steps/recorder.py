"""Records what a whole run generates and decides, and every optimizer update."""

from collections import defaultdict

from common import run

import torch
from oracles import Response
from schedule import Schedule


class Recorder:
    """Records a run: each step's generated and judged responses, the minibatches, and every optimizer update."""

    def __init__(self, monkeypatch, script, choosing, insert):
        self.rounds, self.minibatches, self.updates, self.chosen = defaultdict(list), defaultdict(list), [], {}
        self.seeds = defaultdict(list)  # by step, a list of prompt seeds for each generation
        self.step, self.loads = 0, []  # the engine's weights, original and shifted
        self.insert, self.schedule = insert, None
        monkeypatch.setattr(run.Run, "evaluate", lambda *args: None)
        monkeypatch.setattr(run.Run, "summarize", lambda *args: None)
        self.watch_learner(monkeypatch, script, choosing)
        self.watch_engine(monkeypatch, script)
        if hasattr(script, "Generator"):
            self.schedule = Schedule(self, monkeypatch)

    def watch_learner(self, monkeypatch, script, choosing):
        """Record the step's number, verdicts, chosen tokens, minibatches, and updates."""
        recorder, verifier, minibatches = self, script.Verifier, script.minibatches
        seed_step, choose = run.seed_step, getattr(script, choosing, None)

        def next_step(seed, step):
            recorder.step = step
            return seed_step(seed, step)

        class Judge(verifier):
            """Gives pseudo-random verdicts, the same for the same response."""

            def judge(self, responses, golds, truncated):
                waiting = [r for r in recorder.rounds[recorder.step] if len(r) == 5]
                if not waiting:  # verdicts by the majority answer come after those by the data set
                    return super().judge(responses, golds, truncated)
                verdicts = [
                    sum(map(ord, text)) % 3 == 0 and not cut for text, cut in zip(responses, truncated, strict=True)
                ]
                waiting[0].append(verdicts)
                return verdicts

        def recorded_minibatches(*args):
            for rows in minibatches(*args):
                recorder.minibatches[recorder.step].append(rows.tolist())
                yield rows

        def recorded_step(update, optimizer, *args):
            parameters = optimizer.param_groups[0]["params"]
            before = [p.detach().clone() for p in parameters]
            gradients = [p.grad.clone() for p in parameters]
            update(optimizer, *args)
            after = [p.detach().clone() for p in parameters]
            recorder.updates.append((recorder.step, id(optimizer), before, gradients, after))

        def recorded_choice(*args):
            recorder.chosen[recorder.step] = choose(*args)
            return recorder.chosen[recorder.step]

        monkeypatch.setattr(run, "seed_step", next_step)
        monkeypatch.setattr(script, "Verifier", Judge)
        monkeypatch.setattr(script, "minibatches", recorded_minibatches)
        for kind in (torch.optim.AdamW, torch.optim.SGD):
            step = kind.step
            monkeypatch.setattr(kind, "step", lambda *args, step=step: recorded_step(step, *args))
        if choose:
            monkeypatch.setattr(script, choosing, recorded_choice)

    def watch_engine(self, monkeypatch, script):
        """Shift the engine's weights slightly from the learner's, and record what it samples."""
        recorder, make_engine = self, script.make_engine

        def shifted(args, *rest):
            engine = make_engine(args, *rest)
            update, sample_shards = engine.update, engine.sample_shards

            def update_shifted(weights):
                weights = list(weights)
                noise = torch.Generator().manual_seed(0)
                moved = [(name, w.detach() + 0.05 * torch.randn(w.shape, generator=noise)) for name, w in weights]
                recorder.loads.append(([w.detach().clone() for _, w in weights], [weight for _, weight in moved]))
                update(moved)

            def recorded(request):
                recorder.seeds[recorder.step].append(list(request.seeds))
                recorder.loads = recorder.loads[-1:]
                rollouts = recorder.changed(sample_shards(request))
                recorder.rounds[recorder.step].append(
                    [request.prompts, request.n, rollouts, *zip(*recorder.loads, strict=True)]
                )
                return rollouts

            engine.update, engine.sample_shards = update_shifted, recorded
            return engine

        monkeypatch.setattr(script, "make_engine", shifted)

    def changed(self, rollouts):
        """With `insert`, mark some tokens as not sampled."""
        for sampled, logps in zip(rollouts.sampled, rollouts.logps, strict=True):
            for t in range(1, len(sampled) - 1, 3) if self.insert else ():
                sampled[t], logps[t] = False, 0.0
        return rollouts

    def groups(self, step):
        """A step's responses, as rounds of groups."""
        rounds = []
        for prompts, n, rollouts, _, _, *judged in self.rounds[step]:
            verdicts = judged[0] if judged else [None] * len(rollouts.tokens)  # parts of responses have no verdict
            weights = self.schedule.weights.get(id(rollouts)) if self.schedule else None
            responses = [
                Response(
                    prompts[i // n], tokens, rollouts.logps[i], rollouts.truncated[i], verdicts[i], rollouts.sampled[i],
                    [dict(zip(ids.tolist(), logps.tolist(), strict=True)) for ids, logps in
                     zip(rollouts.top_ids[i], rollouts.top_logps[i], strict=True)] if rollouts.top_ids else [], step,
                    *([weights[i // n]] if weights else []),
                )
                for i, tokens in enumerate(rollouts.tokens)
            ]  # fmt: skip
            rounds.append([responses[i : i + n] for i in range(0, len(responses), n)])
        return rounds
