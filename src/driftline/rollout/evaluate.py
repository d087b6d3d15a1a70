"""Held-out success of policy versions: `python -m driftline.rollout.evaluate --run RUN --versions 0,25`.

One engine takes up each version in turn and plays the same held-out tasks with the same seeds. Episodes that failed
for reasons of infrastructure are left out of the share, and counted. A mixture has the figures of each environment
beside those of all.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial

from driftline.engine.protocol import Engine
from driftline.environment import Task
from driftline.errors import ConfigurationError, DriftlineError
from driftline.params import settings
from driftline.process import child_main, emit
from driftline.records import EvaluationResult, HeldOutOutcome, PolicyVersion, Trajectory
from driftline.rollout.background import cancel_and_wait
from driftline.rollout.bootstrap import Surroundings, make_engine, pin, read_run
from driftline.rollout.episode import Episode, EpisodeLimits, EpisodeResources, EpisodeSpec
from driftline.rollout.families import PlayedFamilies
from driftline.rollout.guard import EnvironmentGuard
from driftline.rollout.meters import BusyMeter
from driftline.store import tasksets
from driftline.store.pins import pinned
from driftline.store.run_store import RunStore
from driftline.tracking import metrics
from driftline.tracking.sink import Sink, open_sink
from driftline.tracking.summary import mean

LOG = logging.getLogger(__name__)

CELL = "evaluation"


def policy_versions(run_store: RunStore, numbers: Sequence[int]) -> list[PolicyVersion]:
    """The committed versions with these numbers, in order. Blocks.

    Raises:
        ConfigurationError: The run has no such version.
    """
    head, _ = run_store.read_head()
    known = {head.version.number: head.version} if head.version else {}
    for record in run_store.steps():
        known[record.version_in.number] = record.version_in
        known[record.version_out.number] = record.version_out
    missing = [number for number in numbers if number not in known]
    if missing:
        raise ConfigurationError(f"run {run_store.run!r} has no policy version {missing[0]}: it has {sorted(known)}")
    return [known[number] for number in numbers]


async def evaluate_version(
    resources: EpisodeResources, run: str, tasks: Sequence[Task], *, task_set: str, episodes_per_task: int, slots: int
) -> list[Trajectory]:
    """Play the tasks with the policy that the engine holds, `slots` episodes at a time.

    Raises:
        EngineError: The engine failed.
    """
    specs = iter(
        EpisodeSpec(run, CELL, group, member, 1, task, task_set, priority=group)
        for group, task in enumerate(tasks)
        for member in range(episodes_per_task)
    )
    played: list[Trajectory] = []
    players = [asyncio.create_task(_play_all(specs, resources, played)) for _ in range(slots)]
    try:
        await asyncio.gather(*players)
    finally:
        await cancel_and_wait(players)
    return played


async def _play_all(specs: Iterator[EpisodeSpec], resources: EpisodeResources, played: list[Trajectory]) -> None:
    for spec in specs:
        episode = Episode(spec, resources)
        played.append(await episode.play())
        if episode.failure is not None:
            raise episode.failure


def result_of(version: int, tasks: int, played: Sequence[Trajectory], seconds: float) -> EvaluationResult:
    """Success and reward over the valid episodes, of all environments and of each.

    Raises:
        DriftlineError: No episode was valid.
    """
    valid = [trajectory for trajectory in played if trajectory.valid]
    if not valid:
        reasons = sorted({trajectory.reason for trajectory in played})[:3]
        raise DriftlineError(f"none of {len(played)} held-out episodes gave a reward: {'; '.join(reasons)}")
    return EvaluationResult(
        version=version,
        tasks=tasks,
        episodes=len(played),
        success=sum(bool(trajectory.success) for trajectory in valid) / len(valid),
        reward_mean=sum(trajectory.reward or 0.0 for trajectory in valid) / len(valid),
        invalid=len(played) - len(valid),
        seconds=seconds,
        by_environment={
            environment: outcome_of([trajectory for trajectory in played if trajectory.environment == environment])
            for environment in sorted({trajectory.environment for trajectory in played})
        },
    )


def outcome_of(played: Sequence[Trajectory]) -> HeldOutOutcome:
    """Success and reward over the valid episodes of one environment; None where there is none."""
    valid = [trajectory for trajectory in played if trajectory.valid]
    return HeldOutOutcome(
        tasks=len({trajectory.task_id for trajectory in played}),
        episodes=len(played),
        success=mean([float(bool(trajectory.success)) for trajectory in valid]),
        reward_mean=mean([trajectory.reward or 0.0 for trajectory in valid]),
        invalid=len(played) - len(valid),
    )


async def evaluate(found: Surroundings, engine: Engine, sink: Sink, numbers: Sequence[int]) -> list[EvaluationResult]:
    """Evaluate versions, one after the other, over an engine that has started, and write the results."""
    run_store, parameters = found.run_store, found.parameters
    versions = await asyncio.to_thread(policy_versions, run_store, numbers)
    name = tasksets.held_out_name(parameters.environment.task_set)
    task_set = found.description.held_out_task_set
    tasks = await asyncio.to_thread(tasksets.load, run_store.store, name, task_set)
    guard = EnvironmentGuard()
    limits = EpisodeLimits.of(parameters, temperature=parameters.evaluation.temperature)
    families = PlayedFamilies(parameters, found.family, engine, found.renderer, guard, BusyMeter(), limits)
    results: list[EvaluationResult] = []
    async with AsyncExitStack() as context:
        context.enter_context(guard.installed())
        await context.enter_async_context(families)
        for version in versions:
            await take_up(engine, run_store, version)
            began = time.monotonic()
            played = await evaluate_version(
                families.resources,
                run_store.run,
                tasks,
                task_set=task_set,
                episodes_per_task=parameters.evaluation.episodes_per_task,
                slots=parameters.rollout.episodes_in_flight,
            )
            result = result_of(version.number, len(tasks), played, time.monotonic() - began)
            await asyncio.to_thread(run_store.write_evaluation, result)
            _tell(result, sink)
            results.append(result)
    return results


async def take_up(engine: Engine, run_store: RunStore, version: PolicyVersion) -> None:
    """Have the engine hold a version, which must not be collected meanwhile."""
    reader = f"evaluation-{version.number}-{uuid.uuid4().hex[:8]}"
    with ExitStack() as reading:
        pin = pinned(run_store.store, run_store.run, reader, versions=[version])
        await asyncio.to_thread(reading.enter_context, pin)
        try:
            await engine.update(await asyncio.to_thread(run_store.read_manifest, version))
        finally:
            await asyncio.to_thread(reading.close)


def _tell(result: EvaluationResult, sink: Sink) -> None:
    LOG.info("version %d: success %.3f over %d tasks", result.version, result.success, result.tasks)
    sink.log(
        {
            metrics.EVALUATION_SUCCESS: result.success,
            metrics.EVALUATION_REWARD: result.reward_mean,
            metrics.EVALUATION_INVALID: result.invalid,
            metrics.EVALUATION_SECONDS: result.seconds,
            **_by_environment(result),
        },
        step=result.version,
    )
    emit({"event": "progress", "version": result.version, "success": result.success, "seconds": result.seconds})


def _by_environment(result: EvaluationResult) -> dict[str, float]:
    """The figures of each environment of a mixture, by the names of the table; of one alone they are the total's."""
    if len(result.by_environment) < 2:
        return {}
    figures = {
        metrics.of_environment(row, environment): value
        for environment, found in result.by_environment.items()
        for row, value in (
            (metrics.EVALUATION_SUCCESS_OF, found.success),
            (metrics.EVALUATION_REWARD_OF, found.reward_mean),
            (metrics.EVALUATION_INVALID_OF, float(found.invalid)),
        )
    }
    return {name: value for name, value in figures.items() if value is not None}


