"""The parameters' JSON schema is a golden file: a new knob, or another default, is a reviewed act.

After a change that is meant: `python -m tests.unit.test_parameter_schema`
"""

from __future__ import annotations

import json
from pathlib import Path

from driftline.params import RunParameters

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "run_parameters.schema.json"


def schema() -> str:
    return json.dumps(RunParameters.model_json_schema(), indent=1, sort_keys=True) + "\n"


def test_the_schema_is_the_one_that_was_reviewed():
    assert schema() == GOLDEN.read_text(), "meant? then: python -m tests.unit.test_parameter_schema"


def test_no_section_takes_unknown_fields():
    found = RunParameters.model_json_schema()
    sections = [found, *found["$defs"].values()]
    assert len(sections) > 5
    assert all(section["additionalProperties"] is False for section in sections)


def test_every_field_says_what_it_is():
    found = RunParameters.model_json_schema()
    bare = [
        f"{name}.{field}"
        for name, section in found["$defs"].items()
        for field, about in section["properties"].items()
        if "description" not in about
    ]
    assert bare == []


if __name__ == "__main__":
    GOLDEN.write_text(schema())
