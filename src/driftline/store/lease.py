"""The role of a run's one trainer, fenced by the epoch: only its holder can move HEAD."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from driftline.errors import EpochLost, PreconditionFailed
from driftline.records import Head

if TYPE_CHECKING:
    from driftline.store.run_store import RunStore


class TrainerLease:
    """The role of the one trainer. `head` is the head as it stands, as long as the role is held. Thread-safe."""

    def __init__(self, run_store: RunStore, head: Head, etag: str) -> None:
        self.epoch = head.epoch
        self.head = head
        self._run_store = run_store
        self._etag = etag
        self._lock = threading.Lock()

    def commit(self, new_head: Head) -> None:
        """Replace the head: the commit of a step, a give-up, or the final state.

        Raises:
            EpochLost: Another trainer has taken the role; nothing was written.
            PreconditionFailed: The head changed in this epoch, though only this lease may change it.
        """
        if new_head.epoch != self.epoch:
            raise ValueError(f"a head of epoch {new_head.epoch} cannot be committed in epoch {self.epoch}")
        with self._lock:
            try:
                self._etag = self._run_store.swap_head(new_head, self._etag)
            except PreconditionFailed:
                self._etag = self._explain_loss(new_head)
            self.head = new_head

    def confirm(self) -> None:
        """Make sure that the role is still held, before anything that cannot be taken back.

        Raises:
            EpochLost: Another trainer has taken it.
        """
        found, _ = self._run_store.read_head()
        if found.epoch != self.epoch:
            raise self._lost(found)

    def _explain_loss(self, new_head: Head) -> str:
        """The entity tag, where the head holds what was to be written (the answer had been lost)."""
        found, etag = self._run_store.read_head()
        if found.epoch > self.epoch:
            raise self._lost(found) from None
        if found != new_head:
            raise PreconditionFailed(f"the head of run {self._run_store.run!r} was changed by no trainer") from None
        return etag

    def _lost(self, found: Head) -> EpochLost:
        return EpochLost(
            f"another trainer has taken over run {self._run_store.run!r} (epoch {found.epoch}, this one has "
            f"{self.epoch}): this one stops; nothing it had not committed counts"
        )
