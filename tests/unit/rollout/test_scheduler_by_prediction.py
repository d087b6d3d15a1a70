"""In which order members start by prediction, on examples that can be followed by hand."""

from __future__ import annotations

from functools import partial

from driftline.rollout import scheduler
from driftline.rollout.scheduler import GroupWork

starts = partial(scheduler.starts_by_prediction, slots=2, groups_per_step=4)


def work(number: int, *seconds: float, begun: int = 0, running_s: float = 0.0) -> GroupWork:
    """A group whose members wait with these predictions, after `begun` others that run."""
    waiting = dict(enumerate(seconds, begun))
    return GroupWork(number, waiting, len(waiting) + begun, running_s)


def test_longest_first_while_one_is_long() -> None:
    """5 + 3 + 3 + 1 is 6 a slot: all but the last are longer than 2, a third of that."""
    groups = [work(0, 3.0), work(1, 1.0), work(2, 5.0, 3.0)]
    assert starts(groups, 4, 9) == [(2, 0), (0, 0), (2, 1), (1, 0)]
    assert starts(groups, 2, 9) == [(2, 0), (0, 0)]


def test_nearly_complete_groups_first_once_none_is_long() -> None:
    """10.5 s of work, running members included: none is longer than a third of the 5.25 s a slot."""
    groups = [work(0, *[1.0] * 4), work(1, 1.2, 1.2, begun=2), work(2, 1.1, begun=3, running_s=3.0)]
    assert starts(groups, 99, 9) == [(2, 3), (1, 2), (1, 3), (0, 0), (0, 1), (0, 2), (0, 3)]
    equal = [work(0, 1.0, begun=7, running_s=7.0), work(1, 1.1, begun=2, running_s=2.0)]
    assert starts(equal, 1, 9) == [(1, 2)], "both need one more, and the other one waits for fewer to end"


def test_what_runs_counts_as_work_of_its_window() -> None:
    """Beside 20 s that run, 3 s are not long; beside nothing they are."""
    assert starts([work(0, 2.0, begun=1, running_s=20.0), work(1, 3.0, begun=9)], 1, 9) == [(0, 1)]
    assert starts([work(0, 2.0, begun=1), work(1, 3.0, begun=9)], 1, 9) == [(1, 9)]


def test_a_window_goes_before_all_later_ones() -> None:
    groups = [work(4, 100.0), work(3, 1.0), work(0, 0.5)]
    assert starts(groups, 9, 9) == [(3, 0), (0, 0), (4, 0)]
    assert starts(groups, 9, 4) == [(3, 0), (0, 0)]
    assert starts(groups, 0, 9) == []


def test_equal_members_start_group_by_group() -> None:
    groups = [work(1, 1.0, 1.0), work(0, 1.0, 1.0)]
    assert starts(groups, 9, 9) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_priorities() -> None:
    """512 to a window, 16 to an octave above 1 ms."""
    assert scheduler.priority_by_prediction(0, 4, 0.0) == 511
    assert scheduler.priority_by_prediction(7, 4, 0.001) == 512 + 511 - 16
    assert scheduler.priority_by_prediction(8, 4, 1e300) == 1024
