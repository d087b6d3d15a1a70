"""What the service keeps of a committed step: figures, not members. Pure.

A step record of 16 groups of 8 is some 60 KB of JSON; its figures are a tenth of that, so that a long run fits into
memory. What a single trajectory's answer needs is read from the record again.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from driftline.measured import Diagnosis, DivergenceSummary, MemberUse, SegmentUse
from driftline.records import GroupUse, StepRecord
from driftline.tracking import metrics

KEPT: tuple[str, ...] = (
    metrics.REWARD_MEAN,
    metrics.SUCCESS_MEAN,
    metrics.LOSS,
    metrics.K1,
    metrics.K2,
    metrics.K3,
    metrics.TOTAL_VARIATION,
    metrics.CHI_SQUARE,
    metrics.ESS_FRACTION,
    metrics.TRAINED_K3,
    metrics.TRAINED_ESS_FRACTION,
    metrics.LOGPROB_DIFFERENCE_MAX,
    metrics.FLOOR_K3,
    metrics.FLOOR_DIFFERENCE_MAX,
    *metrics.MEMBER_K3.values(),
    *metrics.MEMBER_GEOMETRIC_RATIO.values(),
    *metrics.MEMBER_SEQUENCE_RATIO.values(),
    metrics.IMPORTANCE_RAW_MEAN,
    metrics.IMPORTANCE_RAW_MAX,
    metrics.IMPORTANCE_APPLIED_MEAN,
    metrics.LAG_STEPS_MEAN,
    metrics.LAG_STEPS_MAX,
    metrics.LAG_IN_FLIGHT_MEAN,
    metrics.LAG_IN_QUEUE_MEAN,
    metrics.LAG_SECONDS_MEAN,
    metrics.LAG_SECONDS_MAX,
    metrics.STEP_SECONDS,
    metrics.TRAIN_SECONDS,
    metrics.PUBLISH_SECONDS,
    metrics.TIME_TO_BATCH,
    *metrics.TIME_TO_BATCH_BY_CAUSE.values(),
    *metrics.LEDGER.values(),
    metrics.LEDGER_IMBALANCE,
    *(name for name in metrics.TABLE if name.startswith(("overlap/", "admission/"))),
)
"""Metrics that are kept of each step, by the names under which MLflow has them."""
KeyT = TypeVar("KeyT")
_POSITION = {name: index for index, name in enumerate(KEPT)}


@dataclass(frozen=True, slots=True)
class TokenDivergence:
    """Divergence of some sampled tokens, as far as records say it of single members; `k1`, `k3` in nats a token."""

    tokens: int
    k1: float
    k3: float
    ess_fraction: float


def pooled_tokens(parts: Iterable[SegmentUse | TokenDivergence]) -> TokenDivergence | None:
    """Of all tokens of some parts; exact, since k1 and k3 give the mean ratio. None without tokens."""
    found = [part for part in parts if part.tokens]
    tokens = sum(part.tokens for part in found)
    if not tokens:
        return None
    k1 = sum(part.k1 * part.tokens for part in found) / tokens
    k3 = sum(part.k3 * part.tokens for part in found) / tokens
    ratios = [_ratio_mean(part) for part in found]
    ratio = sum(mean * part.tokens for mean, part in zip(ratios, found, strict=True))
    squares = sum(
        mean * mean / part.ess_fraction * part.tokens
        for mean, part in zip(ratios, found, strict=True)
        if part.ess_fraction
    )
    return TokenDivergence(tokens, k1, k3, min(1.0, ratio * ratio / (squares * tokens)) if squares else 0.0)


def _ratio_mean(part: SegmentUse | TokenDivergence) -> float:
    """Mean of the tokens' ratios r: k3 is the mean of r - 1 - ln r, and k1 that of -ln r."""
    return max(0.0, part.k3 - part.k1 + 1)


@dataclass(frozen=True, slots=True)
class Admitted:
    """What admission made of some members."""

    members: int
    tokens: int


