"""Locks guard a few assignments, and are never held over an await: whoever holds one never waits for anybody."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("src", "flows", "tasks", "environments")
SUSPENDS = (ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Yield, ast.YieldFrom)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)

HELD = """
async def publish(self):
    with self._lock:
        await self._store.put(b"")
"""
NESTED = """
def publish(self):
    with open("x"), self._publish_lock:
        for part in self._parts:
            yield part
"""
LATER = """
def publish(self):
    with self._lock:
        async def put():
            await self._store.put(b"")
    return put
"""
WAITS = """
async def publish(self):
    async with self._lock:
        self._parts = []
"""


def held_over_a_wait(source: str) -> Iterator[int]:
    """Lines of `with` statements that hold a lock while control may go to others, or wait for one in a coroutine."""
    for statement in ast.walk(ast.parse(source)):
        if not isinstance(statement, ast.With | ast.AsyncWith):
            continue
        names = [ast.unparse(item.context_expr).lower() for item in statement.items]
        if not any("lock" in name or "condition" in name for name in names):
            continue
        if isinstance(statement, ast.AsyncWith) or any(map(_suspends, statement.body)):
            yield statement.lineno


def _suspends(node: ast.AST) -> bool:
    if isinstance(node, FUNCTIONS):
        return False
    return isinstance(node, SUSPENDS) or any(map(_suspends, ast.iter_child_nodes(node)))


@pytest.mark.parametrize(("source", "lines"), [(HELD, [3]), (NESTED, [3]), (LATER, []), (WAITS, [3])])
def test_what_is_found(source: str, lines: list[int]) -> None:
    assert [*held_over_a_wait(source)] == lines


def test_no_lock_is_held_over_an_await() -> None:
    """verl#7010, #6090: a lock held while waiting, and everything behind it stands still."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert sum("Lock()" in path.read_text() for path in files) >= 5, "there are locks to look at"
    assert [f"{path}:{line}" for path in files for line in held_over_a_wait(path.read_text())] == []
