"""A learner in float64, one response at a time: log-probs, gradient clipping, AdamW, and learning rates."""

import math
from statistics import variance

import torch
from transformers import AutoModelForCausalLM, DynamicCache


class Model:
    """A model in float64 that computes one response at a time."""

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        self.model.config._experts_implementation = "eager"  # other implementations do not support float64
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

    def routers(self, response):
        """Router log-probs (L, E) before each token of a response; empty without experts."""
        if not hasattr(self.model.config, "num_local_experts"):
            return []
        tokens = torch.tensor([response.prompt + response.tokens])
        of_layers = self.model(input_ids=tokens, output_router_logits=True).router_logits  # L of (S, E)
        logps = torch.stack([logits.detach().log_softmax(-1) for logits in of_layers], 1)  # (S, L, E)
        return list(logps[len(response.prompt) - 1 : -1])

    def logps(self, response, temperature):
        return [d[token] for d, token in zip(self.distributions(response, temperature), response.tokens, strict=True)]

    def sampled_logps(self, response, temperature, versions):
        """The tokens' log-probs, each under the version of the weights that sampled it."""
        logps = []
        for t, token in enumerate(response.tokens):
            if t in response.weights:
                version, read_again = response.weights[t]
                self.set(versions[version])
                if read_again:
                    cache, unread = DynamicCache(), response.prompt + response.tokens[:t]
            logits = self.model(input_ids=torch.tensor([unread]), past_key_values=cache).logits[0, -1]
            logps.append((logits / temperature).log_softmax(-1)[token])
            unread = [token]
        return logps


def entropy(logps):
    return -(logps.exp() * logps).sum()


def numbers(tensors):
    return [t.item() for t in tensors]


def close(actual, expected, what, rounding=5e-7):
    """Two lists of tensors, as one vector each, agree within float32's precision."""
    a, b = (torch.cat([t.flatten().double() for t in tensors]) for tensors in (actual, expected))
    assert (a - b).norm() <= 2e-4 * b.norm() + rounding, f"{what}: {(a - b).norm():.2e} of {b.norm():.2e}"


def of_sampled(response, values):
    """The values at the sampled tokens."""
    return [value for value, was in zip(values, response.sampled, strict=True) if was] if len(values) else []


def norm(gradients):
    return math.sqrt(sum((g**2).sum().item() for g in gradients))


def clipped(gradients, most):
    return [g * min(1.0, most / (norm(gradients) + 1e-6)) for g in gradients]


def explained_variance(responses, values, returns):
    """The fraction of the returns' variance over all sampled tokens that the critic's values explain."""
    triples = zip(responses, values, returns, strict=True)
    pairs = [pair for r, *both in triples for pair in zip(*(of_sampled(r, x) for x in both), strict=True)]
    return 1 - variance([wanted - v for v, wanted in pairs]) / max(1e-8, variance([wanted for _, wanted in pairs]))


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


def check_adam(adam, before, gradients, after, lr, decay, what):
    """The weights changed as AdamW would change them with these gradients."""
    moved = adam.step([b.double() for b in before], [g.double() for g in gradients], lr, decay)
    actual = [a - b for a, b in zip(after, before, strict=True)]
    rounding = 1e-7 * math.sqrt(sum((b**2).sum().item() for b in before))  # weights are kept in float32
    close(actual, [m - b for m, b in zip(moved, before, strict=True)], f"AdamW, {what}", rounding)


def rate(args, step):
    """A step's learning rate, from the schedules' definition."""
    if step <= args.warmup_steps:
        return args.lr * step / args.warmup_steps
    x = (step - 1 - args.warmup_steps) / (args.steps - args.warmup_steps)
    return args.lr * (math.cos(math.pi * x) + 1) / 2 if args.lr_schedule == "cosine" else args.lr
