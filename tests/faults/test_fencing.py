"""Two trainers of one run: the older one, woken after the younger one has taken over, changes nothing and says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from driftline.records import Head
from driftline.store import keys
from driftline.store.client import S3Store
from driftline.store.run_store import RunStore
from tests.support.seaweed import Seaweed
from tests.support.training import GroupStream, group, new_run, parameters

WAIT_S = 60.0
STEPS = 5


class Trainer:
    """A process of `tests.support.trainer_process`."""

    def __init__(self, seaweed: Seaweed, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.trainer_process", *arguments],
            env=os.environ | dict(seaweed.environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def until(self, wanted: str) -> Any:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event = json.loads(line)
            if event["event"] == wanted:
                return event
        raise AssertionError(f"it ended without {wanted}")

    def wake(self) -> None:
        self.process.send_signal(signal.SIGCONT)


@contextmanager
def trainer(seaweed: Seaweed, *arguments: str) -> Iterator[Trainer]:
    made = Trainer(seaweed, *arguments)
    try:
        yield made
    finally:
        made.process.kill()
        made.process.wait(WAIT_S)
        for pipe in (made.process.stdin, made.process.stdout):
            if pipe is not None:
                pipe.close()


def objects(store: S3Store, run: str) -> dict[str, tuple[int, float]]:
    return {info.key: (info.bytes, info.modified_unix) for info in store.list(keys.run_prefix(run))}


def test_trainers_that_wake_from_a_long_pause_change_nothing(s3_store: S3Store, seaweed: Seaweed) -> None:
    """One is stopped in the middle of a step, one as it is about to delete a checkpoint; a third ends the run."""
    run = f"fencing-{uuid.uuid4().hex[:8]}"
    params = parameters(training={"steps": STEPS}, overlap={"lead_groups": 0, "max_lag_versions": 8})
    runs = new_run(s3_store, run, params)
    stream = GroupStream(runs)
    for number in range(STEPS):
        stream.write(group(2 * number, [1, 0, 1, 0], run=run), group(2 * number + 1, [0, 0, 1, 0], run=run))
    with trainer(seaweed, run, "train") as first, trainer(seaweed, run, "removal") as second:
        with trainer(seaweed, run) as third:
            first.begin()
            first.until("stopped")
            second.begin()
            second.until("stopped")
            assert 0 < runs.read_head()[0].step < STEPS
            third.begin()
            assert third.process.wait(WAIT_S) == 0
        before, head = objects(s3_store, run), runs.read_head()
        assert (head[0].step, head[0].epoch, head[0].state) == (STEPS, 3, "finished")
        for older in (first, second):
            older.wake()
            error = older.until("error")
            assert older.process.wait(WAIT_S) == 1
            assert error["type"] == "EpochLost"
            assert "another trainer has taken over" in error["message"]
    assert runs.read_head() == head
    after = objects(s3_store, run)
    assert {key: after.get(key) for key in before} == before, "nothing that was there has changed or gone"
    new = {key.removeprefix(keys.run_prefix(run)) for key in after.keys() - before.keys()}
    assert all("-0001" in key or "-0002" in key for key in new), "what they wrote is garbage under their own epochs"
    check_once(runs, head[0])


def check_once(runs: RunStore, head: Head) -> None:
    records = runs.steps()
    assert [record.step for record in records] == [1, 2, 3, 4, 5]
    assert [record.previous for record in records[1:]] == [
        keys.step(runs.run, record.step, record.epoch) for record in records[:-1]
    ]
    assert sorted(use.group for record in records for use in record.groups) == list(range(2 * STEPS))
    assert head.version == records[-1].version_out
    named = records[-1].checkpoint
    assert named is not None
    assert runs.store.get(named.key).body
    assert [record.ledger.imbalance for record in records if record.ledger] == [0] * STEPS
