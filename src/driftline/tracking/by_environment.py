"""A run's figures by environment: held-out success, and failures of infrastructure. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftline.records import EpisodeCounts, EvaluationResult, HeldOutOutcome, StepRecord


@dataclass(frozen=True, slots=True)
class EnvironmentFigures:
    """One environment of a run."""

    held_out_base: float | None
    """Held-out success of the base policy, None where that was not measured."""
    held_out_final: float | None
    counts: EpisodeCounts
    """Of the episodes of all steps."""


def by_environment(
    records: Iterable[StepRecord], evaluations: Sequence[EvaluationResult], *, base: int, final: int | None
) -> dict[str, EnvironmentFigures]:
    """Environment id -> its figures, in order; of all that were played or evaluated.

    Args:
        records: The committed steps.
        evaluations: Of any policy versions.
        base: Number of the base policy's version.
        final: Number of the final policy's version, None where there is none yet.
    """
    counts: dict[str, EpisodeCounts] = {}
    for record in records:
        for name, found in record.episodes.items():
            counts[name] = counts.get(name, EpisodeCounts()) + found
    before, after = _held_out(evaluations, base), _held_out(evaluations, final)
    return {
        name: EnvironmentFigures(
            held_out_base=before[name].success if name in before else None,
            held_out_final=after[name].success if name in after else None,
            counts=counts.get(name, EpisodeCounts()),
        )
        for name in sorted({*counts, *before, *after})
    }


def _held_out(evaluations: Sequence[EvaluationResult], version: int | None) -> Mapping[str, HeldOutOutcome]:
    for found in evaluations:
        if found.version == version:
            return found.by_environment
    return {}


def to_dict(found: Mapping[str, EnvironmentFigures]) -> dict[str, Any]:
    """The figures under their public names."""
    return {
        name: {
            "held_out_success_base": one.held_out_base,
            "held_out_success_final": one.held_out_final,
            "episodes": one.counts.episodes,
            "failures": one.counts.failures,
            "timeouts": one.counts.timeouts,
        }
        for name, one in found.items()
    }


def failure_rows(found: Mapping[str, EnvironmentFigures]) -> list[tuple[str, str]]:
    """The report's row of failures; none where no episode was counted."""
    told = [
        f"{name} {one.counts.failures} / {one.counts.timeouts} of {one.counts.episodes}"
        for name, one in found.items()
        if one.counts.episodes
    ]
    return [("episodes failed / of these out of time", "; ".join(told))] if told else []
