"""Whether the environments of a refresh may be trained on, by what playing their proposals led to. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from driftline.environment import TaskFamily, family_named
from driftline.errors import EnvironmentFailed
from driftline.refresh.validating import Validation
from tasks.refresh_plan import RefreshParameters


def quarantined(
    family: TaskFamily, options: RefreshParameters, found: Mapping[str, tuple[Validation, int]]
) -> Mapping[str, EnvironmentFailed]:
    """Environment id -> why nothing new of it is published, of those of which nothing is.

    Args:
        family: Of the refresh: one, or a mixture.
        options: The limits.
        found: Name of the family or of a part of it -> what its validation came to, and how many tasks were proposed.
    """
    ill: dict[str, EnvironmentFailed] = {}
    for name, (validation, proposed) in found.items():
        part = family_named(family, name)
        why = unfit(part, options, validation, proposed)
        if why is not None:
            ill[part.id] = why
    return ill


def unfit(
    family: TaskFamily, options: RefreshParameters, validation: Validation, proposed: int
) -> EnvironmentFailed | None:
    """Which rate is beyond which limit, or that no task is left; None where nothing is wrong."""
    attempts = max(1, validation.attempts)
    for name, share, limit in (
        ("most_failures", validation.failures / attempts, options.most_failures),
        ("most_timeouts", validation.timeouts / attempts, options.most_timeouts),
        ("most_flaky", validation.flaky / max(1, proposed), options.most_flaky),
    ):
        if share > limit:
            return EnvironmentFailed(
                f"{family.id} is quarantined: {name} is {limit:g}, found {share:.3f}; {refusal(family, validation)}"
            )
    return None if validation.accepted else EnvironmentFailed(refusal(family, validation))


def refusal(family: TaskFamily, validation: Validation) -> str:
    """The first task that was refused, and why."""
    first = validation.refused[0] if validation.refused else None
    found = f"task {first.task_id} {first.status}: {first.reason}" if first is not None else "it has no tasks"
    return f"environment {family.id}, {found}; {len(validation.refused)} tasks are refused: mend them or their oracle"
