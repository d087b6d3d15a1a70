"""Task sets: immutable, content-addressed versions of a list of tasks, and a head that names the newest.

    tasksets/<name>/<version>/tasks.parquet     the tasks (`task_set_file`)
    tasksets/<name>/<version>/manifest.json     written after it; the version is complete once it is there
    tasksets/<name>/HEAD                        the newest version        compare-and-swap

The held-out tasks of `<name>` are a task set of their own, `<name>-held-out`. No task is in both.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from driftline.environment import Task
from driftline.errors import ConfigurationError, CorruptObject, ObjectMissing, PreconditionFailed
from driftline.records import FORMAT, FileEntry, decode, encode
from driftline.store import keys
from driftline.store.files import entry_of, read_checked
from driftline.store.protocol import ObjectStore
from driftline.store.task_set_file import TaskNote as TaskNote
from driftline.store.task_set_file import TaskSet as TaskSet
from driftline.store.task_set_file import content, decode_tasks, encode_tasks

HELD_OUT_SUFFIX = "-held-out"
SWAP_TRIES = 8
MOST_ANCESTORS = 256
"""So many versions are followed back; a longer line of refreshes counts as broken off."""


@dataclass(frozen=True, slots=True)
class TaskSetManifest:
    """What a task-set version consists of, and where it comes from."""

    name: str
    version: str
    split: str
    """`train` or `held-out`."""
    tasks: int
    environments: Mapping[str, int]
    """Environment id -> number of tasks."""
    file: FileEntry
    statistics: Mapping[str, float] = field(default_factory=dict[str, float])
    lineage: Mapping[str, str] = field(default_factory=dict[str, str])
    created_unix: float = 0.0
    parent: str | None = None
    """Version that a refresh made this one from; None where it was made from the generator alone."""
    pools: Mapping[str, int] = field(default_factory=dict[str, int])
    """Pool -> number of tasks; empty where the version has no pools."""
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """Pool -> share of the groups that are drawn from it."""
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class TaskSetHead:
    """The newest version of a task set."""

    name: str
    version: str
    previous: str | None
    published_unix: float
    format: int = FORMAT


def held_out_name(name: str) -> str:
    """Name of the task set that holds the held-out tasks of `name`."""
    return f"{name}{HELD_OUT_SUFFIX}"


def publish(
    store: ObjectStore,
    name: str,
    tasks: Sequence[Task],
    *,
    held_out: Sequence[Task] | None = None,
    notes: Mapping[str, TaskNote] | None = None,
    weights: Mapping[str, float] | None = None,
    parent: str | None = None,
    lineage: Mapping[str, str] | None = None,
    statistics: Mapping[str, float] | None = None,
    make_newest: bool = True,
) -> str:
    """Publish a version of a task set, and of its held-out tasks, and make them the newest.

    Publishing the same tasks again changes nothing: what was made from them since stays the newest. The held-out set
    goes first, so that no training version is ever the newest without one.

    Args:
        store: Where to.
        name: The task set's name.
        tasks: Training tasks, in any order.
        held_out: Held-out tasks; None leaves those that are published.
        notes: Task id -> pool, level and solve rate, of every task or of none.
        weights: Pool -> share of the groups drawn from it.
        parent: Version that this one was made from.
        lineage: Where the tasks come from (generator, seeds, code); the first publication's is kept.
        statistics: Numbers about the tasks; the first publication's are kept.
        make_newest: Whether the head names it from now on.

    Returns:
        The version of the training tasks: a hash of their contents.

    Raises:
        ConfigurationError: No tasks, a task twice, a task both in training and held out, or notes of some tasks only.
        PreconditionFailed: The newest version was made from the same parent: runs that follow it could not follow
            this one. The version is there, and the head stays.
    """
    held_out_set = held_out_name(name)
    kept = held_out if held_out is not None else _newest_tasks(store, held_out_set)
    _check_tasks(name, tasks)
    _check_disjoint(name, tasks, kept)
    _check_notes(name, tasks, notes or {}, weights or {})
    found = TaskSet(tuple(tasks), dict(notes or {}), dict(weights or {}))
    if held_out is not None:
        _check_tasks(held_out_set, held_out)
        _publish_one(store, _described(held_out_set, TaskSet(tuple(held_out)), "held-out", lineage, statistics, None))
    return _publish_one(store, _described(name, found, "train", lineage, statistics, parent), make_newest)


def load(store: ObjectStore, name: str, version: str) -> list[Task]:
    """Read the tasks of one version, sorted by id: the order that group numbers refer to.

    Raises:
        ObjectMissing: There is no such version.
        CorruptObject: The tasks are not those that were published.
    """
    return [*load_set(store, name, version).tasks]


def load_set(store: ObjectStore, name: str, version: str) -> TaskSet:
    """Read one version, with its pools.

    Raises:
        ObjectMissing: There is no such version.
        CorruptObject: The tasks are not those that were published.
    """
    found = manifest(store, name, version)
    tasks = decode_tasks(read_checked(store, found.file), found.file.key, found.weights)
    if tasks.version != version:
        raise CorruptObject(f"{found.file.key} holds other tasks than its version says")
    return tasks


def manifest(store: ObjectStore, name: str, version: str) -> TaskSetManifest:
    """Read the manifest of one version.

    Raises:
        ObjectMissing: There is no such version.
        CorruptObject: It cannot be read, or is another's.
    """
    key = _manifest_key(name, version)
    found = decode(TaskSetManifest, store.get(key).body, key=key)
    if (found.name, found.version) != (name, version):
        raise CorruptObject(f"{key} describes {found.name} {found.version}")
    return found


def head(store: ObjectStore, name: str) -> TaskSetHead:
    """Read which version of a task set is the newest.

    Raises:
        ObjectMissing: Nothing has been published under the name.
    """
    key = keys.task_set_head(name)
    try:
        return decode(TaskSetHead, store.get(key).body, key=key)
    except ObjectMissing:
        raise ObjectMissing(f"no task set {name!r} has been published: run the environment refresh first") from None


def content_version(tasks: Sequence[Task]) -> str:
    """The version of tasks without pools: a hash of ids, environments and payloads, whatever their order."""
    return TaskSet(tuple(tasks)).version


def ancestors(store: ObjectStore, name: str, version: str) -> Iterator[str]:
    """The versions that a version was made from, the newest first. Ends where one is not there any more."""
    for _ in range(MOST_ANCESTORS):
        try:
            parent = manifest(store, name, version).parent
        except ObjectMissing:
            return
        if parent is None:
            return
        yield parent
        version = parent


@dataclass(frozen=True, slots=True)
class _Version:
    """A version about to be written."""

    manifest: TaskSetManifest
    body: bytes


def _described(
    name: str,
    found: TaskSet,
    split: str,
    lineage: Mapping[str, str] | None,
    statistics: Mapping[str, float] | None,
    parent: str | None,
) -> _Version:
    body, environments = encode_tasks(found, split), Counter(task.environment for task in found.tasks)
    described = TaskSetManifest(
        name,
        found.version,
        split,
        len(found.tasks),
        dict(sorted(environments.items())),
        entry_of(f"{keys.task_set_prefix(name, found.version)}tasks.parquet", body),
        dict(statistics or {}),
        dict(lineage or {}),
        created_unix=time.time(),
        parent=parent,
        pools={pool: len(members) for pool, members in found.members.items()},
        weights=found.weights,
    )
    return _Version(described, body)


def _publish_one(store: ObjectStore, wanted: _Version, make_newest: bool = True) -> str:
    described = wanted.manifest
    try:
        manifest(store, described.name, described.version)
    except ObjectMissing:
        _create_version(store, wanted)
    if make_newest:
        _make_newest(store, described.name, described.version, described.parent)
    return described.version


def _create_version(store: ObjectStore, wanted: _Version) -> None:
    """Write a version that has no manifest yet. Racing publishers write the same tasks; one manifest stays."""
    described = wanted.manifest
    store.put(described.file.key, wanted.body)
    try:
        store.create(_manifest_key(described.name, described.version), encode(described))
    except PreconditionFailed:
        load(store, described.name, described.version)


def _make_newest(store: ObjectStore, name: str, version: str, parent: str | None) -> None:
    key = keys.task_set_head(name)
    for _ in range(SWAP_TRIES):
        try:
            found = store.get(key)
        except ObjectMissing:
            found = None
        previous = decode(TaskSetHead, found.body, key=key).version if found else None
        if previous is not None and not _may_follow(store, name, previous, version, parent):
            return
        body = encode(TaskSetHead(name, version, previous, time.time()))
        try:
            store.swap(key, body, found.etag) if found else store.create(key, body)
        except PreconditionFailed:
            continue
        return
    raise PreconditionFailed(f"{key} kept changing: another refresh publishes at the same time; run one at a time")


def _may_follow(store: ObjectStore, name: str, newest: str, version: str, parent: str | None) -> bool:
    """Whether a version becomes the newest in place of `newest`; not if that is it, or was made from it."""
    if newest == version:
        return False
    for ancestor in ancestors(store, name, newest):
        if ancestor == version:
            return False
        if ancestor == parent:
            raise PreconditionFailed(
                f"task set {name!r}: {newest} was published meanwhile, made from {parent} as {version} is: "
                "start the refresh with another seed, so that it is made from the newest"
            )
    return True


def _newest_tasks(store: ObjectStore, name: str) -> list[Task]:
    try:
        return load(store, name, head(store, name).version)
    except ObjectMissing:
        return []


def _check_tasks(name: str, tasks: Sequence[Task]) -> None:
    if not tasks:
        raise ConfigurationError(f"task set {name!r} would be empty: generate at least one task")
    for what, values in (("id", [t.id for t in tasks]), ("content", [content(t) for t in tasks])):
        if len(set(values)) != len(values):
            double = next(value for value in values if values.count(value) > 1)
            raise ConfigurationError(f"task set {name!r} has the {what} {double} twice: drop duplicates first")


def _check_notes(
    name: str, tasks: Sequence[Task], notes: Mapping[str, TaskNote], weights: Mapping[str, float]
) -> None:
    if notes and {task.id for task in tasks} != {*notes}:
        raise ConfigurationError(f"task set {name!r}: note the pool of every task, or of none")
    pools = {note.pool for note in notes.values()}
    if not weights.keys() <= pools or any(weight <= 0 for weight in weights.values()) or (pools and not weights):
        raise ConfigurationError(
            f"task set {name!r}: weights {dict(weights)} must be above 0, of pools {sorted(pools)}"
        )


def _check_disjoint(name: str, tasks: Sequence[Task], held_out: Sequence[Task]) -> None:
    ids, contents = {t.id for t in held_out}, {content(t) for t in held_out}
    shared = [t.id for t in tasks if t.id in ids or content(t) in contents]
    if shared:
        raise ConfigurationError(
            f"{len(shared)} tasks of {name!r} are also held out (first: {shared[0]}): held-out success would be "
            "measured on trained tasks; remove them from one side"
        )


def _manifest_key(name: str, version: str) -> str:
    return f"{keys.task_set_prefix(name, version)}manifest.json"
