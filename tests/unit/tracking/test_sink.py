"""Metrics reach MLflow in batches, survive its outages, and never get in the way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from driftline.errors import ConfigurationError
from driftline.tracking import metrics, sink
from driftline.tracking.sink import MetricsSink, NullSink, open_sink
from driftline.tracking.traces import EpisodeTrace, episode_trace
from driftline.tracking.transport import Point, Refused
from tests.support.tracking_records import trajectory


class FakeMlflow:
    """Takes points while it is up; `down` makes it raise, `hang` makes it block until it is set."""

    def __init__(self) -> None:
        self.requests: list[list[Point]] = []
        self.traces: list[EpisodeTrace] = []
        self.error: Exception | None = None
        self.attempts = 0
        self.attempted = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def connect(self, uri: str, run_id: str) -> FakeMlflow:
        assert (uri, run_id) == ("http://mlflow", "m1")
        return self

    def send_points(self, points: Sequence[Point]) -> None:
        self.attempts += 1
        self.attempted.set()
        assert self.may_answer.wait(30)
        if self.error is not None:
            raise self.error
        self.requests.append(list(points))

    def send_trace(self, episode: EpisodeTrace) -> None:
        if self.error is not None:
            raise self.error
        self.traces.append(episode)

    @property
    def points(self) -> list[Point]:
        return [point for request in self.requests for point in request]


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> FakeMlflow:
    monkeypatch.setattr(sink, "FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr(sink, "LAST_BACKOFF_S", 0.02)
    return FakeMlflow()


def start(mlflow: FakeMlflow, **settings: Any) -> MetricsSink:
    settings = {"interval_s": 0.01, "clock": lambda: 5.0} | settings
    return MetricsSink("http://mlflow", "m1", connect=mlflow.connect, **settings)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_values_arrive_with_time_and_step(mlflow: FakeMlflow) -> None:
    subject = start(mlflow)
    subject.log({metrics.LOSS: 0.5, metrics.K3: 0.25}, step=7)
    assert subject.close(20)
    assert mlflow.points == [Point("train/loss", 0.5, 5000, 7), Point("divergence/k3_nats", 0.25, 5000, 7)]
    assert (subject.pending, subject.lost) == (0, 0)


def test_requests_hold_at_most_a_thousand_points_in_order(mlflow: FakeMlflow) -> None:
    mlflow.may_answer.clear()
    subject = start(mlflow)
    for step in range(2500):
        subject.log({metrics.LOSS: float(step)}, step=step)
    mlflow.may_answer.set()
    assert subject.close(20)
    assert max(len(request) for request in mlflow.requests) <= 1000
    assert len(mlflow.requests) <= 4
    assert [point.step for point in mlflow.points] == list(range(2500))


def test_an_outage_delays_and_loses_nothing(mlflow: FakeMlflow) -> None:
    mlflow.error = ConnectionError("refused")
    subject = start(mlflow)
    subject.log({metrics.LOSS: 1.0}, step=1)
    wait_until(lambda: mlflow.attempts >= 3)
    subject.log({metrics.LOSS: 2.0}, step=2)
    assert subject.pending == 2
    mlflow.error = None
    wait_until(lambda: subject.pending == 0)
    assert [point.value for point in mlflow.points] == [1.0, 2.0]
    assert subject.close(20)


def test_logging_does_not_wait_for_a_server_that_hangs(mlflow: FakeMlflow) -> None:
    mlflow.may_answer.clear()
    subject = start(mlflow)
    subject.log({metrics.LOSS: 1.0}, step=1)
    assert mlflow.attempted.wait(20)
    before = time.monotonic()
    for step in range(100):
        subject.log({metrics.LOSS: 1.0}, step=step)
    assert not subject.close(0.05)
    assert time.monotonic() - before < 5
    assert subject.lost == 101
    mlflow.may_answer.set()


def test_a_full_queue_loses_the_oldest_and_counts_them(mlflow: FakeMlflow) -> None:
    mlflow.error = ConnectionError("refused")
    subject = start(mlflow, capacity=3)
    for step in range(5):
        subject.log({metrics.LOSS: float(step)}, step=step)
    assert (subject.pending, subject.lost) == (3, 2)
    mlflow.error = None
    assert not subject.close(20)
    assert [point.step for point in mlflow.points] == [2, 3, 4]


def test_what_mlflow_refuses_does_not_hold_up_the_rest(mlflow: FakeMlflow) -> None:
    mlflow.error = Refused("no such run")
    subject = start(mlflow)
    subject.log({metrics.LOSS: 1.0}, step=1)
    wait_until(lambda: subject.lost == 1)
    mlflow.error = None
    subject.log({metrics.LOSS: 2.0}, step=2)
    assert not subject.close(20)
    assert [point.value for point in mlflow.points] == [2.0]


def test_what_is_left_at_the_end_goes_to_the_spool_and_is_sent_by_the_next(
    mlflow: FakeMlflow, tmp_path: Path
) -> None:
    spool = tmp_path / "deep" / "metrics.jsonl"
    mlflow.error = ConnectionError("refused")
    subject = start(mlflow, spool=spool)
    subject.log({metrics.LOSS: 1.0, metrics.K3: float("nan")}, step=1)
    assert not subject.close(0.05)
    assert subject.lost == 0
    mlflow.error = None
    following = start(mlflow, spool=spool, clock=lambda: 9.0)
    following.log({metrics.LOSS: 2.0}, step=2)
    assert following.close(20)
    assert [(p.name, p.unix_ms, p.step) for p in mlflow.points] == [
        ("train/loss", 5000, 1),
        ("divergence/k3_nats", 5000, 1),
        ("train/loss", 9000, 2),
    ]
    assert spool.read_text() == ""


def test_a_broken_spool_is_passed_over(mlflow: FakeMlflow, tmp_path: Path) -> None:
    spool = tmp_path / "metrics.jsonl"
    spool.write_text('["m1", "train/loss", 1.0, 50')
    subject = start(mlflow, spool=spool)
    subject.log({metrics.LOSS: 2.0}, step=2)
    assert subject.close(20)
    assert [point.value for point in mlflow.points] == [2.0]


def test_an_unknown_name_is_refused_by_every_sink(mlflow: FakeMlflow) -> None:
    subject = start(mlflow)
    for each in (subject, NullSink()):
        with pytest.raises(ConfigurationError, match="no metric is named 'loss'"):
            each.log({"loss": 1.0}, step=1)
    assert subject.close(20)
    assert mlflow.points == []


def test_episodes_become_traces_and_a_failing_one_is_dropped(mlflow: FakeMlflow) -> None:
    subject = start(mlflow)
    mlflow.error = ValueError("too large")
    subject.log_episode(episode_trace(trajectory(1, 2, group=3), []))
    wait_until(lambda: not subject._traces)
    mlflow.error = None
    subject.log_episode(episode_trace(trajectory(1, 2, group=4), []))
    assert subject.close(20)
    assert [episode.group for episode in mlflow.traces] == [4]


def test_closing_twice_and_with_nothing_to_send_returns_at_once(mlflow: FakeMlflow) -> None:
    subject = start(mlflow, interval_s=3600)
    assert subject.close(3600)
    assert subject.close(3600)


def test_without_mlflow_or_without_a_run_nothing_is_sent() -> None:
    for uri, run_id in ((None, "m1"), ("http://mlflow", None)):
        nothing = open_sink(uri, run_id)
        assert isinstance(nothing, NullSink)
        nothing.log({metrics.LOSS: 1.0}, step=1)
        assert nothing.close()
