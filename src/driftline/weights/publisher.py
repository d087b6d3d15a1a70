# pyright: basic
"""Trainer side: a policy's tensors become immutable objects, and a manifest written after all of them.

    named tensors ──▶ host, dtype ──▶ compared with the version before ──▶ delta or anchor? ──▶ objects ──▶ manifest

`publish_anchor` streams: it holds the tensors of one object at a time. `WeightsPublisher` holds one host copy of
the version it published last, in the published dtype, to tell what changed. Names are those of the model's Hugging
Face checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from torch import Tensor

from driftline.errors import PublishRefused
from driftline.records import AdapterLayout, Chain, FileEntry, PolicyVersion, Probe, WeightsManifest
from driftline.store import keys
from driftline.store.run_store import RunStore
from driftline.weights import chain as chains
from driftline.weights import delta
from driftline.weights.objects import SHARD_BYTES, check_finite, usable, write_tensors
from driftline.weights.tensors import DTYPES, DtypeName, HeldWeights, tensor_digest, without_tied_head

logger = logging.getLogger(__name__)

DELTA_FORMAT = "delta/1"
DIGEST_THREADS = 2


class NothingChanged(PublishRefused):
    """The published bits are those of the version before, although they should not be."""


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
    adapter: AdapterLayout | None = None,
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
        adapter: How the tensors become weights, where they are adapters.
        shard_bytes: Most tensor bytes in one object (a larger tensor gets its own).
        clock: Unix seconds.

    Raises:
        PublishRefused: A tensor is empty, named twice or not finite, or nothing has changed although it should
            have. The manifest is not written.
        PreconditionFailed: This version exists with other contents.
        StoreUnavailable: The store refuses, after its retries.
    """
    digests: dict[str, str] = {}
    elements = 0

    def digested(pairs: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        nonlocal elements
        for name, host in pairs:
            check_finite(name, host)
            digests[name] = tensor_digest(host)
            elements += host.numel()
            yield name, host

    pairs = without_tied_head(named_tensors) if tied_embeddings else named_tensors
    stem = f"{keys.policy_prefix(run, version)}anchor"
    files = write_tensors(run_store.store, stem, digested(usable(pairs, DTYPES[dtype])), shard_bytes=shard_bytes)
    if not digests:
        raise PublishRefused(f"version {version} has no tensors: pass the model's named parameters")
    if expect_change and previous is not None and dict(previous.tensors) == digests:
        raise _nothing_changed(version, previous.version)
    manifest = WeightsManifest(
        run=run,
        version=version,
        kind="anchor",
        base=None,
        files=files,
        tensors=digests,
        dtype=dtype,
        probe=probe,
        created_unix=clock(),
        elements=elements,
        chain=Chain(_size(files)),
        adapter=adapter,
    )
    run_store.write_manifest(manifest)
    return manifest


class WeightsPublisher:
    """Publishes the versions of one run, one after the other, each as a delta where that is cheaper."""

    def __init__(
        self,
        run_store: RunStore,
        *,
        dtype: DtypeName,
        tied_embeddings: bool = False,
        adapter: AdapterLayout | None = None,
        chain_factor: float = chains.FACTOR,
        shard_bytes: int = SHARD_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._run_store = run_store
        self._dtype: DtypeName = dtype
        self._tied_embeddings = tied_embeddings
        self._adapter = adapter
        self._chain_factor = chain_factor
        self._shard_bytes = shard_bytes
        self._clock = clock
        self._base: HeldWeights | None = None

    def adopt(self, manifest: WeightsManifest, named_tensors: Iterable[tuple[str, Tensor]]) -> bool:
        """Go on from a version that was published before this process began; returns whether that can be.

        The tensors must be that version's, bit for bit; otherwise the next version is an anchor.
        """
        held = HeldWeights(manifest, dict(_copies(usable(self._published(named_tensors), DTYPES[self._dtype]))))
        same = {name: tensor_digest(tensor) for name, tensor in held.tensors.items()} == dict(manifest.tensors)
        self._base = held if same and manifest.dtype == self._dtype and manifest.adapter == self._adapter else None
        return self._base is not None

    def publish(
        self,
        named_tensors: Iterable[tuple[str, Tensor]],
        *,
        version: PolicyVersion,
        probe: Probe,
        previous: WeightsManifest | None,
        expect_change: bool,
    ) -> WeightsManifest:
        """Publish a version; arguments and errors as in `publish_anchor`.

        It follows `previous` as a delta where this publisher published or adopted that, and `chain.anchor_due`
        gives no reason for an anchor.
        """
        # What fails halfway has changed the copy: nothing can be built on it any more.
        base, self._base = self._base, None
        follows = base is not None and previous is not None and base.manifest.version == previous.version
        if base is None or previous is None or not follows:
            kept: dict[str, Tensor] = {}
            manifest = publish_anchor(
                self._run_store,
                _keeping(usable(self._published(named_tensors), DTYPES[self._dtype]), kept),
                run=self._run_store.run,
                version=version,
                dtype=self._dtype,
                probe=probe,
                previous=previous,
                expect_change=expect_change,
                adapter=self._adapter,
                shard_bytes=self._shard_bytes,
                clock=self._clock,
            )
            self._base = HeldWeights(manifest, kept)
            return manifest
        draft = _compare(base, usable(self._published(named_tensors), DTYPES[self._dtype]))
        if expect_change and not draft.changed:
            raise _nothing_changed(version, previous.version)
        manifest = self._write(base, draft, version, probe)
        self._base = HeldWeights(manifest, base.tensors)
        return manifest

    def _write(self, base: HeldWeights, draft: _Draft, version: PolicyVersion, probe: Probe) -> WeightsManifest:
        """Write a compared version as a delta or an anchor. The base's tensors are the new version's by now."""
        run, store = self._run_store.run, self._run_store.store
        before = base.manifest.chain
        due = (
            "the version before does not say what its chain costs"
            if before is None
            else chains.anchor_due(before, delta.object_bytes(draft.entries), self._chain_factor)
        )
        prefix = keys.policy_prefix(run, version)
        if due or before is None:
            logger.info("version %s is an anchor: %s", version, due)
            files = write_tensors(store, f"{prefix}anchor", base.tensors.items(), shard_bytes=self._shard_bytes)
            chain = Chain(_size(files))
        else:
            origin = base.manifest.version
            metadata = {"driftline": DELTA_FORMAT, "run": run, "version": str(version), "base": str(origin)}
            files = write_tensors(
                store, f"{prefix}delta", draft.entries.items(), shard_bytes=self._shard_bytes, metadata=metadata
            )
            chain = chains.extended(before, _size(files))
        manifest = WeightsManifest(
            run=run,
            version=version,
            kind="anchor" if due else "delta",
            base=None if due else base.manifest.version,
            files=files,
            tensors=draft.digests,
            dtype=self._dtype,
            probe=probe,
            created_unix=self._clock(),
            elements=draft.elements,
            changed_elements=draft.changed,
            chain=chain,
            adapter=self._adapter,
        )
        self._run_store.write_manifest(manifest)
        return manifest

    def _published(self, named_tensors: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        return without_tied_head(named_tensors) if self._tied_embeddings else named_tensors


@dataclass(slots=True)
class _Draft:
    """A version compared with the one before."""

    entries: dict[str, Tensor] = field(default_factory=dict)
    digests: dict[str, str] = field(default_factory=dict)
    elements: int = 0
    changed: int = 0


def _compare(base: HeldWeights, pairs: Iterable[tuple[str, Tensor]]) -> _Draft:
    """Find what changed, and bring the base's tensors to the new version as they pass.

    Raises:
        PublishRefused: The tensors are not those of the base, or a changed value is not finite.
    """
    draft = _Draft()
    digests: dict[str, Future[str]] = {}
    with ThreadPoolExecutor(DIGEST_THREADS, "digest") as pool:
        for name, host in pairs:
            held = base.tensors.get(name)
            if held is None or held.shape != host.shape or held.dtype != host.dtype:
                raise PublishRefused(f"tensor {name!r} is not in version {base.manifest.version}, or in another form")
            draft.elements += host.numel()
            draft.digests[name] = base.manifest.tensors[name]
            found = delta.difference(held, host)
            if found.count:
                draft.changed += found.count
                draft.entries |= _taken_over(name, held, host, found)
                digests[name] = pool.submit(tensor_digest, held)
        draft.digests |= {name: digest.result() for name, digest in digests.items()}
    missing = base.tensors.keys() - draft.digests.keys()
    if missing:
        raise PublishRefused(f"tensor {min(missing)!r} of version {base.manifest.version} is missing")
    return draft


def _taken_over(name: str, held: Tensor, host: Tensor, found: delta.Difference) -> delta.Entries:
    """The entries that make `held` what `host` is; `held` is that afterwards, and a whole tensor's entry is it."""
    entries = delta.encode(name, host, found)
    for entry in entries.values():
        check_finite(name, entry)
    if name in entries or found.indices is None:
        held.copy_(host)
        return {name: held}
    delta.set_elements(held, host, found.indices)
    return entries


def _copies(pairs: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Copies of their own: a host tensor may be the parameter itself, which the next step changes."""
    return ((name, host.clone()) for name, host in pairs)


def _keeping(pairs: Iterable[tuple[str, Tensor]], kept: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in _copies(pairs):
        kept[name] = tensor
        yield name, tensor


def _size(files: tuple[FileEntry, ...]) -> int:
    return sum(file.bytes for file in files)


def _nothing_changed(version: PolicyVersion, previous: PolicyVersion) -> NothingChanged:
    return NothingChanged(
        f"the weights of version {version} are bit-identical to those of {previous} although a step with a positive "
        "learning rate lies between: are the published parameters the ones the optimizer updates?"
    )
