"""Functions for one class that no script has: a key draws their names, shapes, constants and conventions.

    python -m notebooks.exercises.make handout --key SECRET
    python -m notebooks.exercises.grade SUBMISSION --key SECRET

For each of eight kinds a small grammar gives parts of a definition, each in words and as code. The words go into the
handout's variants.py, the code is the solution, so both always say the same. The same key draws the same functions.
"""

import random
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from notebooks.exercises.cases import Draw, packed
from notebooks.exercises.exercises import Exercise

import torch
from torch import Tensor

SHAPES = ((6, 10), (6, 10), (8, 5), (4, 13))
# Names for the functions of each kind, and for parameters.
FUNCTIONS = {
    "compute_advantages": "credit standing edge merit", "token_weights": "shares portions emphasis density",
    "policy_loss": "surrogate criterion pressure target", "tis_weight": "correction repair adjustment balance",
    "kl_penalty": "leash distance drift_cost tether", "has_signal": "informative useful admitted worth_training",
    "value_loss": "critic_cost regret_of_value fit_cost critic_error", "returns": "outlook targets forecast reach",
}  # fmt: skip
PARAMETERS = {
    "rewards": "scores payoff marks", "mask": "real kept valid", "logp": "now log_p current",
    "old_logp": "before log_q earlier", "advantages": "gains pushes credits", "rollout_logp": "engine_logp log_mu said",
    "ref_logp": "frozen log_ref origin", "correct": "solved hits right", "values": "guesses estimates v",
    "old_values": "guesses_before v_old former", "returns": "outcomes goals z",
}  # fmt: skip


@dataclass(frozen=True)
class Variant(Exercise):
    """A function drawn by a key. `kind` is the scripts' function that it resembles, `roles` their names of its
    parameters, and `turned` says whether its tensors have rows and columns exchanged."""

    kind: str = ""
    text: str = ""
    roles: tuple[str, ...] = ()
    turned: bool = False

    @property
    def source(self) -> str:
        return self.text

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    def module(self, source: str | None = None) -> ModuleType:
        made = ModuleType("variants")
        made.__dict__.update(torch=torch, Tensor=Tensor)
        exec(source or self.text, made.__dict__)
        return made


