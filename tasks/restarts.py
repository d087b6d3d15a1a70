"""Whether a child process that died is started again. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from driftline.errors import LimitExceeded, ProcessFailed, TransientProcessFailure
from driftline.records import Head

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 10.0


@dataclass(frozen=True, slots=True)
class Restart:
    """Start the process again, after a pause."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Ended:
    """The process has done its work."""


Outcome = Restart | Ended | Exception


def after_end(
    failure: ProcessFailed | None, head: Head | None, *, name: str, restarts: int, limit: int, limit_field: str
) -> Outcome:
    """Decide what follows the end of a process that works for a run.

    Args:
        failure: How it failed, None if it says that it is done.
        head: The run's head as it is now, None before the trainer has made it.
        name: What the process is, for messages.
        restarts: How often it was started again already.
        limit: How often it may be.
        limit_field: The parameter that holds the limit.

    Returns:
        A restart, the end, or the error in which the flow run ends.
    """
    if head is not None and head.state == "failed":
        return LimitExceeded(head.reason or f"the run failed, and left no reason; the log of {name} has more")
    if head is not None and head.state == "cancelled":
        return ProcessFailed("the run was cancelled" + (f": {head.reason}" if head.reason else ""))
    if head is not None and head.state == "finished":
        return Ended()
    if failure is None:
        return ProcessFailed(f"{name} ended although the run is not finished: its log says why")
    return after_failure(failure, name=name, restarts=restarts, limit=limit, limit_field=limit_field)


def after_failure(
    failure: ProcessFailed | None, *, name: str, restarts: int, limit: int, limit_field: str
) -> Outcome:
    """Decide what follows the end of a process that alone knows when it is done. Arguments as for `after_end`."""
    if failure is None:
        return Ended()
    if not isinstance(failure, TransientProcessFailure):
        return failure
    if restarts >= limit:
        return LimitExceeded(f"{name} died {restarts + 1} times, {limit_field} allows {limit} restarts: {failure}")
    return Restart(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2**restarts))
