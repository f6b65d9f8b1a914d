"""Records when groups start and end in a generator that never waits, and which weights sample each token."""

from statistics import fmean

from common.records import Rollouts
from recipes import asynchronous


class Schedule:
    """The schedule of one process. A key is a prompt's number and 0, or 1 + the row for an interrupted row."""

    def __init__(self, recorder, monkeypatch):
        self.recorder, self.events = recorder, []  # loads, tokens, ended groups, and groups taken
        self.requests, self.begun = {}, {}  # by key: prompt; weights by token, as in `Response`
        self.ended, self.weights = {}, {}  # by key: responses; by round: weights of each part
        watched = self

        class Watched(asynchronous.Worker):
            def __init__(self, engine, *rest):
                super().__init__(engine, *rest)
                watched.watch_stream(self.stream)

            def load(self, version, weights):
                for key, state in self.paused.items():
                    t = max(state["responses"]["lengths"].tolist())
                    watched.begun[key][t] = len(recorder.loads), self.args.kv == "recompute"
                watched.events.append(("load", version))
                super().load(version, weights)

        class Taken(asynchronous.Generator):
            def take(self):
                groups = super().take()
                watched.record_batch([group.number for group in groups], self.args.responses_per_prompt)
                return groups

        monkeypatch.setattr(asynchronous, "Worker", Watched)
        for script in ("pipeline_rl", "scalerl"):
            monkeypatch.setattr(f"recipes.{script}.Generator", Taken)

    def watch_stream(self, stream):
        recorder, join, take, step = self.recorder, stream.join, stream.take, stream.step

        def joined(keys, request):
            recorder.seeds[recorder.step].append(list(request.seeds))
            for key, prompt in zip(keys, request.prompts, strict=True):
                self.requests[key], self.begun[key] = list(prompt), {0: (len(recorder.loads) - 1, True)}
            join(keys, request)

        def taken():
            found = take()
            self.ended |= {key: recorder.changed(rollouts) for key, rollouts in found.items()}
            self.events += [("part", key) for key in sorted(found)]
            return found

        def stepped():
            self.events.append(("token", bool(stream.groups)))
            step()

        stream.join, stream.take, stream.step = joined, taken, stepped

    def record_batch(self, numbers, n):
        """A step's batch: groups in the order in which they ended, and a second round with the endings of cut rows."""
        recorder = self.recorder
        self.events.append(("take", numbers))
        whole = [(number, 0) for number in numbers]
        parts = sorted(key for key in self.ended if key[0] in numbers and key[1])
        parts.sort(key=lambda key: numbers.index(key[0]))
        raw, moved = zip(*recorder.loads, strict=True)
        for keys, size in ((whole, n), (parts, 1)):
            rollouts = Rollouts.join(self.ended[key] for key in keys)
            self.weights[id(rollouts)] = [self.begun[key] for key in keys]
            if keys:
                prompts = [self.requests[key] for key in keys]
                recorder.rounds[recorder.step].append([prompts, size, rollouts, raw[-1:], moved])

    def numbers(self, step, args):
        """What a step must log about the queue, computed independently from the events up to its end."""
        queue, ended, P = set(), set(), args.prompts_per_step
        dropped = tokens = idle = 0

        def age(number):
            return version - self.begun[number, 0][0][0]

        for kind, value in self.events:
            if kind == "load":
                version, waits = value, True
                if version == step:
                    break
                dropped = tokens = idle = 0
            elif kind == "take":
                waits, ages = False, [age(number) for number in value]
                queue -= set(value)
            elif kind == "token":
                tokens, idle = tokens + 1, idle + (not value)
            else:
                ended.add(value)
                number = value[0]
                if {key for key in self.requests if key[0] == number} <= ended:
                    queue.add(number)
            old = {number for number in queue if waits and age(number) > args.staleness}
            dropped, queue = dropped + len(old), queue - old
        return {
            "age": fmean(ages),
            "oldest": max(ages),
            "generator_idle": idle / max(1, tokens),
            "dropped_groups": dropped,
            "queued_groups": len(queue),
            "sampled_prompts": P * (args.staleness + 1 if step == 1 else 1) + dropped,
        }
