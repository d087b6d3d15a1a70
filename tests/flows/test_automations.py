"""The example automation on a Prefect server: what a run tells becomes a message that arrives."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from prefect import flow
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import PrefectClient
from prefect.events.schemas.automations import AutomationCore

from tasks.logs import announce
from tests.support.deployments import ROOT

EXAMPLE = ROOT / "docs" / "automations" / "where-the-time-goes.yaml"
SLOWER = {
    "event": "warning",
    "type": "TimeToBatchRegressed",
    "message": "step 12: a batch takes 4.00 s",
    "figures": {"recent_s": 4.0, "baseline_s": 2.0},
}
BOUND = {
    "event": "warning",
    "type": "Bottleneck",
    "message": "step 20: tools bound the run",
    "figures": {"before": "engine", "bound": "tools", "part": "tool", "share": 0.6},
}
OTHERS = ({"event": "warning", "type": "Diagnosis", "message": "stale"}, {"event": "progress", "step": 1})
ARRIVAL_S = 120.0


@contextlib.contextmanager
def mailbox() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """An address that messages are posted to, and those that have arrived."""
    arrived: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            arrived.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", arrived
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@flow(name="tells")
async def tells() -> None:
    """What the trainer's flow run does with the warnings of its process."""
    for told in (*OTHERS, SLOWER, BOUND):
        announce(told)


@pytest.mark.timeout(600)
async def test_the_example_automation_sends_a_message_for_each_of_its_events(client: PrefectClient):
    example = AutomationCore.model_validate(yaml.safe_load(EXAMPLE.read_text()))
    with mailbox() as (address, arrived):
        message = {"subject": "{{subject}}", "body": "{{body}}"}
        block = CustomWebhookNotificationBlock(
            name="mailbox", url=address, json_data=message, headers=None, cookies=None
        )
        [action] = example.actions
        action = action.model_copy(update={"block_document_id": await block.asave("mailbox", overwrite=True)})
        made = await client.create_automation(example.model_copy(update={"actions": [action]}))
        try:
            await tells()
            async with asyncio.timeout(ARRIVAL_S):
                while len(arrived) < 2:  # noqa: ASYNC110 (the server has no event)
                    await asyncio.sleep(0.2)
        finally:
            await client.delete_automation(made)
    told = {(message["subject"].partition(" in ")[0], message["body"]) for message in arrived}
    assert told == {
        ("driftline.TimeToBatchRegressed", SLOWER["message"]),
        ("driftline.Bottleneck", BOUND["message"]),
    }
    assert len(arrived) == 2
