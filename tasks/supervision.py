"""What becomes of the flow runs that a parent has started: the decision, pure, and the loop that carries it out.

    consumes            the children's states, read every POLL_S
    produces            restarts of children whose process died; cancellations, each once
    waits for           the children; each to start (start_deadline_s), then all to end
    unblocked by        a child that ends; a child that never starts; the parent's own cancellation

A child that fails has said why: that ends all. One whose process died without a word (killed, out of memory, its
machine gone) is started again, within its plan's limit. Whatever ends the loop, no child is left behind: `finally`
cancels those that go on and waits until they are gone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol
from uuid import UUID

from driftline.errors import DeadlineExceeded, ProcessFailed

logger = logging.getLogger("driftline.tasks.supervision")

POLL_S = 0.5
START_DEADLINE_S = 600.0
START_CALL_DEADLINE_S = 10.0
"""How long a request that creates a flow run may take once the parent is ending."""
LEAVE_DEADLINE_S = 30.0
"""How long a rollout cell may take to notice that the run is over."""
STOP_DEADLINE_S = 45.0
"""Longer than the 30 s after which a worker kills a flow run that does not act on SIGTERM."""

Phase = Literal["waiting", "running", "completed", "failed", "crashed", "cancelled"]
FINAL: tuple[Phase, ...] = ("completed", "failed", "crashed", "cancelled")


@dataclass(frozen=True, slots=True)
class Plan:
    """A flow run that a parent is about to start."""

    deployment: str
    parameters: Mapping[str, Any]
    name: str
    leads: bool
    """Whether it decides when the work is done (the trainer); the others (cells) leave by themselves then."""
    restarts: int = 0
    """How often it may be started again after its process died."""


@dataclass(frozen=True, slots=True)
class Child:
    """A flow run that a parent has started."""

    id: UUID
    pool: str | None
    plan: Plan
    restarts: int = 0
    """How often its plan was started before."""


@dataclass(frozen=True, slots=True)
class ChildState:
    """What the API says about a child."""

    phase: Phase
    message: str = ""

    @property
    def final(self) -> bool:
        """Whether the flow run has ended."""
        return self.phase in FINAL


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether to end: children that go on are cancelled then. `reason` says what went wrong, or is empty."""

    end: bool
    reason: str = ""
    restart: tuple[Child, ...] = ()
    """Children to start again; only while the others go on."""


Look = Sequence[tuple[Child, ChildState]]


def decide(
    look: Look,
    *,
    waited_s: float,
    done_s: float,
    start_deadline_s: float = START_DEADLINE_S,
    leave_deadline_s: float = LEAVE_DEADLINE_S,
) -> Decision:
    """Given the children's states, decide what becomes of them.

    Args:
        look: Every child and its state.
        waited_s: Seconds since the last of them was created.
        done_s: Seconds since all leading children completed; 0 while they have not.
        start_deadline_s: How long a child may wait for a worker.
        leave_deadline_s: How long the others may stay once the leading children are done.
    """
    for child, state in look:
        if state.phase == "failed":
            return Decision(True, f"{child.plan.name} failed: {state.message or 'its log says why'}")
    if work_is_done(look):
        return Decision(done_s > leave_deadline_s or all(state.final for _, state in look))
    for child, state in look:
        if state.phase == "cancelled":
            return Decision(True, f"{child.plan.name} was cancelled, so this run ends too")
        if state.phase == "crashed" and child.restarts >= child.plan.restarts:
            return Decision(
                True,
                f"the process of {child.plan.name} died {child.restarts + 1} times, limits.flow_run_restarts allows "
                f"{child.plan.restarts} restarts: {state.message or 'it left no message'}",
            )
        if state.phase == "waiting" and waited_s > start_deadline_s:
            return Decision(
                True,
                f"no worker of the pool {child.pool!r} took up {child.plan.name} within {start_deadline_s:.0f} s: "
                f"start one (`driftline up`, or `prefect worker start --pool {child.pool}`)",
            )
    crashed = tuple(child for child, state in look if state.phase == "crashed")
    return Decision(not crashed and all(state.final for _, state in look), restart=crashed)


def work_is_done(look: Look) -> bool:
    """Whether every child that decides when the work is done has completed."""
    leaders = [state for child, state in look if child.plan.leads]
    return bool(leaders) and all(state.phase == "completed" for state in leaders)


