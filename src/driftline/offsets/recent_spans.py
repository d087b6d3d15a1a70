"""The last stretches of a run's timeline. Their objects are immutable, and each is fetched once."""

from __future__ import annotations

import logging

from driftline.errors import CorruptObject, ObjectMissing
from driftline.records import Span
from driftline.store import keys
from driftline.store.run_store import RunStore

logger = logging.getLogger(__name__)

MOST_SPANS = 4_000
FIRST_OBJECTS = 40
"""So many objects of each process are read at first: older stretches are not shown."""


class RecentSpans:
    """Spans by their start, the last `MOST_SPANS`. Not thread-safe; blocking."""

    def __init__(self, run_store: RunStore) -> None:
        self._run_store = run_store
        self._prefix = keys.timeline_prefix(run_store.run)
        self._last: dict[str, str] = {}
        """Process -> key up to which its objects are read."""
        self._spans: tuple[Span, ...] = ()

    @property
    def newest(self) -> tuple[tuple[str, str], ...]:
        """(process, key of its newest object that is read): differs where the spans do, whoever has read them."""
        return tuple(sorted(self._last.items()))

    def read(self) -> tuple[Span, ...]:
        """Look for new objects; returns all spans that are kept.

        Raises:
            StoreUnavailable: The store does not answer; what was read before it failed is kept.
        """
        for process in self._run_store.store.folders(self._prefix):
            known = self._last.get(process)
            listed = [i.key for i in self._run_store.store.list(f"{self._prefix}{process}/", after=known or "")]
            for key in listed if known else listed[-FIRST_OBJECTS:]:
                self._keep(self._read(key))
                self._last[process] = key
        return self._spans

    def _keep(self, new: tuple[Span, ...]) -> None:
        if new:
            self._spans = tuple(sorted([*self._spans, *new], key=lambda span: span.start_unix)[-MOST_SPANS:])

    def _read(self, key: str) -> tuple[Span, ...]:
        try:
            return self._run_store.read_spans(key)
        except (CorruptObject, ObjectMissing) as error:
            logger.error("a part of the timeline is passed over: %s", error)
            return ()
