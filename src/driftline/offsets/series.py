"""From a run's steps to what is shown over time: divergence by its parts, history, timeline. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from driftline.measured import K3_SHARES, Cause, DivergenceSummary, pooled
from driftline.offsets.answers import budget, finite, parameter
from driftline.offsets.downsample import buckets, column, gathered, largest, mean
from driftline.offsets.figures import KEPT, StepFigures, TokenDivergence, pooled_tokens
from driftline.offsets.models import By, Divergence, DivergencePart, History, SpanAnswer, Timeline
from driftline.offsets.reader import RunView
from driftline.records import Span
from driftline.tracking import metrics

KeyT = TypeVar("KeyT")

SEVERITY: tuple[Cause, ...] = ("healthy", "staleness", "engine mismatch", "failed weight sync")
"""The worst last."""
BATCH = tuple(name for name in KEPT if name.startswith(("divergence/", "lag/", "importance/")))
NO_STEPS = "not measured: no step is committed yet"
NOT_RECORDED = (
    "not measured: these records were written before divergence was recorded by {by}; `batch` has the whole"
)


def divergence(view: RunView, by: By, window: int) -> Divergence:
    """Divergence of the last `window` batches, apart by lag, environment or the version that sampled."""
    steps = view.steps[-window:]
    parts = _parts(steps, by)
    return Divergence(
        run=view.run,
        by=by,
        first_step=steps[0].step if steps else None,
        last_step=steps[-1].step if steps else None,
        steps=len(steps),
        measured=bool(parts),
        note="" if parts else NOT_RECORDED.format(by=by) if steps else NO_STEPS,
        batch={name: mean(step.value(name) for step in steps) for name in BATCH},
        budget_k3_nats=budget(view),
        parts=parts,
    )


def _parts(steps: Sequence[StepFigures], by: By) -> list[DivergencePart]:
    if by == "environment":
        found = _pool(step.by_environment for step in steps)
        members = _joined(step.member_k3_by_environment.items() for step in steps)
        return [_part(name, found[name], members.get(name)) for name in sorted(found)]
    if by == "lag":
        lags = _pool(step.by_lag for step in steps)
        capped = max(lags, default=0)
        seen = largest(step.value(metrics.LAG_STEPS_MAX) for step in steps) or 0.0
        members = _joined(
            (
                (min(capped, max(0, step.version_in - sampled)), found)
                for sampled, found in step.member_k3_by_version.items()
            )
            for step in steps
        )
        return [
            _part(str(lag), lags[lag], members.get(lag), or_more=lag == capped and seen > lag) for lag in sorted(lags)
        ]
    members = _joined(step.member_k3_by_version.items() for step in steps)
    versions: dict[int, list[TokenDivergence]] = {}
    for step in steps:
        for version, found_tokens in step.by_version.items():
            versions.setdefault(version, []).append(found_tokens)
    return [
        _sampled(str(version), whole, members.get(version))
        for version, some in sorted(versions.items())
        if (whole := pooled_tokens(some)) is not None
    ]


def _pool(parts: Iterable[Mapping[Any, DivergenceSummary]]) -> dict[Any, DivergenceSummary]:
    found: dict[Any, list[DivergenceSummary]] = {}
    for part in parts:
        for key, summary in part.items():
            found.setdefault(key, []).append(summary)
    return {key: whole for key, some in found.items() if (whole := pooled(some)).tokens}


def _joined(parts: Iterable[Iterable[tuple[KeyT, array[float]]]]) -> dict[KeyT, array[float]]:
    """The values of each key, over some steps."""
    found: dict[KeyT, array[float]] = {}
    for key, values in chain.from_iterable(parts):
        found.setdefault(key, array("f")).extend(values)
    return found


def _quantiles(members: array[float] | None) -> dict[str, float]:
    """Quantiles of the members' k3 that are numbers, by name; none without."""
    values = np.frombuffer(members or b"", dtype=np.float32)
    values = values[np.isfinite(values)]
    if not len(values):
        return {}
    found = np.quantile(values.astype(np.float64), K3_SHARES)
    return {f"p{100 * share:.0f}": float(value) for share, value in zip(K3_SHARES, found, strict=True)}


