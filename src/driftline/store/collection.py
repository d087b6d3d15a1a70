"""Garbage collection of a run: what may go, and why. `plan` deletes nothing; `collect` carries a plan out.

| kept | because |
|---|---|
| `run.json`, HEAD, committed step records, claims, offsets, timeline, evaluations, the model | small, or the result |
| inputs of the last steps (trajectories, version in and out) | replay, and running them again after the checkpoint |
| inputs of every step after the checkpoint that the last record names, and that checkpoint | resume |
| the newest versions, the base policy, and the anchor and deltas below each kept version | late cells, evaluation |
| trajectories beyond the frontier, and each cell's newest object | groups not used yet; the numbering |
| what a reader has pinned | it is being read |
| anything younger than the grace, on the store's clock | it may be about to be named |

All else goes: inputs of older steps (which can then not be replayed), older versions and checkpoints, and what no
record reachable from HEAD names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from driftline.errors import ConfigurationError, ObjectMissing
from driftline.records import Head, PolicyVersion, StepRecord
from driftline.store import keys
from driftline.store.pins import Pin, pins
from driftline.store.protocol import ObjectInfo
from driftline.store.run_store import RunStore

GRACE_S = 600.0


@dataclass(frozen=True, slots=True)
class Doomed:
    """An object that may go."""

    key: str
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What a collection deletes, and what that costs."""

    run: str
    doomed: tuple[Doomed, ...]
    kept_bytes: int
    """Of all other objects of the run."""
    unreplayable: tuple[int, ...]
    """Steps that cannot be replayed afterwards."""

    @property
    def bytes(self) -> int:
        """What is freed."""
        return sum(one.bytes for one in self.doomed)

    def by_reason(self) -> dict[str, tuple[int, int]]:
        """Reason -> (objects, bytes)."""
        found: dict[str, tuple[int, int]] = {}
        for one in self.doomed:
            objects, size = found.get(one.reason, (0, 0))
            found[one.reason] = (objects + 1, size + one.bytes)
        return found


@dataclass(frozen=True, slots=True)
class _Kept:
    """Names of what stays."""

    versions: frozenset[str]
    objects: frozenset[str]
    checkpoint_step: int
    """Checkpoints of earlier steps may go."""
    records: frozenset[str]


def plan(run_store: RunStore, *, keep_steps: int, keep_versions: int, grace_s: float = GRACE_S) -> Plan:
    """Find what may go.

    Args:
        run_store: The run.
        keep_steps: So many of the last steps stay replayable.
        keep_versions: So many of the newest policy versions stay.
        grace_s: Objects younger than this, on the store's clock, stay.

    Raises:
        ObjectMissing: There is no such run, or it has not begun.
        CorruptObject: A record, manifest or pin cannot be read, so that nobody can say what it needs.
    """
    if min(keep_steps, keep_versions) < 1 or grace_s < 0:
        raise ConfigurationError("--keep-steps and --keep-versions must be at least 1, --grace-s at least 0")
    run_store.describe()
    head_object = run_store.store.get(keys.head(run_store.run))
    head, records = run_store.read_head()[0], run_store.steps()
    kept_steps = _kept_steps(records, keep_steps)
    kept = _kept(run_store, head, records, kept_steps, keep_versions, pins(run_store.store, run_store.run))
    youngest = head_object.store_unix - grace_s
    doomed: list[Doomed] = []
    kept_bytes = 0
    frontier: Mapping[str, str] = records[-1].frontier.keys if records else {}
    infos = [*run_store.store.list(keys.run_prefix(run_store.run))]
    newest = _newest_of_cells(run_store.run, infos)
    for info in infos:
        reason = _reason(run_store.run, info.key, kept, frontier, newest)
        if reason is not None and info.modified_unix < youngest:
            doomed.append(Doomed(info.key, info.bytes, reason))
        else:
            kept_bytes += info.bytes
    return Plan(run_store.run, tuple(doomed), kept_bytes, _unreplayable(records, kept_steps, doomed))


