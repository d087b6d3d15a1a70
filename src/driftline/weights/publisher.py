# pyright: basic
"""Trainer side: a policy's tensors become immutable objects, and a manifest written after all of them.

Tensors stream through in shards of bounded size: at any time the publisher holds the tensors of one shard and
that shard's bytes, never a second copy of the model. Names are those of the model's Hugging Face checkpoint.

    named tensors ──▶ host, dtype ──▶ checks, digests ──▶ shard full? ──▶ object ... ──▶ manifest.json
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator

import torch
from safetensors.torch import save
from torch import Tensor

from driftline.errors import CorruptObject, PreconditionFailed, PublishRefused
from driftline.records import FileEntry, PolicyVersion, Probe, WeightsManifest
from driftline.store import keys
from driftline.store.files import read_checked
from driftline.store.protocol import ObjectStore
from driftline.store.run_store import RunStore
from driftline.weights.tensors import DTYPES, DtypeName, host_tensor, tensor_digest, without_tied_head

SHARD_BYTES = 512 * 2**20


def publish_anchor(
    run_store: RunStore,
    named_tensors: Iterable[tuple[str, Tensor]],
    *,
    run: str,
    version: PolicyVersion,
    dtype: DtypeName,
    probe: Probe,
    tied_embeddings: bool = False,
    previous: WeightsManifest | None = None,
    expect_change: bool = False,
    shard_bytes: int = SHARD_BYTES,
    clock: Callable[[], float] = time.time,
) -> WeightsManifest:
    """Publish all weights of a policy version. It counts once HEAD names it.

    Args:
        run_store: The run's objects.
        named_tensors: (checkpoint name, tensor) pairs; consumed lazily, so it may gather as it goes.
        run: Name of the run.
        version: The version to publish.
        dtype: What floating-point tensors are published in.
        probe: A token sequence and this policy's log-probabilities of it.
        tied_embeddings: Leaves out the output head, which is the embedding.
        previous: Manifest of the version before.
        expect_change: Whether a step with a positive learning rate lies between the two.
        shard_bytes: Most tensor bytes in one object (a larger tensor gets its own).
        clock: Unix seconds.

    Raises:
        PublishRefused: A tensor is empty, named twice or not finite, or nothing has changed although it should
            have. The manifest is not written.
        PreconditionFailed: This version exists with other contents.
        StoreUnavailable: The store refuses, after its retries.
    """
    tensors: dict[str, str] = {}
    files: list[FileEntry] = []
    pairs = without_tied_head(named_tensors) if tied_embeddings else named_tensors
    for shard in _shards(_checked(pairs, DTYPES[dtype], tensors), shard_bytes):
        key = f"{keys.policy_prefix(run, version)}anchor-{len(files):05d}.safetensors"
        files.append(_write_once(run_store.store, key, save(shard)))
    if not tensors:
        raise PublishRefused(f"version {version} has no tensors: pass the model's named parameters")
    if expect_change and previous is not None and dict(previous.tensors) == tensors:
        raise PublishRefused(
            f"the weights of version {version} are bit-identical to those of {previous.version} although a step with "
            "a positive learning rate lies between: are the published parameters the ones the optimizer updates?"
        )
    manifest = WeightsManifest(run, version, "anchor", None, tuple(files), tensors, dtype, probe, clock())
    run_store.write_manifest(manifest)
    return manifest


def _checked(
    pairs: Iterable[tuple[str, Tensor]], dtype: torch.dtype, digests: dict[str, str]
) -> Iterator[tuple[str, Tensor]]:
    """Host copies of usable tensors; fills `digests` as they pass."""
    for name, tensor in pairs:
        if name in digests:
            raise PublishRefused(f"tensor {name!r} is published twice: names must be unique")
        if tensor.numel() == 0:
            raise PublishRefused(f"tensor {name!r} is empty: a partitioned parameter must be gathered first")
        host = host_tensor(tensor, dtype)
        if host.is_floating_point() and not bool(torch.isfinite(host).all()):
            raise PublishRefused(f"tensor {name!r} holds NaN or infinity: the optimizer has diverged")
        digests[name] = tensor_digest(host)
        yield name, host


def _shards(pairs: Iterable[tuple[str, Tensor]], shard_bytes: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in pairs:
        if shard and size + tensor.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += tensor.nbytes
    if shard:
        yield shard


def _write_once(store: ObjectStore, key: str, body: bytes) -> FileEntry:
    """Create an immutable object; that the very same is there already is success."""
    entry = FileEntry(key, len(body), hashlib.sha256(body).hexdigest())
    try:
        store.create(key, body)
    except PreconditionFailed:
        try:
            read_checked(store, entry)
        except CorruptObject:
            raise PreconditionFailed(f"{key} exists with other contents: another process publishes it, too") from None
    return entry