class Pen:
    """Draws the parts of a definition."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.turned = self.rng.random() < 0.5
        self.d = 0 if self.turned else 1  # the dimension along a row or group

    def one(self, *choices: Any) -> Any:
        return self.rng.choice(choices)

    def shape(self, rows: str, columns: str) -> str:
        return f"({columns}, {rows})" if self.turned else f"({rows}, {columns})"


def advantages(pen: Pen) -> tuple[str, str]:
    d, c, bound = pen.d, pen.one(0.1, 0.2, 0.3, 0.5), pen.one(0, 0.2, 0.3, 0.4)
    most, least = f"rewards.amax({d}, True)", f"rewards.amin({d}, True)"
    b, base = pen.one(
        ("the median of its group (with an even G, the smaller of the middle two)", f"rewards.median({d}, True)[0]"),
        ("the middle between the best and the worst reward of its group", f"({most} + {least}) / 2"),
        (f"{1 - c} times the mean of its group", f"{1 - c} * rewards.mean({d}, True)"),
        ("the mean of the others in its group", f"(rewards.sum({d}, True) - rewards) / (rewards.shape[{d}] - 1)"),
    )  # fmt: skip
    s, scale = pen.one(
        ("the mean over its group of |R - b|", f"(rewards - b).abs().mean({d}, True)"),
        ("the range of its group, the largest minus the smallest reward", f"{most} - {least}"),
        ("the root of the mean of R² in its group", f"rewards.square().mean({d}, True).sqrt()"),
        ("the std of the whole batch, which divides by P G", "rewards.std(correction=0)"),
    )  # fmt: skip
    words = (
        f"`rewards` {pen.shape('P', 'G')} in, advantages of the same shape out; a group is the G rewards of a prompt.\n"
        f"A = (R - b) / (s + {c}), where b is {b},\nand s is {s}."
    )
    code = f"b = {base}\ns = {scale}\nA = (rewards - b) / (s + {c})\n"
    if bound:
        return f"{words} A is then limited to ±{bound}.", f"{code}return A.clamp(-{bound}, {bound})"
    return words, f"{code}return A"


def weights(pen: Pen) -> tuple[str, str]:
    d, c = pen.d, pen.one(2, 3, 5)
    group = "n.view(-1, G).{}(1, keepdim=True){}.expand(-1, G).flatten()"
    words_of_n, denominator = pen.one(
        ("the root of n_i", "n.clamp(min=1).sqrt()"),
        (f"n_i + {c}", f"n + {c}"),
        ("the sum of n over the group of response i", group.format("sum", ".clamp(min=1)")),
        ("the largest n in the group of response i", group.format("amax", ".clamp(min=1)")),
    )
    outer, divide = pen.one(
        ("the number of groups", "(len(n) // G)"), ("the number of responses B", "len(n)"), ("2", "2"),
    )  # fmt: skip
    left_out, counted = pen.one(
        ("the first token", f"torch.arange(mask.shape[{d}]) >= 1"),
        (f"every token behind the first {c + 1}", f"torch.arange(mask.shape[{d}]) < {c + 1}"),
        ("every second token (the 2nd, 4th, ...)", f"torch.arange(mask.shape[{d}]) % 2 == 0"),
    )
    words = (
        f"`mask` {pen.shape('B', 'T')} and G in, weights of the same shape out; G neighboring responses are a group.\n"
        f"Of each response, {left_out} does not count: its weight is 0. n_i is the number of tokens of response i\n"
        f"that count. The weight of each is 1 / (x y), where x is {words_of_n}, at least 1 token, and y is {outer}."
    )
    side = "[None]" if d == 0 else "[:, None]"
    along = "[:, None]" if d == 0 else "[None]"
    code = (
        f"m = mask & ({counted}){along}\nn = m.sum({d}).to(torch.get_default_dtype())\n"
        f"return m / ({denominator} * {divide}){side}"
    )
    return words, code


def loss(pen: Pen) -> tuple[str, str]:
    bits, maximized, w = pen.one(False, True), pen.one(False, True), pen.one(0.5, 0.7, 1.5)
    base = "to the base 2" if bits else "natural"
    low, high, c = pen.one(0.65, 0.75, 0.85), pen.one(1.15, 1.3, 1.4), pen.one(0.15, 0.35, 0.5)
    words_of_form, form = pen.one(
        (f"min(r A, r' A), with r' = r limited to [{low}, {high}]", f"torch.min(r * A, r.clamp({low}, {high}) * A)"),
        (f"r' A, with r' = exp(the natural log of r, limited to ±{c})", f"r.log().clamp(-{c}, {c}).exp() * A"),
        (f"r A - {c} (r - 1)²", f"r * A - {c} * (r - 1) ** 2"),
        (f"{c} tanh((r - 1) / {c}) A", f"{c} * torch.tanh((r - 1) / {c}) * A"),
        (f"r A where |r - 1| is at most {c}, and 0 elsewhere", f"torch.where((r - 1).abs() <= {c}, r * A, 0)"),
    )  # fmt: skip
    words = (
        f"Log-probs `logp` and `old_logp`, {base}, and `advantages`, all {pen.shape('B', 'T')}.\n"
        f"r = π_now / π_before; A is the advantage, times {w} where it is negative. J = {words_of_form}.\n"
        f"Returns {'J, which is to be maximized' if maximized else '-J, which is to be minimized'}, of each token."
    )
    code = (
        f"r = torch.exp{'2' * bits}(logp - old_logp)\nA = torch.where(advantages < 0, {w} * advantages, advantages)\n"
        f"return {'' if maximized else '-'}({form})"
    )
    return words, code


def correction(pen: Pen) -> tuple[str, str]:
    C, p, bits = pen.one(1.2, 1.4, 1.8), pen.one(0.5, 0.75, 1.5), pen.one(False, True)
    form, code = pen.one(
        (f"x to the power {p}, at most {C}", f"(x**{p}).clamp(max={C})"),
        (f"x between 1/{C} and {C}, and 0 outside", f"torch.where((x <= {C}) & (x >= 1 / {C}), x, 0)"),
        (f"x limited to [{p / 2}, {C}]", f"x.clamp({p / 2}, {C})"),
        (f"x / (x + {C}), times {1 + C}", f"{1 + C} * x / (x + {C})"),
    )
    base = "to the base 2" if bits else "natural"
    return (
        f"Log-probs `old_logp` of the learner and `rollout_logp` of the engine, {base}, both {pen.shape('B', 'T')}.\n"
        f"With x = π_learner / π_engine, the weight of each token is {form}.",
        f"x = torch.exp{'2' * bits}(old_logp - rollout_logp)\nreturn {code}",
    )


def kl(pen: Pen) -> tuple[str, str]:
    c, bits = pen.one(0.25, 0.3, 2.5, 4.0), pen.one(False, True)
    form, code = pen.one(
        ("(√x - 1)²", "(x.sqrt() - 1) ** 2"),
        ("(x - 1) log x, with the natural log", "(x - 1) * x.log()"),
        ("(x - 1)²", "(x - 1) ** 2"),
        ("√(1 + (log x)²) - 1, with the natural log", "(1 + x.log() ** 2).sqrt() - 1"),
    )
    base = "to the base 2" if bits else "natural"
    return (
        f"Log-probs `logp` and `ref_logp`, {base}, both {pen.shape('B', 'T')}; with x = π_now / π_ref of each token,\n"
        f"the penalty is {c} times {form}.",
        f"x = torch.exp{'2' * bits}(logp - ref_logp)\nreturn {c} * ({code})",
    )


def signal(pen: Pen) -> tuple[str, str]:
    a, b, dropped, d = *pen.one((1, 2), (2, 1), (2, 2), (3, 1)), pen.one(False, True), pen.d
    low, high = pen.one((0.15, 0.85), (0.25, 0.75), (0.0, 0.6), (0.4, 1.0))
    words, code = pen.one(
        (f"at least {a} correct and at least {b} incorrect responses", f"(n >= {a}) & (G - n >= {b})"),
        (f"a fraction of correct responses above {low} and below {high}", f"(n / G > {low}) & (n / G < {high})"),
    )
    return (
        f"`correct` {pen.shape('P', 'G')} of 0 and 1 in, P booleans out. A group is kept if it has {words}.\n"
        f"True means that the group is {'dropped' if dropped else 'kept'}.",
        f"n, G = correct.sum({d}), correct.shape[{d}]\nreturn {'~' * dropped}({code})",
    )


def value(pen: Pen) -> tuple[str, str]:
    c, k = pen.one(0.15, 0.3, 0.45), pen.one(0.7, 1.5, 3.0)
    words, code = pen.one(
        (f"e² / 2 where |e| is at most {c}, and {c} (|e| - {c} / 2) elsewhere",
         f"torch.nn.functional.huber_loss(e, torch.zeros_like(e), reduction='none', delta={c})"),
        (f"{c} e² where e is positive, {1 - c} e² where it is negative", f"torch.where(e > 0, {c}, {1 - c}) * e**2"),
        (f"the mean of e² and f², where f is the error of the value after limiting it to within {c} of the old value",
         f"(e**2 + (old_values + (values - old_values).clamp(-{c}, {c}) - returns) ** 2) / 2"),
    )  # fmt: skip
    return (
        f"`values`, `old_values` and `returns`, all {pen.shape('B', 'T')}. e is the value minus the return.\n"
        f"The loss of each token is {k} times\n{words}.",
        f"e = values - returns\nreturn {k} * ({code})",
    )


def recursion(pen: Pen) -> tuple[str, str]:
    g, lam, end = pen.one(0.8, 0.9), pen.one(0.3, 0.5, 0.7), pen.one(0.2, 0.4, -0.3)
    minus, d = pen.one(False, True), pen.d
    turn = ".T" if d == 0 else ""
    return (
        f"`rewards`, `values` and `mask`, all {pen.shape('B', 'T')}. From the end of each response,\n"
        f"z_t = r_t + {g} ((1 - {lam}) V_t+1 + {lam} z_t+1); behind the last token, V and z are {end}.\n"
        f"Returns {'z_t - V_t' if minus else 'z_t'}, of the same shape, 0 on padding.",
        f"r, v, m = rewards{turn}, values{turn}, mask{turn}\nz = torch.zeros_like(r)\n"
        f"after_v = after_z = torch.full_like(r[:, 0], {end})\n"
        f"for t in reversed(range(r.shape[1])):\n"
        f"    now = r[:, t] + {g} * ((1 - {lam}) * after_v + {lam} * after_z)\n"
        f"    z[:, t] = (now{' - v[:, t]' if minus else ''}) * m[:, t]\n"
        f"    after_v, after_z = torch.where(m[:, t], v[:, t], after_v), torch.where(m[:, t], now, after_z)\n"
        f"return z{turn}",
    )


# By kind: the grammar, the level, and the parameters by the scripts' names.
KINDS = {
    "compute_advantages": (advantages, 1, ("rewards",)),
    "token_weights": (weights, 2, ("mask", "G")),
    "policy_loss": (loss, 2, ("logp", "old_logp", "advantages")),
    "tis_weight": (correction, 1, ("old_logp", "rollout_logp")),
    "kl_penalty": (kl, 1, ("logp", "ref_logp")),
    "has_signal": (signal, 1, ("correct",)),
    "value_loss": (value, 2, ("values", "old_values", "returns")),
    "returns": (recursion, 3, ("rewards", "values", "mask")),
}


def variants(key: str) -> list[Variant]:
    """The functions that a key draws, one per kind."""
    return [variant(key, kind) for kind in KINDS]


def variant(key: str, kind: str) -> Variant:
    (grammar, level, roles), pen = KINDS[kind], Pen(f"{key}/{kind}")
    words, code = grammar(pen)
    function = pen.one(*FUNCTIONS[kind].split())
    names = {role: pen.one(*PARAMETERS.get(role, role).split()) for role in roles}
    code = re.sub("|".join(rf"\b{role}\b" for role in names), lambda found: names[found[0]], code)
    words = re.sub(r"`(\w+)`", lambda found: f"`{names[found[1]]}`", words)
    typed = ", ".join(f"{name}: {'int' if name == 'G' else 'Tensor'}" for name in names.values())
    lines = [f"def {function}({typed}) -> Tensor:", *(f"    {line}" for line in code.splitlines())]
    return Variant("variants", function, level, words, "", kind, "\n".join(lines), roles, pen.turned)


def blank_variants(key: str) -> str:
    """The handout's variants.py: the definitions in words, without solutions."""
    parts = ['"""Functions of this class alone. Write each as its text defines it; no script holds them."""\n']
    parts.append("import torch\nfrom torch import Tensor\n")
    for made in variants(key):
        head, words = made.text.splitlines()[0], textwrap.fill(made.task, 110, subsequent_indent=" " * 4)
        parts.append(f'\n{head}\n    """{words}"""\n    raise NotImplementedError("yours to write")\n')
    return "\n".join(parts)


