"""Writes that nobody waits for: in order, with backpressure, and failures that are not lost."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from driftline.errors import StoreUnavailable
from driftline.records import FileEntry, Span
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.training.background import SPANS_A_FLUSH, BackgroundWriter

DEADLINE_S = 10.0


@pytest.fixture
def run_store() -> RunStore:
    return RunStore(MemoryStore(), "r")


def local(tmp_path: Path, step: int) -> Path:
    directory = tmp_path / f"step-{step}"
    directory.mkdir()
    (directory / "state.pt").write_bytes(b"state")
    return directory


def manifest(key: str) -> FileEntry:
    return FileEntry(key, 1, "digest")


def test_a_checkpoint_counts_once_it_is_whole(run_store: RunStore, tmp_path: Path):
    writer = BackgroundWriter(run_store, "trainer")
    gate, removed = threading.Event(), list[str]()

    def upload(directory: Path) -> FileEntry:
        assert gate.wait(DEADLINE_S)
        return manifest(directory.name)

    first = local(tmp_path, 1)
    writer.checkpoint(first, upload, removed.append, keep=None)
    assert writer.newest_checkpoint is None
    gate.set()
    writer.wait_for_checkpoint()
    assert writer.newest_checkpoint == manifest("step-1")
    assert not first.exists()
    writer.checkpoint(local(tmp_path, 2), upload, removed.append, keep=manifest("step-1"))
    writer.checkpoint(local(tmp_path, 3), upload, removed.append, keep=manifest("step-2"))
    writer.close()
    assert removed == ["step-1"], "the one that the head's record names stays"
    assert writer.newest_checkpoint == manifest("step-3")


def test_a_failed_upload_is_raised_at_the_next_checkpoint(run_store: RunStore, tmp_path: Path):
    writer = BackgroundWriter(run_store, "trainer")

    def fail(directory: Path) -> FileEntry:
        raise StoreUnavailable("the store is away")

    directory = local(tmp_path, 1)
    writer.checkpoint(directory, fail, lambda key: None, keep=None)
    with pytest.raises(StoreUnavailable):
        writer.checkpoint(local(tmp_path, 2), fail, lambda key: None, keep=None)
    assert not directory.exists()
    assert writer.newest_checkpoint is None
    writer.abandon()


def test_spans_go_out_a_few_at_a_time_and_at_the_end(run_store: RunStore):
    writer = BackgroundWriter(run_store, "trainer")
    spans = [Span("training", "step", float(n), n + 0.5, n) for n in range(SPANS_A_FLUSH + 2)]
    for span in spans:
        writer.span(span)
    writer.close()
    assert run_store.spans() == spans
    assert len(list(run_store.store.list("runs/r/timeline/trainer/"))) == 2


def test_a_lost_timeline_does_not_end_the_run(run_store: RunStore, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> str:
        raise StoreUnavailable("the store is away")

    monkeypatch.setattr(run_store, "append_spans", fail)
    writer = BackgroundWriter(run_store, "trainer")
    writer.span(Span("training", "step", 0.0, 1.0, 1))
    writer.close()
