"""Names of runs. Light on purpose: the stack's own programs use it without Prefect."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any


def name_of(flow_run_id: str, scheduled: datetime) -> str:
    """The name of the run that a flow run starts. A flow run that is retried goes on with the same run."""
    return f"{scheduled:%Y%m%d-%H%M%S}-{flow_run_id[:6]}"


def run_of(flow_run_id: str, scheduled: datetime, parameters: Mapping[str, Any]) -> str:
    """The run that a post-training flow run works on: the one it was told to resume, or its own."""
    return str(parameters.get("run") or name_of(flow_run_id, scheduled))