@asynccontextmanager
async def running(engine: Engine) -> AsyncGenerator[Engine, None]:
    """An engine that has started, and is closed in the end."""
    try:
        await engine.start()
        yield engine
    finally:
        await engine.close()


async def run_evaluation(run: str, numbers: Sequence[int]) -> None:
    """Evaluate versions of a run, in a process of its own."""
    found = await asyncio.to_thread(read_run, run, settings())
    pin(found.parameters.engine.cpus)
    sink = open_sink(settings().mlflow_uri, found.description.mlflow_run)
    try:
        async with running(make_engine(found.parameters.engine, found.model_dir, run)) as engine:
            emit({"event": "ready", "run": run})
            results = await evaluate(found, engine, sink, numbers)
    finally:
        await asyncio.to_thread(sink.close)
    emit({"event": "result", "success": {str(result.version): result.success for result in results}})


def main() -> None:
    """Read the command line, and evaluate."""
    parser = argparse.ArgumentParser(prog="python -m driftline.rollout.evaluate", description="Evaluate policies.")
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--versions", required=True, help="numbers of policy versions, such as 0,25")
    arguments = parser.parse_args()
    try:
        numbers = [int(number) for number in arguments.versions.split(",")]
    except ValueError:
        parser.error(f"--versions: {arguments.versions!r} are no numbers, such as 0,25")
    child_main(partial(run_evaluation, arguments.run, numbers))


if __name__ == "__main__":
    main()
