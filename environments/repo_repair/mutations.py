"""Small faults, one at a time: what a tired programmer might write, made from the syntax tree.

A fault replaces one stretch of text, so that everything else of the file stays as it is. `mutations(source)` lists
all of a file in a fixed order; whether a fault is one is for the tests to say (`validation`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

GENERATOR = "repo_repair/1"
"""Counted up when the same catalogue entry would give another fault."""

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """Replaces `text` at `start`, in characters, by `replacement`."""

    operator: str
    start: int
    text: str
    replacement: str

    def apply(self, source: str) -> str:
        """The faulty file."""
        end = self.start + len(self.text)
        assert source[self.start : end] == self.text
        return source[: self.start] + self.replacement + source[end:]


def mutations(source: str) -> list[Mutation]:
    """All faults of a file, in order; none twice, none that changes nothing."""
    offsets = _line_offsets(source)
    found: dict[tuple[int, str, str], Mutation] = {}
    for node in ast.walk(ast.parse(source)):
        for operator, target, changed in _faults(node):
            start = offsets[target.lineno - 1] + target.col_offset
            assert target.end_lineno is not None
            assert target.end_col_offset is not None
            text = source[start : offsets[target.end_lineno - 1] + target.end_col_offset]
            replacement = changed if isinstance(changed, str) else _written(changed, target)
            if replacement != text:
                found.setdefault((start, text, replacement), Mutation(operator, start, text, replacement))
    return sorted(found.values(), key=lambda one: (one.start, one.operator, one.replacement))


Fault = tuple[str, ast.expr | ast.stmt, ast.AST | str]
"""Operator, the node whose text is replaced, and by what."""


def _faults(node: ast.AST) -> Iterator[Fault]:
    if isinstance(node, ast.Compare):
        yield from _comparisons(node)
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield "arithmetic", node, ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield "boolean", node, ast.BoolOp(other, node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "boolean" if isinstance(node.op, ast.Not) else "arithmetic", node, node.operand
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call) and len(node.args) >= 2 and not node.keywords:
        first, second, *others = node.args
        yield "swapped arguments", node, ast.Call(node.func, [second, first, *others], [])
    elif isinstance(node, ast.Return) and node.value is not None:
        yield from _returns(node)
    elif isinstance(node, ast.If | ast.While):
        yield "boolean", node.test, ast.UnaryOp(ast.Not(), node.test)
    yield from _statements(node)


def _comparisons(node: ast.Compare) -> Iterator[Fault]:
    for index, operator in enumerate(node.ops):
        for other in COMPARISONS.get(type(operator), ()):
            name = "boundary" if _touches(operator, other) else "comparison"
            yield name, node, ast.Compare(node.left, _with(node.ops, index, other()), node.comparators)


def _touches(operator: ast.cmpop, other: type[ast.cmpop]) -> bool:
    """Whether the two differ for equal values alone."""
    return {type(operator), other} in ({ast.Lt, ast.LtE}, {ast.Gt, ast.GtE})


def _constants(node: ast.Constant) -> Iterator[Fault]:
    if isinstance(node.value, bool):
        yield "boolean", node, ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield "off by one", node, ast.Constant(node.value + 1)
        if node.value > 0:
            yield "off by one", node, ast.Constant(node.value - 1)


def _returns(node: ast.Return) -> Iterator[Fault]:
    value = node.value
    assert value is not None
    if isinstance(value, ast.Tuple) and len(value.elts) == 2:
        yield "return", node, ast.Return(ast.Tuple([value.elts[1], value.elts[0]], ast.Load()))
    elif isinstance(value, ast.Compare | ast.BoolOp):
        yield "return", node, ast.Return(ast.UnaryOp(ast.Not(), value))
    elif isinstance(value, ast.Name | ast.Attribute):
        yield "return", node, "return None"


def _statements(node: ast.AST) -> Iterator[Fault]:
    """Statements that may be forgotten."""
    for field in ("body", "orelse"):
        block = getattr(node, field, None)
        for statement in block if isinstance(block, list) else ():
            forgotten = isinstance(statement, ast.AugAssign | ast.Continue | ast.Delete) or (
                isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
            )
            if forgotten or (isinstance(statement, ast.Assign) and not isinstance(node, ast.Module)):
                yield "removed statement", statement, "pass"


def _with(operators: list[ast.cmpop], index: int, other: ast.cmpop) -> list[ast.cmpop]:
    return [*operators[:index], other, *operators[index + 1 :]]


def _written(node: ast.AST, target: ast.expr | ast.stmt) -> str:
    """The node as text, in parentheses where it takes the place of something that binds as it did before."""
    written = ast.unparse(ast.fix_missing_locations(node))
    atomic = isinstance(node, ast.Call | ast.Constant | ast.Name | ast.Attribute | ast.Subscript | ast.stmt)
    same = type(node) is type(target) and not isinstance(node, ast.BinOp)
    return written if atomic or same or isinstance(target, ast.stmt) else f"({written})"


def _line_offsets(source: str) -> list[int]:
    """Where each line begins; columns of the syntax tree are bytes, so the text must be ASCII."""
    if not source.isascii():
        raise ValueError("a repository's modules must be ASCII")
    offsets = [0]
    for line in source.splitlines(keepends=True):
        offsets.append(offsets[-1] + len(line))
    return offsets
