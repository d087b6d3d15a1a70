"""What a refresh did: numbers for the manifest, and a page for a reader."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from driftline.refresh.curating import POOLS, Curated
from driftline.refresh.duplicates import Duplicate
from driftline.refresh.solving import SolveRate
from driftline.refresh.validating import Validation

SHOWN = 10
"""Examples of each kind on the page."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """Everything that a refresh has found."""

    name: str
    version: str
    parent: str | None
    proposed: int
    validation: Validation
    dropped: Sequence[Duplicate]
    rates: Mapping[str, SolveRate]
    """Of all tasks that were measured, for this version or an earlier one."""
    parent_tasks: Sequence[str]
    """Task ids of the version before."""
    curated: Curated
    measured_by: str
    """What the solve rates come from."""
    measuring_tokens: int
    """Sampled for measuring alone."""
    levels: Mapping[str, int]
    """Task id -> level of the tasks of this version, where it is known."""
    parent_levels: Mapping[str, int]
    """The same of the version before."""


def stage_statistics(found: Refreshed) -> dict[str, float]:
    """Numbers of every stage, by `stage/what`."""
    validation, curated = found.validation, found.curated
    counts = Counter(curated.pools.values())
    drift = difficulty(found.curated.pools, found.rates), difficulty(found.parent_tasks, found.rates)
    levels = _mean(found.levels[one] for one in curated.pools if one in found.levels)
    return {
        "propose/tasks": float(found.proposed),
        "validate/accepted": float(len(validation.accepted)),
        "validate/rejected": float(len(validation.refused) - validation.flaky),
        "validate/quarantined": float(validation.flaky),
        "validate/failure_rate": validation.failures / max(1, validation.attempts),
        "validate/timeout_rate": validation.timeouts / max(1, validation.attempts),
        "validate/flake_rate": validation.flaky / max(1, found.proposed),
        "duplicates/dropped": float(len(found.dropped)),
        "duplicates/held_out": float(sum(one.where == "held-out" for one in found.dropped)),
        "measure/tasks": float(len(found.rates)),
        "measure/episodes": float(sum(rate.attempts for rate in found.rates.values())),
        "measure/tokens": float(found.measuring_tokens),
        "curate/came": float(len(curated.came)),
        "curate/went": float(len(curated.went)),
        **{f"curate/{pool}": float(counts.get(pool, 0)) for pool in POOLS},
        **({"curate/solve_rate": drift[0]} if drift[0] is not None else {}),
        **({"curate/parent_solve_rate": drift[1]} if drift[1] is not None else {}),
        **({"curate/level": levels} if levels is not None else {}),
    }


def difficulty(tasks: Sequence[str] | Mapping[str, object], rates: Mapping[str, SolveRate]) -> float | None:
    """Mean solve rate of the tasks that were measured, in [0, 1]; None if none was."""
    return _mean(rates[task].share for task in tasks if task in rates and rates[task].attempts)


def markdown(found: Refreshed) -> str:
    """The report as a page."""
    numbers = stage_statistics(found)
    lines = [
        f"# {found.name} {found.version}",
        "",
        f"Made from {found.parent or 'nothing'}; solve rates: {found.measured_by}.",
        "",
        "| stage | |",
        "|---|---|",
        *(f"| {name} | {_number(value)} |" for name, value in numbers.items()),
        "",
        *_pools(found),
        *_drift(found, numbers),
        *_listed("Came", [(one.task_id, one.reason) for one in found.curated.came]),
        *_listed("Went", [(one.task_id, one.reason) for one in found.curated.went]),
        *_listed("Refused", [(one.task_id, f"{one.status}: {one.reason}") for one in found.validation.refused]),
        *_listed(
            "Copies", [(one.task_id, f"{one.similarity:.2f} of {one.of} ({one.where})") for one in found.dropped]
        ),
    ]
    return "\n".join(lines)


def _pools(found: Refreshed) -> list[str]:
    counts = Counter(found.curated.pools.values())
    rows = [f"| {pool} | {counts.get(pool, 0)} | {found.curated.weights.get(pool, 0.0):.2f} |" for pool in POOLS]
    return ["## Pools", "", "| pool | tasks | share of the groups |", "|---|---|---|", *rows, ""]


def _drift(found: Refreshed, numbers: Mapping[str, float]) -> list[str]:
    """How the difficulty has moved against the version before."""
    lines = ["## Difficulty", ""]
    before, now = numbers.get("curate/parent_solve_rate"), numbers.get("curate/solve_rate")
    if before is not None and now is not None:
        lines.append(
            f"Mean solve rate of the version before {before:.2f}, of this one {now:.2f}, over the tasks that were "
            "measured, be it by an earlier policy."
        )
    levels = {
        where: Counter(values.values()) for where, values in (("before", found.parent_levels), ("now", found.levels))
    }
    if levels["now"]:
        lines += ["", "| level | before | now |", "|---|---|---|"]
        for level in sorted({*levels["before"], *levels["now"]}):
            lines.append(f"| {level} | {levels['before'].get(level, 0)} | {levels['now'].get(level, 0)} |")
    return [*lines, ""]


def _listed(title: str, rows: Sequence[tuple[str, str]]) -> list[str]:
    """Reasons with their counts, and some examples."""
    if not rows:
        return []
    reasons = Counter(reason for _, reason in rows)
    lines = [f"## {title}: {len(rows)}", ""]
    lines += [f"- {count} x {_text(reason)}" for reason, count in reasons.most_common(SHOWN)]
    lines += ["", "Among them: " + ", ".join(f"`{task_id}`" for task_id, _ in rows[:SHOWN]), ""]
    return lines


def _text(reason: str) -> str:
    return reason.replace("|", "\\|").replace("\n", " ")[:200]


def _number(value: float) -> str:
    return f"{value:g}" if value == int(value) else f"{value:.4f}"


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None
