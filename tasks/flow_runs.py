"""Flow runs of deployments, as supervision sees them: started, read and cancelled through Prefect's API."""

from __future__ import annotations

import time
from typing import Self
from uuid import UUID

import httpx
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import StateType
from prefect.deployments import arun_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling

from driftline.errors import ConfigurationError
from tasks.supervision import Child, ChildState, Phase, Plan

OUTAGE_S = 120.0
"""How long the API may be away before the supervision of a run gives up."""
EXCEPTION_PREFIX = "Flow run encountered an exception: "

_PHASES: dict[StateType, Phase] = {
    StateType.SCHEDULED: "waiting",
    StateType.PENDING: "waiting",
    StateType.RUNNING: "running",
    StateType.PAUSED: "running",
    StateType.CANCELLING: "running",
    StateType.COMPLETED: "completed",
    StateType.FAILED: "failed",
    StateType.CRASHED: "failed",
    StateType.CANCELLED: "cancelled",
}


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
        """Create a flow run of a deployment, linked to the flow run that calls.

        Raises:
            ConfigurationError: There is no such deployment.
        """
        try:
            deployment = await self._client.read_deployment_by_name(plan.deployment)
        except ObjectNotFound:
            raise ConfigurationError(not_deployed(plan.deployment)) from None
        flow_run = await arun_deployment(
            plan.deployment, parameters=dict(plan.parameters), flow_run_name=plan.name, timeout=0
        )
        return Child(flow_run.id, deployment.work_pool_name, plan)

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
            await self._client.set_flow_run_state(
                child.id, Cancelling(message="the run it belongs to has ended"), force=True
            )


def not_deployed(deployment: str) -> str:
    """The message for a deployment that does not exist."""
    return f"there is no deployment {deployment!r}: run `prefect deploy --all` in the repository root"
