"""A parent and its children, as real flow runs of deployments that real workers take up.

trl#6797, SkyRL#1691: what fails or is cancelled must not leave the other side waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists
from prefect.runtime import flow_run
from prefect.states import Crashed
from prefect.workers.process import ProcessWorker

from driftline.errors import ConfigurationError, ProcessFailed
from tasks import lifeline
from tasks.flow_runs import PrefectFlowRuns
from tasks.supervision import Child, Plan, end_all, run_together
from tests.flows import family
from tests.support.processes import alive, all_gone

POOL = "family"
PULL = [{"prefect.deployments.steps.set_working_directory": {"directory": "{{ $DRIFTLINE_HOME }}"}}]

pytestmark = pytest.mark.usefixtures("surroundings")


@pytest.fixture
async def worker() -> AsyncIterator[None]:
    """A worker for the children, in this event loop; what it runs are processes."""
    async with get_client() as client:
        with contextlib.suppress(ObjectAlreadyExists):
            await client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        for child in (family.works, family.fails):
            flow_id = await client.create_flow(child)
            entrypoint = f"tests.flows.family.{child.name}"
            await client.create_deployment(
                flow_id, "test", work_pool_name=POOL, entrypoint=entrypoint, pull_steps=PULL
            )
    serving = asyncio.create_task(ProcessWorker(work_pool_name=POOL).start(printer=lambda *_: None))
    yield
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


class Witness(PrefectFlowRuns):
    """Remembers the children that were started, and when the first was told to end."""

    children: list[Child]
    told_to_end: float

    async def start(self, plan: Plan) -> Child:
        child = await super().start(plan)
        self.children = [*getattr(self, "children", []), child]
        return child

    async def cancel(self, child: Child) -> None:
        self.told_to_end = time.monotonic()
        await super().cancel(child)


def working(name: str, folder: Path, restarts: int = 0) -> Plan:
    return Plan("works/test", {"pids": str(folder / name)}, name, leads=True, restarts=restarts)


async def pids(folder: Path, *names: str) -> list[int]:
    async with asyncio.timeout(120):
        while not all((folder / name).exists() for name in names):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    return [int(pid) for name in names for pid in (folder / name).read_text().split()]


async def phases(runs: PrefectFlowRuns, children: list[Child]) -> dict[str, str]:
    return {child.plan.name: (await runs.read(child)).phase for child in children}


async def test_a_child_that_fails_takes_its_sibling_along_within_15_seconds(worker: None, tmp_path: Path):
    async with Witness() as runs:

        @flow
        async def parent() -> None:
            failing = Plan("fails/test", {"after": str(tmp_path / "sibling")}, "failing", leads=False)
            await run_together(runs, [working("sibling", tmp_path), failing])

        with pytest.raises(ProcessFailed, match="failing failed: EngineDied: the engine ran out of memory"):
            await parent()
        assert time.monotonic() - runs.told_to_end < 15
        assert await phases(runs, runs.children) == {"sibling": "cancelled", "failing": "failed"}
        assert await all_gone(await pids(tmp_path, "sibling"))


async def test_a_child_whose_process_is_killed_is_started_again_and_its_sibling_goes_on(worker: None, tmp_path: Path):
    async with Witness() as runs:

        @flow
        async def parent() -> None:
            await run_together(runs, [working("killed", tmp_path, restarts=1), working("sibling", tmp_path)])

        running = asyncio.create_task(parent())
        before = await pids(tmp_path, "killed", "sibling")
        (tmp_path / "killed").unlink()
        os.kill(psutil.Process(before[0]).ppid(), signal.SIGKILL)
        again = await pids(tmp_path, "killed")
        for left in before[:2]:  # they have no lifeline, unlike cells and trainers
            os.kill(left, signal.SIGKILL)
        names = [child.plan.name for child in runs.children]  # the first two are created side by side
        assert (sorted(names[:2]), names[2:]) == (["killed", "sibling"], ["killed"])
        going_on = [runs.children[names.index("sibling")], runs.children[2]]
        assert alive(before[2:]) == before[2:]
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await phases(runs, going_on) == {"sibling": "cancelled", "killed": "cancelled"}
        assert await all_gone([*before, *again])


async def test_what_an_earlier_parent_has_left_is_found_by_name(worker: None, tmp_path: Path):
    async with Witness() as runs:
        left = await runs.start(working("left", tmp_path))
        watched = await pids(tmp_path, "left")
        found = await runs.left_over([working("left", tmp_path), working("never", tmp_path)])
        assert [child.id for child in found] == [left.id]
        await end_all(runs, found)
        assert await runs.left_over([working("left", tmp_path)]) == []
        assert await all_gone(watched)


async def test_a_cancelled_parent_leaves_neither_flow_runs_nor_processes(worker: None, tmp_path: Path):
    async with Witness() as runs:

        @flow
        async def parent() -> None:
            await run_together(runs, [working("one", tmp_path), working("two", tmp_path)])

        running = asyncio.create_task(parent())
        watched = await pids(tmp_path, "one", "two")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert time.monotonic() - runs.told_to_end < 15
        assert await phases(runs, runs.children) == {"one": "cancelled", "two": "cancelled"}
        assert await all_gone(watched)


async def test_a_child_ends_itself_when_its_parent_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The child is a subflow in this process; it sees its parent through the API alone, as it would elsewhere."""
    monkeypatch.setattr(lifeline, "PARENT_POLL_S", 0.2)
    ended: list[str] = []

    @flow
    async def parent() -> None:
        child = asyncio.create_task(family.works(str(tmp_path / "orphan")))
        await pids(tmp_path, "orphan")
        async with get_client() as client:
            await client.set_flow_run_state(UUID(flow_run.id), Crashed(message="killed"), force=True)
        try:
            await child
        except ProcessFailed as error:
            ended.append(str(error))

    with contextlib.suppress(Exception):
        await parent()
    assert ended == ["the flow run that started this one has ended (Crashed)"]
    assert await all_gone(await pids(tmp_path, "orphan"))


async def test_a_missing_deployment_is_named_with_the_remedy():
    async with PrefectFlowRuns() as runs:
        with pytest.raises(ConfigurationError, match=r"no deployment 'rollout/nowhere': run `prefect deploy --all`"):
            await runs.start(Plan("rollout/nowhere", {}, "x", leads=False))


async def test_what_no_worker_has_taken_up_can_be_cancelled(tmp_path: Path):
    """The pool has no worker here: cancelling must not wait for one."""
    async with get_client() as client:
        with contextlib.suppress(ObjectAlreadyExists):
            await client.create_work_pool(WorkPoolCreate(name="empty", type="process"))
        flow_id = await client.create_flow(family.works)
        await client.create_deployment(flow_id, "unserved", work_pool_name="empty", pull_steps=PULL)
    async with Witness() as runs:
        plan = Plan("works/unserved", {"pids": str(tmp_path / "x")}, "unserved", leads=True)
        with pytest.raises(ProcessFailed, match="prefect worker start --pool empty"):
            await run_together(runs, [plan], start_deadline_s=0.5)
        assert await phases(runs, runs.children) == {"unserved": "cancelled"}


def test_every_state_of_a_flow_run_has_a_phase():
    from prefect.client.schemas.objects import StateType

    from tasks.flow_runs import _PHASES  # pyright: ignore[reportPrivateUsage]

    missing: list[Any] = [kind for kind in StateType if kind not in _PHASES]
    assert missing == []
