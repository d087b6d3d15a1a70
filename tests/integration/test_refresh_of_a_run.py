"""A refresh beside a run with a real engine and a real trainer: measured by its cell, taken up, accounted for."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from benchmarks.local_run import begin
from driftline import cli_runs
from driftline.environment import resolve
from driftline.params import RunParameters, settings
from driftline.records import StepRecord
from driftline.rollout.prober import FIRST_NUMBER
from driftline.store import tasksets
from driftline.store.probes import ProbeBook, ProbeRequest, tokens_of
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from tasks.refresh_plan import RefreshParameters, RefreshPlan, pinned_plan
from tasks.refresh_stages import Published
from tasks.refreshing import carry_out
from tests.faults.verification import Observer, verify
from tests.support.run_processes import CELL, TRAINER, RunProcesses, until
from tests.support.seaweed import Seaweed

NAME = "refreshed"
PER_STEP, LEAD = 4, 4
PROBED, MEMBERS = 8, 4
OPTIONS = RefreshParameters.model_validate(
    {"proposals": 48, "window": 16, "probe_tasks": PROBED, "probe_members": MEMBERS, "recent_steps": 3}
)
STEPS_AFTER = 4
"""Committed with groups of the new version before the run is left."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def parameters() -> RunParameters:
    return RunParameters.model_validate(
        {
            "seed": 4,
            "model": {"warm_start_steps": 150},
            "environment": {"task_set": NAME, "train_tasks": 128, "held_out_tasks": 16},
            "rollout": {"group_size": 4, "groups_per_step": PER_STEP, "probe_episodes": 8},
            "overlap": {"lead_groups": LEAD},
            "engine": {"max_num_seqs": 32},
            "training": {"steps": 100_000, "micro_batch_tokens": 2048},
            "tracking": {"traces_every_steps": 0},
        }
    )


class Live:
    """The run's processes, none of which may be started again."""

    def __init__(self, run_store: RunStore, seaweed: Seaweed) -> None:
        self.run_store = run_store
        self.observer = Observer(RunStore(seaweed.store(patience_s=2.0), run_store.run))
        self.processes = RunProcesses(run_store, parameters(), self.observer, restarts=0)


@pytest.fixture
async def live(seaweed: Seaweed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Live]:
    for name, value in {**seaweed.environment, "DRIFTLINE_WORK_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DRIFTLINE_MLFLOW_URI", raising=False)
    settings.cache_clear()
    name = f"refreshed-{uuid.uuid4().hex[:8]}"
    await begin(parameters(), name, seaweed.store(), tmp_path)
    found = Live(RunStore(seaweed.store(), name), seaweed)
    found.processes.start(TRAINER)
    found.processes.start(CELL, "--cell", "c0")
    try:
        yield found
    finally:
        await found.processes.end()
        settings.cache_clear()


async def never(request: ProbeRequest) -> None:
    raise AssertionError("the run is under way: its cell measures")


async def refresh(run_store: RunStore) -> tuple[RefreshPlan, Published]:
    family = resolve(parameters().environment.id)
    plan = await asyncio.to_thread(
        pinned_plan, run_store.store, family, NAME, seed=17, size=64, held_out_tasks=16, options=OPTIONS
    )
    assert plan.run == run_store.run, "the run under way measures"
    return plan, await carry_out(run_store.store, family, plan, never)


async def test_a_version_is_measured_by_the_cell_and_in_use_within_one_batch(live: Live):
    run_store, processes = live.run_store, live.processes
    first = run_store.describe().task_set
    await processes.until_step(3, deadline_s=900)
    plan, published = await refresh(run_store)
    await until(lambda: len(run_store.read_head()[0].task_sets) == 2, "the version", 300)
    begins, version = run_store.read_head()[0].task_sets[1]
    assert version == published.version
    await processes.until_step(begins // PER_STEP + STEPS_AFTER, deadline_s=600)
    await processes.end()

    records = run_store.steps()
    check_promptness(records, begins, tasksets.head(run_store.store, NAME).published_unix)
    check_versions(run_store, records, begins, first, version)
    check_probes(run_store, records, plan, first)
    found = verify(run_store, live.observer.committed, expected_steps=len(records))
    assert found.clean, found
    assert {record.epoch for record in records} == {1}
    assert [record.metrics[metrics.LEDGER_IMBALANCE] for record in records] == [0.0] * len(records)
    mixed = next(record for record in records if any(use.task_set == version for use in record.groups))
    log: list[str] = []
    again = await asyncio.to_thread(cli_runs.replay, run_store, mixed.step, log.append)
    assert again["agrees"], (again, log)


def check_promptness(records: list[StepRecord], begins: int, published_unix: float) -> None:
    """It begins with the groups that were not admitted at its publication, but for those of the commit under way."""
    committed = sum(record.times.committed <= published_unix for record in records)
    given_up = sum(len(record.give_ups) for record in records[: committed + 1])
    assert begins <= committed * PER_STEP + given_up + PER_STEP + LEAD + PER_STEP


def check_versions(run_store: RunStore, records: list[StepRecord], begins: int, first: str, version: str) -> None:
    """Every group is of one version, by its number alone; batches are of both at most while the lead lasts."""
    groups = RunStore(run_store.store, run_store.run).new_groups()
    assert max(group.number for group in groups) >= begins
    for group in groups:
        wanted = version if group.number >= begins else first
        assert {member.task_set for member in group.trajectories} == {wanted}
        assert len({member.task_id for member in group.trajectories}) == 1
    tasks = {one: {task.id for task in tasksets.load(run_store.store, NAME, one)} for one in (first, version)}
    for record in records:
        for use in record.groups:
            assert use.task_id in tasks[use.task_set]
            assert use.task_set == (version if use.group >= begins else first)
    shares = [record.metrics[metrics.TASK_SET_SHARE] for record in records]
    assert shares[-1] == 1.0, "the last batches are of the new version alone"
    numbers = [int(record.metrics[metrics.TASK_SET_NUMBER]) for record in records]
    assert numbers == sorted(numbers)
    assert {*numbers} == {0, 1}


def check_probes(run_store: RunStore, records: list[StepRecord], plan: RefreshPlan, first: str) -> None:
    """The cell has played the candidates, in a ledger class of their own, and no step has trained on them."""
    book = ProbeBook(run_store.store, run_store.run)
    results = book.results(book.read(plan.id))
    assert sorted(result.number for result in results) == [*range(PROBED)]
    assert {result.cell for result in results} == {"c0"}
    assert {result.attempts + result.invalid for result in results} == {MEMBERS}
    assert min(result.policy_version for result in results) >= 1
    ledger = records[-1].ledger
    assert ledger is not None
    proofs = ledger.probe - tokens_of(results)
    assert 1 <= proofs <= len(records) + 1, "beside them, one token for each proof of a version"
    assert max(use.group for record in records for use in record.groups) < FIRST_NUMBER
    known = {task.id for task in tasksets.load(run_store.store, NAME, first)}
    assert known.isdisjoint(result.task_id for result in results)
