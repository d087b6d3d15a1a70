"""What a refresh did, in numbers and as a page."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftline.refresh import reporting
from driftline.refresh.curating import Change, Curated
from driftline.refresh.duplicates import Duplicate
from driftline.refresh.reporting import Refreshed
from driftline.refresh.solving import SolveRate
from driftline.refresh.validating import Validation, Verdict

FOUND = Refreshed(
    name="chains",
    version="v2",
    parent="v1",
    proposed=10,
    validation=Validation(
        tuple("abcdefg"),
        (
            Verdict("h", "rejected", "wrong"),
            Verdict("i", "rejected", "wrong"),
            Verdict("j", "quarantined", "a | b\nc"),
        ),
        attempts=50,
        failures=5,
        timeouts=1,
    ),
    dropped=[Duplicate("a", "x", "held-out", 1.0), Duplicate("b", "c", "proposals", 0.875)],
    rates={"c": SolveRate(8, 4), "d": SolveRate(8, 8), "p": SolveRate(8, 2), "e": SolveRate()},
    parent_tasks=["p", "d"],
    curated=Curated(
        {"c": "useful", "e": "unmeasured", "p": "useful"},
        {"useful": 0.75, "unmeasured": 0.25},
        came=(Change("c", "solved 4 of 8"), Change("e", "unmeasured")),
        went=(Change("d", "always solved"),),
    ),
    measured_by="groups of run r",
    measuring_tokens=640,
    levels={"c": 2, "e": 3, "p": 1},
    parent_levels={"p": 1, "d": 0},
)


def test_the_numbers_of_every_stage() -> None:
    assert reporting.stage_statistics(FOUND) == {
        "propose/tasks": 10,
        "validate/accepted": 7,
        "validate/rejected": 2,
        "validate/quarantined": 1,
        "validate/failure_rate": 0.1,
        "validate/timeout_rate": 0.02,
        "validate/flake_rate": 0.1,
        "duplicates/dropped": 2,
        "duplicates/held_out": 1,
        "measure/tasks": 4,
        "measure/episodes": 24,
        "measure/tokens": 640,
        "curate/came": 2,
        "curate/went": 1,
        "curate/useful": 2,
        "curate/unmeasured": 1,
        "curate/too_hard": 0,
        "curate/too_easy": 0,
        "curate/solve_rate": pytest.approx((0.5 + 0.25) / 2),
        "curate/parent_solve_rate": pytest.approx((0.25 + 1.0) / 2),
        "curate/level": 2.0,
    }


def test_the_page_says_what_came_what_went_and_why() -> None:
    page = reporting.markdown(FOUND)
    for line in (
        "# chains v2",
        "Made from v1; solve rates: groups of run r.",
        "| useful | 2 | 0.75 |",
        "| validate/failure_rate | 0.1000 |",
        "| 0 | 1 | 0 |",
        "| 3 | 0 | 1 |",
        "## Came: 2",
        "- 1 x always solved",
        "## Refused: 3",
        "- 2 x rejected: wrong",
        "- 1 x quarantined: a \\| b c",
        "- 1 x 0.88 of c (proposals)",
    ):
        assert line in page.splitlines(), line
    assert "version before 0.62, of this one 0.38" in page


def test_a_first_version_has_nothing_before_it() -> None:
    first = replace(FOUND, parent=None, parent_tasks=[], rates={}, levels={}, parent_levels={}, dropped=[])
    page, numbers = reporting.markdown(first), reporting.stage_statistics(first)
    assert "Made from nothing" in page
    assert "Copies" not in page
    assert not {"curate/solve_rate", "curate/parent_solve_rate", "curate/level"} & numbers.keys()
