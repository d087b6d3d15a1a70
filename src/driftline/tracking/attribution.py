"""Where a run's wall clock went: each step taken apart, and the idle seconds of each pool by cause. Pure.

A step reaches from the previous commit `P` to its own, `C`. Its parts add up to it:

    P ── time to a trainable batch, by critical path ──▶ R ── trainer ──▶ │ train │ ── weights ──▶ C

The training pool is idle in all of them but `train`. The rollout pool is idle, cell by cell, where no request
executed and no tool ran; the cell has recorded what it waited for. With several cells, idle seconds are the mean over
the cells, so that idle and busy seconds of a pool add up to the wall clock, and idle seconds times the pool's GPUs
are what was paid for in vain.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from driftline.records import Span, StepRecord
from driftline.tracking import metrics, timeline
from driftline.tracking.causes import CAUSES, ROLLOUT_IDLE, TRAIN_IDLE
from driftline.tracking.intervals import Interval, clip, seconds, union

TRAIN, WEIGHTS, OTHER = "train", "weights", "other"


@dataclass(frozen=True, slots=True)
class Prices:
    """What a pool costs: a price per GPU hour, in any currency, and GPUs. A price of 0 is none."""

    rollout_per_gpu_hour: float = 0.0
    train_per_gpu_hour: float = 0.0
    rollout_gpus: int = 1
    train_gpus: int = 1

    def of_rollout(self, idle_s: float) -> float | None:
        """Cost of seconds of the rollout pool; None without a price."""
        return _cost(idle_s, self.rollout_per_gpu_hour, self.rollout_gpus)

    def of_train(self, idle_s: float) -> float | None:
        """Cost of seconds of the training pool; None without a price."""
        return _cost(idle_s, self.train_per_gpu_hour, self.train_gpus)


@dataclass(frozen=True, slots=True)
class Attribution:
    """Seconds are sums over the steps, by cause; None is what was not recorded or has no price."""

    steps: int
    step_s: Mapping[str, float]
    """Part -> seconds; they add up to the wall clock of the steps."""
    rollout_idle_s: Mapping[str, float] | None
    train_idle_s: Mapping[str, float]
    rollout_idle_cost: float | None
    train_idle_cost: float | None


def attribute_run(records: Sequence[StepRecord], spans: Sequence[Span], prices: Prices) -> Attribution:
    """Take the wall clock of committed steps apart.

    Args:
        records: The steps, in order.
        spans: The timeline.
        prices: Of the two pools.
    """
    windows = [(record.times.previous_commit, record.times.committed) for record in records]
    idle = [found for window in windows if (found := rollout_idle(spans, window)) is not None]
    rollout = add_up(idle) if idle else None
    train = add_up(map(train_idle, records))
    return Attribution(
        steps=len(records),
        step_s=add_up(map(step_parts, records)),
        rollout_idle_s=rollout,
        train_idle_s=train,
        rollout_idle_cost=None if rollout is None else prices.of_rollout(math.fsum(rollout.values())),
        train_idle_cost=prices.of_train(math.fsum(train.values())),
    )


def step_parts(record: StepRecord) -> dict[str, float]:
    """Part -> seconds >= 0 of one step; they add up to `committed - previous_commit`.

    Moments that are out of order, as after a clock was set, are moved to the one before. A wait whose causes are not
    on record counts as `queue`.
    """
    times = record.times
    start, end = times.previous_commit, max(times.previous_commit, times.committed)
    ready, train_start, train_end = _in_order(start, end, times.batch_ready, times.train_start, times.train_end)
    parts = _wait(record.time_to_batch_s, ready - start)
    parts["trainer"] += train_start - ready
    return parts | {TRAIN: train_end - train_start, WEIGHTS: end - train_end}


def train_idle(record: StepRecord) -> dict[str, float]:
    """Cause -> idle seconds of the training pool in one step."""
    parts = step_parts(record)
    return {cause: parts[cause] for cause in TRAIN_IDLE}


def rollout_idle(spans: Sequence[Span], window: Interval) -> dict[str, float] | None:
    """Cause -> idle seconds of the rollout pool within `window`, mean over its cells; None where no cell told.

    An instant for which a cell recorded nothing, as while it starts, is `other`; so is a cause that is not in the
    table. What a cell worked in is never idle, whatever else it recorded.
    """
    cells: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.lane in (timeline.ROLLOUT, timeline.WAITING_ROLLOUT):
            cells[span.labels.get("cell", "")].append(span)
    if not cells:
        return None
    found = add_up(_cell_idle(of_cell, window) for of_cell in cells.values())
    return {cause: total / len(cells) for cause, total in found.items()}


def step_metrics(records: Sequence[StepRecord], spans: Sequence[Span], prices: Prices) -> dict[int, dict[str, float]]:
    """Idle seconds by cause and their cost, step by step, by the names of the table."""
    by_step: dict[int, dict[str, float]] = {}
    for record in records:
        found = attribute_run([record], spans, prices)
        costs = {metrics.IDLE_COST_ROLLOUT: found.rollout_idle_cost, metrics.IDLE_COST_TRAIN: found.train_idle_cost}
        by_step[record.step] = {
            **{metrics.IDLE_ROLLOUT[cause]: value for cause, value in (found.rollout_idle_s or {}).items()},
            **{metrics.IDLE_TRAIN[cause]: value for cause, value in found.train_idle_s.items()},
            **{name: cost for name, cost in costs.items() if cost is not None},
        }
    return by_step


def prices_of(parameters: Mapping[str, Any]) -> Prices:
    """Prices and GPUs by the parameters of a run (`RunDescription.parameters`); what those lack has no price."""

    def read(section: str, name: str, default: float) -> float:
        return parameters.get(section, {}).get(name, default)

    engines = read("rollout", "cells", 1) * read("engine", "replicas", 1)
    return Prices(
        rollout_per_gpu_hour=read("tracking", "rollout_gpu_hour_price", 0.0),
        train_per_gpu_hour=read("tracking", "train_gpu_hour_price", 0.0),
        rollout_gpus=int(engines * read("engine", "tensor_parallel_size", 1)),
        train_gpus=int(read("training", "ranks", 1)),
    )


def add_up(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums by cause, in the order in which causes appear."""
    total: dict[str, float] = {}
    for one in parts:
        for cause, value in one.items():
            total[cause] = total.get(cause, 0.0) + value
    return total


