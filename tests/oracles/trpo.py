import math

from oracles import Row, at_least, positive, reinforce, without

import torch
from slow import close, of_sampled
from torch.nn.attention import SDPBackend, sdpa_kernel

FIXED = {"weight_decay": 0.0, "warmup_steps": 2}  # TRPO's step has no weight decay


class Oracle(reinforce.Oracle):
    CASES = [
        FIXED | {"delta": 0.02, "cg_iterations": 3, "damping": 0.1, "fisher_every": 2, "lr": 1.0, "baseline": "ema"}
        | {"ema_decay": 0.7, "kl_beta": 0.3, "tis_cap": 1.1, "num_minibatches": 2, "update_epochs": 2, "steps": 3},
        FIXED | {"baseline": "none", "tis_cap": 0.0, "cg_iterations": 1, "lr": 0.5, "delta": 1.0},
        FIXED | {"fisher_every": 1, "damping": 0.01, "cg_iterations": 4, "delta": 1e-4, "lr": 1.0},
    ]  # fmt: skip
    RANGES = without(reinforce.Oracle.RANGES) | {
        "delta": positive,
        "cg_iterations": at_least(1),
        "damping": positive,
        "fisher_every": at_least(1),
    }
    DEFAULTS = reinforce.Oracle.DEFAULTS | {
        "delta": 1e-3,
        "cg_iterations": 10,
        "damping": 1.0,
        "fisher_every": 5,
        "lr": 1.0,
        "steps": 40,
        "learner_precision": "fp32",
    }
    ELSEWHERE = {"learner_precision"}  # has only one value

    def settings_fit(self):
        return self.args.weight_decay == 0

    def weight(self, lengths, i):
        return 1 / sum(lengths)

    def row(self, row: Row):
        losses = [-w * a * r for w, a, r in zip(self.tis(row), row.advantages, self.ratios(row), strict=True)]
        return losses, losses

    def check_step(self, model, some, gradient, update, lr, what):
        """Check a step against exact products and a line search in float64; return its logged numbers."""
        _, _, before, minus_step, after = update
        args, T = self.args, self.args.temperature
        old = [of_sampled(response, [d.detach() for d in model.distributions(response, T)]) for _, response, _ in some]

        def mean_kl(which):
            parts = [
                (p.exp() * (p - q)).sum()
                for i in which
                for p, q in zip(old[i], of_sampled(some[i][1], model.distributions(some[i][1], T)), strict=True)
            ]
            return sum(parts) / len(parts)

        def product(v):
            with sdpa_kernel(SDPBackend.MATH):  # other backends have no second derivative
                first = torch.autograd.grad(
                    mean_kl(range(0, len(some), args.fisher_every)), model.parameters, create_graph=True
                )
                along = sum((g * part).sum() for g, part in zip(first, v, strict=True))
                second = torch.autograd.grad(along, model.parameters)
            return [h + args.damping * part for h, part in zip(second, v, strict=True)]

        def look(change):
            model.set([b.double() + c for b, c in zip(before, change, strict=True)])
            loss, rows = 0.0, [row for row, _, _ in some]
            with torch.no_grad():
                for row, response, _ in some:
                    every = of_sampled(response, model.distributions(response, T))
                    new = [d[token].item() for d, token in zip(every, row.tokens, strict=True)]
                    at = Row(new, row.old, row.rollout, row.advantages)
                    loss += sum(self.row(at)[0]) / sum(len(r.old) for r in rows)
                return loss, mean_kl(range(len(some))).item()

        s = solve(product, [-g for g in gradient], args.cg_iterations)
        size = math.sqrt(2 * args.delta / inner(s, product(s)))
        start, numbers = look([0 * part for part in s])[0], {"step_kl": 0.0, "step_fraction": 0.0}
        step = [0 * part for part in s]
        for fraction in (lr / 2**j for j in range(10)):
            loss, kl = look([fraction * size * part for part in s])
            if loss < start and kl <= args.delta:
                step, numbers = [fraction * size * part for part in s], {"step_kl": kl, "step_fraction": fraction}
                break
        moved = [a.double() - b.double() for a, b in zip(after, before, strict=True)]
        close(moved, [-lr * g for g in minus_step], f"SGD, {what}", 1e-5)
        wrong = math.sqrt(inner(*[[m - p for m, p in zip(moved, step, strict=True)]] * 2))
        assert wrong <= 0.01 * math.sqrt(inner(step, step)) + 1e-6, f"{what}: step off by {wrong}"
        look(moved)
        assert mean_kl(range(len(some))) <= args.delta * 1.0001, f"{what}: outside the trust region"
        return numbers


def inner(a, b):
    return sum((x * y).sum().item() for x, y in zip(a, b, strict=True))


def solve(product, b, iterations):
    """Textbook conjugate gradients: each direction is made conjugate to all previous ones."""
    x, directions = [0 * part for part in b], []
    for _ in range(iterations):
        image = product(x)
        direction = residual = [part - i for part, i in zip(b, image, strict=True)]
        for other, of_other in directions:
            overlap = inner(residual, of_other) / inner(other, of_other)
            direction = [d - overlap * o for d, o in zip(direction, other, strict=True)]
        image = product(direction)
        size = inner(direction, residual) / inner(direction, image)
        x = [part + size * d for part, d in zip(x, direction, strict=True)]
        directions.append((direction, image))
    return x
