"""`trace_replay/v1`: episodes of a prescribed shape, so that two ways of collecting them do exactly the same work."""

from __future__ import annotations

from environments.trace_replay.family import POINTER_CHASE, PUBLISHED_TAIL, TraceReplay

__all__ = ["POINTER_CHASE", "PUBLISHED_TAIL", "TraceReplay"]
