"""Reading a policy's expression without running it.

reasoning-gym gives answers to `eval` and to sympy's `parse_expr`, which evaluates as well: there an answer is a
program, with this process to itself. So arithmetic is evaluated here, and what must go to sympy is first held against
the few words that an answer is made of.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction

LONGEST = 400
DEEPEST = 40
OPERATIONS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
TOKEN = re.compile(r"\s*(?:(?P<number>\d{1,12}(?:\.\d{1,12})?)|(?P<name>[A-Za-z_]+)|(?P<sign>\*\*|[-+*/()]))")
FUNCTIONS = frozenset(
    {"exp", "log", "ln", "sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "Abs", "pi"}
)
POWER = re.compile(r"\*\*(?:-?\d{1,2}|-?[A-Za-z]|\(-?\d{1,2}(?:/\d{1,2})?\)|\(-?[A-Za-z]\))(?![\w.]|\*\*)")
"""A power of a small number or of a variable, and no power of that."""
MOST_POWERS = 40


def value_of(text: str) -> tuple[Fraction, list[int]] | None:
    """The value of an expression of whole numbers, + - * / and brackets, and the numbers it is made of.

    None if it is anything else, or divides by 0.
    """
    if len(text) > LONGEST:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        numbers: list[int] = []
        return _value(tree, numbers, DEEPEST), numbers
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def harmless(text: str) -> bool:
    """Whether a symbolic answer has nothing but numbers, names of variables and functions, and operators.

    Powers are of a small number or of a variable, so that none grows without bound by itself.
    """
    if len(text) > LONGEST:
        return False
    text, end = text.strip(), 0
    while end < len(text):
        found = TOKEN.match(text, end)
        if found is None or not _known(found["name"]):
            return False
        end = found.end()
    powers = "".join(text.split())
    return end > 0 and powers.count("**") == len(POWER.findall(powers)) <= MOST_POWERS


def _known(name: str | None) -> bool:
    return name is None or name in FUNCTIONS or (len(name) == 1 and name != "_")


def _value(node: ast.expr, numbers: list[int], depth: int) -> Fraction:
    if depth == 0:
        raise ValueError("too deep")
    if isinstance(node, ast.Constant) and type(node.value) is int:
        numbers.append(node.value)
        return Fraction(node.value)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        inner = _value(node.operand, numbers, depth - 1)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATIONS:
        left, right = _value(node.left, numbers, depth - 1), _value(node.right, numbers, depth - 1)
        return OPERATIONS[type(node.op)](left, right)
    raise ValueError("not arithmetic")