class FlowRuns(Protocol):
    """The part of the orchestrator that supervision needs."""

    async def start(self, plan: Plan) -> Child:
        """Create a flow run of a deployment, for a worker to take up."""
        ...

    async def read(self, child: Child) -> ChildState:
        """The child's present state."""
        ...

    async def cancel(self, child: Child) -> None:
        """Ask for its cancellation; may be repeated, and does nothing to a run that has ended."""
        ...


OnPoll = Callable[[], Awaitable[None]]


async def run_together(
    runs: FlowRuns,
    plans: Sequence[Plan],
    *,
    on_poll: OnPoll | None = None,
    start_deadline_s: float = START_DEADLINE_S,
    poll_s: float = POLL_S,
) -> None:
    """Start the children and wait until all have completed; if one does not, or this wait is cancelled, end them all.

    Args:
        runs: The orchestrator.
        plans: The flow runs to start.
        on_poll: Called after each look at the children (it limits its own rate).
        start_deadline_s: How long a child may wait for a worker.
        poll_s: Seconds between two looks.

    Raises:
        ProcessFailed: A child failed, was cancelled, or never started.
        DeadlineExceeded: A cancelled child did not end.
    """
    starting = [asyncio.create_task(runs.start(plan)) for plan in plans]
    children: list[Child] = []
    try:
        children += await asyncio.gather(*map(asyncio.shield, starting))
        await _watch(runs, children, on_poll, start_deadline_s, poll_s)
    finally:
        await end_all(runs, children or await _started(starting), poll_s=poll_s)


async def _started(starting: Sequence[asyncio.Task[Child]]) -> list[Child]:
    """The children that exist. A request under way is waited for: cancelled, it might still create a flow run."""
    _, late = await asyncio.wait(starting, timeout=START_CALL_DEADLINE_S)
    for task in late:
        task.cancel()
    ended = await asyncio.gather(*starting, return_exceptions=True)
    return [child for child in ended if isinstance(child, Child)]


async def _watch(
    runs: FlowRuns, children: list[Child], on_poll: OnPoll | None, start_deadline_s: float, poll_s: float
) -> None:
    """Watch the children to their end; one that is started again takes the place of the one that died."""
    began = time.monotonic()
    done_since: float | None = None
    while True:
        look = await _look(runs, children)
        now = time.monotonic()
        if done_since is None and work_is_done(look):
            done_since = now
        done_s = now - done_since if done_since is not None else 0.0
        decision = decide(look, waited_s=now - began, done_s=done_s, start_deadline_s=start_deadline_s)
        if decision.reason:
            raise ProcessFailed(decision.reason)
        if decision.end:
            return
        if decision.restart:
            await _start_again(runs, children, decision.restart)
            began = time.monotonic()
        if on_poll is not None:
            await on_poll()
        await asyncio.sleep(poll_s)


async def _start_again(runs: FlowRuns, children: list[Child], crashed: Sequence[Child]) -> None:
    """Start plans again whose process died. A request under way is waited for, as at the start."""
    for child in crashed:
        count = child.restarts + 1
        logger.warning(
            "the process of %s died: starting it again (%d of %d)", child.plan.name, count, child.plan.restarts
        )
        starting = asyncio.create_task(runs.start(child.plan))
        try:
            await asyncio.shield(starting)
        finally:
            for started in await _started([starting]):
                children[children.index(child)] = replace(started, restarts=count)


async def end_all(
    runs: FlowRuns, children: Sequence[Child], *, poll_s: float = POLL_S, deadline_s: float = STOP_DEADLINE_S
) -> None:
    """Cancel the children that go on, and wait until none does.

    Raises:
        DeadlineExceeded: One did not end; the message names it.
    """
    deadline = time.monotonic() + deadline_s
    going_on = await _going_on(runs, children)
    await asyncio.gather(*(runs.cancel(child) for child in going_on))
    while going_on:
        if time.monotonic() > deadline:
            names = ", ".join(child.plan.name for child in going_on)
            raise DeadlineExceeded(
                f"{names} did not end within {deadline_s:.0f} s of being cancelled: is its worker alive? "
                "Cancel it in the Prefect UI, then look for processes left on its machine"
            )
        await asyncio.sleep(poll_s)
        going_on = await _going_on(runs, going_on)


async def _going_on(runs: FlowRuns, children: Sequence[Child]) -> list[Child]:
    return [child for child, state in await _look(runs, children) if not state.final]


async def _look(runs: FlowRuns, children: Sequence[Child]) -> list[tuple[Child, ChildState]]:
    states = await asyncio.gather(*(runs.read(child) for child in children))
    return list(zip(children, states, strict=True))
