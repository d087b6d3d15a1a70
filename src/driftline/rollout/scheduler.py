"""What a cell claims, starts and cancels next. Pure: the collector only carries it out.

The one rule of overlap: group `g` may start while `g < spent + groups_per_step + lead_groups`, where `spent` and
`lead_groups` are of the HEAD whose policy version this cell's engine has acknowledged. With `lead_groups` 0 that
is exactly synchronous training: no group of the next batch starts before the engine holds the weights that the
last one made.

Groups are claimed a little earlier than they may start: by the newest HEAD, while the engine is still taking up
its weights.

In which order members start is either that of their group's numbers, or goes by what is predicted of them
(`starts_by_prediction`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from driftline.records import Head

PRIORITIES_A_WINDOW = 512
PRIORITIES_AN_OCTAVE = 16


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


@dataclass(frozen=True, slots=True)
class GroupWork:
    """What a claimed group has still to do."""

    number: int
    waiting: Mapping[int, float]
    """Member that has not started -> seconds that it is predicted to take."""
    unfinished: int
    """Members that have not ended, the waiting ones among them."""
    running_s: float = 0.0
    """What is predicted to be left of its members that run, in seconds, together."""


def starts_by_prediction(
    groups: Sequence[GroupWork], free_slots: int, limit: int, *, slots: int, groups_per_step: int
) -> list[tuple[int, int]]:
    """Which (group, member) to start now, in order, so that the next batch is complete early.

    Groups are taken a *window* of `groups_per_step` numbers at a time, in order, so no member ever waits for one of
    a later window: nothing starves. A slot that one window does not need goes to the next one at once. Within a
    window:

    - the longest predicted members start first, while one of them is longer than a third of the window's work a
      slot: begun late, it alone would hold up the batch;
    - from then on any order completes the window within 4/3 of the shortest time possible, so those groups go first
      that need the fewest more members to start: a complete group can be scored and trained on.

    The 4/3 is Graham's: no slot idles before the member that ends last has begun, so the window takes at most its
    work a slot and that member. If that member is at most a third of the optimum, that is within 4/3. Otherwise it
    was longer than a third of the work a slot as long as it waited, so all that had begun before it was at least as
    long; and longest first is optimal for members that are each longer than a third of the optimum.

    Args:
        groups: Claimed groups that are not complete.
        free_slots: Episodes that may still be in flight.
        limit: `admission_limit` of the acknowledged HEAD.
        slots: Episodes that may be in flight in all.
        groups_per_step: Groups of a batch.
    """
    admitted = sorted((group for group in groups if group.number < limit), key=lambda group: group.number)
    windows = groupby(admitted, key=lambda group: window_of(group.number, groups_per_step))
    ordered = (start for _, window in windows for start in _window_order(list(window), slots))
    return list(islice(ordered, max(0, free_slots)))


def window_of(group: int, groups_per_step: int) -> int:
    """The window that a group belongs to: the batch it is for, as long as no group is given up."""
    return group // groups_per_step


def _window_order(window: Sequence[GroupWork], slots: int) -> list[tuple[int, int]]:
    """All waiting members of a window, in the order in which they start."""
    waiting = [
        (-seconds, group.number, member, (len(group.waiting), group.unfinished))
        for group in window
        for member, seconds in group.waiting.items()
    ]
    work_s = sum(group.running_s for group in window) - sum(seconds for seconds, *_ in waiting)
    longest_first = sorted(waiting)
    long = sum(-3.0 * seconds > work_s / slots for seconds, *_ in longest_first)
    nearly_complete_first = sorted(longest_first[long:], key=lambda one: (one[3], one[1], one[0], one[2]))
    return [(group, member) for _, group, member, _ in [*longest_first[:long], *nearly_complete_first]]


def priority(group: int) -> int:
    """Priority of a group's requests in the engine, where groups go by their numbers; lower runs first."""
    return group


def priority_by_prediction(group: int, groups_per_step: int, predicted_s: float) -> int:
    """Priority of a member's requests in the engine, where members go by what is predicted; lower runs first.

    Earlier windows first, and in a window the longest predicted.

    Args:
        group: The group's number.
        groups_per_step: Groups of a batch.
        predicted_s: Seconds that the member is predicted to take.
    """
    octaves = math.log2(1.0 + 1e3 * max(0.0, predicted_s))
    rank = max(0, PRIORITIES_A_WINDOW - 1 - int(PRIORITIES_AN_OCTAVE * octaves))
    return window_of(group, groups_per_step) * PRIORITIES_A_WINDOW + rank


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
