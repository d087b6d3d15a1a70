"""What a run that was killed at has kept: counted from the store's objects alone.

Observer        follows HEAD while the run goes on: every step that was ever committed
verify          the record chain, every finished group, every policy version, the ledger
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from driftline.errors import DriftlineError
from driftline.records import Claim, Group, Head, MemberUse, StepRecord, decode
from driftline.store import keys
from driftline.store.run_store import RunStore
from driftline.training.batching import DIVERGED, STALE
from driftline.weights.assemble import assemble

OBSERVE_S = 0.1
SETTLED_S = 15.0
"""A group that was in the store for this long when the last batch was taken, and was due, was overlooked."""


@dataclass
class Findings:
    """What one run, or several, have kept."""

    steps: int = 0
    steps_lost: int = 0
    """Numbers missing in the chain of records, and steps that HEAD once named and the chain does not hold."""
    groups_trained: int = 0
    groups_given_up: int = 0
    groups_ready: int = 0
    """Finished, and not due: they were waiting when the run ended."""
    groups_lost: int = 0
    """Finished and due, and neither trained nor given up; or begun, due, and never finished by anybody."""
    groups_twice: int = 0
    """Trained in two steps, or trained and given up."""
    members_twice: int = 0
    """(group, member, attempt) that two objects hold."""
    versions_wrong: int = 0
    """Policy versions whose bytes, or whose place between two records, are not those of the record."""
    deltas: int = 0
    """Policy versions that were published as a difference."""
    longest_chain: int = 0
    """Deltas after one anchor, at most."""
    changed_share: float = 0.0
    """Of the elements of a delta's version, at most."""
    tokens_lost: int = 0
    """By the ledger: sampled by engines that were killed before they could tell what became of them."""
    ledger_balances: bool = True
    notes: list[str] = field(default_factory=list[str])

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, and nothing counted twice."""
        wrong = self.steps_lost + self.groups_lost + self.groups_twice + self.members_twice + self.versions_wrong
        return wrong == 0 and self.ledger_balances

    def __add__(self, other: Findings) -> Findings:
        """Both together."""
        mine, others = asdict(self), asdict(other)
        return Findings(**{name: _both(name, mine[name], others[name]) for name in mine})


def _both(name: str, mine: Any, other: Any) -> Any:
    if name in ("longest_chain", "changed_share"):
        return max(mine, other)
    return mine and other if isinstance(mine, bool) else mine + other


class Observer:
    """Follows HEAD in a thread of its own, through outages: what it once named as committed."""

    def __init__(self, run_store: RunStore) -> None:
        self.committed: dict[int, str] = {}
        """Step -> key of the record that HEAD named for it."""
        self.head: Head | None = None
        self.doubles: list[str] = []
        self._run_store = run_store
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="observer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        self._thread.join(30)

    def _follow(self) -> None:
        etag = ""
        while not self._stopped.wait(OBSERVE_S):
            try:
                changed = self._run_store.head_if_changed(etag) if etag else self._run_store.read_head()
            except DriftlineError:
                continue
            if changed is not None:
                self._note(changed[0])
                etag = changed[1]

    def _note(self, head: Head) -> None:
        self.head = head
        if head.record is not None:
            known = self.committed.setdefault(head.step, head.record)
            if known != head.record:
                self.doubles.append(f"step {head.step} was {known}, then {head.record}")


def verify(run_store: RunStore, committed: Mapping[int, str], *, expected_steps: int) -> Findings:
    """Look at all that a finished run has left in the store.

    Args:
        run_store: Its objects.
        committed: Step -> record key that HEAD was seen to name, as `Observer` noted.
        expected_steps: How many steps the run was to take.
    """
    records = run_store.steps()
    found = Findings(steps=len(records))
    _check_chain(found, run_store, records, committed, expected_steps)
    _check_groups(found, run_store, records)
    _check_versions(found, run_store, records)
    _check_ledger(found, records)
    return found


def _check_chain(
    found: Findings,
    run_store: RunStore,
    records: Sequence[StepRecord],
    committed: Mapping[int, str],
    expected_steps: int,
) -> None:
    numbers = {record.step for record in records}
    missing = sorted(set(range(1, expected_steps + 1)) - numbers)
    keys_of = {record.step: keys.step(run_store.run, record.step, record.epoch) for record in records}
    gone = [step for step, key in committed.items() if keys_of.get(step) != key]
    found.steps_lost += len(set(missing) | set(gone))
    found.notes += [f"step {step} is not in the chain of records" for step in missing]
    found.notes += [f"step {step} was committed as {committed[step]}, now {keys_of.get(step)}" for step in gone]
    for before, after in pairwise(records):
        if (after.version_in, after.step) != (before.version_out, before.step + 1):
            found.versions_wrong += 1
            found.notes.append(f"step {after.step} does not go on from step {before.step}")


def _check_groups(found: Findings, run_store: RunStore, records: Sequence[StepRecord]) -> None:
    trained = Counter(use.group for record in records for use in record.groups)
    given_up = Counter(give_up.group for record in records for give_up in record.give_ups)
    given_up += Counter(run_store.read_head()[0].given_up)
    found.groups_trained, found.groups_given_up = len(trained), len(given_up)
    twice = [group for group, times in trained.items() if times > 1 or group in given_up]
    found.groups_twice = len(twice)
    found.notes += [f"group {group} was used twice" for group in twice]

    cursor = run_store.trajectory_cursor()
    finished = {group.number: group for group in cursor.poll()}
    found.members_twice = _members_twice(finished.values())
    done = trained.keys() | given_up.keys()
    used_keys = {use.group: use.key for record in records for use in record.groups}
    for number, key in used_keys.items():
        if number not in finished:
            found.groups_lost += 1
            found.notes.append(f"group {number} was trained from {key}, which does not hold it")
    last = records[-1]
    due_before = max(use.group for use in last.groups)
    stored = {info.key: info.modified_unix for info in run_store.store.list(keys.trajectories_prefix(run_store.run))}
    for number, group in finished.items():
        if number in done:
            continue
        if number < due_before and stored[group.key] < last.times.batch_ready - SETTLED_S:
            found.groups_lost += 1
            found.notes.append(f"group {number} was finished and due, and was not used")
        else:
            found.groups_ready += 1
    _check_begun(found, run_store, set(finished) | set(done), due_before, last.times.batch_ready)


def _check_begun(found: Findings, run_store: RunStore, ended: set[int], due_before: int, ready: float) -> None:
    """Groups that somebody claimed, that were due, and that nobody finished although the lease was long over."""
    prefix = keys.claim(run_store.run, 0).rpartition("/")[0] + "/"
    for info in run_store.store.list(prefix):
        claim = decode(Claim, run_store.store.get(info.key).body, key=info.key)
        over_since = claim.expires_unix or info.modified_unix  # A claim that was given back says no time.
        if claim.group not in ended and claim.group < due_before and over_since < ready - 2 * SETTLED_S:
            found.groups_lost += 1
            found.notes.append(f"group {claim.group} was begun by {claim.cell} and never finished")


def _members_twice(groups: Iterable[Group]) -> int:
    counts = Counter((t.group, t.member, t.attempt) for group in groups for t in group.trajectories)
    return sum(times - 1 for times in counts.values())


def _check_versions(found: Findings, run_store: RunStore, records: Sequence[StepRecord]) -> None:
    """Every version's objects assemble to tensors with the digests of its manifest, and each step changed them."""
    before: Mapping[str, str] | None = None
    chain = 0
    for record in records:
        try:
            manifest = run_store.read_manifest(record.version_out)
            assemble(run_store.store, manifest)
        except DriftlineError as error:
            found.versions_wrong += 1
            found.notes.append(f"version {record.version_out} of step {record.step}: {error}")
            continue
        if before is not None and before == manifest.tensors and any(use.weight for use in record.groups):
            found.versions_wrong += 1
            found.notes.append(f"step {record.step} left the weights as they were")
        before = manifest.tensors
        chain = chain + 1 if manifest.kind == "delta" else 0
        found.deltas += manifest.kind == "delta"
        found.longest_chain = max(found.longest_chain, chain)
        if manifest.kind == "delta" and manifest.changed_elements is not None:
            found.changed_share = max(found.changed_share, manifest.changed_elements / manifest.elements)


