"""Runs for the offset service: committed steps with members, engines, spans, as trainer and cells write them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from driftline.accounts import TERMS, TokenLedger
from driftline.measured import Cause, Diagnosis, DivergenceSummary, MemberUse, SegmentUse
from driftline.records import (
    GiveUp,
    GroupUse,
    Head,
    ModelSource,
    OffsetReport,
    PolicyVersion,
    RunDescription,
    Span,
    StepRecord,
    StepTimes,
)
from driftline.store import keys
from driftline.store.protocol import ObjectStore
from driftline.store.run_store import RunStore
from driftline.tracking import metrics

BEGAN = 1_700_000_000.0
STEP_S = 2.0
GROUPS, MEMBERS = 16, 8
CELLS = ("c0", "c1")


def commit_time(step: int) -> float:
    """When a step was committed."""
    return BEGAN + step * STEP_S


def description(run: str, steps: int = 2_000, created: float = BEGAN) -> RunDescription:
    parameters = {
        "rollout": {"groups_per_step": GROUPS, "group_size": MEMBERS},
        "overlap": {"controller": "fixed", "lead_groups": GROUPS, "budget_k3_nats": 0.02},
        "training": {"steps": steps},
    }
    model = ModelSource("d0", "models/d0/", (), tied_embeddings=False)
    return RunDescription(run, created, parameters, "test", model, "tasks-1", "held-1", mlflow_run=None)


def summary(tokens: int, k3: float) -> DivergenceSummary:
    return DivergenceSummary(tokens, k3 * 1.1, k3, k3, k3 / 2, 2 * k3, 1 / (1 + 2 * k3), 1 - 0.1 * k3, k3 / 10)


def ledger(step: int, groups: int) -> TokenLedger:
    """Of a run that has trained nearly everything; it balances."""
    trained, ready, probe, cancelled = 900 * step, 60, 4 * step, 3 * step
    terms: dict[str, Any] = dict.fromkeys(TERMS, 0) | {
        "trained": trained,
        "ready": ready,
        "probe": probe,
        "cancelled": cancelled,
    }
    by = {"killed": cancelled - step, "late": step}
    return TokenLedger(generated=sum(terms.values()), **terms, cancelled_by=by, incarnations=())


def member_use(rng: random.Random, member: int, version: int, k3: float, lag: int) -> MemberUse:
    sampled = rng.randint(8, 60)
    split = sampled // 2
    oldest = max(0, version - lag)
    pieces = [(2, oldest, sampled - split), (2 + sampled, min(oldest + 1, version), split)]
    segments = tuple(SegmentUse(at, sampler, tokens, k3, k3, 0.98) for at, sampler, tokens in pieces if tokens)
    verdict, reason = ("down_weight", "k3") if rng.random() < 0.05 else ("keep", "")
    return MemberUse(
        member=member,
        cell=CELLS[member % len(CELLS)],
        verdict=verdict,
        reason=reason,
        weight=0.5 if reason else 1.0,
        sampled_tokens=sampled,
        masked_tokens=0,
        seconds=rng.lognormvariate(0.0, 0.4),
        segments=segments,
    )


def group_use(rng: random.Random, number: int, version: int, k3: float, lag: int, *, members: int) -> GroupUse:
    uses = tuple(member_use(rng, member, version, k3, lag) for member in range(members))
    tokens = sum(use.sampled_tokens for use in uses)
    key = f"runs/x/trajectories/c0/{number:08d}.parquet"
    return GroupUse(
        number, key, 1, f"pointer_chase/{number:05d}", "tasks-1", 1.0, members, members, 0.5, 0.5, 0.5, lag, lag,
        tokens, uses,
    )  # fmt: skip


def record(
    run: str,
    step: int,
    previous: str | None,
    *,
    groups: int = GROUPS,
    members: int = MEMBERS,
    lag: int = 1,
    k3: float = 0.01,
    cause: Cause = "healthy",
) -> StepRecord:
    """A committed step: `lag` versions old, as divergent as `k3` says."""
    rng = random.Random(f"{run}/{step}")
    version = step - 1
    uses = tuple(
        group_use(rng, version * groups + g, version, k3, min(lag, version), members=members) for g in range(groups)
    )
    commit = commit_time(step)
    wait = 1.2 + 0.4 * rng.random()
    parts = {"decode": 0.5 * wait, "tool": 0.3 * wait, "straggler": 0.15 * wait, "publish": 0.05 * wait}
    counted = ledger(step, groups)
    shares = {lag_of: summary(400, k3 * lag_of / max(lag, 1) or 1e-7) for lag_of in range(min(lag, version) + 1)}
    values = {
        metrics.K3: k3,
        metrics.K1: k3 * 1.1,
        metrics.ESS_FRACTION: 0.97,
        metrics.FLOOR_K3: 1e-7,
        metrics.LAG_STEPS_MEAN: min(lag, version) * 0.8,
        metrics.LAG_STEPS_MAX: float(min(lag, version)),
        metrics.LAG_IN_FLIGHT_MEAN: 0.2,
        metrics.LAG_IN_QUEUE_MEAN: 0.6,
        metrics.REWARD_MEAN: 0.4 + 0.3 * rng.random(),
        metrics.LEAD_GROUPS: float(GROUPS),
        metrics.EFFECTIVE_LEAD_GROUPS: min(lag, version) * 0.8 * GROUPS,
        metrics.BUDGET_SHARE: k3 / 0.02,
        metrics.STEP_SECONDS: STEP_S,
        metrics.TIME_TO_BATCH: wait,
        metrics.LEDGER_IMBALANCE: float(counted.imbalance),
        metrics.LEDGER["generated"]: float(counted.generated),
        **{metrics.LEDGER[term]: float(tokens) for term, tokens in counted.terms.items()},
        **{metrics.TIME_TO_BATCH_BY_CAUSE[c]: parts.get(c, 0.0) for c in metrics.CAUSES},
    }
    return StepRecord(
        run=run,
        step=step,
        epoch=1,
        version_in=PolicyVersion(version, 1),
        version_out=PolicyVersion(step, 1),
        groups=uses,
        give_ups=(GiveUp(1_000_000 + step, "older than overlap.max_lag_versions", 120),) if step % 50 == 0 else (),
        metrics=values,
        time_to_batch_s=parts,
        times=StepTimes(commit - STEP_S, commit - 0.8, commit - 0.8, commit - 0.2, commit - 0.1, commit),
        previous=previous,
        ledger=counted,
        lead_groups=GROUPS,
        by_lag=shares,
        by_environment={"pointer_chase/v1": summary(400 * len(shares), k3)},
        floor_by_cell={cell: summary(200, 1e-7) for cell in CELLS},
        diagnosis=Diagnosis(cause, f"k3 is {k3:.1e} nats a token", {"k3_nats": k3, "floor_k3_nats": 1e-7}),
    )


def old(found: StepRecord) -> StepRecord:
    """The record as it was before members, lags and causes were on record."""
    return replace(
        found,
        groups=tuple(replace(use, uses=()) for use in found.groups),
        by_lag={},
        by_environment={},
        floor_by_cell={},
        diagnosis=None,
        lead_groups=0,
        metrics={name: value for name, value in found.metrics.items() if not name.startswith("overlap/")},
    )


def records(run: str, steps: int, first: int = 1, **changes: Any) -> Iterator[StepRecord]:
    """Steps from `first` to `steps`, each naming the one before it."""
    for step in range(first, steps + 1):
        yield record(run, step, keys.step(run, step - 1, 1) if step > 1 else None, **changes)


def head(run: str, step: int, **changes: Any) -> Head:
    base = Head(
        epoch=1,
        step=step,
        version=PolicyVersion(step, 1),
        record=keys.step(run, step, 1) if step else None,
        spent=step * GROUPS,
        given_up=(),
        lead_groups=GROUPS,
        task_sets=((0, "tasks-1"),),
    )
    return replace(base, **changes)


def report(run: str, cell: str, version: int, heartbeat_unix: float, **changes: Any) -> OffsetReport:
    base = OffsetReport(
        run=run,
        cell=cell,
        incarnation=f"{cell}-1",
        version=version,
        head_version=version,
        applied_unix=heartbeat_unix - 1.0,
        heartbeat_unix=heartbeat_unix,
        running_episodes=12,
        waiting_episodes=3,
        generated_tokens=1_000,
        pause_s=0.04,
    )
    return replace(base, **changes)


def spans(step: int) -> list[Span]:
    """What was recorded around a step."""
    end = commit_time(step)
    return [
        Span("rollout", "episodes", end - STEP_S, end - 0.1, step),
        Span("training", "step", end - 0.8, end - 0.2, step),
        Span("publish", "weights", end - 0.2, end - 0.1, step),
        Span("apply", "", end, end + 0.2, step),
    ]


def commit(store: ObjectStore, found: StepRecord, **changes: Any) -> None:
    """Write a step record and the head that names it."""
    run_store = RunStore(store, found.run)
    run_store.write_step(found)
    store.put(keys.head(found.run), _encoded(head(found.run, found.step, **changes)))


def _encoded(found: Head) -> bytes:
    from driftline.records import encode

    return encode(found)


def write_run(
    store: ObjectStore,
    run: str,
    steps: int,
    *,
    engines: Mapping[str, int] | None = None,
    measured: bool = True,
    threads: int = 4,
    causes: Sequence[tuple[int, Cause]] = (),
    created: float = BEGAN,
    **changes: Any,
) -> RunStore:
    """A run of `steps` committed steps.

    Args:
        store: Where it goes.
        run: Its name.
        steps: So many steps are committed.
        engines: Cell -> version that its engine serves; by default both serve the current one.
        measured: Whether the records have members, lags and causes.
        threads: Writers at once.
        causes: (from that step on, cause).
        created: Unix seconds.
        changes: To every `record`.
    """
    run_store = RunStore(store, run)
    run_store.create(description(run, max(steps, 1), created))

    def write(step: int) -> None:
        found_causes: list[Cause] = [c for first, c in causes if step >= first]
        cause: Cause = found_causes[-1] if found_causes else "healthy"
        found = next(records(run, step, first=step, cause=cause, **changes))
        run_store.write_step(found if measured else old(found))

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(write, range(1, steps + 1)):
            pass
    run_store.create_head(head(run, steps))
    for cell, version in (engines if engines is not None else dict.fromkeys(CELLS, steps)).items():
        run_store.write_offset(report(run, cell, version, commit_time(steps) + 1.0))
    for number, step in enumerate(range(max(1, steps - 20), steps + 1)):
        if steps:
            run_store.append_spans("trainer-0001", number, spans(step))
    return run_store
