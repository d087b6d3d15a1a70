"""A refresh whose flow run is killed at every moment that counts, beside a run that goes on.

The flow runs are those of the nightly deployment, on a worker; the process that is killed is their own. What takes
the refresh up again is a flow run with the same parameters, as a user or the next attempt would start it.
"""

from __future__ import annotations

import asyncio
import re
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import PrefectClient

from driftline.params import RunParameters, settings
from driftline.records import StepRecord
from driftline.store import tasksets
from driftline.store.client import S3Store
from driftline.store.probes import ProbeBook, ProbeRequest, tokens_of
from driftline.store.run_store import RunStore
from driftline.training import base_model
from tests.faults.verification import Observer, verify
from tests.support.deployments import ROOT, serving
from tests.support.environments import LeisurelyDice
from tests.support.run_processes import CELL, TRAINER, RunProcesses
from tests.support.seaweed import Seaweed
from tests.support.toy_run import create_run
from tests.support.training import tiny_model

NAME = "killed-refresh"
ENVIRONMENT = "tests.support.environments:LeisurelyDice"
PROBED, MEMBERS = 6, 2
REFRESH = {
    "environment": ENVIRONMENT,
    "task_set": NAME,
    "train_tasks": 32,
    "held_out_tasks": 8,
    "seed": 11,
    "options": {"proposals": 24, "window": 8, "probe_tasks": PROBED, "probe_members": MEMBERS, "recent_steps": 4},
}
END_S = 300.0
"""Of a flow run, on a busy machine."""

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("surroundings"), pytest.mark.timeout(3000)]


@dataclass(frozen=True)
class Moment:
    """The write that is a flow run's last act, or that it does not come to."""

    when: str
    key: str
    what: str
    published: bool = False


MOMENTS = (
    Moment("before", "^cache/refresh-window/", "a window is validated, and not kept"),
    Moment("after", "^cache/refresh-window/", "one window is kept, others are under way"),
    Moment("after", "/probes/OPEN$", "cells are asked to measure"),
    Moment("before", "^cache/refresh-measured/", "all is measured, and not kept"),
    Moment("before", rf"^tasksets/{NAME}/\w+/tasks\.parquet$", "all is curated, nothing published"),
    Moment("after", rf"^tasksets/{NAME}/\w+/tasks\.parquet$", "the tasks are there, the manifest is not"),
    Moment("after", rf"^tasksets/{NAME}/\w+/manifest\.json$", "the manifest is there, the head names another"),
    Moment("after", rf"^tasksets/{NAME}/HEAD$", "it is published, and not reported", published=True),
)


def parameters() -> RunParameters:
    return RunParameters.model_validate(
        {
            "environment": {"id": ENVIRONMENT, "task_set": NAME},
            "rollout": {"group_size": 4, "groups_per_step": 2, "probe_episodes": 8},
            "overlap": {"lead_groups": 2},
            "engine": {"backend": "scripted", "max_model_len": 128},
            "training": {"steps": 100_000, "micro_batch_tokens": 256},
            "checkpoint": {"every_steps": 50},
            "tracking": {"traces_every_steps": 0},
        }
    )


class Live:
    """A run that goes on: cell and trainer in processes of their own, none of which may be started again."""

    def __init__(self, run_store: RunStore, seaweed: Seaweed) -> None:
        self.run_store = run_store
        self.first = run_store.describe().task_set
        self.observer = Observer(RunStore(seaweed.store(patience_s=2.0), run_store.run))
        self.processes = RunProcesses(run_store, parameters(), self.observer, restarts=0)
        self._seen = 0

    async def goes_on(self) -> None:
        """Another step is committed."""
        self._seen = max(self._seen, self.processes.step) + 1
        await self.processes.until_step(self._seen)

    @property
    def versions(self) -> list[str]:
        """Of the task set, those that the run has taken up."""
        return [version for _, version in self.run_store.read_head()[0].task_sets]


