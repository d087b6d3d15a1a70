"""What a child process warns of is an event of its flow run in Prefect."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from prefect import flow, get_client
from prefect.runtime import flow_run

from tasks import processes

WAIT_S = 30.0

WARNER = """
from driftline.process import child_main, emit
child_main(lambda: [emit({"event": "progress", "step": 1}),
                    emit({"event": "warning", "type": "Diagnosis", "message": "step 7: staleness: so and so"})])
"""


@flow
async def run_warner() -> str:
    await processes.run_module("warner", env={})
    return str(flow_run.id)


async def events_of(run: str, name: str) -> list[dict[str, Any]]:
    """Events arrive through a queue of the server."""
    wanted = {"filter": {"event": {"name": [name]}, "resource": {"id": [f"prefect.flow-run.{run}"]}}}
    async with get_client() as client, asyncio.timeout(WAIT_S):
        while True:
            answer = await client._client.post("/events/filter", json=wanted)
            answer.raise_for_status()
            if answer.json()["events"]:
                return answer.json()["events"]
            await asyncio.sleep(0.5)


async def test_a_warning_of_a_child_is_an_event_of_the_flow_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "warner.py").write_text(WARNER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run = await run_warner()
    (event,) = await events_of(run, "driftline.Diagnosis")
    assert event["payload"] == {"message": "step 7: staleness: so and so"}
