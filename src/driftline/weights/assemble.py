# pyright: basic
"""Reader side: a version's manifest becomes verified tensors in host memory, from an anchor or from what is held.

    manifest ──▶ back along `base` to the newest anchor, or to the version held ──▶ objects, each by its digest
             ──▶ anchor's tensors, deltas applied in order ──▶ tensors, each by its digest

Everything is checked before anything is loaded: whose objects they are, the bytes of each, the bytes of each
assembled tensor, the names against the model, the shapes, the dtype. A kernel may fuse and repack weights
afterwards, so this is the last place where a digest can speak.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from driftline.errors import CorruptObject, ObjectMissing, StoreUnavailable
from driftline.records import FileEntry, WeightsManifest
from driftline.store import keys
from driftline.store.files import read_checked
from driftline.store.protocol import ObjectStore
from driftline.store.run_store import RunStore
from driftline.weights import delta
from driftline.weights.checkpoint import Shapes, header_metadata
from driftline.weights.tensors import DTYPES, HeldWeights, tensor_digest

logger = logging.getLogger(__name__)

THREADS = 4
READABLE_DELTA = "delta/1"


@dataclass(frozen=True, slots=True)
class Assembled:
    """A version in host memory, and how it differs from the version that was held before."""

    held: HeldWeights
    changed: Mapping[str, delta.Indices | None]
    """Changed tensor -> flat indices of the elements that were set; None is all of them."""
    deltas: int
    """Deltas that were applied."""


def assemble(store: ObjectStore, manifest: WeightsManifest) -> dict[str, Tensor]:
    """Fetch all tensors of a policy version, in the manifest's dtype, each held by its digest.

    Raises:
        CorruptObject: An object or a tensor is not what the manifests say; the message names the key or tensor.
        ObjectMissing: An object, or a version that this one builds upon, is not there.
        StoreUnavailable: The store does not answer.
    """
    return assemble_onto(store, manifest, None).held.tensors


def assemble_onto(store: ObjectStore, manifest: WeightsManifest, held: HeldWeights | None) -> Assembled:
    """Bring the version held to another one, by the deltas between; from the newest anchor where that fails.

    Args:
        store: Where the run's objects are.
        manifest: The version to come to.
        held: What is in memory; its tensors are changed in place, so it must not be used afterwards, whatever
            happens. None fetches everything.

    Raises:
        As `assemble`, after the anchor was tried, too.
    """
    if held is not None:
        try:
            return _assemble(store, manifest, held)
        except StoreUnavailable:
            raise
        except (CorruptObject, ObjectMissing) as error:
            logger.warning("version %s from %s: %s: from the anchor", manifest.version, held.manifest.version, error)
    return _assemble(store, manifest, None)


def chain_to(store: ObjectStore, manifest: WeightsManifest, held: WeightsManifest | None) -> list[WeightsManifest]:
    """Manifests to apply in order: from the newest anchor, or from the one after `held`, to `manifest`.

    Raises:
        CorruptObject: A manifest is no such, another run's, or of a newer format, or the chain does not go down.
        ObjectMissing: A version in the chain is not there.
    """
    chain = [manifest]
    run_store = RunStore(store, manifest.run)
    while chain[0].kind == "delta" and not (held is not None and chain[0].base == held.version):
        first = chain[0]
        if first.base is None or first.base.number >= first.version.number:
            raise CorruptObject(f"version {first.version} is a delta of {first.base}: it must be of an older version")
        try:
            chain.insert(0, run_store.read_manifest(first.base))
        except ObjectMissing as error:
            raise ObjectMissing(f"version {first.version} builds upon {first.base}, which is gone: {error}") from None
    return chain


def check_fit(tensors: Mapping[str, Tensor], shapes: Shapes, manifest: WeightsManifest) -> None:
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


def _assemble(store: ObjectStore, manifest: WeightsManifest, held: HeldWeights | None) -> Assembled:
    if held is not None and held.manifest.version == manifest.version:
        return Assembled(held, {}, 0)
    chain = chain_to(store, manifest, held.manifest if held else None)
    tensors: dict[str, Tensor] = {}
    changed: dict[str, delta.Indices | None] = {}
    with ThreadPoolExecutor(THREADS, "fetch") as pool:
        if chain[0].kind == "delta":
            assert held is not None
            tensors = held.tensors
        bodies = pool.map(partial(_read, store), [(link, file) for link in chain for file in link.files])
        for link in chain:
            entries = _gathered([(file, next(bodies)) for file in link.files])
            if link.kind == "anchor":
                tensors, changed = entries, dict.fromkeys(entries)
            else:
                _note(changed, _applied(tensors, entries, link))
        known = held.manifest.tensors if held is not None and chain[0].kind == "delta" else {}
        _check_digests(pool, tensors, manifest, {name: known[name] for name in known if name not in changed})
    if held is not None and chain[0].kind == "anchor":
        before = held.manifest.tensors
        changed = {name: None for name in changed if before.get(name) != manifest.tensors[name]}
    return Assembled(HeldWeights(manifest, tensors), changed, sum(link.kind == "delta" for link in chain))


def _applied(
    tensors: dict[str, Tensor], entries: delta.Entries, link: WeightsManifest
) -> dict[str, delta.Indices | None]:
    try:
        return delta.apply(tensors, entries)
    except CorruptObject as error:
        raise CorruptObject(f"the delta of version {link.version} does not fit {link.base}: {error}") from None


def _note(changed: dict[str, delta.Indices | None], more: Mapping[str, delta.Indices | None]) -> None:
    """Add the elements that another delta has set."""
    for name, indices in more.items():
        before = changed.get(name, indices)
        if before is None or indices is None:
            changed[name] = None
        else:
            changed[name] = indices if before is indices else np.union1d(before, indices)


def _gathered(parts: Sequence[tuple[FileEntry, dict[str, Tensor]]]) -> dict[str, Tensor]:
    """The entries of all objects of one version."""
    entries: dict[str, Tensor] = {}
    for file, found in parts:
        twice = entries.keys() & found.keys()
        if twice:
            raise CorruptObject(f"{file.key} holds {sorted(twice)[0]!r}, as does an earlier object")
        entries |= found
    return entries


def _read(store: ObjectStore, wanted: tuple[WeightsManifest, FileEntry]) -> dict[str, Tensor]:
    link, file = wanted
    if not file.key.startswith(keys.policy_prefix(link.run, link.version)):
        raise CorruptObject(f"version {link.version} of run {link.run!r} names {file.key}, which is not its own")
    body = read_checked(store, file)
    try:
        entries = load(body)
    except SafetensorError as error:
        raise CorruptObject(f"{file.key} is no safetensors object: {error}") from None
    if link.kind == "delta":
        _check_delta_header(header_metadata(body), link, file.key)
    return entries


def _check_delta_header(found: Mapping[str, str], link: WeightsManifest, key: str) -> None:
    if found.get("driftline") != READABLE_DELTA:
        raise CorruptObject(
            f"{key} has the format {found.get('driftline', 'of no delta')!r}, this is {READABLE_DELTA!r}: upgrade "
            "driftline to read it"
        )
    said = (found.get("run"), found.get("version"), found.get("base"))
    if said != (link.run, str(link.version), str(link.base)):
        raise CorruptObject(f"{key} belongs to version {said[1]} (a delta of {said[2]}) of run {said[0]!r}")


def _check_digests(
    pool: ThreadPoolExecutor, tensors: dict[str, Tensor], manifest: WeightsManifest, known: Mapping[str, str]
) -> None:
    """Hold every tensor to the manifest's digest; `known` are digests of tensors that were verified before."""
    _same_names(tensors, manifest.tensors, "the objects", f"the manifest of version {manifest.version}")
    wanted = DTYPES[manifest.dtype]
    fresh = [name for name in tensors if name not in known]
    digests = {**known, **dict(zip(fresh, pool.map(tensor_digest, (tensors[name] for name in fresh)), strict=True))}
    for name, tensor in tensors.items():
        found, said = digests[name], manifest.tensors[name]
        if found != said:
            raise CorruptObject(
                f"tensor {name!r} has SHA-256 {found[:12]}..., the manifest of version {manifest.version} says "
                f"{said[:12]}...: publish the version again"
            )
        if tensor.is_floating_point() and tensor.dtype != wanted:
            raise CorruptObject(f"tensor {name!r} is {tensor.dtype}, the manifest says {wanted}")


def _same_names(found: Iterable[str], wanted: Iterable[str], of: str, in_: str) -> None:
    have, want = set(found), set(wanted)
    if have == want:
        return
    missing, extra = sorted(want - have), sorted(have - want)
    parts = [f"lack {missing[:3]}"] if missing else []
    parts += [f"have {extra[:3]} besides"] if extra else []
    raise CorruptObject(f"the tensors of {of} are not those of {in_}: they {' and '.join(parts)}")