def _part(
    key: str, found: DivergenceSummary, members: array[float] | None, *, or_more: bool = False
) -> DivergencePart:
    return DivergencePart(
        key=key,
        tokens=found.tokens,
        k1_nats=finite(found.k1),
        k2_nats=finite(found.k2),
        k3_nats=finite(found.k3),
        k3_error_nats=finite(found.k3_error),
        total_variation=finite(found.total_variation),
        chi_square=finite(found.chi_square),
        ess_fraction=finite(found.ess_fraction),
        ess_tokens=finite(found.ess),
        ratio_mean=finite(found.ratio_mean),
        members=len(members or ()),
        member_k3_nats=_quantiles(members),
        or_more=or_more,
    )


def _sampled(key: str, found: TokenDivergence, members: array[float] | None) -> DivergencePart:
    return DivergencePart(
        key=key,
        tokens=found.tokens,
        k1_nats=finite(found.k1),
        k2_nats=None,
        k3_nats=finite(found.k3),
        k3_error_nats=None,
        total_variation=None,
        chi_square=None,
        ess_fraction=finite(found.ess_fraction),
        ess_tokens=finite(found.ess_fraction * found.tokens),
        ratio_mean=finite(1 + found.k3 - found.k1),
        members=len(members or ()),
        member_k3_nats=_quantiles(members),
        or_more=False,
    )


def history(view: RunView, points: int) -> History:
    """All kept steps in at most `points` values."""
    steps = view.steps
    into = buckets(len(steps), points)
    means, peaks = _gathered(steps, into)
    return History(
        run=view.run,
        steps=len(steps),
        first=[steps[bucket[0]].step for bucket in into],
        last=[steps[bucket[-1]].step for bucket in into],
        committed_unix=[steps[bucket[-1]].committed_unix for bucket in into],
        values={
            name: column(peaks if "max" in name.rpartition("/")[2].split("_") else means, index)
            for index, name in enumerate(KEPT)
            if np.isfinite(means[:, index]).any()
        },
        k3_peak_nats=column(peaks, KEPT.index(metrics.K3)),
        lead_groups=column(means, KEPT.index(metrics.LEAD_GROUPS)),
        cause=[_worst(steps[i] for i in bucket) for bucket in into],
        budget_k3_nats=budget(view),
        groups_per_step=_groups_per_step(view),
    )


def _gathered(steps: Sequence[StepFigures], into: Sequence[range]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(means, largest) of all kept metrics in each bucket."""
    values = np.frombuffer(b"".join(step.values.tobytes() for step in steps)).reshape(len(steps), len(KEPT))
    if not into:
        return values, values
    return gathered(values, into), gathered(values, into, peaks=True)


def _groups_per_step(view: RunView) -> int | None:
    found = parameter(view, "rollout", "groups_per_step")
    return found if isinstance(found, int) else None


def _worst(steps: Iterable[StepFigures]) -> Cause | None:
    found: list[Cause] = [step.diagnosis.cause for step in steps if step.diagnosis is not None]
    return max(found, key=SEVERITY.index, default=None)


def timeline(view: RunView, seconds: float, most: int) -> Timeline:
    """The last `seconds` of a run's recorded spans, at most `most` of them, the newest."""
    end = largest(span.end_unix for span in view.spans)
    if end is None:
        return Timeline(run=view.run, start_unix=None, end_unix=None, lanes=[], spans=[], commits=[])
    shown = [span for span in view.spans if span.end_unix > end - seconds or span.end_unix == end][-most:]
    start = max(end - seconds, min(span.start_unix for span in shown))
    return Timeline(
        run=view.run,
        start_unix=start,
        end_unix=end,
        lanes=sorted({span.lane for span in shown}, key=_lane_order),
        spans=[_span(span, start) for span in shown],
        commits=[step.committed_unix for step in view.steps if start <= step.committed_unix <= end],
    )


def _span(span: Span, start: float) -> SpanAnswer:
    return SpanAnswer(
        lane=span.lane,
        cause=span.cause,
        start_unix=max(start, span.start_unix),
        end_unix=span.end_unix,
        step=span.step,
    )


def _lane_order(lane: str) -> tuple[int, str]:
    known = ("rollout", "apply", "training", "publish")
    return (known.index(lane) if lane in known else len(known), lane)
