"""The overlap's settings: what has no effect or contradicts another is refused, with the remedy."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from driftline.measured import FLOOR_K3_NATS
from driftline.params import RunParameters

CONTROLLED = {"controller": "divergence"}


def parameters(**overlap: Any) -> RunParameters:
    return RunParameters.model_validate({"overlap": overlap})


@pytest.mark.parametrize(
    ("overlap", "message"),
    [
        ({"lowest_groups": 1}, "overlap.lowest_groups: has no effect unless overlap.controller is divergence"),
        ({"highest_groups": 64}, "overlap.highest_groups: has no effect"),
        ({"step_groups": 4}, "overlap.step_groups: has no effect"),
        ({**CONTROLLED, "highest_groups": 129}, "than overlap.max_lag_versions allows: lower it to 128"),
        ({**CONTROLLED, "max_lag_versions": 0, "lead_groups": 0}, "has no effect between leads of 0 .* and 0 groups"),
        ({**CONTROLLED, "lowest_groups": 8, "highest_groups": 8}, "make room, or set it to fixed"),
        ({**CONTROLLED, "lowest_groups": 20}, "overlap.lead_groups: the run begins with it: between 20 and 128"),
        ({**CONTROLLED, "highest_groups": 8}, "between 0 and 8"),
        ({"budget_k3_nats": 1e-6}, "overlap.budget_k3_nats: no lead could keep it"),
        ({"lead_groups": 129}, "lower it to 128 or raise the limit"),
    ],
)
def test_settings_that_have_no_effect_or_contradict_are_refused(overlap: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        parameters(**overlap)


def test_the_limits_of_the_lead():
    assert parameters().highest_lead_groups == 8 * 16
    found = parameters(**CONTROLLED, highest_groups=40, lowest_groups=4, step_groups=8)
    assert found.highest_lead_groups == 40
    assert RunParameters.model_validate(found.model_dump(mode="json")) == found
    assert RunParameters.model_validate(parameters().model_dump(mode="json")) == parameters()


@pytest.mark.parametrize(
    ("engine", "training", "coarser"),
    [("float32", "float32", "float32"), ("bfloat16", "float32", "bfloat16"), ("float32", "bfloat16", "bfloat16")],
)
def test_the_floor_is_that_of_the_coarser_arithmetic(engine: str, training: str, coarser: str):
    found = RunParameters.model_validate({"engine": {"dtype": engine}, "training": {"dtype": training}})
    assert found.floor_k3_nats == FLOOR_K3_NATS[coarser]
    set_by_hand = RunParameters.model_validate({"diagnosis": {"floor_k3_nats": 1e-5}})
    assert set_by_hand.floor_k3_nats == 1e-5
