# pyright: basic
"""Host tensors on their way into the store: checked, cut into objects of bounded size, each written once."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping

import torch
from safetensors.torch import save
from torch import Tensor

from driftline.errors import CorruptObject, PreconditionFailed, PublishRefused
from driftline.records import FileEntry
from driftline.store.files import read_checked
from driftline.store.protocol import ObjectStore
from driftline.weights.tensors import host_tensor

SHARD_BYTES = 512 * 2**20


def usable(pairs: Iterable[tuple[str, Tensor]], dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Host tensors in `dtype`, contiguous; a host tensor that is so already is passed on as it is.

    Raises:
        PublishRefused: A tensor is empty or named twice.
    """
    seen: set[str] = set()
    for name, tensor in pairs:
        if name in seen:
            raise PublishRefused(f"tensor {name!r} is published twice: names must be unique")
        if tensor.numel() == 0:
            raise PublishRefused(f"tensor {name!r} is empty: a partitioned parameter must be gathered first")
        seen.add(name)
        yield name, host_tensor(tensor, dtype)


def check_finite(name: str, values: Tensor) -> None:
    """Raise `PublishRefused` where a value is NaN or infinite."""
    if values.is_floating_point() and not bool(torch.isfinite(values).all()):
        raise PublishRefused(f"tensor {name!r} holds NaN or infinity: the optimizer has diverged")


def write_tensors(
    store: ObjectStore,
    stem: str,
    pairs: Iterable[tuple[str, Tensor]],
    *,
    shard_bytes: int = SHARD_BYTES,
    metadata: Mapping[str, str] | None = None,
) -> tuple[FileEntry, ...]:
    """Write tensors as safetensors objects `<stem>-00000.safetensors` and so on.

    Args:
        store: Where to.
        stem: The keys' beginning.
        pairs: (name, host tensor); consumed lazily, the tensors of one object are held at a time.
        shard_bytes: Most tensor bytes in one object (a larger tensor gets its own).
        metadata: Text in each object's header.

    Raises:
        PreconditionFailed: One of the objects exists with other contents.
    """
    files: list[FileEntry] = []
    for shard in _shards(pairs, shard_bytes):
        body = save(shard, dict(metadata) if metadata else None)
        files.append(_write_once(store, f"{stem}-{len(files):05d}.safetensors", body))
    return tuple(files)


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
