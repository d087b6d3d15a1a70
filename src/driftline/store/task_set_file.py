# pyright: basic
"""What a version of a task set holds, and its form as Parquet: one row a task.

    id, environment, payload (JSON), split                   every version
    pool, level, attempts, solved                            versions that a refresh has curated

The version is a hash of all of it, so that no two files of one version differ. Without the second row the hash is of
ids, environments and payloads alone, as it was before there were pools.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa
import pyarrow.parquet as pq

from driftline.environment import Task
from driftline.errors import CorruptObject

_COLUMNS = ("id", "environment", "payload", "split")
_NOTED = ("pool", "level", "attempts", "solved")


@dataclass(frozen=True, slots=True)
class TaskNote:
    """What a refresh knew of a task when it curated the version."""

    pool: str
    level: int | None = None
    """Of difficulty, where the family has levels."""
    attempts: int = 0
    solved: int = 0


@dataclass(frozen=True)
class TaskSet:
    """The tasks of one version, sorted by id: the order that group numbers refer to."""

    tasks: tuple[Task, ...]
    notes: Mapping[str, TaskNote] = field(default_factory=dict[str, TaskNote])
    """Task id -> note; of every task, or of none."""
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """Pool -> share of the groups drawn from it."""

    @cached_property
    def members(self) -> Mapping[str, tuple[int, ...]]:
        """Pool -> indices of its tasks, by pool; empty without notes."""
        found: dict[str, list[int]] = {}
        for index, task in enumerate(self.tasks):
            if task.id in self.notes:
                found.setdefault(self.notes[task.id].pool, []).append(index)
        return {pool: tuple(found[pool]) for pool in sorted(found)}

    @cached_property
    def version(self) -> str:
        """The hash of all of it, whatever the order it was given in."""
        digest = hashlib.sha256()
        for task in sorted(self.tasks, key=lambda t: t.id):
            digest.update(f"{task.id}\n{content(task)}\n".encode())
            if task.id in self.notes:
                note = self.notes[task.id]
                digest.update(f"{note.pool}\n{note.level}\n{note.attempts}\n{note.solved}\n".encode())
        if self.weights:
            digest.update(json.dumps(dict(self.weights), sort_keys=True).encode())
        return digest.hexdigest()[:16]


def content(task: Task) -> str:
    """What a task holds, as one text: equal for tasks that are equal but for their ids."""
    return json.dumps([task.environment, task.payload], sort_keys=True, separators=(",", ":"))


def encode_tasks(found: TaskSet, split: str) -> bytes:
    """The tasks as one Parquet file, sorted by id."""
    ordered = sorted(found.tasks, key=lambda t: t.id)
    columns = {
        "id": [t.id for t in ordered],
        "environment": [t.environment for t in ordered],
        "payload": [json.dumps(t.payload, sort_keys=True, separators=(",", ":")) for t in ordered],
        "split": [split] * len(ordered),
    }
    if found.notes:
        notes = [found.notes[t.id] for t in ordered]
        columns |= {name: [getattr(note, name) for note in notes] for name in _NOTED}
    sink = pa.BufferOutputStream()
    table = pa.table(columns, schema=_schema(noted=bool(found.notes)))
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def decode_tasks(body: bytes, key: str, weights: Mapping[str, float]) -> TaskSet:
    """Read what `encode_tasks` wrote; weights are the manifest's.

    Raises:
        CorruptObject: It is no such file.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(body))
        noted = _NOTED[0] in file.schema_arrow.names
        rows = file.read(columns=[*_COLUMNS, *(_NOTED if noted else ())], use_threads=False).to_pylist()
        tasks = tuple(Task(row["id"], row["environment"], json.loads(row["payload"])) for row in rows)
        notes = {row["id"]: TaskNote(*(row[name] for name in _NOTED)) for row in rows} if noted else {}
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise CorruptObject(f"{key} is no list of tasks: {error}") from None
    return TaskSet(tasks, notes, weights)


def _schema(*, noted: bool) -> pa.Schema:
    fields: Sequence[tuple[str, pa.DataType]] = [(name, pa.string()) for name in _COLUMNS]
    if noted:
        fields = [
            *fields,
            ("pool", pa.string()),
            ("level", pa.int32()),
            ("attempts", pa.int32()),
            ("solved", pa.int32()),
        ]
    return pa.schema(fields)