def collect(run_store: RunStore, found: Plan) -> None:
    """Delete what a plan names, unless a reader has pinned it since.

    What others need whole (a version, a checkpoint) loses its manifest first.
    """
    held = pins(run_store.store, run_store.run)
    versions = _closed(run_store, {version for pin in held for version in pin.versions})
    objects = {key for pin in held for key in pin.keys}
    going = [
        one.key
        for one in found.doomed
        if one.key not in objects and _version_of(run_store.run, one.key) not in versions
    ]
    run_store.store.delete(sorted(going, key=lambda key: not key.endswith("/manifest.json")))


def _kept_steps(records: Sequence[StepRecord], keep_steps: int) -> list[StepRecord]:
    """The last steps, and all that a restarted trainer would run again."""
    first = min(len(records) - keep_steps, _checkpoint_step(records))
    return [record for record in records if record.step > first]


def _checkpoint_step(records: Sequence[StepRecord]) -> int:
    """The step of the checkpoint that the last record names; 0 without one: all steps would be run again."""
    entry = records[-1].checkpoint if records else None
    return 0 if entry is None else int(entry.key.rpartition("/")[0].rpartition("/")[2].partition("-")[0])


def _kept(
    run_store: RunStore,
    head: Head,
    records: Sequence[StepRecord],
    kept_steps: Sequence[StepRecord],
    keep_versions: int,
    held: Sequence[Pin],
) -> _Kept:
    versions = {record.version_in for record in kept_steps} | {record.version_out for record in kept_steps}
    versions |= {record.version_out for record in records[-keep_versions:]}
    versions |= {records[0].version_in} if records else set()
    versions |= {head.version} if head.version else set()
    versions |= {version for pin in held for version in pin.versions}
    objects = {use.key for record in kept_steps for use in record.groups} | {key for pin in held for key in pin.keys}
    chain = {keys.step(run_store.run, record.step, record.epoch) for record in records}
    return _Kept(
        versions=frozenset(_closed(run_store, versions)),
        objects=frozenset(objects),
        checkpoint_step=_checkpoint_step(records),
        records=frozenset(chain),
    )


def _closed(run_store: RunStore, versions: Iterable[PolicyVersion]) -> set[str]:
    """The folders of some versions, and of those below them in their chains."""
    found: set[str] = set()
    waiting = [*versions]
    while waiting:
        version = waiting.pop()
        if str(version) in found:
            continue
        found.add(str(version))
        try:
            base = run_store.read_manifest(version).base
        except ObjectMissing:
            continue
        if base is not None:
            waiting.append(base)
    return found


def _newest_of_cells(run: str, infos: Sequence[ObjectInfo]) -> set[str]:
    """Each cell's last object, from which a restarted cell learns its next number."""
    newest: dict[str, str] = {}
    for info in infos:
        if info.key.startswith(keys.trajectories_prefix(run)):
            cell = info.key.rpartition("/")[0]
            newest[cell] = max(newest.get(cell, ""), info.key)
    return set(newest.values())


def _reason(run: str, key: str, kept: _Kept, frontier: Mapping[str, str], newest: set[str]) -> str | None:
    """Why an object may go, None if it stays."""
    if key in kept.objects or key in newest:
        return None
    folder, _, rest = key.removeprefix(keys.run_prefix(run)).partition("/")
    name = rest.partition("/")[0]
    match folder:
        case "policy":
            return None if name in kept.versions else "a policy version that no kept step needs"
        case "trajectories":
            return "trajectories of steps that are not kept" if key <= frontier.get(name, "") else None
        case "checkpoints":
            return "an older checkpoint" if int(name.partition("-")[0]) < kept.checkpoint_step else None
        case "steps":
            return None if key in kept.records else "a step record that HEAD does not reach"
        case _:
            return None


def _version_of(run: str, key: str) -> str:
    rest = key.removeprefix(keys.run_prefix(run))
    return rest.split("/")[1] if rest.startswith("policy/") else ""


def _unreplayable(
    records: Sequence[StepRecord], kept_steps: Sequence[StepRecord], doomed: Sequence[Doomed]
) -> tuple[int, ...]:
    kept, gone = {record.step for record in kept_steps}, {one.key for one in doomed}
    versions = {one.key.rpartition("/")[0].rpartition("/")[2] for one in doomed}
    return tuple(
        record.step
        for record in records
        if record.step not in kept
        and (str(record.version_in) in versions or any(use.key in gone for use in record.groups))
    )
