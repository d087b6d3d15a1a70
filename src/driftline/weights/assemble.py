# pyright: basic
"""Engine side, the part without an engine: a manifest's objects become verified tensors in host memory.

Everything is checked before anything is loaded: the bytes of each object, the bytes of each assembled tensor,
the names against the model, the shapes, the dtype. A kernel may fuse and repack weights afterwards, so this is
the last place where a digest can speak.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from driftline.errors import CorruptObject
from driftline.records import FileEntry, WeightsManifest
from driftline.store.files import read_checked
from driftline.store.protocol import ObjectStore
from driftline.weights.checkpoint import Shapes
from driftline.weights.tensors import DTYPES, tensor_digest

THREADS = 4


def assemble(store: ObjectStore, manifest: WeightsManifest) -> dict[str, Tensor]:
    """Fetch all tensors of a policy version, in the manifest's dtype, each held by its digest.

    Raises:
        CorruptObject: An object or a tensor is not what the manifest says; the message names the key or tensor.
        ObjectMissing: An object is not there.
        StoreUnavailable: The store does not answer.
    """
    if manifest.kind != "anchor":
        raise CorruptObject(f"version {manifest.version} is a {manifest.kind}: upgrade driftline to apply it")
    with ThreadPoolExecutor(THREADS, "fetch") as pool:
        tensors: dict[str, Tensor] = {}
        for file, found in zip(manifest.files, pool.map(partial(_read, store), manifest.files), strict=True):
            twice = tensors.keys() & found.keys()
            if twice:
                raise CorruptObject(f"{file.key} holds {sorted(twice)[0]!r}, as does an earlier object")
            tensors |= found
        _check_digests(pool, tensors, manifest)
    return tensors


def check_fit(tensors: dict[str, Tensor], shapes: Shapes, manifest: WeightsManifest) -> None:
    """Compare a version's tensors with the model that is to hold them: a missing one would silently stay old.

    Raises:
        CorruptObject: Names or shapes differ.
    """
    _same_names(tensors, shapes, f"version {manifest.version}", "the engine's model")
    for name, tensor in tensors.items():
        if tuple(tensor.shape) != tuple(shapes[name]):
            raise CorruptObject(
                f"{name!r} of version {manifest.version} has shape {tuple(tensor.shape)}, the engine's model "
                f"{tuple(shapes[name])}: the run's base model and the engine's differ"
            )


def _read(store: ObjectStore, file: FileEntry) -> dict[str, Tensor]:
    body = read_checked(store, file)
    try:
        return load(body)
    except SafetensorError as error:
        raise CorruptObject(f"{file.key} is no safetensors object: {error}") from None


def _check_digests(pool: ThreadPoolExecutor, tensors: dict[str, Tensor], manifest: WeightsManifest) -> None:
    _same_names(tensors, manifest.tensors, "the objects", f"the manifest of version {manifest.version}")
    wanted = DTYPES[manifest.dtype]
    for name, digest in zip(tensors, pool.map(tensor_digest, tensors.values()), strict=True):
        if digest != manifest.tensors[name]:
            raise CorruptObject(
                f"tensor {name!r} has SHA-256 {digest[:12]}..., the manifest of version {manifest.version} says "
                f"{manifest.tensors[name][:12]}...: publish the version again"
            )
        if tensors[name].is_floating_point() and tensors[name].dtype != wanted:
            raise CorruptObject(f"tensor {name!r} is {tensors[name].dtype}, the manifest says {wanted}")


def _same_names(found: Iterable[str], wanted: Iterable[str], of: str, in_: str) -> None:
    have, want = set(found), set(wanted)
    if have == want:
        return
    missing, extra = sorted(want - have), sorted(have - want)
    parts = [f"lack {missing[:3]}"] if missing else []
    parts += [f"have {extra[:3]} besides"] if extra else []
    raise CorruptObject(f"the tensors of {of} are not those of {in_}: they {' and '.join(parts)}")


def in_dtype(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors with floating-point values in `dtype`; those that have it already are not copied."""
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}
