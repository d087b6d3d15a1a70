"""What the cells of a run say of themselves, looked at now and then."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from driftline.records import OffsetReport
from driftline.store.run_store import RunStore


class CellReports:
    """The cells' newest reports."""

    def __init__(self, run_store: RunStore, monotonic: Callable[[], float]) -> None:
        """Begin with none.

        Args:
            run_store: The run's objects.
            monotonic: Clock, in seconds.
        """
        self._run_store = run_store
        self._monotonic = monotonic
        self._looked = -math.inf
        self.newest: Sequence[OffsetReport] = ()

    def due(self, pause_s: float) -> bool:
        """Whether the last look is so long ago."""
        return self._monotonic() >= self._looked + pause_s

    def look(self) -> Sequence[OffsetReport]:
        """Read them."""
        self._looked = self._monotonic()
        self.newest = self._run_store.offsets()
        return self.newest

    def acknowledged(self, version: int) -> float | None:
        """When the last of them acknowledged a version (Unix seconds), None where none has."""
        return max((report.applied_unix for report in self.newest if report.version == version), default=None)
