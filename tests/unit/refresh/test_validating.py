"""Which tasks are accepted, by what attempts at them led to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftline.refresh import validating
from driftline.refresh.validating import Attempt, AttemptKind, Status

SOLVED = Attempt("oracle", True, 1.0, "d")
FAILED = Attempt("no-op", False, 0.0, "e")
OTHERS = Attempt("shuffled", False, 0.0, "f")
GOOD = [SOLVED, SOLVED, SOLVED, FAILED, OTHERS]


def broken(kind: AttemptKind) -> Attempt:
    return Attempt(kind, None, None, "", failure="environment", error="KeyError: 'x'")


@pytest.mark.parametrize(
    ("attempts", "status", "reason"),
    [
        (GOOD, "accepted", ""),
        ([Attempt("reset", None, None, "d")] * 3, "accepted", ""),
        ([replace(one, success=False) if one.kind == "oracle" else one for one in GOOD], "rejected", "not accept"),
        ([*GOOD[:3], replace(FAILED, success=True), OTHERS], "rejected", "solved without an answer"),
        ([*GOOD[:4], replace(OTHERS, success=True)], "rejected", "by another task's answer: have step compare"),
        ([broken("oracle")] * 5, "rejected", "KeyError"),
        ([SOLVED, replace(SOLVED, digest="g"), SOLVED, FAILED, OTHERS], "quarantined", "3 equal attempts differ"),
        ([SOLVED, replace(SOLVED, success=False), SOLVED, FAILED, OTHERS], "quarantined", "success False"),
        ([SOLVED, replace(SOLVED, reward=0.5), SOLVED, FAILED, OTHERS], "quarantined", "reward 0.5"),
        ([SOLVED, broken("oracle"), SOLVED, FAILED, OTHERS], "quarantined", "oracle: KeyError"),
    ],
)
def test_verdicts(attempts: list[Attempt], status: Status, reason: str) -> None:
    verdict = validating.judge("t", attempts)
    assert verdict.status == status
    assert reason in verdict.reason
    assert verdict.evidence == (() if status == "accepted" else tuple(attempts))


def test_the_summary_counts_attempts_failures_and_timeouts() -> None:
    late = replace(broken("no-op"), failure="timeout")
    found = validating.summarise({"a": GOOD, "b": [*GOOD[:3], late, OTHERS], "c": [broken("oracle")] * 5})
    assert found.accepted == ("a",)
    assert [(verdict.task_id, verdict.status) for verdict in found.refused] == [
        ("b", "quarantined"),
        ("c", "rejected"),
    ]
    assert (found.attempts, found.failures, found.timeouts, found.flaky) == (15, 6, 1, 1)
    twice = found + validating.summarise({"d": GOOD})
    assert (twice.accepted, twice.attempts, twice.flaky) == (("a", "d"), 20, 1)


def test_others_answers_end_differently() -> None:
    oracles = {"a": ["x", "=1"], "b": ["y", "=1"], "c": ["z", "=2"], "d": None}
    assert validating.others_answers(oracles) == {"a": ["=2"], "b": ["=2"], "c": ["=1"]}
    assert validating.others_answers({"a": ["=1"], "b": ["=1"]}) == {}