def _cell_idle(spans: Sequence[Span], window: Interval) -> dict[str, float]:
    """An instant with several causes goes to the first of the table; one without any is `other`."""
    covered = union(clip(((s.start_unix, s.end_unix) for s in spans if s.lane == timeline.ROLLOUT), *window))
    idle: dict[str, float] = {}
    for cause in (cause for cause in ROLLOUT_IDLE if cause != OTHER):
        waited = (
            (s.start_unix, s.end_unix) for s in spans if s.lane == timeline.WAITING_ROLLOUT and s.cause == cause
        )
        before = seconds(covered)
        covered = union([*covered, *clip(waited, *window)])
        idle[cause] = seconds(covered) - before
    idle[OTHER] = max(0.0, window[1] - window[0] - seconds(covered))
    return idle


def _wait(by_cause: Mapping[str, float], wait_s: float) -> dict[str, float]:
    """The causes of a wait, scaled to its length."""
    told = math.fsum(by_cause.get(cause, 0.0) for cause in CAUSES)
    if told <= 0:
        return {cause: wait_s if cause == "queue" else 0.0 for cause in CAUSES}
    return {cause: by_cause.get(cause, 0.0) * wait_s / told for cause in CAUSES}


def _in_order(start: float, end: float, *moments: float) -> list[float]:
    ordered: list[float] = []
    for moment in moments:
        start = min(max(start, moment), end)
        ordered.append(start)
    return ordered


def _cost(idle_s: float, per_gpu_hour: float, gpus: int) -> float | None:
    return idle_s / 3600 * per_gpu_hour * gpus if per_gpu_hour > 0 else None
