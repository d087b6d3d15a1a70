"""Starting by prediction: no slot idles, nobody starves, and a batch takes at most 4/3 of what it must."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from driftline.rollout import scheduler
from driftline.rollout.scheduler import GroupWork

NO_LIMIT = 10**9
Start = tuple[int, int]


@dataclass
class Pool:
    """Slots that play members, whose predicted seconds are what they take."""

    groups: dict[int, dict[int, float]]
    """Group -> member -> seconds."""
    slots: int
    groups_per_step: int
    now: float = 0.0
    started: dict[Start, float] = field(default_factory=dict[Start, float])
    order: list[Start] = field(default_factory=list[Start])
    running: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])
    ended: set[Start] = field(default_factory=set[Start])

    def work(self) -> list[GroupWork]:
        return [
            GroupWork(
                number,
                {member: seconds for member, seconds in members.items() if (number, member) not in self.started},
                sum((number, member) not in self.ended for member in members),
                sum(end - self.now for end, group, _ in self.running if group == number),
            )
            for number, members in self.groups.items()
        ]

    def start(self, limit: int = NO_LIMIT) -> None:
        free = self.slots - len(self.running)
        chosen = scheduler.starts_by_prediction(
            self.work(), free, limit, slots=self.slots, groups_per_step=self.groups_per_step
        )
        for group, member in chosen:
            assert (group, member) not in self.started
            self.started[group, member] = self.now
            self.order.append((group, member))
            heapq.heappush(self.running, (self.now + self.groups[group][member], group, member))
        assert len(self.running) <= self.slots

    def advance(self) -> None:
        """To the end of the next member, and of those that end with it."""
        self.now = self.running[0][0]
        while self.running and self.running[0][0] == self.now:
            _, group, member = heapq.heappop(self.running)
            self.ended.add((group, member))

    def play(self) -> float:
        """Everything; returns when the last member ends."""
        self.start()
        while self.running:
            self.advance()
            self.start()
        return self.now


def pool(groups: Sequence[Sequence[float]], slots: int, groups_per_step: int) -> Pool:
    return Pool({number: dict(enumerate(members)) for number, members in enumerate(groups)}, slots, groups_per_step)


def shortest_makespan(seconds: Sequence[float], slots: int) -> float:
    """Of any assignment to slots, by trying all that differ."""
    best = sum(seconds)
    ordered = sorted(seconds, reverse=True)

    def place(index: int, loads: tuple[float, ...]) -> None:
        nonlocal best
        if max(loads) >= best:
            return
        if index == len(ordered):
            best = max(loads)
            return
        for load in set(loads):
            slot = loads.index(load)
            place(index + 1, (*loads[:slot], load + ordered[index], *loads[slot + 1 :]))

    place(0, (0.0,) * slots)
    return best


groups_of_members = st.lists(st.lists(st.integers(1, 20), min_size=1, max_size=4), min_size=1, max_size=5)


@settings(max_examples=400, deadline=None)
@given(groups=groups_of_members, slots=st.integers(1, 4))
@example(groups=[[10, 1], [5], [5]], slots=2)
@example(groups=[[7, 1, 1], [4], [4], [4]], slots=3)
def test_a_batch_takes_at_most_four_thirds_of_the_shortest_time(groups: list[list[int]], slots: int) -> None:
    seconds = [second for members in groups for second in members]
    assume(len(seconds) <= 10)
    played = pool(groups, slots, groups_per_step=len(groups))
    makespan = played.play()
    assert played.ended == {(g, m) for g, members in enumerate(groups) for m in range(len(members))}
    assert makespan <= 4 / 3 * shortest_makespan(seconds, slots) + 1e-9


@settings(max_examples=200, deadline=None)
@given(
    groups=groups_of_members, slots=st.integers(1, 6), free=st.integers(-1, 9), limit=st.integers(0, 6),
    per_step=st.integers(1, 5),
)  # fmt: skip
def test_no_slot_stays_free_while_a_member_may_start(
    groups: list[list[int]], slots: int, free: int, limit: int, per_step: int
) -> None:
    work = pool(groups, slots, per_step).work()
    chosen = scheduler.starts_by_prediction(work, free, limit, slots=slots, groups_per_step=per_step)
    may = {(g, m) for g, members in enumerate(groups) for m in range(len(members)) if g < limit}
    assert len(chosen) == len(set(chosen)) == min(max(0, free), len(may))
    assert set(chosen) <= may


@settings(max_examples=200, deadline=None)
@given(groups=groups_of_members, slots=st.integers(1, 4), per_step=st.integers(1, 3))
def test_nobody_waits_for_a_member_of_a_later_window(groups: list[list[int]], slots: int, per_step: int) -> None:
    played = pool(groups, slots, per_step)
    played.play()
    windows = [group // per_step for group, _ in played.order]
    assert windows == sorted(windows)


@settings(max_examples=50, deadline=None)
@given(slots=st.integers(1, 3), per_step=st.integers(1, 4), growth=st.integers(1, 5))
def test_the_shortest_member_starts_however_many_longer_ones_keep_coming(
    slots: int, per_step: int, growth: int
) -> None:
    size = 2
    played = Pool({0: {0: 1.0, 1: 1.0}}, slots, per_step)
    for number in range(1, 40):
        played.groups[number] = dict.fromkeys(range(size), 1.0 + growth * number)
        played.start()
        played.advance()
    assert {(0, 0), (0, 1)} <= set(played.started)
    assert max(played.order.index((0, 0)), played.order.index((0, 1))) < per_step * size


@settings(max_examples=100, deadline=None)
@given(
    groups=st.lists(st.integers(0, 10**6), min_size=2, max_size=2), per_step=st.integers(1, 64),
    seconds=st.lists(st.floats(0, 1e6), min_size=2, max_size=2),
)  # fmt: skip
def test_priorities_put_earlier_windows_and_longer_members_first(
    groups: list[int], per_step: int, seconds: list[float]
) -> None:
    (early, late), (short, long) = sorted(groups), sorted(seconds)
    if early // per_step < late // per_step:
        assert scheduler.priority_by_prediction(early, per_step, short) < scheduler.priority_by_prediction(
            late, per_step, long
        )
    else:
        assert scheduler.priority_by_prediction(late, per_step, long) <= scheduler.priority_by_prediction(
            early, per_step, short
        )
    assert 0 <= scheduler.priority_by_prediction(late, per_step, long) < 2**31
