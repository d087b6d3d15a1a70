"""Whether a task may be trained on, from what attempts at it led to.

| attempt | plays | must |
|---|---|---|
| `oracle`, `REPEATS` times | the oracle's actions | succeed, each time alike |
| `no-op` | empty turns, until the environment ends it | not succeed |
| `shuffled` | the last action of the oracle for another task, which is its answer | not succeed |

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

from driftline.environment.answers import REMEDY
from driftline.environment.answers import others_answers as others_answers

REPEATS = 3

SHORTCUTS = {
    "no-op": "without an answer: judge what was done, not that the episode ended",
    "shuffled": f"by another task's answer: {REMEDY}",
}
"""How a task that must not be solved was solved, and what to do about it."""

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
        return "rejected", "the environment does not accept its oracle's solution: mend the oracle or the scoring"
    for attempt in attempts:
        if attempt.kind in ("no-op", "shuffled") and attempt.success is True:
            return "rejected", f"it is solved {SHORTCUTS[attempt.kind]}"
    return "accepted", ""
