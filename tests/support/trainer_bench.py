"""The training loop over a store in memory and a trainer group without DeepSpeed, by a clock of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from driftline.params import RunParameters
from driftline.records import Group
from driftline.store.memory import MemoryStore
from driftline.store.protocol import WriteResult
from driftline.store.run_store import RunStore
from driftline.tracking.sink import NullSink, Sink
from driftline.training.loop import TrainingLoop
from tests.support.training import FakeGroup, GroupStream, group, new_run, parameters


class Recorder(MemoryStore):
    """Remembers the keys written, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def put(self, key: str, body: bytes) -> WriteResult:
        self.written.append(key)
        return super().put(key, body)

    def create(self, key: str, body: bytes) -> WriteResult:
        self.written.append(key)
        return super().create(key, body)

    def swap(self, key: str, body: bytes, etag: str) -> WriteResult:
        self.written.append(key)
        return super().swap(key, body, etag)


class Bench:
    """One run, and the clock of its trainer: whoever sleeps moves it on, and lets a cell work."""

    def __init__(
        self,
        params: RunParameters,
        cell: Callable[[Bench], None] = lambda bench: None,
        store: Recorder | None = None,
    ) -> None:
        self.store = store or Recorder()
        self.params = params
        self.run_store: RunStore = new_run(self.store, "r", params)
        self.group = FakeGroup()
        self.now = 1000.0
        self.set_by = 0.0
        """Seconds by which somebody has set the wall clock."""
        self.cell = cell
        self.events: list[Any] = []
        self.stream = GroupStream(self.run_store)
        self.signing_key: bytes | None = None
        self.sink: Sink = NullSink()
        self._loop: TrainingLoop | None = None

    @property
    def sequence(self) -> int:
        return self.stream.sequence

    def finish(self, *groups: Group) -> None:
        self.stream.write(*groups)

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1.0)
        if self._loop is not None:
            # The thread that uploads has no part in this clock: how quick it is decides nothing.
            self._loop._writer.wait_for_checkpoint()  # pyright: ignore[reportPrivateUsage]
        self.cell(self)

    def emit(self, event: Any) -> None:
        self.events.append(event)

    def loop(self) -> TrainingLoop:
        self._loop = TrainingLoop(
            self.run_store,
            self.run_store.take_epoch(),
            self.params,
            self.group,
            self.sink,
            scratch=Path(tempfile.mkdtemp()),
            emit=self.emit,
            clock=lambda: self.now,
            sleep=self.sleep,
            monotonic=lambda: self.now - self.set_by,
            signing_key=self.signing_key,
        )
        return self._loop


def eager_cell(bench: Bench) -> None:
    """Finishes whatever the admission rule lets start."""
    head, _ = bench.run_store.read_head()
    begun = len(bench.run_store.new_groups())
    admitted = head.spent + bench.params.rollout.groups_per_step + head.lead_groups
    if begun < admitted:
        assert head.version is not None
        bench.finish(*(group(n, [1, 0, 0, 1], version=head.version.number) for n in range(begun, admitted)))


def sync(**sections: Any) -> RunParameters:
    return parameters(overlap={"lead_groups": 0}, **sections)


def stopped_after(bench: Bench, steps: int) -> None:
    """Run until `steps` are committed, then die without a word."""

    class Killed(BaseException):
        pass

    sleep, cell = bench.sleep, bench.cell

    def watch(bench: Bench) -> None:
        if bench.run_store.read_head()[0].step >= steps:
            raise Killed
        cell(bench)

    bench.cell = watch
    with pytest.raises(Killed):
        bench.loop().run()
    bench.sleep, bench.cell = sleep, cell
