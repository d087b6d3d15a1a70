"""Flow runs of deployments, as supervision sees them: started, read and cancelled through Prefect's API."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.deployments import arun_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling

from driftline.errors import ConfigurationError
from tasks.supervision import Child, ChildState, Phase, Plan

logger = logging.getLogger("driftline.tasks.flow_runs")

OUTAGE_S = 600.0
"""How long the API may be away before the supervision of a run gives up. Its children go on meanwhile."""
RETRY_S = 2.0
EXCEPTION_PREFIX = "Flow run encountered an exception: "

_PHASES: dict[StateType, Phase] = {
    StateType.SCHEDULED: "waiting",
    StateType.PENDING: "waiting",
    StateType.RUNNING: "running",
    StateType.PAUSED: "running",
    StateType.CANCELLING: "running",
    StateType.COMPLETED: "completed",
    StateType.FAILED: "failed",
    StateType.CRASHED: "crashed",
    StateType.CANCELLED: "cancelled",
}
_UNFINISHED = [kind for kind, phase in _PHASES.items() if phase in ("waiting", "running")]
T = TypeVar("T")


async def patiently(call: Callable[[], Awaitable[T]], what: str, *, patience_s: float = OUTAGE_S) -> T:
    """Make a call that may be repeated, again and again while the API is away.

    Raises:
        httpx.HTTPError: It has been away for longer than `patience_s`.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            return await call()
        except httpx.HTTPError as error:
            if not _is_outage(error) or time.monotonic() > until:
                raise
            logger.warning("cannot %s yet: the Prefect API is away (%s)", what, type(error).__name__)
        await asyncio.sleep(RETRY_S)


def _is_outage(error: httpx.HTTPError) -> bool:
    return not isinstance(error, httpx.HTTPStatusError) or error.response.status_code >= httpx.codes.BAD_GATEWAY


class PrefectFlowRuns:
    """`FlowRuns` over one client; an asynchronous context manager."""

    def __init__(self) -> None:
        self._client: PrefectClient = get_client()
        self._seen: dict[UUID, tuple[float, ChildState]] = {}

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._client.__aexit__(None, None, None)

    async def start(self, plan: Plan) -> Child:
        """Create a flow run of a deployment, linked to the flow run that calls; one, however often it is asked for.

        Raises:
            ConfigurationError: There is no such deployment.
            httpx.HTTPError: The API has been away for longer than `OUTAGE_S`.
        """
        what, key = f"start {plan.name}", uuid.uuid4().hex
        try:
            deployment = await patiently(lambda: self._client.read_deployment_by_name(plan.deployment), what)
        except ObjectNotFound:
            raise ConfigurationError(not_deployed(plan.deployment)) from None
        flow_run = await patiently(
            lambda: arun_deployment(
                plan.deployment,
                client=self._client,
                parameters=dict(plan.parameters),
                flow_run_name=plan.name,
                timeout=0,
                idempotency_key=key,
            ),
            what,
        )
        return Child(flow_run.id, deployment.work_pool_name, plan)

    async def left_over(self, plans: Sequence[Plan]) -> list[Child]:
        """Flow runs of these names that have not ended: children of a parent that was killed."""
        named = {plan.name: plan for plan in plans}
        wanted = FlowRunFilter(
            name=FlowRunFilterName(any_=list(named)),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_UNFINISHED)),
        )
        found = await patiently(lambda: self._client.read_flow_runs(flow_run_filter=wanted), "look for flow runs")
        return [Child(flow_run.id, flow_run.work_pool_name, named[flow_run.name]) for flow_run in found]

    async def read(self, child: Child) -> ChildState:
        """The child's present state; its last one while the API is away, for `OUTAGE_S` at most.

        Raises:
            httpx.HTTPError: The API has been away for longer.
        """
        now = time.monotonic()
        try:
            flow_run = await self._client.read_flow_run(child.id)
        except httpx.HTTPError:
            seen_at, state = self._seen.get(child.id, (now, ChildState("waiting")))
            if now - seen_at > OUTAGE_S:
                raise
            self._seen.setdefault(child.id, (now, state))
            return state
        except ObjectNotFound:
            return ChildState("cancelled", "its flow run was deleted")
        state = ChildState("waiting")
        if flow_run.state is not None:
            message = (flow_run.state.message or "").removeprefix(EXCEPTION_PREFIX)
            state = ChildState(_PHASES[flow_run.state.type], message)
        self._seen[child.id] = (now, state)
        return state

    async def cancel(self, child: Child) -> None:
        """Ask for its cancellation: its worker signals the flow run's process group. Nothing if it has ended."""
        if not (await self.read(child)).final:
            ending = Cancelling(message="the run it belongs to has ended")
            await patiently(
                lambda: self._client.set_flow_run_state(child.id, ending, force=True), f"cancel {child.plan.name}"
            )


def not_deployed(deployment: str) -> str:
    """The message for a deployment that does not exist."""
    return f"there is no deployment {deployment!r}: run `prefect deploy --all` in the repository root"
