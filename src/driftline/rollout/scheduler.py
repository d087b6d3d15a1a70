"""What a cell claims, starts and cancels next. Pure: the collector only carries it out.

The one rule of overlap: group `g` may start while `g < spent + groups_per_step + lead_groups`, where `spent` and
`lead_groups` are of the HEAD whose policy version this cell's engine has acknowledged. With `lead_groups` 0 that
is exactly synchronous training: no group of the next batch starts before the engine holds the weights that the
last one made.

Groups are claimed a little earlier than they may start: by the newest HEAD, while the engine is still taking up
its weights.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence

from driftline.records import Head


def admission_limit(head: Head, groups_per_step: int) -> int:
    """The lowest group number that may not start."""
    return head.spent + groups_per_step + head.lead_groups


def acknowledged_head(previous: Head | None, newest: Head, engine_version: int | None) -> Head | None:
    """The HEAD that admission goes by: the newest one whose policy version the engine has acknowledged.

    Args:
        previous: What this function returned before.
        newest: HEAD as it was last read.
        engine_version: Number of the version that the engine has acknowledged, None before the first.
    """
    if newest.version is not None and newest.version.number == engine_version:
        return newest
    return previous


def starts(waiting: Mapping[int, Sequence[int]], free_slots: int, limit: int) -> list[tuple[int, int]]:
    """Which (group, member) to start now, in order.

    Low group numbers first: they complete the next batch, and what is started late is started with newer weights.

    Args:
        waiting: Claimed group -> its members that have not started.
        free_slots: Episodes that may still be in flight.
        limit: `admission_limit` of the acknowledged HEAD.
    """
    admitted = ((group, member) for group in sorted(waiting) if group < limit for member in waiting[group])
    return [start for start, _ in zip(admitted, range(free_slots), strict=False)]


def priority(group: int) -> int:
    """Priority of a group's requests in the engine; lower runs first."""
    return group


def too_old(oldest_version: int | None, head_version: int, max_lag_versions: int) -> bool:
    """Whether an unfinished episode can only arrive beyond the hard age limit.

    Args:
        oldest_version: Version that sampled its first token; None if none is sampled yet.
        head_version: The newest committed version, from which the next step trains.
        max_lag_versions: The hard limit.
    """
    return oldest_version is not None and head_version - oldest_version > max_lag_versions


class GroupLedger:
    """Which group numbers a cell should try to claim next. No I/O; `now` is given.

    A number is new, or being tried, or held by this cell, or held elsewhere (to be tried again when that lease may
    have run out), or closed: consumed by a step, or finished by somebody.
    """

    def __init__(self, *, closed: Iterable[int] = (), offset: int = 0, stride: int = 1) -> None:
        """Begin with what the committed records say.

        Args:
            closed: Groups that are consumed or given up.
            offset: This cell's place among the cells; it tries its own residue class first.
            stride: Number of cells.
        """
        self._next_new = 0
        self._open: list[tuple[bool, int]] = []
        self._elsewhere: dict[int, float] = {}
        self._closed = set(closed)
        self._offset, self._stride = offset % stride, stride

    @property
    def elsewhere(self) -> Collection[int]:
        """Groups that another cell holds, as far as is known."""
        return self._elsewhere.keys()

    def take(self, limit: int, count: int, now: float) -> list[int]:
        """Numbers below `limit` to try now, at most `count`: this cell's own class first, then in order.

        A limit that has fallen (the lead was cut) leaves what lies above it for later.
        """
        due = [group for group, retry_at in self._elsewhere.items() if retry_at <= now]
        for group in [*range(self._next_new, limit), *due]:
            self._elsewhere.pop(group, None)
            heapq.heappush(self._open, (group % self._stride != self._offset, group))
        self._next_new = max(self._next_new, limit)
        taken: list[int] = []
        later: list[tuple[bool, int]] = []
        while self._open and len(taken) < count:
            entry = heapq.heappop(self._open)
            group = entry[1]
            if group >= limit:
                later.append(entry)
            elif group not in self._closed:
                taken.append(group)
        for entry in later:
            heapq.heappush(self._open, entry)
        return taken

    def held_elsewhere(self, group: int, retry_at: float) -> None:
        """`group` could not be claimed: try it again at `retry_at`, unless it is closed by then."""
        if group not in self._closed:
            self._elsewhere[group] = retry_at

    def close(self, groups: Iterable[int]) -> None:
        """These groups are finished, consumed or given up: never try them again."""
        for group in groups:
            self._closed.add(group)
            self._elsewhere.pop(group, None)

    def reopen(self, groups: Iterable[int], retry_at: float) -> None:
        """These groups were finished in vain: try them again from `retry_at` on."""
        for group in groups:
            self._closed.discard(group)
            self._elsewhere[group] = retry_at

    def next_retry(self) -> float | None:
        """When the next group held elsewhere is due, None if there is none."""
        return min(self._elsewhere.values(), default=None)


def claims_wanted(free_slots: int, waiting_members: int, group_size: int, *, ahead: int) -> int:
    """How many more groups to claim so that free slots are filled, and some members wait for the next ones.

    Args:
        free_slots: Episodes that may still be in flight.
        waiting_members: Members of claimed groups, or of groups being claimed, that have not started.
        group_size: Members of a group.
        ahead: Groups that should wait when all slots are taken.
    """
    return max(0, -(-(free_slots + ahead * group_size - waiting_members) // group_size))


def completes_a_batch(queued: int, delivered: int, spent: int, groups_per_step: int) -> bool:
    """Whether the trainer can take its next step with the queued groups, and could not without them.

    Until then, and after that, nothing is gained by writing a finished group at once: it may wait for others and
    share an object with them. (With several cells nobody knows `delivered`; their groups just wait a moment.)

    Args:
        queued: Finished groups that are not written yet.
        delivered: Groups that were written, or spent before this cell began.
        spent: HEAD's count of groups trained or given up.
        groups_per_step: Groups of a batch.
    """
    return delivered < spent + groups_per_step <= delivered + queued
