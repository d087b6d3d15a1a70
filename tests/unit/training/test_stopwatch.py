"""Seconds of work that is done in several places, nested or not, after an error too."""

from __future__ import annotations

import pytest

from driftline.training.stopwatch import Stopwatch


def test_it_runs_while_any_block_does_and_counts_nested_ones_once():
    now = [0.0]
    watch = Stopwatch(lambda: now[0])

    def work(seconds: float) -> None:
        with watch.running():
            now[0] += seconds

    with watch.running():
        work(1.0)
        now[0] += 2.0
        work(4.0)
    now[0] += 100.0
    work(8.0)
    assert watch.take() == 15.0
    assert watch.take() == 0.0


def test_what_fails_has_taken_its_time_and_ends_its_block():
    now = [0.0]
    watch = Stopwatch(lambda: now[0])

    def fail() -> None:
        with watch.running():
            now[0] += 3.0
            raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        fail()
    now[0] += 5.0
    assert watch.take() == 3.0
