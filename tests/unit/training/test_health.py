"""Environments that fail too often are played no more; with none left the run fails, and says why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from driftline.environment import Task
from driftline.errors import LimitExceeded
from driftline.records import EpisodeCounts, GiveUp, Group, TrajectoryStatus
from driftline.store import tasksets
from driftline.store.tasksets import TaskNote
from driftline.tracking import metrics
from driftline.training.health import EnvironmentHealth, counts_of
from tests.support.trainer_bench import Bench, stopped_after, sync
from tests.support.training import FakeGroup, group

NAME = "pointer-chase"


def played(number: int, environment: str, *statuses: TrajectoryStatus, version: int = 0) -> Group:
    made = group(number, [1.0, 0.0] + [0.5] * (len(statuses) - 2), version=version)
    members = tuple(
        replace(
            member, environment=environment, status=status,
            reward=member.reward if status == "ok" else None, success=None,
        )
        for member, status in zip(made.trajectories, statuses, strict=True)
    )  # fmt: skip
    return replace(made, trajectories=members)


def test_failures_and_timeouts_are_counted_by_environment_and_the_engines_are_not():
    """NeMo-RL#2207, verifiers#1543: a failure of infrastructure is told apart, and never a reward."""
    groups = [
        played(0, "a/v1", "ok", "truncated", "env_error", "timeout"),
        played(1, "b/v1", "ok", "ok", "engine_error", "cancelled"),
    ]
    gone = [
        GiveUp(2, "too few valid members: 0 of 4 (4 x timeout: late)", 0, environment="b/v1"),
        GiveUp(3, "stale: old", 0, environment="b/v1"),
    ]
    found = counts_of(groups, gone)
    assert found == {"a/v1": EpisodeCounts(4, 2, 1), "b/v1": EpisodeCounts(3, 1, 1)}
    assert found["a/v1"].failure_share == 0.5
    assert EpisodeCounts().failure_share == 0.0


def test_an_environment_is_judged_by_its_last_episodes_once_there_are_enough():
    health = EnvironmentHealth(0.4, 8)
    health.see({"a/v1": EpisodeCounts(4, 3, 1), "b/v1": EpisodeCounts(8, 3, 0)})
    assert health.quarantined == {}
    health.see({"a/v1": EpisodeCounts(4, 1, 0)})
    assert health.quarantined == {"a/v1": EpisodeCounts(8, 4, 1)}
    assert health.values[metrics.ENVIRONMENT_FAILURE_SHARE] == 0.5
    metrics.check(health.values)
    failed, late = (
        [health.values[f"environments/{what}_share_of/{name}/v1"] for name in "ab"] for what in ("failure", "timeout")
    )
    assert (failed, late) == ([0.5, 0.375], [0.125, 0.0])
    health.see({"a/v1": EpisodeCounts(4, 0, 0)})
    assert health.of("a/v1") == EpisodeCounts(8, 1, 0)
    assert health.quarantined == {"a/v1": EpisodeCounts(8, 4, 1)}, "what was admitted before does not bring it back"
    assert health.values[metrics.ENVIRONMENTS_QUARANTINED] == 1.0


def bench_with(*environments: str, episodes: int = 4) -> tuple[Bench, str]:
    params = sync(limits={"environment_failures": 0.3, "environment_episodes": episodes}, training={"steps": 4})
    bench = Bench(params, cell)
    tasks = [Task.create(environments[n % len(environments)], {"n": n}) for n in range(8)]
    notes = {task.id: TaskNote("useful") for task in tasks}
    held_out = [Task.create("a/v1", {"n": 99})]
    first = tasksets.publish(bench.store, NAME, tasks, held_out=held_out, notes=notes, weights={"useful": 1.0})
    head, etag = bench.run_store.read_head()
    bench.run_store.swap_head(replace(head, task_sets=((0, first),)), etag)
    return bench, first


def cell(bench: Bench) -> None:
    """Plays what is admitted; of the environment `b/v1` half the episodes fail."""
    head, _ = bench.run_store.read_head()
    for number in range(len(bench.run_store.new_groups()), head.spent + 2):
        [version] = [version for first, version in head.task_sets if first <= number][-1:]
        tasks = tasksets.load(bench.store, NAME, version)
        task = tasks[number % len(tasks)]
        bad = task.environment == "b/v1"
        statuses: tuple[TrajectoryStatus, ...] = ("ok", "ok", "timeout", "env_error") if bad else ("ok",) * 4
        newest = head.version.number if head.version is not None else 0
        made = played(number, task.environment, *statuses, version=newest)
        members = tuple(replace(one, task_id=task.id, task_set=version) for one in made.trajectories)
        bench.finish(Group(number, task.id, version, members))


