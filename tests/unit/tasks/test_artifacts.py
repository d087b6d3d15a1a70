"""What the Prefect page shows of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from driftline.records import Head, PolicyVersion, StepRecord, StepTimes
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from driftline.tracking.report import build_report
from tasks import artifacts
from tests.support import offset_runs


def record(step: int) -> StepRecord:
    return StepRecord(
        run="r1",
        step=step,
        epoch=1,
        version_in=PolicyVersion(step - 1, 1),
        version_out=PolicyVersion(step, 1),
        groups=(),
        give_ups=(),
        metrics={metrics.SUCCESS_MEAN: 0.625, metrics.K3: 0.0123, metrics.TIME_TO_BATCH: 1.5},
        time_to_batch_s={},
        times=StepTimes(0, 0, 0, 0, 0, 0),
        previous=None,
    )


def head(step: int, key: str | None) -> Head:
    return Head(1, step, PolicyVersion(step, 1), key, 0, (), 0, ((0, "v"),))


def test_progress_says_step_and_figures():
    found = artifacts.progress(head(5, "k"), [record(5)], steps=20)
    assert found.percent == 25.0
    assert found.line == "step 5 of 20 · success 0.62 · batch after 1.50 s · k3 0.012 nats"


def test_progress_and_report_say_what_bounds_the_run():
    times = StepTimes(0.0, 6.0, 6.0, 8.0, 8.0, 10.0)
    steps = [replace(record(step), times=times, time_to_batch_s={"decode": 6.0}) for step in range(1, 5)]
    assert "bound" not in artifacts.progress(head(2, "k"), steps[:2], steps=20).line, "too few steps to judge"
    assert artifacts.progress(head(4, "k"), steps, steps=20).line.endswith(" · bound by engine, 60%")
    store = RunStore(MemoryStore(), "r1")
    store.create(offset_runs.description("r1"))
    key = None
    for one in steps:
        key = store.write_step(replace(one, previous=key))
    store.create_head(head(4, key))
    page = artifacts.report_markdown(build_report(store.store, "r1", bucket="b"))
    assert (
        "| bound by | engine: 60% of a step of 10.00 s, most of it decode (6.00 s); then trainer 20%, store 20% |"
        in page
    )
    assert "| where a step's time went (mean) | decode 6.00 s, train 2.00 s, weights 2.00 s |" in page
    assert "| to change it | rollout.cells: " in page


@pytest.mark.parametrize("found", [None, head(0, None)])
def test_progress_before_the_first_step(found: Head | None):
    assert artifacts.progress(found, [], steps=20) == artifacts.Progress(0.0, "waiting for the first step")


class Api:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, float, str]] = []
        self.fails = False
        monkeypatch.setattr(artifacts, "acreate_progress_artifact", self.create)
        monkeypatch.setattr(artifacts, "aupdate_progress_artifact", self.update)

    async def create(self, percent: float, *, key: str, description: str) -> Any:
        if self.fails:
            raise ConnectionError("away")
        self.calls.append((key, percent, description))
        return uuid4()

    async def update(self, _artifact: Any, percent: float, *, description: str) -> None:
        self.calls.append(("update", percent, description))


async def test_the_artifact_changes_at_a_bounded_rate_and_only_with_the_run(
    monkeypatch: pytest.MonkeyPatch,
):
    api, store, now = Api(monkeypatch), RunStore(MemoryStore(), "r1"), [0.0]
    shown = artifacts.ProgressArtifact(store, 20, every_s=5.0, clock=lambda: now[0])
    await shown.refresh()
    assert [(key, percent) for key, percent, _ in api.calls] == [("progress-r1", 0.0)]
    etag = store.create_head(head(1, store.write_step(record(1))))
    now[0] = 4.9
    await shown.refresh()
    assert len(api.calls) == 1
    now[0] = 5.1
    await shown.refresh()
    await shown.finish()
    assert [(key, percent) for key, percent, _ in api.calls[1:]] == [("update", 5.0)]
    store.swap_head(head(20, store.write_step(record(20))), etag)
    await shown.finish()
    assert api.calls[-1][1] == 100.0


async def test_an_api_that_is_away_does_not_end_the_run_and_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    api, store, now = Api(monkeypatch), RunStore(MemoryStore(), "r1"), [0.0]
    shown = artifacts.ProgressArtifact(store, 20, every_s=5.0, clock=lambda: now[0])
    api.fails = True
    await shown.refresh()
    api.fails, now[0] = False, 5.1
    await shown.refresh()
    assert len(api.calls) == 1


def test_keys_are_ones_that_prefect_takes():
    assert artifacts.key("report", "My_run.2") == "report-my-run-2"


async def test_the_offsets_are_one_artifact_that_is_updated(monkeypatch: pytest.MonkeyPatch):
    store, calls, now = MemoryStore(), list[tuple[str, str]](), [0.0]

    async def create(markdown: str, *, key: str, description: str) -> Any:
        calls.append((key, markdown))
        return uuid4()

    class Client:
        async def __aenter__(self) -> Client:
            return self

        async def __aexit__(self, *error: object) -> None:
            return None

        async def update_artifact(self, _artifact: Any, update: Any) -> None:
            calls.append(("update", update.data))

    monkeypatch.setattr(artifacts, "acreate_markdown_artifact", create)
    monkeypatch.setattr(artifacts, "get_client", Client)
    run_store = RunStore(store, "r1")
    wall = offset_runs.commit_time(3) + 1.0
    shown = artifacts.OffsetsArtifact(run_store, every_s=5.0, clock=lambda: now[0], wall_clock=lambda: wall)
    await shown.refresh()  # There is no run yet: said in the log, and no reason to end.
    assert calls == []
    offset_runs.write_run(store, "r1", 3, engines={"c0": 3, "c1": 1}, groups=2, members=2)
    for _ in range(3):
        now[0] += 5.1
        await shown.refresh()
    assert [name for name, _ in calls] == ["offsets-r1"]
    assert "| c1 | 1 | 2 versions | 0.01 nats | 1e-07 nats | not measured | yes |" in calls[0][1]
    assert f"| `{metrics.K3}` | 0.01 |" in calls[0][1]
    assert "**healthy**" in calls[0][1]
    offset_runs.commit(store, next(offset_runs.records("r1", 4, first=4, groups=2, members=2)))
    await shown.finish()
    assert [name for name, _ in calls] == ["offsets-r1", "update"]
    assert "Step 4 of 3, version 4" in calls[1][1]
