"""What rank 0 decides, as pure functions: which groups make the next batch, which are given up, when to stop.

finished groups ──▶ given up?  fewer than 2 valid members ─▶ `too few valid members`
                │              oldest token too old       ─▶ `stale`
                └─▶ batch: the lowest-numbered finished groups, as soon as there are enough
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from driftline.records import GiveUp, Group, Segment, Trajectory

FEWEST_VALID_MEMBERS = 2
"""A group with fewer has no statistics."""
INVALID = "too few valid members"
STALE = "stale"


@dataclass(frozen=True, slots=True)
class BatchRule:
    """The parameters that decide about batches."""

    groups_per_step: int
    max_lag_versions: int
    failed_groups: int
    """Most groups that may be given up for `INVALID` in the run."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do with the finished groups. At most one of `batch` and `exhausted` is set."""

    batch: tuple[Group, ...]
    """Groups of the next step, by number; empty while there are too few."""
    give_ups: tuple[GiveUp, ...]
    waiting: tuple[Group, ...]
    """Groups that stay for a later batch, by number."""
    exhausted: str | None
    """Why the run has failed."""


def decide(finished: Sequence[Group], *, version: int, failed_before: int, rule: BatchRule) -> Decision:
    """Decide about finished groups.

    Args:
        finished: Groups that are neither trained nor given up, each once, in any order.
        version: Number of the policy version that the next step trains from.
        failed_before: Groups given up before for `INVALID`.
        rule: The limits.
    """
    give_ups: list[GiveUp] = []
    usable: list[Group] = []
    for group in sorted(finished, key=lambda group: group.number):
        reason = reason_to_give_up(group, version, rule.max_lag_versions)
        if reason is None:
            usable.append(group)
        else:
            give_ups.append(GiveUp(group.number, reason, sampled_tokens(group), group.key))
    exhausted = _exhausted(give_ups, failed_before, rule)
    if exhausted is not None or len(usable) < rule.groups_per_step:
        return Decision((), tuple(give_ups), tuple(usable), exhausted)
    batch, waiting = usable[: rule.groups_per_step], usable[rule.groups_per_step :]
    return Decision(tuple(batch), tuple(give_ups), tuple(waiting), None)


def reason_to_give_up(group: Group, version: int, max_lag_versions: int) -> str | None:
    """Why a group cannot be trained on at `version`, None if it can. The reason starts with its kind."""
    if group.valid_members < FEWEST_VALID_MEMBERS:
        return f"{INVALID}: {group.valid_members} of {len(group.trajectories)} ({_causes(group)})"
    age = version - oldest_version(group, version)
    if age > max_lag_versions:
        return f"{STALE}: its oldest token is {age} versions old, limit {max_lag_versions}"
    return None


def oldest_version(group: Group, version: int) -> int:
    """The oldest policy version that sampled a token of a valid member; `version` where nothing was sampled."""
    valid = [member for member in group.trajectories if member.valid]
    return min((segment.version for member in valid for segment in sampled_segments(member)), default=version)


def segment_spans(member: Trajectory) -> list[tuple[Segment, int]]:
    """The segments of a trajectory, each with the index at which it ends."""
    ends = [segment.start for segment in member.segments[1:]] + [len(member.token_ids)]
    return list(zip(member.segments, ends, strict=False))


def sampled_segments(member: Trajectory) -> list[Segment]:
    """The segments of a trajectory in which at least one token was sampled."""
    return [segment for segment, end in segment_spans(member) if any(member.loss_mask[segment.start : end])]


def sampled_tokens(group: Group) -> int:
    """Tokens that the policy sampled for a group."""
    return sum(member.sampled_tokens for member in group.trajectories)


def count_failed(give_ups: Collection[GiveUp]) -> int:
    """How many of the groups were given up for `INVALID`."""
    return sum(give_up.reason.startswith(INVALID) for give_up in give_ups)


def _causes(group: Group) -> str:
    counts = Counter(
        f"{member.status}: {member.reason}" if member.reason else member.status
        for member in group.trajectories
        if not member.valid
    )
    return "; ".join(f"{count} x {cause}" for cause, count in counts.most_common(2))


def _exhausted(give_ups: Sequence[GiveUp], before: int, rule: BatchRule) -> str | None:
    failed = [give_up for give_up in give_ups if give_up.reason.startswith(INVALID)]
    if not failed or before + len(failed) <= rule.failed_groups:
        return None
    last = failed[-1]
    return (
        f"{before + len(failed)} groups were given up because too few of their members were valid, limit "
        f"{rule.failed_groups}; the last was group {last.group} ({last.reason}): mend the environment or the engine, "
        "or raise limits.failed_groups"
    )
