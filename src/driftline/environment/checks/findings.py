"""What a check finds, and what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from driftline.environment.contract import Task, TaskFamily

Verdict = Literal["ok", "failed", "not applicable"]


@dataclass(frozen=True, slots=True)
class Case:
    """A family under examination."""

    name: str
    """As `resolve` knows it: other processes find it by that."""
    family: TaskFamily
    tasks: tuple[Task, ...]
    seed: int
    deadline_s: float
    """Of one call of an environment."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's answer."""

    check: str
    verdict: Verdict
    detail: str = ""
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found of one family."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return not self.failed

    @property
    def failed(self) -> tuple[Finding, ...]:
        """What failed."""
        return tuple(finding for finding in self.findings if finding.verdict == "failed")

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"environment": self.name, "ok": self.ok, "checks": [asdict(finding) for finding in self.findings]}


class NotApplicable(Exception):
    """A check has nothing to examine; the message says why."""


class Broken(Exception):
    """A check has found that the contract is broken; the message says how."""


def ensure(kept: bool, broken: str) -> None:
    """Raise `Broken` unless the contract is kept."""
    if not kept:
        raise Broken(broken)


def short(value: object, limit: int = 160) -> str:
    """A value in few characters, for a message."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}..."


def first_difference(left: Sequence[Any], right: Sequence[Any]) -> str:
    """Where two lists of what was said differ first; empty if they do not."""
    for index, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return f"{_place(index)}: {short(one)}, then {short(other)}"
    if len(left) != len(right):
        return f"{len(left) - 1} turns, then {len(right) - 1}"
    return ""


def _place(index: int) -> str:
    return "the prompt" if index == 0 else f"turn {index}"
