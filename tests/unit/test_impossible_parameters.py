"""Values that no run can have are refused before anything starts, with the field's name."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from driftline.params import RunParameters


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize(
    ("section", "name"),
    [
        ("training", "learning_rate"),
        ("training", "max_gradient_norm"),
        ("overlap", "budget_k3_nats"),
        ("admission", "drop_k3_nats"),
        ("limits", "batch_deadline_s"),
        ("rollout", "lease_s"),
    ],
)
def test_numbers_that_json_does_not_have(section: str, name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=f"{section}.{name}"):
        RunParameters.model_validate({section: {name: value}})


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ({"seed": 2**64}, "seed"),
        ({"environment": {"task_set": "../runs"}}, "environment.task_set"),
        ({"environment": {"task_set": ""}}, "environment.task_set"),
        ({"environment": {"task_set": "a/b"}}, "environment.task_set"),
        ({"tracking": {"experiment": ""}}, "tracking.experiment"),
    ],
)
def test_names_and_numbers_that_lead_elsewhere(values: dict[str, Any], names: str) -> None:
    with pytest.raises(ValidationError, match=names):
        RunParameters.model_validate(values)
