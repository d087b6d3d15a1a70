"""Which failures of a task are worth another try: those of what it talks to, not those of what it was told."""

from __future__ import annotations

from typing import Any

from driftline.errors import StoreUnavailable, TrackingUnavailable, TransientProcessFailure

OUTAGE_DELAYS_S = [2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]
"""Pauses between the tries of a task: together longer than a restart of MLflow or of the store."""
MAY_PASS = (StoreUnavailable, TrackingUnavailable, TransientProcessFailure)


def may_pass(_task: Any, _task_run: Any, state: Any) -> bool:
    """Whether the failure of a task may pass by itself; a wrong setting does not. For `retry_condition_fn`."""
    return isinstance(state.data, MAY_PASS)
