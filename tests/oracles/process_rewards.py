import math
from statistics import fmean, pstdev, stdev

from oracles import ENGINE_ANCHOR, ONE_UPDATE, at_least, grpo, ppo

import torch
from slow import AdamW, check_adam, close
from transformers import AutoTokenizer

# At a smaller rate a group's probabilities are almost equal, and dividing by their std would magnify rounding.
OFTEN = {"labeled_problems": 3, "label_samples": 2, "reward_model_updates": 2, "reward_model_lr": 0.03, "steps": 3}


class Oracle(grpo.Oracle):
    LEARNS_WHEN_ALL_IS_CORRECT = True  # the reward model scores every response differently
    CASES = [
        OFTEN | {"step_ends": "abcdefghijklm<>.+", "train_every": 2, "labels": "hard"}
        | {"clip_eps": 0.05, "kl_beta": 0.3, "tis_cap": 1.1},
        OFTEN | {"step_ends": "0123456789ABCDEFGHIJKLM", "train_every": 1, "ddof": 0, "tis_cap": 0.0},
        OFTEN | {"step_ends": "abcdefghijklmABCDEFGHIJKLM", "train_every": 0} | ENGINE_ANCHOR,
        OFTEN | {"step_ends": "", "labeled_problems": 4} | ONE_UPDATE,
    ]  # fmt: skip
    RANGES = {
        **grpo.Oracle.RANGES,
        "train_every": at_least(0),
        "labeled_problems": at_least(1),
        "label_samples": at_least(1),
        "reward_model_lr": lambda v: 0 < v <= 1,
        "reward_model_updates": at_least(1),
    }
    DEFAULTS = {
        **grpo.Oracle.DEFAULTS,
        "train_every": 5,
        "labeled_problems": 64,
        "label_samples": 8,
        "labels": "soft",
        "reward_model_lr": 3e-4,
        "reward_model_updates": 60,
        "step_ends": "\n",
        "model": "search",
        "dataset": "search",
    }

    def batch(self, rounds):
        """The last round has the batch; labeled responses and continuations of their steps come before it."""
        return rounds[-1]

    def ends(self, response):
        """The end of each step; a step that is only the last token belongs to the previous one."""
        tokenizer = AutoTokenizer.from_pretrained("worlds/sums/model")
        ends = [
            t + 1
            for t, token in enumerate(response.tokens)
            if t + 2 < len(response.tokens) and set(tokenizer.decode([token])) & set(self.args.step_ends)
        ]
        return [*ends, len(response.tokens)]

    def labels(self, rounds):
        """For each labeled response, the end and the label of each step."""
        labeled, continued = rounds[0], rounds[1] if len(rounds) == 3 else []
        found = {}
        for (response,) in continued:
            found.setdefault(tuple(response.prompt), []).append(float(response.correct))
        assert all(len(correct) % self.args.label_samples == 0 for correct in found.values())
        of_all = []
        for (response,) in labeled:
            *inner, last = self.ends(response)
            states = [found[*response.prompt, *response.tokens[:end]] for end in inner]
            inside = [max(correct) if self.args.labels == "hard" else fmean(correct) for correct in states]
            of_all.append((response, [*zip(inner, inside, strict=True), (last, float(response.correct))]))
        return of_all

    def check_second_model(self, updates, rounds, folder):
        """Check a step's updates of the reward model: cross-entropy with the labels, by AdamW without a schedule."""
        if not hasattr(self, "model"):
            self.model = ppo.Critic(folder)
        step, every = rounds[0][0][0].step, self.args.train_every
        due = step == 1 or (every > 0 and step % every == 1 % every)
        assert len(updates) == (self.args.reward_model_updates if due else 0)
        labels, adam = self.labels(rounds) if due else [], AdamW()
        count = sum(len(of_steps) for _, of_steps in labels)
        for number, (step, _, before, gradients, after) in enumerate(updates):
            self.model.set(before)
            self.model.zero_grad()
            for response, of_steps in labels:
                logits = self.model.values(response)  # before each token: the model reads a step without its last token
                chosen = [logits[end - 1] for end, _ in of_steps]
                slopes = [1 / (1 + math.exp(-z.item())) - y for z, (_, y) in zip(chosen, of_steps, strict=True)]
                sum(slope / count * z for slope, z in zip(slopes, chosen, strict=True)).backward()
            expected = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.model.parameters]
            what = f"step {step}, update {number} of the reward model"
            close(gradients, expected, f"gradient, {what}")
            check_adam(adam, before, gradients, after, self.args.reward_model_lr, self.args.weight_decay, what)
            self.model.set(after)

    def chances(self, response):
        with torch.no_grad():
            logits = self.model.values(response)
        return [1 / (1 + math.exp(-logits[end - 1].item())) for end in self.ends(response)]

    def token_advantages(self, responses):
        G, rows = self.args.responses_per_prompt, []
        for first in range(0, len(responses), G):
            group = responses[first : first + G]
            chances = [self.chances(response) for response in group]
            every = [r for of_steps in chances for r in of_steps]
            mean, std = fmean(every), (stdev if self.args.ddof else pstdev)(every)
            for response, of_steps in zip(group, chances, strict=True):
                pairs = list(zip(self.ends(response), of_steps, strict=True))
                rows.append([
                    sum((r - mean) / (std + 1e-6) for end, r in pairs if end > t) for t in range(len(response.tokens))
                ])  # fmt: skip
        return rows

    def step_numbers(self, rounds, groups, rows):
        responses = [response for group in groups for response in group]
        chances = [self.chances(response) for response in responses]
        right = [(c[-1] > 0.5) == r.correct for c, r in zip(chances, responses, strict=True)]
        return {
            "process_reward": fmean(r for of_steps in chances for r in of_steps),
            "reward_model_accuracy": fmean(right),
            "response_steps": fmean(map(len, chances)),
        }