def test_the_run_goes_on_with_the_environments_that_are_left():
    bench, first = bench_with("a/v1", "b/v1")
    head = bench.loop().run()
    assert head.state == "finished"
    (_, one), (begins, rest) = head.task_sets
    assert (one, begins >= 2) == (first, True)
    manifest = tasksets.manifest(bench.store, NAME, rest)
    assert (dict(manifest.environments), manifest.parent) == ({"a/v1": 4}, first)
    assert manifest.lineage == {"quarantined": "b/v1"}
    assert tasksets.head(bench.store, NAME).version == first, "only this run leaves it out"
    last = bench.run_store.steps()[-1]
    assert {use.environment for use in last.groups} == {"a/v1"}


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_restarted_trainer_counts_on_and_remembers_a_quarantine(steps: int):
    whole, _ = bench_with("a/v1", "b/v1", episodes=8)
    whole.loop().run()
    bench, first = bench_with("a/v1", "b/v1", episodes=8)
    stopped_after(bench, steps)
    bench.group = FakeGroup()
    head = bench.loop().run()
    assert head.task_sets == whole.run_store.read_head()[0].task_sets
    assert (head.task_sets[0], len(head.task_sets)) == ((0, first), 2)
    restarted, uninterrupted = bench.run_store.steps(), whole.run_store.steps()
    for name in (metrics.ENVIRONMENT_FAILURE_SHARE, metrics.ENVIRONMENTS_QUARANTINED):
        assert [record.metrics[name] for record in restarted] == [record.metrics[name] for record in uninterrupted]
    assert restarted[-1].metrics[metrics.ENVIRONMENTS_QUARANTINED] == 1.0
    assert [record.episodes for record in restarted] == [record.episodes for record in uninterrupted]


def test_what_a_refresh_makes_is_taken_up_without_them_by_a_restarted_trainer():
    bench, first = bench_with("a/v1", "b/v1")
    stopped_after(bench, 3)
    assert len(bench.run_store.read_head()[0].task_sets) == 2
    tasks = [Task.create("ab"[n % 2] + "/v1", {"n": n}) for n in range(20, 28)]
    notes = {task.id: TaskNote("useful") for task in tasks}
    published = tasksets.publish(bench.store, NAME, tasks, notes=notes, weights={"useful": 1.0}, parent=first)
    bench.group = FakeGroup()
    head = bench.loop().run()
    assert len(head.task_sets) == 3
    manifest = tasksets.manifest(bench.store, NAME, head.task_sets[-1][1])
    assert (dict(manifest.environments), manifest.parent) == ({"a/v1": 4}, published)


@pytest.mark.parametrize("others", [True, False])
def test_what_a_refresh_makes_later_is_taken_up_without_them(others: bool):
    bench, first = bench_with("a/v1", "b/v1")
    bench.params = sync(limits={"environment_failures": 0.3, "environment_episodes": 4}, training={"steps": 8})
    published: list[str] = []

    def refreshed(bench: Bench) -> None:
        if len(bench.run_store.read_head()[0].task_sets) == 2 and not published:
            tasks = [Task.create("ab"[n % 2 if others else 1] + "/v1", {"n": n}) for n in range(20, 28)]
            notes = {task.id: TaskNote("useful") for task in tasks}
            version = tasksets.publish(bench.store, NAME, tasks, notes=notes, weights={"useful": 1.0}, parent=first)
            published.append(version)
        cell(bench)

    bench.cell = refreshed
    head = bench.loop().run()
    assert head.state == "finished"
    if not others:
        assert len(head.task_sets) == 2, "it has nothing that could be played"
        return
    manifest = tasksets.manifest(bench.store, NAME, head.task_sets[-1][1])
    assert (dict(manifest.environments), manifest.parent) == ({"a/v1": 4}, published[0])
    assert len(head.task_sets) == 3
    assert {use.environment for use in bench.run_store.steps()[-1].groups} == {"a/v1"}


def test_with_no_environment_left_the_run_fails_and_says_why():
    bench, _ = bench_with("b/v1")
    with pytest.raises(LimitExceeded, match=r"all are quarantined \(b/v1: 4 of its last 8 episodes failed, 2 out of"):
        bench.loop().run()
