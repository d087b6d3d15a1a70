"""Time to a trainable batch, attributed by critical path. Pure.

The time from the previous commit to the moment the batch is full is walked back from its end, along the one chain
of events that ended last; each instant goes to one cause, so the parts add up. (Sums over concurrent episodes are
another metric, `episode_sum/...`.)

Let `P` be the previous commit, `R` the moment the batch was full, `L` the member of the batch that finished last,
running from `s` to `f`, and `d` the moment by which `STRAGGLER_SHARE` of the batch's members (rounded up) had
finished. All moments are first clipped to `[P, R]`, so what happened before the previous commit costs nothing.

| Interval | Cause |
|---|---|
| `[f, R]`, until the trainer waits | `trainer`: the batch was there, and the step before not yet done with |
| the rest, while groups are scored and judged | `admission` |
| the rest | `publish`: writing the group to the store, and the trainer's reading it |
| `[max(s, d), f]` | `straggler`: nearly all the batch was there, and waited for `L` |
| `[s, min(d, f)]` | the phases of `L`: reset first, reward last, between them queue, prefill, decode and tool |
| `[A, s]` | `queue`: the engine held the weights, and `L` waited for a slot |
| `[P, min(A, s)]` | `apply`: the engine had not yet acknowledged the previous commit's weights |

`A` is the moment of that acknowledgement; where it is not known it is `P`, and the whole stretch is `queue`. With
overlap, `L` often starts before `A`, and `apply` is then 0: the update ran beside generation.

The phases of `L` are its `EpisodeSeconds`, scaled to fill `[s, f]` (the event loop's own waiting is spread over
them). Its turns alternate between engine and tools many times, so between reset and reward the four others are
spread evenly. A member that measured no phase at all counts as `decode`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from driftline.records import EpisodeSeconds, Group, Trajectory
from driftline.tracking import intervals
from driftline.tracking.intervals import Interval
from driftline.tracking.metrics import CAUSES, Cause

STRAGGLER_SHARE = 0.9


def attribute(
    previous_commit: float,
    batch_ready: float,
    groups: Sequence[Group],
    *,
    applied_unix: float | None = None,
    wait_begin: float | None = None,
    admission: Sequence[Interval] = (),
    straggler_share: float = STRAGGLER_SHARE,
) -> dict[Cause, float]:
    """Charge the time to a trainable batch to its causes.

    Args:
        previous_commit: Unix seconds of the previous commit (of the run's start, before the first).
        batch_ready: Unix seconds at which the trainer held the full batch.
        groups: The batch.
        applied_unix: Unix seconds at which the engine acknowledged the previous commit's weights, if known.
        wait_begin: Unix seconds at which the trainer began to wait for the batch, if known: before, it committed
            and checkpointed the previous step.
        admission: When groups were scored and judged, in Unix seconds.
        straggler_share: Share of the members after whose end the rest counts as stragglers, in (0, 1].

    Returns:
        Every cause -> seconds >= 0; the sum is `max(0, batch_ready - previous_commit)`. A batch that was full
        before the previous commit took no time.

    Raises:
        ValueError: The batch has no member.
    """
    members = [member for group in groups for member in group.trajectories]
    if not members:
        raise ValueError("the batch has no member: attribute a batch after it was assembled")
    wall = max(0.0, batch_ready - previous_commit)

    def clip(unix: float) -> float:
        return min(max(unix - previous_commit, 0.0), wall)

    last = max(members, key=lambda member: (member.finished_unix, member.group, member.member))
    finish = clip(last.finished_unix)
    start = min(clip(last.started_unix), finish)  # the clock may have been set back meanwhile
    nearly_all = min(max(clip(_quantile_finish(members, straggler_share)), start), finish)
    applied = min(clip(previous_commit if applied_unix is None else applied_unix), start)

    parts: dict[Cause, float] = dict.fromkeys(CAUSES, 0.0)
    parts["apply"] = applied
    parts["queue"] = start - applied
    for cause, seconds in _phases(last, previous_commit + start, previous_commit + nearly_all).items():
        parts[cause] += seconds
    parts["straggler"] = finish - nearly_all
    free = finish if wait_begin is None else max(finish, clip(wait_begin))
    judged = intervals.union((clip(begin), clip(end)) for begin, end in admission)
    parts["trainer"] = free - finish
    parts["admission"] = min(intervals.seconds(intervals.clip(judged, free, wall)), wall - free)
    parts["publish"] = wall - free - parts["admission"]
    return parts


def _quantile_finish(members: Sequence[Trajectory], share: float) -> float:
    finishes = sorted(member.finished_unix for member in members)
    return finishes[max(math.ceil(share * len(finishes)), 1) - 1]


def _phases(member: Trajectory, begin: float, end: float) -> dict[Cause, float]:
    """Seconds of each phase of `member` within `[begin, end]`, a stretch of its run. They sum to its length."""
    whole = member.finished_unix - member.started_unix
    length = max(0.0, end - begin)
    seconds = member.seconds
    if whole <= 0 or seconds.total <= 0:
        return {"decode": length}
    scale = whole / seconds.total
    reset_end = member.started_unix + seconds.resetting * scale
    reward_start = member.finished_unix - seconds.in_reward * scale
    reset = min(max(0.0, reset_end - begin), length)
    reward = min(max(0.0, end - reward_start), length - reset)
    mixture = _mixture(seconds)
    rest = length - reset - reward
    parts: dict[Cause, float] = {"reset": reset, "reward": reward}
    for cause, share in mixture.items():
        parts[cause] = rest * share
    return parts


def _mixture(seconds: EpisodeSeconds) -> dict[Cause, float]:
    """Shares of the phases between reset and reward; they sum to 1."""
    between = seconds.queued + seconds.prefilling + seconds.decoding + seconds.in_tools
    if between <= 0:
        return {"decode": 1.0}
    return {
        "queue": seconds.queued / between,
        "prefill": seconds.prefilling / between,
        "decode": seconds.decoding / between,
        "tool": seconds.in_tools / between,
    }
