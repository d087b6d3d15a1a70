"""Small records with round numbers, for the tests of tracking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from driftline.records import (
    EpisodeSeconds,
    GiveUp,
    Group,
    GroupUse,
    ModelSource,
    PolicyVersion,
    RunDescription,
    Segment,
    Span,
    StepRecord,
    StepTimes,
    Trajectory,
)


def trajectory(
    started: float,
    finished: float,
    *,
    seconds: EpisodeSeconds | None = None,
    group: int = 0,
    member: int = 0,
    **changes: Any,
) -> Trajectory:
    values: dict[str, Any] = {
        "run": "r",
        "group": group,
        "member": member,
        "attempt": 0,
        "cell": "c0",
        "task_id": "task",
        "task_set": "tasks-1",
        "environment": "pointer_chase/v1",
        "token_ids": (1, 2, 3, 4, 5, 6),
        "loss_mask": (False, True, True, False, True, True),
        "logprobs": (0.0, -0.25, -0.75, 0.0, -1.0, -2.0),
        "segments": (Segment(0, 4), Segment(4, 5)),
        "turns": 2,
        "reward": 1.0,
        "success": True,
        "status": "ok",
        "reason": "",
        "seconds": seconds or EpisodeSeconds(),
        "started_unix": started,
        "finished_unix": finished,
    }
    return Trajectory(**(values | changes))


def group(*members: Trajectory) -> Group:
    return Group(members[0].group, "task", "tasks-1", members)


def use(number: int, *, weight: float = 1.0, lag_mean: float = 0.5, lag_max: int = 1, tokens: int = 10) -> GroupUse:
    return GroupUse(
        group=number,
        key=f"k{number}",
        attempt=0,
        task_id="task",
        task_set="tasks-1",
        weight=weight,
        members=8,
        valid_members=8,
        reward_mean=0.5,
        reward_std=0.5,
        success_mean=0.5,
        lag_mean=lag_mean,
        lag_max=lag_max,
        sampled_tokens=tokens,
    )


def step_record(
    step: int,
    *,
    previous_commit: float,
    batch_ready: float,
    train: tuple[float, float],
    committed: float,
    uses: Sequence[GroupUse] = (),
    metrics: Mapping[str, float] | None = None,
    parts: Mapping[str, float] | None = None,
    failed: Sequence[int] = (),
) -> StepRecord:
    return StepRecord(
        run="r",
        step=step,
        epoch=1,
        version_in=PolicyVersion(step - 1, 1),
        version_out=PolicyVersion(step, 1),
        groups=tuple(uses),
        give_ups=tuple(GiveUp(number, "too few valid members", 0) for number in failed),
        metrics=dict(metrics or {}),
        time_to_batch_s=dict(parts or {}),
        times=StepTimes(previous_commit, batch_ready, train[0], train[1], train[1] + 0.1, committed),
        previous=None if step == 1 else f"runs/r/steps/{step - 1:06d}-0001.json",
    )


def span(lane: str, start: float, end: float, cause: str = "") -> Span:
    return Span(lane, cause, start, end, 0)


def description(run: str = "r", *, created: float = 1000.0, mlflow_run: str | None = "m1") -> RunDescription:
    return RunDescription(
        run=run,
        created_unix=created,
        parameters={"environment": {"id": "pointer_chase/v1"}, "model": {"rendering": "plain"}},
        code_version="0.1.0+abc",
        model=ModelSource("d1", "models/d1/", (), False, "warm-started Llama"),
        task_set="tasks-1",
        held_out_task_set="held-1",
        mlflow_run=mlflow_run,
    )