@dataclass(frozen=True, slots=True)
class StepFigures:
    """One committed step. What the record does not say is None, or absent."""

    step: int
    epoch: int
    previous: str | None
    version_in: int
    version_out: int
    previous_commit_unix: float
    committed_unix: float
    values: array[float]
    """By `KEPT`; NaN where it was not measured."""
    lead_groups: int | None
    lead_why: str
    by_lag: Mapping[int, DivergenceSummary]
    by_environment: Mapping[str, DivergenceSummary]
    by_version: Mapping[int, TokenDivergence]
    """Version that sampled -> of its tokens in the batch."""
    member_k3_by_version: Mapping[int, array[float]]
    """Version that sampled -> k3 a token of what it sampled of each member."""
    member_k3_by_environment: Mapping[str, array[float]]
    by_cell: Mapping[str, TokenDivergence]
    floor_by_cell: Mapping[str, DivergenceSummary]
    incarnations: Mapping[str, str]
    """Cell -> incarnation that `floor_by_cell` is of."""
    admission: Mapping[tuple[str, str], Admitted]
    """(verdict, reason) -> members of the batch and of the groups given up."""
    give_ups: Mapping[str, Admitted]
    """Kind of reason, without the figures of each group -> groups (as `members`) and their tokens."""
    diagnosis: Diagnosis | None
    groups: array[int]
    """Groups trained or given up."""

    def value(self, name: str) -> float | None:
        """A kept metric; None where the step did not measure it, or it is not finite."""
        found = self.values[_POSITION[name]]
        return found if math.isfinite(found) else None

    def metrics(self) -> dict[str, float]:
        """All kept metrics that were measured."""
        return {name: found for name in KEPT if (found := self.value(name)) is not None}


def figures(record: StepRecord) -> StepFigures:
    """What is kept of a record."""
    uses = [use for group in record.groups for use in group.uses]
    left_out = [use for give_up in record.give_ups for use in give_up.uses]
    recorded = metrics.LEAD_GROUPS in record.metrics
    give_ups: dict[str, list[int]] = defaultdict(list)
    for give_up in record.give_ups:
        give_ups[give_up.reason.partition(":")[0]].append(give_up.sampled_tokens)
    return StepFigures(
        step=record.step,
        epoch=record.epoch,
        previous=record.previous,
        version_in=record.version_in.number,
        version_out=record.version_out.number,
        previous_commit_unix=record.times.previous_commit,
        committed_unix=record.times.committed,
        values=array("d", (_value(record, name) for name in KEPT)),
        lead_groups=record.lead_groups if recorded else None,
        lead_why=record.lead_why,
        by_lag=record.by_lag,
        by_environment=record.by_environment,
        by_version=_by_version(record.groups),
        member_k3_by_version=_arrays((part.version, part.k3) for use in uses for part in use.segments),
        member_k3_by_environment=_arrays(
            (group.environment, whole.k3)
            for group in record.groups
            for use in group.uses
            if group.environment and (whole := pooled_tokens(use.segments)) is not None
        ),
        by_cell=_by_cell(record.groups),
        floor_by_cell=record.floor_by_cell,
        incarnations=record.incarnations,
        admission=_admission([*uses, *left_out]),
        give_ups={reason: Admitted(len(tokens), sum(tokens)) for reason, tokens in give_ups.items()},
        diagnosis=record.diagnosis,
        groups=array("q", [*(use.group for use in record.groups), *(left.group for left in record.give_ups)]),
    )


def _value(record: StepRecord, name: str) -> float:
    return record.metrics.get(name, math.nan)


def _arrays(parts: Iterable[tuple[KeyT, float]]) -> dict[KeyT, array[float]]:
    """The values of each key, in four bytes each."""
    found: dict[KeyT, array[float]] = {}
    for key, value in parts:
        found.setdefault(key, array("f")).append(value)
    return found


def _by_version(groups: Iterable[GroupUse]) -> dict[int, TokenDivergence]:
    found: dict[int, list[SegmentUse]] = defaultdict(list)
    for use in (use for group in groups for use in group.uses):
        for segment in use.segments:
            found[segment.version].append(segment)
    return _pooled(found)


def _by_cell(groups: Iterable[GroupUse]) -> dict[str, TokenDivergence]:
    found: dict[str, list[SegmentUse]] = defaultdict(list)
    for use in (use for group in groups for use in group.uses):
        found[use.cell] += use.segments
    return _pooled(found)


def _pooled(parts: Mapping[KeyT, Iterable[SegmentUse]]) -> dict[KeyT, TokenDivergence]:
    found = {key: pooled_tokens(some) for key, some in parts.items()}
    return {key: whole for key, whole in found.items() if whole is not None}


def _admission(uses: Iterable[MemberUse]) -> dict[tuple[str, str], Admitted]:
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for use in uses:
        found[use.verdict, use.reason].append(use.sampled_tokens)
    return {key: Admitted(len(tokens), sum(tokens)) for key, tokens in sorted(found.items())}
