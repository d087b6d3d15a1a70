"""Which policy version sampled which tokens of a trajectory. Pure."""

from __future__ import annotations

from collections import Counter

from driftline.records import Segment, Trajectory


def segment_spans(member: Trajectory) -> list[tuple[Segment, int]]:
    """The segments of a trajectory, each with the index at which it ends."""
    ends = [segment.start for segment in member.segments[1:]] + [len(member.token_ids)]
    return list(zip(member.segments, ends, strict=False))


def sampled_segments(member: Trajectory, begin: int = 0) -> list[Segment]:
    """The segments of a trajectory in which a token was sampled, from index `begin` on."""
    mask = member.loss_mask
    return [segment for segment, end in segment_spans(member) if any(mask[max(begin, segment.start) : end])]


def oldest_version(member: Trajectory) -> int | None:
    """The oldest policy version that sampled a token of a trajectory; None where nothing was sampled."""
    return min((segment.version for segment in sampled_segments(member)), default=None)


def span_lags(member: Trajectory, version: int) -> list[int]:
    """Lag in versions of each token's segment, whether or not the token was sampled; 0 for what is newer."""
    lags = [0] * (member.segments[0].start if member.segments else len(member.token_ids))
    for segment, end in segment_spans(member):
        lags += [max(0, version - segment.version)] * (end - segment.start)
    return lags


def sampled_lags(member: Trajectory, version: int) -> Counter[int]:
    """Lag in versions -> sampled tokens that have it."""
    counts = Counter[int]()
    for segment, end in segment_spans(member):
        if tokens := sum(member.loss_mask[segment.start : end]):
            counts[max(0, version - segment.version)] += tokens
    return counts
