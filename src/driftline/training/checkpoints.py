# pyright: basic
"""DeepSpeed's state, to the store and back.

    save (all ranks) ──▶ local directory ──▶ files to the store ──▶ manifest.json, last ──▶ a step record names it

DeepSpeed's files are pickles. They are read only after the manifest has the SHA-256 that the step record names, and
every file that of the manifest. Ranks share one machine's scratch space: rank 0 moves the files.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist

from driftline.errors import ConfigurationError
from driftline.params import RunParameters
from driftline.records import CheckpointManifest, FileEntry, decode, encode
from driftline.store import files, keys
from driftline.store.protocol import ObjectStore

TAG = "state"
KEPT = 2
"""Checkpoints that stay in the store: the newest, and the one that the head's record still names."""


def local_directory(scratch: Path, step: int) -> Path:
    """Where a checkpoint lies on this machine."""
    return scratch / f"step-{step:06d}"


def save_local(engine: Any, scratch: Path, step: int) -> Path:
    """Save the state of all ranks to a local directory; collective. Returns the directory."""
    directory = local_directory(scratch, step)
    if dist.get_rank() == 0:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
    _barrier()
    engine.save_checkpoint(str(directory), tag=TAG, save_latest=False, exclude_frozen_parameters=True)
    _barrier()
    return directory


def load_local(engine: Any, scratch: Path, step: int) -> None:
    """Load the state of all ranks from a local directory; collective."""
    _barrier()
    trained = all(parameter.requires_grad for parameter in engine.module.parameters())
    directory = str(local_directory(scratch, step))
    # Frozen weights are the base model's, and not in the checkpoint.
    path, _ = engine.load_checkpoint(directory, tag=TAG, load_module_strict=trained)
    if path is None:
        raise ConfigurationError(f"DeepSpeed finds no checkpoint in {local_directory(scratch, step)}")


def upload(store: ObjectStore, run: str, step: int, epoch: int, params: RunParameters, directory: Path) -> FileEntry:
    """Write a local checkpoint to the store, its manifest last; returns the manifest's entry."""
    prefix = keys.checkpoint_prefix(run, step, epoch)
    entries = files.upload_directory(store, prefix, directory)
    training = params.training
    manifest = CheckpointManifest(run, step, epoch, training.ranks, training.zero_stage, entries)
    body = encode(manifest)
    store.put(manifest_key(run, step, epoch), body)
    return files.entry_of(manifest_key(run, step, epoch), body)


def fetch(store: ObjectStore, entry: FileEntry, params: RunParameters, scratch: Path) -> CheckpointManifest:
    """Bring a checkpoint to this machine: the manifest checked against its entry, each file against the manifest.

    Raises:
        ObjectMissing: It is gone.
        CorruptObject: The manifest or a file is damaged.
        ConfigurationError: It was written by another number of ranks or ZeRO stage.
    """
    key = entry.key
    manifest = decode(CheckpointManifest, files.read_checked(store, entry), key=key)
    written, wanted = (manifest.ranks, manifest.zero_stage), (params.training.ranks, params.training.zero_stage)
    if written != wanted:
        raise ConfigurationError(
            f"{key} was written by {written[0]} ranks with ZeRO {written[1]}, the run has {wanted[0]} with ZeRO "
            f"{wanted[1]}: resume with training.ranks and training.zero_stage as they were"
        )
    directory = local_directory(scratch, manifest.step)
    shutil.rmtree(directory, ignore_errors=True)
    files.download(store, manifest.files, key.removesuffix("manifest.json"), directory)
    return manifest


def manifest_key(run: str, step: int, epoch: int) -> str:
    """Key of a checkpoint's manifest."""
    return f"{keys.checkpoint_prefix(run, step, epoch)}manifest.json"


def remove(store: ObjectStore, key: str) -> None:
    """Delete a checkpoint from the store, its manifest first: what has a manifest is whole."""
    prefix = key.removesuffix("manifest.json")
    store.delete([key])
    store.delete([info.key for info in store.list(prefix)])


def _barrier() -> None:
    if dist.get_world_size() > 1:
        dist.barrier()
