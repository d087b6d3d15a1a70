"""Which groups are done with, for whoever is about to take one over."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from driftline.errors import ObjectMissing
from driftline.store.cursor import TrajectoryCursor

if TYPE_CHECKING:
    from driftline.store.run_store import RunStore


class FinishedGroups:
    """The groups that are finished, used or given up. Thread-safe.

    Behind the frontier of the newest step record it goes by the records; beyond it, by the objects. So it reads the
    run's tail only, however long the run is, and nothing before it is first asked.
    """

    def __init__(self, run_store: RunStore) -> None:
        self._run_store = run_store
        self._cursor: TrajectoryCursor | None = None
        self._closed: set[int] = set()
        self._lock = threading.Lock()

    def __contains__(self, group: int) -> bool:
        with self._lock:
            cursor = self._cursor = self._cursor or self._begin()
            cursor.poll()
            return group in self._closed or group in cursor.seen

    def _begin(self) -> TrajectoryCursor:
        try:
            records = self._run_store.steps()
        except ObjectMissing:
            records = []
        self._closed = {use.group for record in records for use in record.groups}
        self._closed |= {give_up.group for record in records for give_up in record.give_ups}
        return self._run_store.trajectory_cursor(records[-1].frontier.keys if records else {})
