"""The events of a run, as an automation of Prefect waits for them: against a real server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import AutomationCore
from prefect.runtime import flow_run

from tasks.logs import announce

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "automations" / "where-the-time-goes.yaml"
NEWS = {
    "event": "warning",
    "type": "TimeToBatchRegressed",
    "message": "step 12: a batch takes 4.00 s",
    "figures": {"recent_s": 4.0, "baseline_s": 2.0},
}


@flow
async def slower() -> str:
    announce(NEWS)
    announce({"event": "progress", "step": 1})
    return str(flow_run.id)


@pytest.mark.timeout(300)
async def test_the_example_is_taken_by_the_server_and_what_it_waits_for_arrives() -> None:
    example = AutomationCore.model_validate(yaml.safe_load(EXAMPLE.read_text()))
    async with get_client() as client:
        made = await client.create_automation(example)
        try:
            kept = await client.read_automation(made)
            assert kept is not None
            assert kept.trigger.model_dump()["expect"] == {"driftline.TimeToBatchRegressed", "driftline.Bottleneck"}
            run = await slower()
            found = await _events(UUID(run))
        finally:
            await client.delete_automation(made)
    assert [(event["event"], event["payload"]) for event in found] == [
        ("driftline.TimeToBatchRegressed", {"message": NEWS["message"], "recent_s": 4.0, "baseline_s": 2.0})
    ]


async def _events(run: UUID) -> list[dict]:
    """Driftline's events of a flow run, once there are any; they are sent by a thread."""
    wanted = {"event": {"prefix": ["driftline."]}, "resource": {"id": [f"prefect.flow-run.{run}"]}}
    async with get_client() as client:
        for _ in range(60):
            answer = await client.request("POST", "/events/filter", json={"filter": wanted})
            if found := answer.json()["events"]:
                return found
            await asyncio.sleep(0.5)
    return []