def variant_cases(exercise: Variant, seed: int) -> Iterator[dict[str, Any]]:
    """Cases in the format of `cases.cases`."""
    draw = Draw(seed)
    for shape, dtype in (*((shape, torch.double) for shape in SHAPES), (SHAPES[0], torch.float)):
        given = values_of(draw, mask := draw.mask(*shape))
        inputs = [given[role] for role in exercise.roles]
        case: dict[str, Any] = {"kind": exercise.kind, "setting": {}, "varied": shape != SHAPES[0]}
        turned = [x.T.contiguous() if isinstance(x, Tensor) and exercise.turned else x for x in inputs]
        if exercise.kind in ("policy_loss", "kl_penalty", "value_loss"):
            weights = draw.uniform(0.5, 1.5, *shape) * mask
            case["weights"] = packed(weights.T if exercise.turned else weights, dtype)
        if exercise.kind in ("tis_weight", "kl_penalty"):
            case["shown"] = packed(mask.T if exercise.turned else mask)
        yield case | {"inputs": [packed(x, dtype) for x in turned]}


def correct(draw: Draw, P: int, G: int) -> Tensor:
    """(P, G) of 0 and 1, with each number of correct responses in turn."""
    counts = (torch.arange(P) % (G + 1))[torch.randperm(P, generator=draw.generator)]  # (P,)
    return (torch.rand(P, G, generator=draw.generator).argsort(1) < counts[:, None]).double()


def values_of(draw: Draw, mask: Tensor) -> dict[str, Any]:
    """Inputs (rows, columns), by the scripts' parameter names."""
    old, (moves, signed) = draw.uniform(-3.0, -0.05, *mask.shape), draw.moves(mask)
    former, errors = draw.normal(*mask.shape), draw.normal(*mask.shape)
    return {
        "mask": mask,
        "G": 2,
        "correct": correct(draw, 2 * len(mask), mask.shape[1]),
        "rewards": draw.normal(*mask.shape),
        "old_logp": old,
        "logp": (old + 1.5 * moves).clamp(max=-0.01),
        "ref_logp": old,
        "rollout_logp": (old + 1.2 * draw.normal(*mask.shape)).clamp(max=-0.01),
        "advantages": signed,
        "old_values": former,
        "values": former + 0.5 * draw.normal(*mask.shape),
        "returns": former + errors,
    }
