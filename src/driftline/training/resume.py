# pyright: basic
"""How a restarted trainer comes to the weights that HEAD names.

last checkpoint ──▶ run the batches of later records again ──▶ same digests as the manifest?  yes ─▶ go on
(or the base model)                                                                           no  ─▶ take up the
                                                                                                published weights
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from driftline.errors import CorruptObject, ObjectMissing
from driftline.params import RunParameters
from driftline.records import FileEntry, Group, GroupUse, Head, StepRecord, WeightsManifest
from driftline.store.run_store import RunStore
from driftline.store.trajectories import decode_groups
from driftline.training import checkpoints, signing
from driftline.training.batch import MemberWeights, TrainingBatch, assemble
from driftline.training.members import batch_weights
from driftline.training.protocol import PolicyTrainer
from driftline.weights.assemble import assemble as assemble_weights
from driftline.weights.tensors import DTYPES, host_tensor, tensor_digest

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """How the weights came about."""

    checkpoint: FileEntry | None
    """Manifest of the checkpoint it began with, None for the base model."""
    replayed_steps: int
    mismatch: bool
    """Whether replaying did not reproduce the published weights, which were taken up instead."""
    manifest: WeightsManifest


def restore(
    group: PolicyTrainer,
    run_store: RunStore,
    params: RunParameters,
    head: Head,
    records: Sequence[StepRecord],
    scratch: Path,
    *,
    signing_key: bytes | None = None,
) -> Restored:
    """Bring the group to the weights of `head.version`, optimizer state included.

    Args:
        group: Holds the base model.
        run_store: The run's objects.
        params: Its parameters.
        head: Names a version.
        records: All committed steps, in order.
        scratch: Where checkpoints lie on this machine.
        signing_key: Where the run has one, no checkpoint is loaded that a signed record does not name.

    Raises:
        ObjectMissing: The published weights are gone.
        CorruptObject: They are damaged.
    """
    assert head.version is not None
    checkpoint = _load_checkpoint(group, run_store, params, records, scratch, signing_key)
    begin = 0 if checkpoint is None else checkpoint[1]
    replayed = 0
    for record in [record for record in records if record.step > begin]:
        try:
            batch = batch_of_record(run_store, record, params)
        except (ObjectMissing, CorruptObject) as error:
            log.error("step %d cannot be run again: %s", record.step, error)
            break
        group.train(batch)
        replayed += 1
        log.info("ran step %d again", record.step)
    manifest = run_store.read_manifest(head.version)
    mismatch = weight_digests(group, manifest) != dict(manifest.tensors)
    if mismatch:
        log.warning("replaying gave other weights than version %s has: the published ones are taken up", head.version)
        group.replace_weights(published_tensors(run_store, manifest))
    return Restored(checkpoint[0] if checkpoint else None, replayed, mismatch, manifest)


def make_batch(
    groups: Sequence[Group], weights: Mapping[int, MemberWeights], version: int, params: RunParameters
) -> TrainingBatch:
    """The batch of some groups under the run's parameters."""
    return assemble(
        groups,
        weights,
        version=version,
        advantage=params.training.advantage,
        aggregation=params.training.aggregation,
        constant=float(params.engine.max_model_len),
    )


def batch_of_record(run_store: RunStore, record: StepRecord, params: RunParameters) -> TrainingBatch:
    """The batch that a committed step consumed, read again from the trajectories it names.

    Its weights are the record's: nothing is admitted anew.

    Raises:
        ObjectMissing: Trajectories are gone.
        CorruptObject: They cannot be read, or are not those that the record tells of.
    """
    found: dict[tuple[str, int], Group] = {}
    for key in dict.fromkeys(use.key for use in record.groups):
        body = run_store.store.get(key).body
        found |= {(key, group.number): group for group in decode_groups(body, run=run_store.run, key=key)}
    groups = [_found_as_used(found.get((use.key, use.group)), use) for use in record.groups]
    return make_batch(groups, batch_weights(record.groups, groups), record.version_in.number, params)


def _found_as_used(group: Group | None, use: GroupUse) -> Group:
    known = [one.member for one in use.uses]
    if group is None or (known and known != [member.member for member in group.trajectories]):
        raise CorruptObject(f"{use.key} does not hold group {use.group} as a step has used it: it was overwritten")
    return group


def weight_digests(group: PolicyTrainer, manifest: WeightsManifest) -> dict[str, str]:
    """Digests of the group's weights in the manifest's dtype."""
    dtype = DTYPES[manifest.dtype]
    return {name: tensor_digest(host_tensor(tensor, dtype)) for name, tensor in group.full_tensors()}


def published_tensors(run_store: RunStore, manifest: WeightsManifest) -> dict[str, Tensor]:
    """The tensors of a published version, each checked by its digest."""
    return assemble_weights(run_store.store, manifest)


def _load_checkpoint(
    group: PolicyTrainer,
    run_store: RunStore,
    params: RunParameters,
    records: Sequence[StepRecord],
    scratch: Path,
    signing_key: bytes | None,
) -> tuple[FileEntry, int] | None:
    """Load the newest usable checkpoint that a committed record names; None leaves the base model."""
    for record in _naming_another_checkpoint(records):
        entry = record.checkpoint
        assert entry is not None
        try:
            signing.check(record, signing_key)
            manifest = checkpoints.fetch(run_store.store, entry, params, scratch)
        except (ObjectMissing, CorruptObject) as error:
            log.warning("checkpoint %s cannot be used: %s", entry.key, error)
            continue
        group.load(manifest.step)
        return entry, manifest.step
    if records:
        log.warning("there is no checkpoint to begin with: all steps are run again from the base model")
    return None


def _naming_another_checkpoint(records: Sequence[StepRecord]) -> list[StepRecord]:
    """The newest record of each checkpoint that may still be in the store, newest first."""
    newest: dict[str, StepRecord] = {}
    for record in reversed(records):
        if record.checkpoint is not None and len(newest) < checkpoints.KEPT:
            newest.setdefault(record.checkpoint.key, record)
    return [*newest.values()]
