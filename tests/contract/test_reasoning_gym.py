"""The environments of reasoning-gym keep the contract: some of each kind always, all of them in the slow tests."""

from __future__ import annotations

import pytest

from driftline.environment.checks import Report, check_all
from environments.reasoning_gym import FAMILIES

SOME = (
    "maze_steps", "rush_hour_steps", "sokoban_steps", "tower_of_hanoi_steps",  # move by move
    "gcd", "countdown", "arc_1d",  # a question; judged here; compared with tuples
    "list_functions",  # uses the global random state, so it is generated apart
)  # fmt: skip
NO_ORACLE = {"boxnet"}
PARTS = 12
"""So that one that fails, or takes long, does not keep the others from being looked at."""


def verify(report: Report) -> None:
    assert report.ok, report.failed
    dataset = report.name.split("/")[1]
    idle = {finding.check for finding in report.findings if finding.verdict == "not applicable"}
    others = "another task's answer does not solve"
    assert idle - {"levels of difficulty", "the alphabet covers what is said", others} == (
        {"oracle solves"} if dataset in NO_ORACLE else set()
    )


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    return {report.name: report for report in check_all([f"reasoning_gym/{one}/v1" for one in SOME], tasks=2)}


@pytest.mark.parametrize("dataset", SOME)
def test_some_of_each_kind(reports: dict[str, Report], dataset: str) -> None:
    verify(reports[f"reasoning_gym/{dataset}/v1"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(PARTS))
def test_all_of_them(part: int) -> None:
    for report in check_all([family.id for family in FAMILIES[part::PARTS]], tasks=2):
        verify(report)
