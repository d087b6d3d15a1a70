"""Whether a task may be trained on, from what attempts at it led to.

| attempt | plays | must |
|---|---|---|
| `oracle`, `REPEATS` times | the oracle's actions | succeed, each time alike |
| `no-op` | empty turns, until the environment ends it | not succeed |
| `shuffled` | the oracle's actions for another task | not succeed |

| verdict | when |
|---|---|
| accepted | all of that holds |
| rejected | it fails, each time alike: the task, its oracle or its checker is wrong |
| quarantined | repeats differ, or an attempt failed for a reason of infrastructure: kept aside with the evidence |

A family without an oracle has its reset repeated instead, and its tasks are accepted if that is always the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

REPEATS = 3

AttemptKind = Literal["oracle", "no-op", "shuffled", "reset"]
Failure = Literal["", "environment", "timeout"]
Status = Literal["accepted", "rejected", "quarantined"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """What playing a task in one way led to."""

    kind: AttemptKind
    success: bool | None
    reward: float | None
    digest: str
    """Of everything that the environment answered: equal ones are equal episodes."""
    failure: Failure = ""
    """Why there is no outcome: the environment raised, or took too long."""
    error: str = ""
    """Its message."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is made of a task, and why."""

    task_id: str
    status: Status
    reason: str = ""
    evidence: tuple[Attempt, ...] = ()
    """The attempts, of a task that is not accepted."""


@dataclass(frozen=True, slots=True)
class Validation:
    """What the validation of some tasks came to."""

    accepted: tuple[str, ...]
    """Task ids, in the order proposed."""
    refused: tuple[Verdict, ...]
    attempts: int
    failures: int
    """Attempts that ended by a failure of infrastructure, those below among them."""
    timeouts: int

    @property
    def flaky(self) -> int:
        """Tasks in quarantine."""
        return sum(verdict.status == "quarantined" for verdict in self.refused)

    def __add__(self, other: Validation) -> Validation:
        return Validation(
            self.accepted + other.accepted,
            self.refused + other.refused,
            self.attempts + other.attempts,
            self.failures + other.failures,
            self.timeouts + other.timeouts,
        )


NOTHING_VALIDATED = Validation((), (), 0, 0, 0)


def judge(task_id: str, attempts: Sequence[Attempt]) -> Verdict:
    """Say whether a task may be trained on."""
    status, reason = _found(attempts)
    return Verdict(task_id, status, reason, () if status == "accepted" else tuple(attempts))


def summarise(attempted: Mapping[str, Sequence[Attempt]]) -> Validation:
    """Judge tasks by their attempts, in order."""
    verdicts = [judge(task_id, attempts) for task_id, attempts in attempted.items()]
    played = [attempt for attempts in attempted.values() for attempt in attempts]
    return Validation(
        accepted=tuple(verdict.task_id for verdict in verdicts if verdict.status == "accepted"),
        refused=tuple(verdict for verdict in verdicts if verdict.status != "accepted"),
        attempts=len(played),
        failures=sum(bool(attempt.failure) for attempt in played),
        timeouts=sum(attempt.failure == "timeout" for attempt in played),
    )


def others_answers(oracles: Mapping[str, Sequence[str] | None]) -> dict[str, Sequence[str]]:
    """For each task, the oracle's actions for another one, which end differently.

    Args:
        oracles: Task id -> the oracle's actions, None without one.

    Returns:
        Task id -> another's actions; tasks for which there is none are missing.
    """
    solved = [(task_id, actions) for task_id, actions in oracles.items() if actions]
    found: dict[str, Sequence[str]] = {}
    for place, (task_id, actions) in enumerate(solved):
        others = (solved[(place + step) % len(solved)][1] for step in range(1, len(solved)))
        other = next((other for other in others if other[-1] != actions[-1]), None)
        if other is not None:
            found[task_id] = other
    return found


def _found(attempts: Sequence[Attempt]) -> tuple[Status, str]:
    failed = [attempt for attempt in attempts if attempt.failure]
    if failed:
        same = all(attempt.failure for attempt in attempts)
        return "rejected" if same else "quarantined", f"{failed[0].kind}: {failed[0].error}"
    repeated = [attempt for attempt in attempts if attempt.kind in ("oracle", "reset")]
    if len({(attempt.digest, attempt.success, attempt.reward) for attempt in repeated}) > 1:
        outcomes = ", ".join(f"success {attempt.success}, reward {attempt.reward}" for attempt in repeated)
        return "quarantined", f"{len(repeated)} equal attempts differ: {outcomes}"
    if any(attempt.kind == "oracle" and attempt.success is not True for attempt in attempts):
        return "rejected", "the environment does not accept its oracle's solution"
    for attempt in attempts:
        if attempt.kind in ("no-op", "shuffled") and attempt.success is True:
            what = "without an answer" if attempt.kind == "no-op" else "by another task's answer"
            return "rejected", f"it is solved {what}"
    return "accepted", ""
