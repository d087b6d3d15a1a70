"""A trainer that is killed at any of its writes, before it has landed or after: the run comes out the same."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from driftline.records import StepRecord
from driftline.store.protocol import WriteResult
from tests.support.admission import CURRENT, FAR, LESS_FAR, LIMITS, with_logprobs
from tests.support.trainer_bench import Bench, Recorder, sync
from tests.support.training import FakeGroup, group

STEPS = 3
WRITES = 19
"""Of the trainer's own thread, in a run that nobody kills."""


class Killed(BaseException):
    pass


class Deadly(Recorder):
    """Kills whoever makes its `fatal`-th write but a cell, before it lands or after."""

    fatal, lands = -1, False
    writes = 0

    def _mortal(self, act: Any, key: str, *arguments: Any) -> WriteResult:
        mine = threading.current_thread() is threading.main_thread() and "/trajectories/" not in key
        self.writes += mine
        if mine and self.writes == self.fatal:
            if self.lands:
                act(key, *arguments)
            raise Killed
        return act(key, *arguments)

    def put(self, key: str, body: bytes) -> WriteResult:
        return self._mortal(super().put, key, body)

    def create(self, key: str, body: bytes) -> WriteResult:
        return self._mortal(super().create, key, body)

    def swap(self, key: str, body: bytes, etag: str) -> WriteResult:
        return self._mortal(super().swap, key, body, etag)


def cell(bench: Bench) -> None:
    """Plays what HEAD lets start: groups that are near, far in part or throughout, failed, and without variance."""
    head, _ = bench.run_store.read_head()
    begun = len(bench.run_store.new_groups())
    if head.version is None or begun >= head.spent + bench.params.rollout.groups_per_step:
        return
    version = head.version.number
    rewards = {2: [None, None, 1, None], 4: [1, 1, 1, 1]}.get(begun % 6, [1, 0, None, 1])
    far = {1: {"m0": FAR}, 3: {"m0": FAR, "m1": FAR, "m3": FAR}, 5: {"m1": LESS_FAR}}.get(begun % 6, {})
    bench.finish(with_logprobs(group(begun, rewards, version=version), **far))


def bench_of() -> tuple[Bench, Deadly]:
    store = Deadly()
    bench = Bench(sync(training={"steps": STEPS}, admission=LIMITS, checkpoint={"every_steps": 2}), cell, store)
    bench.group = FakeGroup(CURRENT)
    store.writes = 0  # Those that set the run up are not the trainer's.
    return bench, store


def outcome(bench: Bench) -> list[Any]:
    """What of the records does not depend on who has written them, and when."""
    return [_of(record) for record in bench.run_store.steps()]


def _of(record: StepRecord) -> Any:
    assert record.ledger is not None
    assert record.ledger.imbalance == 0
    ledger = record.ledger.terms, record.ledger.stale_by, record.ledger.cancelled_by
    given_up = [(one.group, one.reason, one.uses) for one in record.give_ups]
    return record.step, [(use.group, use.weight, use.uses) for use in record.groups], given_up, ledger


@pytest.fixture(scope="module")
def undisturbed() -> list[Any]:
    bench, store = bench_of()
    bench.loop().run()
    assert store.writes == WRITES
    found = outcome(bench)
    assert [len(step[2]) for step in found] != [0, 0, 0]
    return found


@pytest.mark.parametrize("lands", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fatal", range(1, WRITES + 1))
def test_nothing_is_lost_repeated_or_counted_twice(undisturbed: list[Any], fatal: int, lands: bool) -> None:
    bench, store = bench_of()
    store.fatal, store.lands = fatal, lands
    with pytest.raises(Killed):
        bench.loop().run()
    bench.group = FakeGroup(CURRENT)
    head = bench.loop().run()
    assert (head.step, head.state) == (STEPS, "finished")
    assert outcome(bench) == undisturbed
