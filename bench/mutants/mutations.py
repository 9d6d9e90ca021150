"""Small changes of a function's text, the pool for `bench.mutants`: each a plausible mistake of a tired developer.

Comparisons at their bound or reversed, `and` for `or`, a condition dropped or negated, one more or less, a call, an
assignment, a keyword or a bound of a slice dropped, nothing returned. Not changed: text that only affects wording (`raise`, the
log, f-strings), annotations, assertions, and code that runs at import.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Mutation", "mutations"]

_COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
_LOGS = {"_LOG", "warnings", "print"}


class Mutation(NamedTuple):
    """In a module's text, `start` to `end` (bytes) becomes `text`; its function is at `first_line`."""

    start: int
    end: int
    line: int
    first_line: int
    text: str

    def planted(self, source: bytes) -> bytes:
        """The changed module. O(bytes)."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutations(source: bytes) -> list[Mutation]:
    """All changes of all functions of a module, in the order of the text. O(bytes).

    Raises:
        SyntaxError: invalid Python.
    """
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = {}
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and function.name != "__repr__":
            for node in _judged(function.body):
                for replaced, changed in _changes(node):
                    text = ast.unparse(ast.fix_missing_locations(changed))
                    made = Mutation(
                        starts[replaced.lineno - 1] + replaced.col_offset,
                        starts[(replaced.end_lineno or 0) - 1] + (replaced.end_col_offset or 0),
                        replaced.lineno,
                        function.body[0].lineno,
                        f"({text})"
                        if isinstance(changed, ast.BoolOp | ast.BinOp | ast.UnaryOp | ast.IfExp | ast.Compare)
                        else text,
                    )
                    found[made.start, made.end, made.text] = made  # the innermost function is last
    return [found[key] for key in sorted(found)]


def _judged(nodes: list[ast.stmt]) -> Iterator[ast.expr | ast.stmt]:
    """Every statement and expression below that affects more than wording."""
    below: list[ast.AST] = [*nodes]
    while below:
        node = below.pop()
        if isinstance(node, ast.expr | ast.stmt):
            yield node
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Assert) or _is_worded(node):
            continue
        for name, value in ast.iter_fields(node):
            if name not in {"annotation", "returns", "decorator_list", "type_comment"}:
                below += [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, ast.AST)]


def _is_worded(node: ast.AST) -> bool:
    """Whether it is a logging call, or a docstring."""
    if not isinstance(node, ast.Expr):
        return False
    called = node.value.func if isinstance(node.value, ast.Call) else node.value
    while isinstance(called, ast.Attribute):
        called = called.value
    return isinstance(called, ast.Constant) or (isinstance(called, ast.Name) and called.id in _LOGS)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[ast.expr | ast.stmt, ast.AST]]:
    """Pairs of node and replacement."""
    if isinstance(node, ast.If | ast.While) and not isinstance(node.test, ast.Constant):
        yield node.test, ast.UnaryOp(ast.Not(), node.test)
    for changed in _changed(node):
        yield node, changed


def _changed(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:  # noqa: PLR0912 - a table
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in _COMPARED:
            yield _with(node, ops=[_COMPARED[type(op)](), *node.ops[1:]])
        case ast.BoolOp(op=op, values=values):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
            for index in range(len(values)):
                left = values[:index] + values[index + 1 :]
                yield _with(node, values=left) if len(left) > 1 else left[0]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BinOp(op=op) if type(op) in _COMPUTED:
            yield _with(node, op=_COMPUTED[type(op)]())
        case ast.IfExp(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
            yield _with(node, func=ast.Name(_NAMES[name]))
        case ast.Call(keywords=keywords):
            for index in range(len(keywords)):
                yield _with(node, keywords=keywords[:index] + keywords[index + 1 :])
        case ast.Subscript(slice=ast.Slice(lower=lower, upper=upper) as span):
            if lower is not None:
                yield _with(node, slice=_with(span, lower=None))
            if upper is not None:
                yield _with(node, slice=_with(span, upper=None))
        case ast.AugAssign(op=op) if type(op) in _COMPUTED:
            yield _with(node, op=_COMPUTED[type(op)]())
            yield ast.Pass()
        case ast.Expr() if not _is_worded(node) and not isinstance(node.value, ast.Yield | ast.YieldFrom):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.Raise() | ast.Break() | ast.Continue():
            yield ast.Pass()
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield _with(node, value=ast.Constant(None))


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """The node with other fields."""
    changed = copy.copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
