# pyright: basic
"""Task sets: immutable, content-addressed versions of a list of tasks, and a head that names the newest.

    tasksets/<name>/<version>/tasks.parquet     id, environment, payload (JSON), split
    tasksets/<name>/<version>/manifest.json     written after it; the version is complete once it is there
    tasksets/<name>/HEAD                        the newest version        compare-and-swap

The held-out tasks of `<name>` are a task set of their own, `<name>-held-out`. No task is in both.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from driftline.environment import Task
from driftline.errors import ConfigurationError, CorruptObject, ObjectMissing, PreconditionFailed
from driftline.records import FORMAT, FileEntry, decode, encode
from driftline.store import keys
from driftline.store.files import read_checked
from driftline.store.protocol import ObjectStore

HELD_OUT_SUFFIX = "-held-out"
SWAP_TRIES = 8
_COLUMNS = ("id", "environment", "payload", "split")


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
    lineage: Mapping[str, str] | None = None,
    statistics: Mapping[str, float] | None = None,
) -> str:
    """Publish a version of a task set, and of its held-out tasks, and make them the newest.

    Publishing the same tasks again changes nothing. The held-out set goes first, so that no training version
    is ever the newest without one.

    Args:
        store: Where to.
        name: The task set's name.
        tasks: Training tasks, in any order.
        held_out: Held-out tasks; None leaves those that are published.
        lineage: Where the tasks come from (generator, seed, parent version); the first publication's is kept.
        statistics: Numbers about the tasks; the first publication's are kept.

    Returns:
        The version of the training tasks: a hash of their contents.

    Raises:
        ConfigurationError: No tasks, a task twice, or a task both in training and held out.
    """
    held_out_set = held_out_name(name)
    kept = held_out if held_out is not None else _newest_tasks(store, held_out_set)
    _check_tasks(name, tasks)
    _check_disjoint(name, tasks, kept)
    about = (dict(lineage or {}), dict(statistics or {}))
    if held_out is not None:
        _check_tasks(held_out_set, held_out)
        _publish_one(store, held_out_set, held_out, "held-out", *about)
    return _publish_one(store, name, tasks, "train", *about)


def load(store: ObjectStore, name: str, version: str) -> list[Task]:
    """Read the tasks of one version, sorted by id: the order that group numbers refer to.

    Raises:
        ObjectMissing: There is no such version.
        CorruptObject: The tasks are not those that were published.
    """
    found = manifest(store, name, version)
    tasks = _decode(read_checked(store, found.file), found.file.key)
    if content_version(tasks) != version:
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
    """The version of a list of tasks: a hash of ids, environments and payloads, whatever their order."""
    digest = hashlib.sha256()
    for task in sorted(tasks, key=lambda t: t.id):
        digest.update(f"{task.id}\n{_content(task)}\n".encode())
    return digest.hexdigest()[:16]


def _publish_one(
    store: ObjectStore,
    name: str,
    tasks: Sequence[Task],
    split: str,
    lineage: Mapping[str, str],
    statistics: Mapping[str, float],
) -> str:
    version = content_version(tasks)
    body = _encode(tasks, split)
    file = FileEntry(
        f"{keys.task_set_prefix(name, version)}tasks.parquet", len(body), hashlib.sha256(body).hexdigest()
    )
    environments = {e: sum(t.environment == e for t in tasks) for e in sorted({t.environment for t in tasks})}
    described = TaskSetManifest(
        name, version, split, len(tasks), environments, file, statistics, lineage, created_unix=time.time()
    )
    try:
        manifest(store, name, version)
    except ObjectMissing:
        _create_version(store, file, body, described)
    _make_newest(store, name, version)
    return version


def _create_version(store: ObjectStore, file: FileEntry, body: bytes, described: TaskSetManifest) -> None:
    """Write a version that has no manifest yet. Racing publishers write the same tasks; one manifest stays."""
    store.put(file.key, body)
    try:
        store.create(_manifest_key(described.name, described.version), encode(described))
    except PreconditionFailed:
        load(store, described.name, described.version)


def _make_newest(store: ObjectStore, name: str, version: str) -> None:
    key = keys.task_set_head(name)
    for _ in range(SWAP_TRIES):
        try:
            found = store.get(key)
        except ObjectMissing:
            found = None
        previous = decode(TaskSetHead, found.body, key=key).version if found else None
        if previous == version:
            return
        body = encode(TaskSetHead(name, version, previous, time.time()))
        try:
            store.swap(key, body, found.etag) if found else store.create(key, body)
        except PreconditionFailed:
            continue
        return
    raise PreconditionFailed(f"{key} kept changing: another refresh publishes at the same time; run one at a time")


def _newest_tasks(store: ObjectStore, name: str) -> list[Task]:
    try:
        return load(store, name, head(store, name).version)
    except ObjectMissing:
        return []


def _check_tasks(name: str, tasks: Sequence[Task]) -> None:
    if not tasks:
        raise ConfigurationError(f"task set {name!r} would be empty: generate at least one task")
    for what, values in (("id", [t.id for t in tasks]), ("content", [_content(t) for t in tasks])):
        if len(set(values)) != len(values):
            double = next(value for value in values if values.count(value) > 1)
            raise ConfigurationError(f"task set {name!r} has the {what} {double} twice: drop duplicates first")


def _check_disjoint(name: str, tasks: Sequence[Task], held_out: Sequence[Task]) -> None:
    ids, contents = {t.id for t in held_out}, {_content(t) for t in held_out}
    shared = [t.id for t in tasks if t.id in ids or _content(t) in contents]
    if shared:
        raise ConfigurationError(
            f"{len(shared)} tasks of {name!r} are also held out (first: {shared[0]}): held-out success would be "
            "measured on trained tasks; remove them from one side"
        )


def _content(task: Task) -> str:
    return json.dumps([task.environment, task.payload], sort_keys=True, separators=(",", ":"))


def _manifest_key(name: str, version: str) -> str:
    return f"{keys.task_set_prefix(name, version)}manifest.json"


def _encode(tasks: Sequence[Task], split: str) -> bytes:
    ordered = sorted(tasks, key=lambda t: t.id)
    payloads = [json.dumps(t.payload, sort_keys=True, separators=(",", ":")) for t in ordered]
    table = pa.table(
        {
            "id": [t.id for t in ordered],
            "environment": [t.environment for t in ordered],
            "payload": payloads,
            "split": [split] * len(ordered),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def _decode(body: bytes, key: str) -> list[Task]:
    try:
        table = pq.ParquetFile(pa.BufferReader(body)).read(columns=list(_COLUMNS), use_threads=False)
        rows = table.to_pylist()
        return [Task(row["id"], row["environment"], json.loads(row["payload"])) for row in rows]
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise CorruptObject(f"{key} is no list of tasks: {error}") from None