def _check_ledger(found: Findings, records: Sequence[StepRecord]) -> None:
    """The ledger of every record balances, and agrees with the records about what was trained on."""
    used = stale = unused = 0
    for record in records:
        used += sum(_counted(use.uses, dropped=False) for use in record.groups if use.weight)
        stale += sum(_counted(use.uses, dropped=True) for use in record.groups if use.weight)
        unused += sum(_counted(use.uses) for use in record.groups if not use.weight)
        stale += sum(_counted(one.uses) for one in record.give_ups if one.reason.startswith((STALE, DIVERGED)))
        ledger = record.ledger
        if ledger is None:
            _blame(found, f"step {record.step} carries no token ledger")
        elif ledger.imbalance:
            _blame(found, f"the ledger of step {record.step} is out of balance by {ledger.imbalance}: {ledger.terms}")
        elif (ledger.trained + ledger.masked, ledger.stale, ledger.zero_variance) != (used, stale, unused):
            _blame(found, f"step {record.step}: {used}, {stale}, {unused} tokens by the records, {ledger.terms}")
    last = records[-1].ledger
    found.tokens_lost = last.lost if last else 0


def _counted(uses: Iterable[MemberUse], *, dropped: bool | None = None) -> int:
    """Tokens of the members that count in their group; of those that were dropped, or were not, if that is given."""
    return sum(
        use.sampled_tokens for use in uses if use.counted and (dropped is None or dropped == (use.verdict == "drop"))
    )


def _blame(found: Findings, note: str) -> None:
    found.ledger_balances = False
    found.notes.append(note)
