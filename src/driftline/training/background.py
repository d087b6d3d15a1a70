"""Writes to the store that nobody waits for: checkpoints, and the timeline.

| Who | does | waits for | unblocked by |
|---|---|---|---|
| the loop | hands over one checkpoint, or spans | the checkpoint before, if it is still on its way | the thread |
| the thread | uploads, in the order given | the store | the store, or its patience running out |
| caller of `close` | - | everything handed over | the thread |
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from driftline.errors import StoreError
from driftline.records import FileEntry, Span
from driftline.store.run_store import RunStore

log = logging.getLogger(__name__)

SPANS_A_FLUSH = 15


class BackgroundWriter:
    """One thread that writes. An upload that failed raises at the next `checkpoint` or at `close`."""

    def __init__(self, run_store: RunStore, process: str) -> None:
        self._run_store = run_store
        self._process = process
        self._thread = ThreadPoolExecutor(1, "background-writer")
        self._upload: Future[None] | None = None
        self._spans: list[Span] = []
        self._sequence = 0
        self._uploaded: list[FileEntry] = []

    @property
    def newest_checkpoint(self) -> FileEntry | None:
        """Manifest of the last checkpoint that is whole in the store."""
        return self._uploaded[-1] if self._uploaded else None

    def adopt_checkpoint(self, manifest: FileEntry) -> None:
        """Take over a checkpoint that an earlier trainer of the run left."""
        self._uploaded.append(manifest)

    def wait_for_checkpoint(self) -> None:
        """Wait until the checkpoint handed over last is in the store.

        Raises:
            StoreUnavailable: It could not be written.
        """
        if self._upload is not None:
            self._upload.result()
            self._upload = None

    def checkpoint(
        self,
        directory: Path,
        upload: Callable[[Path], FileEntry],
        remove: Callable[[str], None],
        keep: FileEntry | None,
    ) -> None:
        """Hand over a local checkpoint directory; it is deleted afterwards.

        Args:
            directory: The files.
            upload: Writes them to the store; returns the manifest's entry.
            remove: Deletes an older checkpoint from the store, by its manifest's key.
            keep: The manifest of the checkpoint that the committed record names, which must stay.
        """
        self.wait_for_checkpoint()

        def work() -> None:
            try:
                self._uploaded.append(upload(directory))
            finally:
                shutil.rmtree(directory, ignore_errors=True)
            for older in [older for older in self._uploaded[:-1] if older != keep]:
                remove(older.key)
                self._uploaded.remove(older)

        self._upload = self._thread.submit(work)

    def span(self, span: Span) -> None:
        """Take a span of the timeline; spans go to the store a few steps at a time."""
        self._spans.append(span)
        if len(self._spans) >= SPANS_A_FLUSH:
            self.flush_spans()

    def flush_spans(self) -> None:
        """Send the spans taken so far."""
        if self._spans:
            self._thread.submit(self._write_spans, self._sequence, self._spans)
            self._sequence += 1
            self._spans = []

    def close(self) -> None:
        """Wait until everything is written.

        Raises:
            StoreUnavailable: The last checkpoint could not be written.
        """
        self.flush_spans()
        self._thread.shutdown(wait=True)
        self.wait_for_checkpoint()

    def abandon(self) -> None:
        """End without waiting for more than the write under way."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _write_spans(self, sequence: int, spans: list[Span]) -> None:
        try:
            self._run_store.append_spans(self._process, sequence, spans)
        except StoreError as error:
            log.warning("%d spans of the timeline are lost: %s", len(spans), error)
