import math

from oracles import ENGINE_ANCHOR, Row, grpo, not_negative, positive, without

import torch
from transformers import AutoModelForCausalLM


class Critic:
    """V in float64, one response at a time: the model's body and a scalar head."""

    def __init__(self, folder):
        self.body = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).base_model
        self.head = torch.nn.Linear(self.body.config.hidden_size, 1).double()
        self.parameters = [*self.body.parameters(), *self.head.parameters()]

    def set(self, tensors):
        with torch.no_grad():
            for parameter, value in zip(self.parameters, tensors, strict=True):
                parameter.copy_(value)

    def zero_grad(self):
        for parameter in self.parameters:
            parameter.grad = None

    def values(self, response):
        """The value before each token of the response, given the prompt and the tokens before it."""
        values = []
        for t in range(len(response.tokens)):
            seen = torch.tensor([response.prompt + response.tokens[:t]])
            values.append(self.head(self.body(input_ids=seen).last_hidden_state[0, -1])[0])
        return values


class Oracle(grpo.Oracle):
    LEARNS_WHEN_ALL_IS_CORRECT = True  # the critic starts at 0
    CASES = [
        {"clip_eps": 0.05, "gamma": 0.9, "gae_lambda": 0.7, "value_clip": 0.01, "critic_lr": 0.3}
        | {"kl_beta": 0.3, "tis_cap": 1.1},
        {"kl_beta": 0.3, "tis_cap": 0.0, "critic_lr": 3e-3},
        {"gae_lambda": 1.0} | ENGINE_ANCHOR,
        {"tis_cap": 1.1, "num_minibatches": 1, "update_epochs": 1, "responses_per_prompt": 1},
    ]
    RANGES = {
        **without(grpo.Oracle.RANGES, "ddof"),
        "responses_per_prompt": lambda v: v >= 1,
        "gamma": lambda v: 0 < v <= 1,
        "critic_lr": lambda v: 0 < v <= 1,
        "gae_lambda": lambda v: 0 <= v <= 1,
        "value_clip": positive,
        "kl_beta": not_negative,
    }
    DEFAULTS = {
        **without(grpo.Oracle.DEFAULTS, "ddof"),
        "gamma": 1.0,
        "gae_lambda": 0.95,
        "critic_lr": 3e-4,
        "value_clip": 0.2,
    }

    def critic(self, folder):
        return Critic(folder)

    def token_advantages(self, responses, kl, old_values):
        """Whitened advantages and the critic's targets for every response, per token."""
        rewards = [self.token_rewards(r.correct, ks) for r, ks in zip(responses, kl, strict=True)]
        both = [self.gae(r, v) for r, v in zip(rewards, old_values, strict=True)]
        tokens = [
            a
            for (row, _), response in zip(both, responses, strict=True)
            for a, was in zip(row, response.sampled, strict=True)
            if was
        ]
        return [self.whiten(tokens, row) for row, _ in both], [targets for _, targets in both]

    def token_rewards(self, correct, kl):
        """A response's rewards: minus the KL at each token, plus the reward at the last."""
        rewards = [-self.args.kl_beta * k for k in kl]
        rewards[-1] += float(correct)
        return rewards

    def gae(self, rewards, values):
        """A response's advantages and returns: Â_t = Σ_l (γλ)^l δ_{t+l}, summed forward."""
        gamma, lam, n = self.args.gamma, self.args.gae_lambda, len(rewards)
        after = [*values[1:], 0.0]
        delta = [rewards[t] + gamma * after[t] - values[t] for t in range(n)]
        advantages = [sum((gamma * lam) ** k * delta[t + k] for k in range(n - t)) for t in range(n)]
        return advantages, [a + v for a, v in zip(advantages, values, strict=True)]

    @staticmethod
    def whiten(tokens, values):
        """Rescale values so that all tokens of the rollout batch have mean 0 and sample variance 1."""
        mean = sum(tokens) / len(tokens)
        variance = sum((a - mean) ** 2 for a in tokens) / (len(tokens) - 1)
        return [(a - mean) / math.sqrt(variance + 1e-8) for a in values]

    def weight(self, lengths, i):
        return 1 / sum(lengths)

    def with_kl(self, row: Row):
        return self.row(row)  # the KL is in the rewards

    def value_slopes(self, values, old_values, returns):
        """Derivative of ½ max((V - R)², (clip(V) - R)²) by V, by cases."""
        slopes = []
        for v, old, target in zip(values, old_values, returns, strict=True):
            near = min(max(v, old - self.args.value_clip), old + self.args.value_clip)
            plain = (v - target) ** 2 >= (near - target) ** 2
            slopes.append(v - target if plain or near == v else 0.0)
        return slopes

    def value_losses(self, values, old_values, returns):
        """½ max((V - R)², (clip(V) - R)²) for each token."""
        clip = self.args.value_clip
        triples = zip(values, old_values, returns, strict=True)
        near = [(v, min(max(v, old - clip), old + clip), wanted) for v, old, wanted in triples]
        return [0.5 * max((v - wanted) ** 2, (close - wanted) ** 2) for v, close, wanted in near]

    def rollout_numbers(self, row: Row):
        kl = [(old - ref) * (self.args.kl_beta > 0) for old, ref in zip(row.old, row.ref, strict=True)]
        return {**super().rollout_numbers(row), "kl": kl}

    def token_numbers(self, row: Row):
        return self.clip_numbers(row)
