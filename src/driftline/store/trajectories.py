# pyright: basic
"""Finished groups as Parquet: one row a trajectory, one column a field of `records.Trajectory`.

DuckDB and pandas open the objects as they are. `logprobs` are float64, so that they come back bit for bit.
The file's metadata carries `driftline.format`, `driftline.run` and, from a cell, `driftline.account` (JSON); pages
carry checksums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from itertools import groupby, pairwise
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from driftline.errors import CorruptObject
from driftline.records import (
    FORMAT,
    CellAccount,
    EpisodeSeconds,
    Group,
    Segment,
    Trajectory,
    TrajectoryStatus,
    decode,
    encode,
)

SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("group", pa.int64()),
        ("member", pa.int32()),
        ("attempt", pa.int32()),
        ("cell", pa.string()),
        ("task_id", pa.string()),
        ("task_set", pa.string()),
        ("environment", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float64())),
        ("segments", pa.list_(pa.struct([("start", pa.int32()), ("version", pa.int32())]))),
        ("turns", pa.int32()),
        ("reward", pa.float64()),
        ("success", pa.bool_()),
        ("status", pa.string()),
        ("reason", pa.string()),
        ("seconds", pa.struct([(f.name, pa.float64()) for f in fields(EpisodeSeconds)])),
        ("started_unix", pa.float64()),
        ("finished_unix", pa.float64()),
        ("request_seconds", pa.list_(pa.struct([("start", pa.float64()), ("end", pa.float64())]))),
        ("reward_parts", pa.map_(pa.string(), pa.float64())),
        ("stratum", pa.string()),
    ]
)
LATER = ("reward_parts", "stratum")
"""Columns that files of earlier writers do not have, in the order in which they came."""
FORMAT_KEY = b"driftline.format"
RUN_KEY = b"driftline.run"
ACCOUNT_KEY = b"driftline.account"
_NULLABLE = frozenset({"reward", "success"})
_STATUSES = frozenset(get_args(TrajectoryStatus))


def encode_groups(run: str, groups: Sequence[Group], account: CellAccount | None = None) -> bytes:
    """Return finished groups as one Parquet file, rows in the order given, and the cell's account with them.

    Raises:
        ValueError: A group has no trajectories, or one that belongs to another group, task or run.
    """
    for group in groups:
        _check_group(run, group)
    trajectories = [t for group in groups for t in group.trajectories]
    columns = {name: [getattr(t, name) for t in trajectories] for name in SCHEMA.names}
    columns["segments"] = [[{"start": s.start, "version": s.version} for s in t.segments] for t in trajectories]
    columns["seconds"] = [{f.name: getattr(t.seconds, f.name) for f in fields(EpisodeSeconds)} for t in trajectories]
    columns["request_seconds"] = [[{"start": a, "end": b} for a, b in t.request_seconds] for t in trajectories]
    columns["reward_parts"] = [list(t.reward_parts.items()) for t in trajectories]
    table = pa.Table.from_pydict(columns, schema=SCHEMA)
    metadata = {FORMAT_KEY: str(FORMAT).encode(), RUN_KEY: run.encode()}
    if account is not None:
        metadata[ACCOUNT_KEY] = encode(account)
    table = table.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return sink.getvalue().to_pybytes()


def _check_group(run: str, group: Group) -> None:
    if not group.trajectories:
        raise ValueError(f"group {group.number} has no trajectories: give it up instead of writing it")
    for t in group.trajectories:
        if (t.run, t.group, t.task_id, t.task_set) != (run, group.number, group.task_id, group.task_set):
            raise ValueError(f"member {t.member} of group {group.number} belongs to another run, group or task")
        if not len(t.token_ids) == len(t.loss_mask) == len(t.logprobs):
            raise ValueError(f"member {t.member} of group {group.number}: tokens, mask and log-probabilities differ")
    members = [t.member for t in group.trajectories]
    if len(set(members)) != len(members):
        raise ValueError(f"group {group.number} names a member twice: {members}")


def decode_groups(body: bytes, *, run: str, key: str) -> list[Group]:
    """Read finished groups, in the order in which they were written; `key` is stored in each.

    Raises:
        CorruptObject: As `decode_object`.
    """
    return decode_object(body, run=run, key=key)[0]


def decode_object(body: bytes, *, run: str, key: str) -> tuple[list[Group], CellAccount | None]:
    """Read finished groups as `decode_groups` does, and the account of the cell that wrote them.

    Raises:
        CorruptObject: Truncated or damaged, no trajectories at all, of another run, or of a newer format.
    """
    try:
        table = pq.ParquetFile(pa.BufferReader(body), page_checksum_verification=True).read(use_threads=False)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptObject(f"{key} is no readable Parquet file ({error}): it was truncated or overwritten") from None
    _check_metadata(table.schema, run, key)
    try:
        trajectories = _trajectories(table)
        groups = [_group(number, list(rows), key) for number, rows in groupby(trajectories, key=lambda t: t.group)]
        for group in groups:
            _check_group(run, group)
    except (ValueError, TypeError) as error:
        raise CorruptObject(f"{key} does not hold whole groups: {error}") from None
    if len({g.number for g in groups}) != len(groups):
        raise CorruptObject(f"{key} names a group twice")
    found = (table.schema.metadata or {}).get(ACCOUNT_KEY)
    if found is None:
        return groups, None
    account = decode(CellAccount, found, key=key)
    return [replace(group, incarnation=account.incarnation) for group in groups], account


def _check_metadata(schema: pa.Schema, run: str, key: str) -> None:
    metadata = schema.metadata or {}
    written = metadata.get(FORMAT_KEY, b"").decode(errors="replace")
    if not written.isdigit():
        raise CorruptObject(f"{key} is a Parquet file, but not one of trajectories")
    if int(written) > FORMAT:
        raise CorruptObject(f"{key} has the newer format {written}, known is {FORMAT}: upgrade driftline to read it")
    owner = metadata.get(RUN_KEY, b"").decode(errors="replace")
    if owner != run:
        raise CorruptObject(f"{key} belongs to run {owner!r}, not to {run!r}")
    known = (pa.schema([f for f in SCHEMA if f.name not in LATER[came:]]) for came in range(len(LATER) + 1))
    if not any(schema.equals(columns) for columns in known):
        raise CorruptObject(f"{key} has other columns than format {FORMAT} says")


def _trajectories(table: pa.Table) -> list[Trajectory]:
    columns = {name: _column(table, name) for name in SCHEMA.names if name in table.column_names}
    for name, values in columns.items():
        if name not in _NULLABLE and None in values:
            raise ValueError(f"column {name} has a null")
    if unknown := set(columns["status"]) - _STATUSES:
        raise ValueError(f"unknown status {unknown}")
    columns["segments"] = [tuple(Segment(**s) for s in row) for row in columns["segments"]]
    columns["seconds"] = [EpisodeSeconds(**row) for row in columns["seconds"]]
    columns["request_seconds"] = [tuple((r["start"], r["end"]) for r in row) for row in columns["request_seconds"]]
    if "reward_parts" in columns:
        columns["reward_parts"] = [dict(parts) for parts in columns["reward_parts"]]
    return [Trajectory(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _column(table: pa.Table, name: str) -> list[Any]:
    """A column as Python values; flat lists as tuples, by way of NumPy, since they may be long."""
    column = table.column(name).combine_chunks()
    if not pa.types.is_list(column.type) or pa.types.is_struct(column.type.value_type):
        return column.to_pylist()
    values = column.values.to_numpy(zero_copy_only=False).tolist()
    offsets = column.offsets.to_pylist()
    rows = [tuple(values[start:end]) for start, end in pairwise(offsets)]
    return [None if null else row for null, row in zip(column.is_null().to_pylist(), rows, strict=True)]


def _group(number: int, trajectories: list[Trajectory], key: str) -> Group:
    first = trajectories[0]
    return Group(number, first.task_id, first.task_set, tuple(trajectories), key)
