"""What becomes of the flow runs that a parent has started."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from driftline.errors import DeadlineExceeded, ProcessFailed
from tasks.supervision import Child, ChildState, Decision, Plan, decide, end_all, run_together

TRAINER = Plan("training/local", {"run": "r"}, "trainer", leads=True, restarts=2)
CELL = Plan("rollout/local", {"run": "r", "cell": "c0"}, "cell c0", leads=False, restarts=2)

WAITING, RUNNING, COMPLETED = ChildState("waiting"), ChildState("running"), ChildState("completed")
CRASHED = ChildState("crashed", "the process was killed by signal 9")
FAILED, CANCELLED = ChildState("failed", "EngineDied: out of memory"), ChildState("cancelled")


def decision(
    trainer: ChildState, cell: ChildState, *, waited_s: float = 1.0, done_s: float = 0.0, restarts: int = 0
) -> Decision:
    look = [
        (Child(UUID(int=1), "train-gpu", TRAINER, restarts), trainer),
        (Child(UUID(int=2), "rollout-gpu", CELL, restarts), cell),
    ]
    return decide(look, waited_s=waited_s, done_s=done_s, start_deadline_s=600, leave_deadline_s=30)


@pytest.mark.parametrize(
    ("trainer", "cell"), [(WAITING, WAITING), (RUNNING, WAITING), (RUNNING, RUNNING), (RUNNING, COMPLETED)]
)
def test_goes_on_while_nothing_is_wrong(trainer: ChildState, cell: ChildState):
    assert decision(trainer, cell) == Decision(end=False)


@pytest.mark.parametrize(("trainer", "cell"), [(RUNNING, FAILED), (WAITING, FAILED), (COMPLETED, FAILED)])
def test_a_failed_child_ends_all_with_its_own_message(trainer: ChildState, cell: ChildState):
    assert decision(trainer, cell) == Decision(end=True, reason="cell c0 failed: EngineDied: out of memory")


def test_a_cancelled_child_ends_all():
    assert decision(CANCELLED, RUNNING) == Decision(end=True, reason="trainer was cancelled, so this run ends too")


@pytest.mark.parametrize(("trainer", "cell"), [(CRASHED, RUNNING), (RUNNING, CRASHED), (CRASHED, CRASHED)])
def test_a_child_whose_process_died_is_started_again_while_its_limit_lasts(trainer: ChildState, cell: ChildState):
    found = decision(trainer, cell, restarts=1)
    names = [child.plan.name for child in found.restart]
    assert names == [name for name, state in (("trainer", trainer), ("cell c0", cell)) if state is CRASHED]
    assert (found.end, found.reason) == (False, "")


def test_a_child_whose_process_keeps_dying_ends_all_and_names_the_limit():
    found = decision(RUNNING, CRASHED, restarts=2)
    assert found.end
    assert "cell c0 died 3 times, limits.flow_run_restarts allows 2 restarts: the process was killed" in found.reason


def test_a_verdict_ends_all_even_while_another_child_could_be_started_again():
    assert decision(CRASHED, FAILED) == Decision(end=True, reason="cell c0 failed: EngineDied: out of memory")


def test_a_cell_whose_process_died_after_the_work_was_done_is_not_started_again():
    assert decision(COMPLETED, CRASHED) == Decision(end=True)


def test_a_cell_that_was_cancelled_after_the_work_was_done_is_no_failure():
    assert decision(COMPLETED, CANCELLED) == Decision(end=True)


def test_cells_may_leave_by_themselves_once_the_trainer_is_done():
    assert decision(COMPLETED, RUNNING, done_s=29.0) == Decision(end=False)
    assert decision(COMPLETED, RUNNING, done_s=31.0) == Decision(end=True)
    assert decision(COMPLETED, COMPLETED) == Decision(end=True)


def test_a_child_that_no_worker_takes_up_ends_all_and_names_the_pool():
    assert not decision(RUNNING, WAITING, waited_s=599.0).end
    found = decision(RUNNING, WAITING, waited_s=601.0)
    assert found.end
    assert "prefect worker start --pool rollout-gpu" in found.reason


def test_a_cell_that_never_started_does_not_spoil_a_run_that_is_done():
    assert decision(COMPLETED, WAITING, waited_s=601.0, done_s=31.0) == Decision(end=True)


class FakeRuns:
    """Flow runs whose states follow a script: one entry a look, the last one stays."""

    def __init__(self, scripts: dict[str, list[ChildState]], *, ends_on_cancel: bool = True) -> None:
        self.scripts = scripts
        self.cancelled: list[str] = []
        self.ends_on_cancel = ends_on_cancel
        self.started: list[str] = []

    async def start(self, plan: Plan) -> Child:
        await asyncio.sleep(0)
        self.started.append(plan.name)
        return Child(UUID(int=len(self.started)), "pool", plan)

    async def read(self, child: Child) -> ChildState:
        script = self.scripts[child.plan.name]
        return script.pop(0) if len(script) > 1 else script[0]

    async def cancel(self, child: Child) -> None:
        self.cancelled.append(child.plan.name)
        if self.ends_on_cancel:
            self.scripts[child.plan.name] = [RUNNING, RUNNING, CANCELLED]


def fake(trainer: Sequence[ChildState], cell: Sequence[ChildState], **options: bool) -> FakeRuns:
    return FakeRuns({"trainer": list(trainer), "cell c0": list(cell)}, **options)


async def test_returns_when_all_have_completed_and_cancels_nobody():
    runs = fake([WAITING, RUNNING, COMPLETED], [RUNNING, RUNNING, RUNNING, COMPLETED])
    await run_together(runs, [TRAINER, CELL], poll_s=0)
    assert runs.cancelled == []


async def test_a_failure_cancels_the_sibling_and_waits_until_it_is_gone():
    runs = fake([RUNNING], [RUNNING, FAILED])
    with pytest.raises(ProcessFailed, match="cell c0 failed: EngineDied: out of memory"):
        await run_together(runs, [TRAINER, CELL], poll_s=0)
    assert runs.cancelled == ["trainer"]
    assert runs.scripts["trainer"] == [CANCELLED]


async def test_a_child_whose_process_died_is_replaced_and_the_others_go_on():
    runs = fake([RUNNING, RUNNING, RUNNING, COMPLETED], [RUNNING, CRASHED, RUNNING, COMPLETED])
    await run_together(runs, [TRAINER, CELL], poll_s=0)
    assert runs.started == ["trainer", "cell c0", "cell c0"]
    assert runs.cancelled == []


async def test_restarts_are_bounded_and_then_all_end():
    runs = fake([RUNNING], [CRASHED])
    with pytest.raises(ProcessFailed, match=r"cell c0 died 3 times.*allows 2 restarts"):
        await run_together(runs, [TRAINER, CELL], poll_s=0)
    assert runs.started == ["trainer", "cell c0", "cell c0", "cell c0"]
    assert runs.cancelled == ["trainer"]


async def test_cancelled_while_a_child_is_started_again_it_is_not_left_behind():
    runs = fake([RUNNING], [CRASHED])
    quick_start, asked = runs.start, asyncio.Event()

    async def start(plan: Plan) -> Child:
        if "cell c0" in runs.started and plan is CELL:
            asked.set()
            await asyncio.sleep(0.05)
            runs.scripts["cell c0"] = [RUNNING]
        return await quick_start(plan)

    runs.start = start  # pyright: ignore[reportAttributeAccessIssue]
    parent = asyncio.create_task(run_together(runs, [TRAINER, CELL], poll_s=0))
    await asked.wait()
    parent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await parent
    assert sorted(runs.cancelled) == ["cell c0", "trainer"]


async def test_cancelling_the_parent_cancels_all_children_and_waits_until_they_are_gone():
    runs = fake([RUNNING], [RUNNING])
    looks = asyncio.Event()

    async def seen() -> None:
        looks.set()

    parent = asyncio.create_task(run_together(runs, [TRAINER, CELL], on_poll=seen, poll_s=0))
    await looks.wait()
    parent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await parent
    assert sorted(runs.cancelled) == ["cell c0", "trainer"]
    assert runs.scripts == {"trainer": [CANCELLED], "cell c0": [CANCELLED]}


async def test_cancelled_while_a_flow_run_is_being_created_it_is_not_left_behind():
    runs = fake([RUNNING], [RUNNING])
    slow_start, created = runs.start, asyncio.Event()

    async def start(plan: Plan) -> Child:
        created.set()
        await asyncio.sleep(0.05)
        return await slow_start(plan)

    runs.start = start  # pyright: ignore[reportAttributeAccessIssue]
    parent = asyncio.create_task(run_together(runs, [TRAINER, CELL], poll_s=0))
    await created.wait()
    parent.cancel()
    with pytest.raises(asyncio.CancelledError):
        await parent
    assert sorted(runs.cancelled) == ["cell c0", "trainer"]


async def test_a_flow_run_that_cannot_be_created_ends_those_that_were():
    runs = fake([RUNNING], [RUNNING])
    start = runs.start

    async def refuse_cells(plan: Plan) -> Child:
        if plan is CELL:
            raise ProcessFailed("no such deployment")
        return await start(plan)

    runs.start = refuse_cells  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ProcessFailed, match="no such deployment"):
        await run_together(runs, [TRAINER, CELL], poll_s=0)
    assert runs.cancelled == ["trainer"]


async def test_a_child_that_does_not_end_is_named():
    runs = fake([RUNNING], [COMPLETED], ends_on_cancel=False)
    children = [await runs.start(plan) for plan in (TRAINER, CELL)]
    with pytest.raises(DeadlineExceeded, match="trainer did not end within 0 s"):
        await end_all(runs, children, poll_s=0.01, deadline_s=0.05)
    assert runs.cancelled == ["trainer"]


async def test_an_error_of_the_poll_ends_the_children():
    runs = fake([RUNNING], [RUNNING])

    async def explode() -> None:
        raise RuntimeError("mistake")

    with pytest.raises(RuntimeError, match="mistake"):
        await run_together(runs, [TRAINER, CELL], on_poll=explode, poll_s=0)
    assert sorted(runs.cancelled) == ["cell c0", "trainer"]
