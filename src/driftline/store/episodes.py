"""Which finished groups a reader asks for: those of steps, one by its number, or the newest."""

from __future__ import annotations

import logging

from driftline.errors import ConfigurationError, CorruptObject, ObjectMissing
from driftline.records import GiveUp, Group, GroupUse, StepRecord
from driftline.store import keys
from driftline.store.run_store import RunStore
from driftline.store.trajectories import decode_groups

logger = logging.getLogger(__name__)


def groups_of_steps(run_store: RunStore, first: int, last: int) -> list[Group]:
    """The groups that some steps trained on, by object.

    Args:
        run_store: The run.
        first: First step.
        last: Last step, included.

    Raises:
        ConfigurationError: There are no such steps, or their objects were collected.
        CorruptObject: An object cannot be read.
    """
    records = {record.step: record for record in _records(run_store)}
    chosen = [records[step] for step in range(first, last + 1) if step in records]
    if len(chosen) != last - first + 1:
        known = f"it has steps {min(records)} to {max(records)}" if records else "it has committed none yet"
        asked = f"step {first}" if first == last else f"steps {first} to {last}"
        raise ConfigurationError(f"run {run_store.run!r} has no {asked}: {known}")
    wanted = {use.group: use.key for record in chosen for use in record.groups}
    found: list[Group] = []
    for key in sorted(set(wanted.values())):
        groups = _read(run_store, key, f"choose later steps than {first}")
        found += [group for group in groups if wanted.get(group.number) == key]
    return found


def group_numbered(run_store: RunStore, number: int) -> Group:
    """A group by its number, as the step that settled it names it, or as it was finished since. Blocks.

    Raises:
        ConfigurationError: It is not finished, was given up without trajectories, or its object was collected.
        CorruptObject: Its object cannot be read.
    """
    records = _records(run_store)
    settled: dict[int, GroupUse | GiveUp] = {
        one.group: one for record in records for one in (*record.give_ups, *record.groups)
    }
    if number in settled:
        found = settled[number]
        if not found.key and isinstance(found, GiveUp):
            raise ConfigurationError(
                f"group {number} of run {run_store.run!r} was given up ({found.reason}) and left no trajectories"
            )
        groups = _read(run_store, found.key, "choose a later group")
    else:
        groups = run_store.new_groups(records[-1].frontier.keys if records else {})
    for group in groups:
        if group.number == number:
            return group
    raise ConfigurationError(
        f"run {run_store.run!r} has no finished group {number}: leave --group out for the newest"
    )


def newest_groups(run_store: RunStore, episodes: int) -> list[Group]:
    """The groups that were finished last, newest first, until they have so many episodes. Blocks.

    An object that cannot be read is passed over, with a warning in the log.

    Raises:
        ConfigurationError: The run has no finished group.
    """
    listed = run_store.store.list(keys.trajectories_prefix(run_store.run))
    objects = [info for info in listed if keys.is_trajectories(info.key)]
    found: list[Group] = []
    for info in sorted(objects, key=lambda info: (info.modified_unix, info.key), reverse=True):
        if sum(len(group.trajectories) for group in found) >= episodes:
            break
        try:
            found += reversed(decode_groups(run_store.store.get(info.key).body, run=run_store.run, key=info.key))
        except (CorruptObject, ObjectMissing) as error:
            logger.warning("passed over: %s", error)
    if not found:
        raise ConfigurationError(f"run {run_store.run!r} has no finished group that can be read: wait for one")
    return found


def _records(run_store: RunStore) -> list[StepRecord]:
    try:
        return run_store.steps()
    except ObjectMissing:  # the run has not begun
        return []


def _read(run_store: RunStore, key: str, remedy: str) -> list[Group]:
    try:
        body = run_store.store.get(key).body
    except ObjectMissing:
        raise ConfigurationError(f"{key} is not there any more, collected as garbage perhaps: {remedy}") from None
    return decode_groups(body, run=run_store.run, key=key)
