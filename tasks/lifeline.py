"""What ends a child flow run besides its work: the end of the flow run that started it.

A parent that is killed cannot cancel its children, and Prefect does not do it either: they look for themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run as this_flow_run

from driftline.errors import ParentEnded
from tasks.logs import run_logger

PARENT_POLL_S = 3.0


async def while_parent_lives(work: Coroutine[Any, Any, object]) -> None:
    """Do the work, but end it when the flow run that started this one has ended: killed, it cannot cancel us.

    Raises:
        ParentEnded: It has.
    """
    parent = this_flow_run.parent_flow_run_id
    if parent is None:
        await work
        return
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_until_final(UUID(parent)))
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ParentEnded(f"the flow run that started this one has ended ({watching.result()})")
        working.result()
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _until_final(flow_run: UUID) -> str:
    """Wait until a flow run has ended; returns its state. An API that is away is waited for."""
    logger = run_logger()
    async with get_client() as client:
        while True:
            await asyncio.sleep(PARENT_POLL_S)
            try:
                state = (await client.read_flow_run(flow_run)).state
            except ObjectNotFound:
                return "deleted"
            except Exception as error:  # the policy: only a state that was read ends the work
                logger.warning("cannot see whether the parent flow run goes on: %s", error)
                continue
            if state is not None and state.is_final():
                return str(state.name)
