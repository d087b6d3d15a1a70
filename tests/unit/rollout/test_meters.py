from __future__ import annotations

import pytest

from driftline.rollout.meters import GAP_S, BusyMeter, WaitingMeter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def at(self, now: float) -> None:
        self.now = now


def test_overlapping_work_is_one_stretch() -> None:
    clock = Clock()
    meter = BusyMeter(clock)
    for now, change in ((1, meter.begin), (2, meter.begin), (3, meter.end), (5, meter.end), (7, meter.begin)):
        clock.at(now)
        assert change() == now
    assert meter.running_now == 1
    clock.at(8)
    assert meter.take() == [(1, 5), (7, 8)]
    clock.at(9)
    meter.end()
    assert meter.take() == [(8, 9)]
    assert meter.take() == []


def test_the_gap_between_an_answer_and_the_next_request_does_not_split_a_stretch() -> None:
    clock = Clock()
    meter = BusyMeter(clock)
    for now, change in ((1, meter.begin), (2, meter.end), (2 + GAP_S / 2, meter.begin), (3, meter.end)):
        clock.at(now)
        change()
    clock.at(3 + 2 * GAP_S)
    meter.begin()
    clock.at(4)
    meter.end()
    assert meter.take() == [(1, 3), (pytest.approx(3 + 2 * GAP_S), 4)]


def test_waiting_is_told_by_cause_and_adds_up() -> None:
    clock = Clock()
    meter = WaitingMeter(clock)
    for now, cause in ((1, "trainer"), (2, "trainer"), (4, "apply"), (5, None), (6, "claim")):
        clock.at(now)
        meter.set(cause)
    clock.at(7)
    assert meter.take() == [("trainer", (1, 4)), ("apply", (4, 5)), ("claim", (6, 7))]
    clock.at(8)
    meter.set(None)
    assert meter.take() == [("claim", (7, 8))]
    assert meter.take() == []
