"""Records for tests, with every field given a sensible value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from driftline.records import (
    EpisodeSeconds,
    FileEntry,
    Group,
    GroupUse,
    Head,
    ModelSource,
    PolicyVersion,
    Probe,
    RunDescription,
    Segment,
    StepRecord,
    StepTimes,
    Trajectory,
    WeightsManifest,
)

RUN = "run-1"


def trajectory(group: int = 0, member: int = 0, **changes: Any) -> Trajectory:
    """A valid member: two prompt tokens, three sampled by versions 1 and 2."""
    base = Trajectory(
        run=RUN,
        group=group,
        member=member,
        attempt=1,
        cell="cell-0",
        task_id=f"task-{group}",
        task_set="v1",
        environment="pointer_chase/v1",
        token_ids=(5, 6, 7, 8, 9),
        loss_mask=(False, False, True, True, True),
        logprobs=(0.0, 0.0, -0.1, -0.25, -1.5),
        segments=(Segment(2, 1), Segment(4, 2)),
        turns=1,
        reward=float(member % 2),
        success=bool(member % 2),
        status="ok",
        reason="",
        seconds=EpisodeSeconds(queued=0.5, decoding=1.25),
        started_unix=1000.0,
        finished_unix=1002.5,
        request_seconds=((1000.5, 1001.0), (1001.5, 1002.25)),
    )
    return replace(base, **changes)


def group(number: int = 0, members: int = 2, **changes: Any) -> Group:
    """A finished group; changes apply to all of its trajectories."""
    trajectories = tuple(trajectory(number, member, **changes) for member in range(members))
    return Group(number, trajectories[0].task_id, trajectories[0].task_set, trajectories)


def head(**changes: Any) -> Head:
    """The head of a run that has just begun."""
    return replace(Head(0, 0, None, None, 0, (), 16, ((0, "v1"),)), **changes)


def manifest(number: int, epoch: int = 1, run: str = RUN) -> WeightsManifest:
    version = PolicyVersion(number, epoch)
    files = (FileEntry(f"runs/{run}/policy/{version}/weights.safetensors", 4, "00"),)
    return WeightsManifest(
        run, version, "anchor", None, files, {"w": "00"}, "float32", Probe((1, 2), (-0.5,)), created_unix=1000.0
    )


def step_record(
    step: int, previous: str | None, epoch: int = 1, groups: Sequence[int] = (), run: str = RUN
) -> StepRecord:
    uses = tuple(GroupUse(g, f"key-{g}", 1, f"task-{g}", "v1", 1.0, 2, 2, 0.5, 0.5, 0.5, 0.0, 0, 6) for g in groups)
    times = StepTimes(*(float(step * 10 + i) for i in range(6)))
    versions = PolicyVersion(step - 1, epoch), PolicyVersion(step, epoch)
    return StepRecord(run, step, epoch, *versions, uses, (), {"loss": 0.5}, {"decode": 1.0}, times, previous)


def description(run: str = RUN, **changes: Any) -> RunDescription:
    model = ModelSource("d0", "models/d0/", (), tied_embeddings=False)
    base = RunDescription(run, 1000.0, {"seed": 0}, "0.1.0", model, "v1", "v1h", mlflow_run=None)
    return replace(base, **changes)