@pytest.fixture
async def live(seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    monkeypatch.setenv("DRIFTLINE_WORK_DIR", str(tmp_path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    settings.cache_clear()
    model = base_model.publish(
        seaweed.store(), "ba9876543210fedc" * 2, tiny_model(tmp_path / "model"), "a tiny Llama"
    )
    name = f"live-{uuid.uuid4().hex[:8]}"
    found = Live(create_run(seaweed.store(), parameters(), run=name, family=LeisurelyDice(), model=model), seaweed)
    found.processes.start(TRAINER)
    found.processes.start(CELL, "--cell", "c0")
    try:
        yield found
    finally:
        await found.processes.end()


async def refresh(client: PrefectClient, moment: Moment | None = None) -> str:
    """Run the deployment to its end, or to the moment at which it dies; returns the type of its last state."""
    deployment = await client.read_deployment_by_name("environment-refresh/nightly")
    variables: dict[str, Any] = {}
    if moment is not None:
        variables = {
            "working_dir": str(ROOT),
            "command": f"{sys.executable} -m tests.support.mortal_flow",
            "env": {"DIES": moment.when, "DIES_AT": moment.key},
        }
    flow_run = await client.create_flow_run_from_deployment(
        deployment.id, parameters=REFRESH, job_variables=variables
    )
    async with asyncio.timeout(END_S):
        while True:
            state = (await client.read_flow_run(flow_run.id)).state
            if state is not None and state.is_final():
                return state.type.value
            await asyncio.sleep(0.5)


def complete_versions(store: S3Store) -> set[str]:
    """Versions that have a manifest; each of them can be read whole."""
    found = {
        info.key.split("/")[2] for info in store.list(f"tasksets/{NAME}/") if re.search(r"manifest\.json$", info.key)
    }
    for version in found:
        tasksets.load_set(store, NAME, version)
    return found


async def test_a_refresh_that_is_killed_anywhere_publishes_all_or_nothing_and_once(
    client: PrefectClient, live: Live, seaweed: Seaweed
):
    store, run_store = seaweed.store(), live.run_store
    await live.goes_on()
    request: ProbeRequest | None = None
    async with serving(client, "cpu-env"):
        for moment in MOMENTS:
            assert await refresh(client, moment) == "CRASHED", moment.what
            head = tasksets.head(store, NAME)
            complete = complete_versions(store)
            assert head.version in complete, moment.what
            assert (head.version == live.first) is not moment.published, moment.what
            if not moment.published:
                assert live.versions == [live.first], moment.what
            request = request or ProbeBook(store, run_store.run).open_request()
            await live.goes_on()
        published = tasksets.head(store, NAME)
        assert await refresh(client) == "COMPLETED"
        assert await refresh(client) == "COMPLETED", "once more, it is done already"
        shown = [found for found in await client.read_artifacts() if found.key == f"refresh-{NAME}"]
    assert published.previous == live.first
    assert tasksets.head(store, NAME) == published, "it was published once"
    assert complete_versions(store) == {live.first, published.version}
    assert tasksets.manifest(store, NAME, published.version).parent == live.first
    assert f"# {NAME} {published.version}" in str(shown[-1].data)
    assert request is not None
    await check_the_run(live, store, published.version, request)


async def check_the_run(live: Live, store: S3Store, version: str, request: ProbeRequest) -> None:
    """It has measured, taken the version up, and noticed nothing else of it."""
    for _ in range(6):
        await live.goes_on()
    await live.processes.end()
    run_store = RunStore(store, live.run_store.run)
    records = run_store.steps()
    results = ProbeBook(store, run_store.run).results(request)
    assert sorted(result.number for result in results) == [*range(PROBED)], "each probe group was played, and once"
    assert {result.attempts + result.invalid for result in results} == {MEMBERS}
    assert live.versions == [live.first, version]
    begins = run_store.read_head()[0].task_sets[1][0]
    assert {use.task_set == version for record in records for use in record.groups if use.group >= begins} == {True}
    assert {use.task_set for record in records for use in record.groups if use.group < begins} == {live.first}
    found = verify(run_store, live.observer.committed, expected_steps=len(records))
    assert found.clean, found
    assert {record.epoch for record in records} == {1}, "no process was started again"
    assert probe_tokens(records) >= tokens_of(results) > 0


def probe_tokens(records: list[StepRecord]) -> int:
    ledger = records[-1].ledger
    assert ledger is not None
    return ledger.probe
