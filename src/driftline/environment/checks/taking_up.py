"""The check of snapshots: restoring one is the same as playing up to it."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

from driftline.environment.abilities import Snapshot, SnapshotEnvironment, prescribes, snapshots
from driftline.environment.checks.findings import Broken, Case, NotApplicable, ensure, first_difference
from driftline.environment.checks.playing import (
    IDLE_ACTIONS,
    MAX_TURNS,
    Said,
    actions_for,
    begin,
    go_on,
    in_a_loop,
    play,
)
from driftline.environment.contract import Task

IDLE_TURNS = 4


def snapshot(case: Case) -> None:
    """A snapshot is bytes or JSON, stays as it is, and leads to the same end as a replay."""
    in_a_loop(_snapshot(case))


async def _snapshot(case: Case) -> None:
    environment = case.family.make(max_turns=MAX_TURNS)
    await environment.close()
    if not snapshots(environment):
        raise NotApplicable("environments have no snapshot and restore")
    for task in case.tasks:
        await _of_a_task(case, task, actions_for(case, task), MAX_TURNS)
        if not prescribes(environment):  # what is prescribed is not cut to fewer turns
            await _of_a_task(case, task, [IDLE_ACTIONS[0]] * IDLE_TURNS, IDLE_TURNS)


async def _of_a_task(case: Case, task: Task, actions: Sequence[str], max_turns: int) -> None:
    whole = await play(case, task, actions, max_turns=max_turns)
    turns = len(whole) - 1
    for cut in sorted({0, 1, turns // 2, turns - 1}):
        if 0 <= cut < turns:
            await _at(case, task, list(actions[:turns]), cut, whole, max_turns)


async def _at(case: Case, task: Task, actions: list[str], cut: int, whole: Sequence[Said], max_turns: int) -> None:
    """Take a snapshot after `cut` turns, and end the episode from it: there, in a new environment, and once more."""
    rest = whole[cut + 1 :]
    where = f"task {task.id}, snapshot after turn {cut}"
    environment, other = _make(case, max_turns), _make(case, max_turns)
    try:
        await begin(case, environment, task)
        await go_on(case, environment, actions[:cut])
        taken = await environment.snapshot()
        packed = pack(taken)
        _same(rest, await go_on(case, environment, actions[cut:]), f"{where}: the episode itself goes on otherwise")
        ensure(pack(taken) == packed, f"{where}: it has changed with the turns after it")
        await other.restore(task, unpack(packed))
        _same(rest, await go_on(case, other, actions[cut:]), f"{where}: restored in a new environment, it goes on")
        await environment.restore(task, unpack(packed))
        _same(
            rest, await go_on(case, environment, actions[cut:]), f"{where}: restored where it was taken, it goes on"
        )
    finally:
        await environment.close()
        await other.close()


def _make(case: Case, max_turns: int) -> SnapshotEnvironment:
    environment = case.family.make(max_turns=max_turns)
    assert snapshots(environment)
    return environment


def _same(wanted: Sequence[Said], found: Sequence[Said], what: str) -> None:
    difference = first_difference([{}, *wanted], [{}, *found])
    ensure(not difference, f"{what}, differing from a replay at {difference} (counted from the snapshot)")


def pack(taken: Snapshot) -> bytes:
    """A snapshot as bytes that can be stored: JSON, with bytes in base64.

    Raises:
        Broken: It is neither bytes nor a JSON value.
    """
    if isinstance(taken, bytes):
        ensure(not _looks_pickled(taken), "a snapshot is a pickle, and those are never loaded")
    form = {"bytes": base64.b64encode(taken).decode()} if isinstance(taken, bytes) else {"json": taken}
    try:
        packed = json.dumps(form, sort_keys=True, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise Broken(f"a snapshot is neither bytes nor JSON: {error}") from None
    ensure(json.loads(packed) == form, "a snapshot changes on its way through JSON: tuples, or keys that are no text")
    return packed


def unpack(packed: bytes) -> Snapshot:
    """The snapshot again."""
    form = json.loads(packed)
    return base64.b64decode(form["bytes"]) if "bytes" in form else form["json"]


def _looks_pickled(taken: bytes) -> bool:
    """Protocol 2 and later: a mark, the protocol, and a stop at the end."""
    return taken[:1] == b"\x80" and taken[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and taken[-1:] == b"."
