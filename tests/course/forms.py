"""Correct functions in other forms: each solution is rewritten as students might, in at least thirteen ways.

A form rewrites the solution's syntax tree, wraps it, or is written by hand.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import replace

from notebooks.exercises.exercises import BY_NAME, Exercise

REDUCE = {"sum", "mean", "std"}
UNARY = REDUCE | {"exp", "log", "clamp", "square", "cumsum", "abs", "sign", "log_softmax"}


class Rewriter(ast.NodeTransformer):
    """Apply a function to every node, innermost first; it returns the node's replacement, or None to keep it."""

    def __init__(self, change: Callable[[ast.AST], ast.AST | None]) -> None:
        self.change = change

    def visit(self, node: ast.AST) -> ast.AST:
        node = super().generic_visit(node)
        return self.change(node) or node


def text(template: str, **parts: ast.AST) -> ast.expr:
    """Build an expression from a template, with its parts in parentheses."""
    return ast.parse(template.format(**{name: f"({ast.unparse(part)})" for name, part in parts.items()})).body[0].value


def method(node: ast.AST, names: set[str]) -> bool:
    """Whether a node calls one of these methods of a tensor."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
        and not (isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "args"))
    )


def function(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == f"torch.{name}"


def binary(node: ast.AST, kind: type) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, kind)


def keywords(node: ast.Call) -> dict[str, ast.expr]:
    return {keyword.arg: keyword.value for keyword in node.keywords}


def kept(node: ast.AST) -> bool:
    """Whether a node is a call such as x.sum(1, keepdim=True)."""
    return method(node, REDUCE) and [ast.unparse(a) for a in node.args] == ["1"] and "keepdim" in keywords(node)


def functions_for_methods(node):
    if method(node, UNARY):
        attribute = ast.Attribute(ast.Name("torch"), node.func.attr)
        return ast.Call(attribute, [node.func.value, *node.args], node.keywords)


def methods_for_functions(node):
    if any(function(node, name) for name in ("exp", "min", "max", "log", "abs", "sign")):
        return ast.Call(ast.Attribute(node.args[0], node.func.attr), node.args[1:], node.keywords)


def reciprocals(node):
    return text("{a} * (1.0 / {b})", a=node.left, b=node.right) if binary(node, ast.Div) else None


def differences(node):
    return text("-({b} - {a})", a=node.left, b=node.right) if binary(node, ast.Sub) else None


def swapped_factors(node):
    return ast.BinOp(node.right, ast.Mult(), node.left) if binary(node, ast.Mult) else None


def swapped_terms(node):
    return ast.BinOp(node.right, ast.Add(), node.left) if binary(node, ast.Add) else None


def turned_comparisons(node):
    turned = {ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE}
    if isinstance(node, ast.Compare) and type(node.ops[0]) in turned and len(node.ops) == 1:
        return ast.Compare(node.comparators[0], [turned[type(node.ops[0])]()], [node.left])


def new_axis(node):
    if kept(node):
        left = [keyword for keyword in node.keywords if keyword.arg != "keepdim"]
        return text("{x}[:, None]", x=ast.Call(node.func, node.args, left))


def sums_for_means(node):
    if kept(node) and node.func.attr == "mean":
        return text("({x}.sum(1, keepdim=True) / {x}.shape[1])", x=node.func.value)


def where_for_clamp(node):
    if method(node, {"clamp"}):
        low, high = [*node.args, None, None][:2]
        low, high = keywords(node).get("min", low), keywords(node).get("max", high)
        result = node.func.value
        if high is not None:
            result = text("torch.where({x} > {c}, {c}, {x})", x=result, c=high)
        return text("torch.where({x} < {c}, {c}, {x})", x=result, c=low) if low is not None else result


def where_for_minimum(node):
    for name, sign in (("min", "<"), ("max", ">")):
        if function(node, name):
            return text(f"torch.where({{a}} {sign} {{b}}, {{a}}, {{b}})", a=node.args[0], b=node.args[1])


def quotients_for_differences(node):
    if function(node, "exp") and binary(node.args[0], ast.Sub):
        return text("(torch.exp({a}) / torch.exp({b}))", a=node.args[0].left, b=node.args[0].right)


def where_for_masks(node):
    if binary(node, ast.Mult) and ast.unparse(node.right) == "mask":
        return text("torch.where(mask, {x}, 0.0)", x=node.left)


def powers_for_exp(node):
    return text("torch.e ** {x}", x=node.args[0]) if function(node, "exp") else None


REWRITINGS = (
    functions_for_methods, methods_for_functions, reciprocals, differences, swapped_factors, swapped_terms,
    turned_comparisons, new_axis, sums_for_means, where_for_clamp, where_for_minimum, quotients_for_differences,
    where_for_masks, powers_for_exp,
)  # fmt: skip


def rewritten(source: str, change: Callable[[ast.AST], ast.AST | None]) -> str:
    tree = Rewriter(change).visit(ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(tree))


def renamed(source: str) -> str:
    """The function with renamed parameters and local variables."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    names = {n.arg for n in nodes if isinstance(n, ast.arg)}
    names |= {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in nodes:
        if isinstance(node, ast.arg) and node.arg in names:
            node.arg = f"my_{node.arg}"
        elif isinstance(node, ast.Name) and node.id in names:
            node.id = f"my_{node.id}"
    return ast.unparse(tree)


# Wrappers around `inner`, the solution. `each(f, x)` applies f to every tensor in x.
EACH = """
def each(f, x):
    if isinstance(x, (tuple, list)):
        return type(x)(each(f, part) for part in x)
    return f(x) if isinstance(x, torch.Tensor) else x
"""
WRAPPERS = {
    "a partial function": "import functools\n{name} = functools.partial(inner)",
    "an object": "class Function:\n    def __call__(self, *given):\n        return inner(*given)\n{name} = Function()",
    "any parameters": "def {name}(*given, **more):\n    return inner(*given, **more)",
    "a decorator": "import functools\n@functools.wraps(inner)\ndef {name}(*given):\n    return inner(*given)",
}
OF_TENSORS = {
    "in double": "def {name}(*given):\n    double = lambda x: x.double() if x.is_floating_point() else x\n"
    "    kind = next((x.dtype for x in given if isinstance(x, torch.Tensor) and x.is_floating_point()), None)\n"
    "    back = lambda x: x.to(kind) if kind and x.is_floating_point() else x\n"
    "    return each(back, inner(*each(double, given)))",
    "the last row first": "def {name}(*given):\n"
    "    return each(lambda x: x.flip(0), inner(*each(lambda x: x.flip(0), given)))",
    "columns in memory": "def {name}(*given):\n    turn = lambda x: x.T.contiguous().T if x.ndim == 2 else x\n"
    "    return each(turn, inner(*each(turn, given)))",
    "copies": "def {name}(*given):\n    return each(torch.clone, inner(*each(torch.clone, given)))",
}
ROW_BY_ROW = """
def {name}(*given):
    rows = [inner(*each(lambda x: x[i : i + 1], given)) for i in range(len(given[0]))]
    if not isinstance(rows[0], tuple):
        return torch.cat(rows)
    return tuple(torch.cat(parts) if isinstance(parts[0], torch.Tensor) else parts[0] for parts in zip(*rows))
"""
DEPENDENT_ROWS = ("reinforce.compute_advantages", "token_weights", "loop.")
OF_LISTS = ("loop.collate", "loop.exact_rewards", "loop.minibatches", "loop.train", "loop.changed")


def wrapped(source: str, name: str, wrapper: str) -> str:
    return "\n".join([source.replace(f"def {name}(", "def inner(", 1), EACH, wrapper.format(name=name)])


def exercise_of(name: str) -> Exercise:
    return replace(BY_NAME[name], method="dr_grpo") if name == "loop.changed" else BY_NAME[name]


def forms(name: str) -> Iterator[tuple[str, str]]:
    """Yield (title, source) for every form of an exercise's solution; no two are equal."""
    from hand_written import HAND_WRITTEN, PARTS

    exercise = exercise_of(name)
    function, solution = exercise.function, exercise.source
    head = ast.unparse(ast.parse(solution).body[0].args)
    found = {"renamed": renamed(solution)}
    changes = [change for change in REWRITINGS if name not in OF_LISTS or change is not swapped_terms]
    found |= {change.__name__: rewritten(solution, change) for change in changes}
    wrappers = WRAPPERS | ({} if name in OF_LISTS else OF_TENSORS)
    if name not in OF_LISTS and not any(part in name for part in DEPENDENT_ROWS):
        wrappers["row by row"] = ROW_BY_ROW
    found |= {title: wrapped(solution, function, wrapper) for title, wrapper in wrappers.items()}
    for number, body in enumerate(HAND_WRITTEN.get(name, ())):
        lines = [f"    {line}" for line in body.splitlines()]
        found[f"by hand {number}"] = "\n".join([f"def {function}({head}):", *lines])
    for old, new in PARTS.get("loop.train" if name == "loop.changed" else name, ()):
        assert old in solution, f"{name} has no line {old!r}"
        found[f"other words for {old.strip()[:40]}, {len(found)}"] = solution.replace(old, new)
    seen = {ast.dump(ast.parse(solution))}
    for title, source in found.items():
        if (tree := ast.dump(ast.parse(source))) not in seen:
            seen.add(tree)
            yield title, source
