"""Judges a repository by its hidden tests: what they compare comes out of the sandbox, what they expect stays here.

A hidden test asserts `expression == literal` in its own body, nowhere deeper. In the sandbox its expressions are
evaluated and reported (`inside`); here they are compared with the literals, type by type.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from dataclasses import dataclass

from environments.repo_repair.inside import plain


@dataclass(frozen=True, slots=True)
class Verdict:
    """Which hidden tests pass."""

    passed: frozenset[str]
    failed: frozenset[str]


def expectations(source: str) -> dict[str, list[str]]:
    """What each hidden test expects, as canonical JSON, in order.

    Raises:
        ValueError: A test asserts something else than `expression == literal`, or within a loop or condition, or its
            expression compares by itself: what it evaluates to would say little.
    """
    tests: dict[str, list[str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            asserts = [one for one in node.body if isinstance(one, ast.Assert)]
            if len(asserts) != sum(isinstance(one, ast.Assert) for one in ast.walk(node)) or not asserts:
                raise ValueError(f"{node.name}: asserts must stand in the test's own body")
            tests[node.name] = [canonical(_literal(one)) for one in asserts]
    return tests


def without_expectations(source: str) -> str:
    """The hidden tests as they go into the sandbox: every literal that is expected is None."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert):
            assert isinstance(node.test, ast.Compare)
            node.test.comparators = [ast.Constant(None)]
    return ast.unparse(ast.fix_missing_locations(tree))


def judge(expected: Mapping[str, list[str]], reported: bytes) -> Verdict:
    """Compare what was reported with what is expected. What is missing, double or cannot be read has failed."""
    told: dict[str, str] = {}
    double: set[str] = set()
    for line in reported.decode(errors="replace").splitlines():
        try:
            row = json.loads(line)
            name, values = str(row["test"]), str(row["values"])
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if name in told:
            double.add(name)
        told[name] = values
    passed = {name for name, values in expected.items() if name not in double and _same(values, told.get(name, ""))}
    return Verdict(frozenset(passed), frozenset(expected.keys() - passed))


def canonical(value: object) -> str:
    """A value as text that says its types."""
    return json.dumps(plain(value))


def _same(expected: list[str], told: str) -> bool:
    try:
        values = json.loads(told)
    except (ValueError, RecursionError):
        return False
    return isinstance(values, list) and [json.dumps(value) for value in values] == expected


def _literal(node: ast.Assert) -> object:
    test = node.test
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq)):
        raise ValueError(f"line {node.lineno}: a test must assert expression == literal")
    if any(isinstance(one, ast.Compare | ast.BoolOp) for one in ast.walk(test.left)):
        raise ValueError(f"line {node.lineno}: the comparison is for the judge, not for the expression")
    return ast.literal_eval(test.comparators[0])
