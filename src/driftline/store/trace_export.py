"""A trace out of a run's finished groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from driftline.errors import ConfigurationError
from driftline.store.episodes import groups_of_steps
from driftline.store.run_store import RunStore
from driftline.traces import EpisodeShape, groups_of, shape_of


@dataclass(frozen=True, slots=True)
class Export:
    """What was made of a run."""

    trace: tuple[EpisodeShape, ...]
    left_out: Mapping[str, int]
    """Why groups are not in it, and how many each time: a group is replayed with all of its members, or not."""


def export(run_store: RunStore, steps: tuple[int, int] | None = None) -> Export:
    """Make a trace of the groups that a run has finished, or of those that some of its steps trained on. Blocks.

    Args:
        run_store: The run.
        steps: First and last step; None takes every finished group, trained on or not.

    Raises:
        ConfigurationError: There are no such steps or groups, their objects were collected, or none can be replayed.
        CorruptObject: An object of a chosen step cannot be read.
    """
    run_store.describe()
    groups = run_store.new_groups() if steps is None else groups_of_steps(run_store, *steps)
    if not groups:
        raise ConfigurationError(f"run {run_store.run!r} has no finished group that can be read: wait for one")
    source = f"run {run_store.run}" + ("" if steps is None else f" steps {steps[0]}-{steps[1]}")
    trace: list[EpisodeShape] = []
    left_out: Counter[str] = Counter()
    for group in sorted(groups, key=lambda group: group.number):
        try:
            members = [shape_of(trajectory, source) for trajectory in group.trajectories]
            groups_of(members)
        except ValueError as error:
            left_out[str(error)] += 1
        else:
            trace += members
    if not trace:
        reason, _ = left_out.most_common(1)[0]
        raise ConfigurationError(f"none of {len(groups)} groups of run {run_store.run!r} can be replayed: {reason}")
    return Export(tuple(trace), dict(left_out))
