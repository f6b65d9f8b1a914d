"""Mutations made from the syntax tree of a file.

Each one changes a single place: a comparison, a number or truth value, a sign or operator, the order of two arguments,
a name, or a statement that is left out. Annotations, decorators, defaults of settings and messages stay as they are.
"""

import ast
from collections.abc import Iterator

from tools.mutations.mutation import Mutation
from tools.scripts import ROOT

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.Pow: ast.Mult,
}  # fmt: skip
Function = ast.FunctionDef | ast.AsyncFunctionDef
MESSAGES = {"fail", "print", "say", "write_line", "ValueError", "RuntimeError", "TypeError"}  # their arguments are text


def swapped(node: ast.AST, names: list[str]) -> Iterator[tuple[str, ast.AST]]:
    """What a node can be changed to, with the kind of change; `names` are the function's parameters."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        yield "comparison", ast.Compare(node.left, [COMPARISONS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield "constant", ast.Constant(node.value + 1 if isinstance(node.value, int) else node.value * 2 + 0.5)
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not is_text(node):
        yield "sign", ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.Not | ast.Invert):
        yield "sign", node.operand
    elif isinstance(node, ast.BoolOp):
        yield "sign", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.Call) and can_swap(node.args):
        yield "argument order", ast.Call(node.func, [node.args[1], node.args[0], *node.args[2:]], node.keywords)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in names and len(names) > 1:
        yield "swapped name", ast.Name(names[(names.index(node.id) + 1) % len(names)])
    elif removable(node):
        yield "removed line", ast.Pass()


def can_swap(args: list[ast.expr]) -> bool:
    """Whether the first two arguments of a call can change places, and are not the same."""
    starred = any(isinstance(a, ast.Starred) for a in args)
    return len(args) > 1 and not starred and ast.dump(args[0]) != ast.dump(args[1])


def is_text(node: ast.BinOp) -> bool:
    """Whether strings are joined or repeated."""
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )


def removable(node: ast.AST) -> bool:
    """Whether the names that follow still exist without this statement."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    return is_call or isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break)


def places(node: ast.AST, function: str = "", names: tuple[str, ...] = ()) -> Iterator[tuple[ast.AST, str, list[str]]]:
    """All nodes that may be changed, each with the name and the parameters of its function."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Import | ast.ImportFrom):
                continue
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id in MESSAGES:
                continue
            inside, own = function, names
            if isinstance(child, Function):
                inside, own = child.name, tuple(a.arg for a in child.args.args if a.arg not in ("self", "cls"))
            elif function == "":
                if isinstance(child, ast.ClassDef):
                    inside = ""
                elif isinstance(child, ast.If) and "__name__" in ast.unparse(child.test):
                    continue
            yield child, inside, list(own)
            yield from places(child, inside, own)


def mutations(file: str) -> list[Mutation]:
    """All of a file, in order."""
    text = (ROOT / file).read_bytes()
    starts, found = [0], []
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, function, names in places(ast.parse(text)):
        if not function or not hasattr(node, "lineno"):
            continue  # constants and settings of a module are data
        start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        for kind, new in swapped(node, names):
            code = ast.unparse(ast.fix_missing_locations(new))
            code = code if isinstance(new, ast.Pass) else f"({code})"
            found.append(Mutation(f"{kind} in {function}", text[start:end].decode(), code, file, "", start))
    return found
