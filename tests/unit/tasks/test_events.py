"""What the trainer tells becomes an event that the example automation waits for."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect.server.events.schemas.automations import AutomationCore, EventTrigger
from prefect.server.events.schemas.events import ReceivedEvent

from tasks import logs

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "automations" / "where-the-time-goes.yaml"


class Run:
    id = "0191d5e4-0000-7000-8000-000000000000"
    name = "trainer-of-r"


@pytest.fixture
def emitted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    monkeypatch.setattr(logs, "flow_run", Run)
    monkeypatch.setattr(logs, "emit_event", lambda event, **about: found.append({"event": event, **about}))
    return found


def received(emitted: dict[str, Any]) -> ReceivedEvent:
    return ReceivedEvent.model_validate({"id": uuid4(), "occurred": datetime.now(UTC), **emitted})


@pytest.mark.parametrize(("news", "waited_for"), [("Bottleneck", True), ("TimeToBatchRegressed", True), ("X", False)])
def test_the_example_automation_fires_for_its_events(
    emitted: list[dict[str, Any]], news: str, waited_for: bool
) -> None:
    logs.announce({"event": "warning", "type": news, "message": "m", "figures": {"bound": "trainer", "share": 0.5}})
    logs.announce({"event": "progress", "type": news, "message": "no warning"})
    [event] = emitted
    assert event["payload"] == {"message": "m", "bound": "trainer", "share": 0.5}
    trigger = AutomationCore.model_validate(yaml.safe_load(EXAMPLE.read_text())).trigger
    assert isinstance(trigger, EventTrigger)
    assert trigger.covers(received(event)) == waited_for
    assert trigger.immediate


def test_a_warning_without_figures_is_its_message(emitted: list[dict[str, Any]]) -> None:
    logs.announce({"event": "warning", "type": "Diagnosis", "message": "m"})
    assert [(event["event"], event["payload"]) for event in emitted] == [("driftline.Diagnosis", {"message": "m"})]
