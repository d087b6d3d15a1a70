"""Trajectories survive Parquet bit for bit, and nothing but whole, own, known objects is read."""

from __future__ import annotations

import io
import math
from dataclasses import fields, replace
from typing import Any, get_args

import hypothesis.strategies as st
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings

from driftline.errors import CorruptObject
from driftline.records import EpisodeSeconds, Group, Segment, Trajectory, TrajectoryStatus
from driftline.store.trajectories import FORMAT_KEY, RUN_KEY, SCHEMA, decode_groups, encode_groups
from tests.support import records

KEY = "runs/run-1/trajectories/a/00000000.parquet"
finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
small = st.integers(0, 2**31 - 1)
seconds = st.builds(EpisodeSeconds, *[finite] * len(fields(EpisodeSeconds)))


@st.composite
def trajectories(draw: st.DrawFn, number: int, member: int, task_id: str) -> Trajectory:
    length = draw(st.integers(0, 20))

    def per_token(values: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        return tuple(draw(st.lists(values, min_size=length, max_size=length)))

    return records.trajectory(
        number,
        member,
        task_id=task_id,
        attempt=draw(st.integers(1, 9)),
        cell=draw(texts),
        environment=draw(texts),
        token_ids=per_token(small),
        loss_mask=per_token(st.booleans()),
        logprobs=per_token(st.floats(allow_nan=False, max_value=0.0)),
        segments=tuple(draw(st.lists(st.builds(Segment, small, small), max_size=3))),
        turns=draw(small),
        reward=draw(st.none() | finite),
        success=draw(st.none() | st.booleans()),
        status=draw(st.sampled_from(get_args(TrajectoryStatus))),
        reason=draw(texts),
        seconds=draw(seconds),
        started_unix=draw(finite),
        finished_unix=draw(finite),
        request_seconds=tuple(draw(st.lists(st.tuples(finite, finite), max_size=3))),
        reward_parts=draw(st.dictionaries(texts, finite, max_size=3)),
        stratum=draw(texts),
    )


@st.composite
def groups(draw: st.DrawFn) -> list[Group]:
    found: list[Group] = []
    for number in draw(st.lists(st.integers(0, 2**40), unique=True, max_size=3)):
        task_id = draw(texts)
        members = draw(st.lists(st.integers(0, 99), min_size=1, max_size=3, unique=True))
        rows = tuple(draw(trajectories(number, member, task_id)) for member in members)
        found.append(Group(number, task_id, "v1", rows, KEY))
    return found


@given(groups())
@settings(max_examples=40, deadline=None)
def test_groups_come_back_as_they_were(written: list[Group]) -> None:
    assert decode_groups(encode_groups(records.RUN, written), run=records.RUN, key=KEY) == written


def test_values_come_back_with_their_python_types() -> None:
    body = encode_groups(records.RUN, [records.group(3)])
    found = decode_groups(body, run=records.RUN, key=KEY)[0].trajectories[0]
    assert found == records.trajectory(3, 0)
    assert {type(t) for t in found.token_ids} == {int}
    assert {type(m) for m in found.loss_mask} == {bool}
    assert {type(p) for p in found.logprobs} == {float}
    assert isinstance(found.request_seconds[0], tuple)


def test_logprobs_keep_every_bit() -> None:
    odd = (0.1, -1 / 3, -5e-324, -math.inf, -0.0)
    body = encode_groups(records.RUN, [records.group(0, logprobs=odd)])
    found = decode_groups(body, run=records.RUN, key=KEY)[0].trajectories[0].logprobs
    assert [x.hex() for x in found] == [x.hex() for x in odd]


@pytest.mark.parametrize("lacking", [["stratum"], ["reward_parts", "stratum"]])
def test_files_from_before_there_were_strata_or_rewards_had_parts_are_read(lacking: list[str]) -> None:
    body = encode_groups(records.RUN, [records.group(3)])
    table = pq.ParquetFile(io.BytesIO(body)).read().drop_columns(lacking)
    sink = io.BytesIO()
    pq.write_table(table, sink)
    assert decode_groups(sink.getvalue(), run=records.RUN, key=KEY) == [replace(records.group(3), key=KEY)]


def test_the_schema_has_the_fields_of_a_trajectory() -> None:
    assert SCHEMA.names == [f.name for f in fields(Trajectory)]


def test_other_tools_open_the_file() -> None:
    body = encode_groups(records.RUN, [records.group(0), records.group(1, status="timeout", reward=None)])
    frame = pd.read_parquet(io.BytesIO(body))
    assert list(frame.columns) == SCHEMA.names
    rows: list[dict[str, Any]] = frame.to_dict("records")
    assert [row["group"] for row in rows] == [0, 0, 1, 1]
    assert [math.isnan(row["reward"]) for row in rows] == [False, False, True, True]
    assert list(rows[0]["token_ids"]) == [5, 6, 7, 8, 9]
    assert rows[0]["seconds"]["decoding"] == 1.25
    metadata = pq.ParquetFile(io.BytesIO(body)).schema_arrow.metadata
    assert (metadata[FORMAT_KEY], metadata[RUN_KEY]) == (b"1", b"run-1")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (Group(0, "t", "v1", ()), "has no trajectories"),
        (replace(records.group(0), number=1), "belongs to another run, group or task"),
        (replace(records.group(0), task_set="v2"), "belongs to another run, group or task"),
        (records.group(0, run="other"), "belongs to another run, group or task"),
        (records.group(0, logprobs=(0.0,)), "tokens, mask and log-probabilities differ"),
        (Group(0, "task-0", "v1", (records.trajectory(0, 1),) * 2), "names a member twice"),
    ],
)
def test_what_is_no_group_is_not_written(broken: Group, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        encode_groups(records.RUN, [broken])


BODY = encode_groups(records.RUN, [records.group(0), records.group(1)])


def rewritten(metadata: dict[bytes, bytes] | None = None, **columns: Any) -> bytes:
    table = pq.read_table(io.BytesIO(BODY))
    for name, values in columns.items():
        index = table.schema.get_field_index(name)
        table = table.set_column(index, table.schema.field(name), pa.array(values, table.schema.field(name).type))
    table = table.replace_schema_metadata((table.schema.metadata or {}) | (metadata or {}))
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def foreign() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), sink)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "no readable Parquet file"),
        (b"not Parquet at all", "no readable Parquet file"),
        (BODY[:-1], "no readable Parquet file"),
        (BODY[: len(BODY) // 2], "no readable Parquet file"),
        (foreign(), "not one of trajectories"),
        (rewritten({FORMAT_KEY: b"2"}), "newer format 2, known is 1: upgrade"),
        (rewritten({RUN_KEY: b"other"}), "belongs to run 'other', not to 'run-1'"),
        (rewritten(member=[0, 0, 0, 1]), "names a member twice"),
        (rewritten(run=["run-1", "x", "run-1", "run-1"]), "another run, group or task"),
        (rewritten(group=[0, 1, 0, 1], task_id=["t"] * 4), "names a group twice"),
        (rewritten(status=["ok", "ok", "ok", "odd"]), "unknown status"),
        (rewritten(cell=["a", None, "a", "a"]), "column cell has a null"),
        (rewritten(logprobs=[None, [], [], []]), "column logprobs has a null"),
    ],
)
def test_what_is_damaged_or_foreign_is_refused_by_name(body: bytes, says: str) -> None:
    with pytest.raises(CorruptObject, match=says) as caught:
        decode_groups(body, run=records.RUN, key=KEY)
    assert KEY in str(caught.value)


def test_other_columns_are_refused() -> None:
    table = pq.read_table(io.BytesIO(BODY)).drop_columns(["turns"])
    sink = io.BytesIO()
    pq.write_table(table, sink)
    with pytest.raises(CorruptObject, match="other columns than format 1"):
        decode_groups(sink.getvalue(), run=records.RUN, key=KEY)


@given(st.integers(0, len(BODY) - 1), st.integers(1, 255))
@example(3301, 128)  # a column name in the file's metadata that is no UTF-8
@settings(max_examples=150, deadline=None)
def test_a_flipped_byte_never_passes_for_other_data(position: int, flip: int) -> None:
    damaged = bytearray(BODY)
    damaged[position] ^= flip
    try:
        found = decode_groups(bytes(damaged), run=records.RUN, key="")
    except CorruptObject:
        return
    assert found == decode_groups(BODY, run=records.RUN, key="")
