"""Whether a child process that died is started again."""

from __future__ import annotations

import pytest

from driftline.errors import LimitExceeded, ProcessFailed, TransientProcessFailure
from driftline.records import Head, RunState
from tasks.restarts import Ended, Outcome, Restart, after_end

DIED = TransientProcessFailure("the cell was ended by SIGKILL")


def head(state: RunState, reason: str = "") -> Head:
    return Head(1, 3, None, None, 0, (), 0, (), state=state, reason=reason)


def outcome(failure: ProcessFailed | None, found: Head | None, restarts: int = 0, limit: int = 3) -> Outcome:
    return after_end(
        failure, found, name="cell c0", restarts=restarts, limit=limit, limit_field="limits.cell_restarts"
    )


@pytest.mark.parametrize(("restarts", "delay_s"), [(0, 1.0), (1, 2.0), (2, 4.0)])
def test_a_death_that_a_restart_may_mend_is_followed_by_one_after_a_growing_pause(restarts: int, delay_s: float):
    assert outcome(DIED, head("running"), restarts) == Restart(delay_s)


def test_the_pause_is_bounded():
    assert outcome(DIED, None, restarts=20, limit=30) == Restart(10.0)


def test_restarts_are_bounded_and_the_last_death_is_told():
    found = outcome(DIED, head("running"), restarts=3)
    assert isinstance(found, LimitExceeded)
    assert "died 4 times, limits.cell_restarts allows 3 restarts" in str(found)
    assert "SIGKILL" in str(found)


def test_no_restart_where_none_is_allowed():
    assert isinstance(outcome(DIED, None, limit=0), LimitExceeded)


def test_an_error_that_no_restart_mends_stands():
    failure = ProcessFailed("ended with exit code 1: ValueError: shape")
    assert outcome(failure, head("running")) is failure


@pytest.mark.parametrize("failure", [None, DIED, ProcessFailed("late")])
def test_a_finished_run_is_the_end_however_the_process_left(failure: ProcessFailed | None):
    assert outcome(failure, head("finished")) == Ended()


@pytest.mark.parametrize("failure", [None, DIED])
def test_the_reason_in_the_head_is_the_message(failure: ProcessFailed | None):
    found = outcome(failure, head("failed", "limits.failed_groups: 65 groups were given up"))
    assert isinstance(found, LimitExceeded)
    assert str(found) == "limits.failed_groups: 65 groups were given up"


def test_a_cancelled_run_is_no_success():
    assert isinstance(outcome(None, head("cancelled", "by hand")), ProcessFailed)


@pytest.mark.parametrize("found", [None, head("running")])
def test_a_process_that_leaves_a_run_unfinished_has_failed(found: Head | None):
    assert isinstance(outcome(None, found), ProcessFailed)
