"""Assembly: bit-exact tensors, or an error that names what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from driftline.errors import CorruptObject, ObjectMissing
from driftline.records import FileEntry, PolicyVersion, Probe, WeightsManifest
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.weights.assemble import assemble, check_fit
from driftline.weights.publisher import publish_anchor


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(6, 3, generator=generator) for name in ("a", "b", "c", "d")}


def publish(store: MemoryStore, **options: object) -> WeightsManifest:
    return publish_anchor(
        RunStore(store, "r"),
        tensors().items(),
        run="r",
        version=PolicyVersion(1, 1),
        probe=Probe((1, 2), (-1.0,)),
        shard_bytes=150,
        **{"dtype": "float32", **options},  # pyright: ignore[reportArgumentType]
    )


def test_what_was_published_comes_back_bit_for_bit(store: MemoryStore) -> None:
    found = assemble(store, publish(store))
    assert set(found) == set(tensors())
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors().items())


def test_bfloat16_comes_back_bit_for_bit(store: MemoryStore) -> None:
    found = assemble(store, publish(store, dtype="bfloat16"))
    assert all(torch.equal(found[name], tensor.bfloat16()) for name, tensor in tensors().items())


@pytest.mark.parametrize("damage", [lambda body: body[:-4], lambda body: body[:-1] + bytes([body[-1] ^ 1])])
def test_a_damaged_object_is_named(store: MemoryStore, damage: object) -> None:
    manifest = publish(store)
    key = manifest.files[1].key
    store.put(key, damage(store.get(key).body))  # pyright: ignore[reportCallIssue]
    with pytest.raises(CorruptObject, match=key):
        assemble(store, manifest)


def test_a_missing_object_is_named(store: MemoryStore) -> None:
    manifest = publish(store)
    store.delete([manifest.files[0].key])
    with pytest.raises(ObjectMissing, match=manifest.files[0].key):
        assemble(store, manifest)


def test_a_tensor_is_held_by_its_own_digest_too(store: MemoryStore) -> None:
    """The object's digest fits a wrong object where both were written together."""
    manifest = publish(store)
    wrong = replace(manifest, tensors={**manifest.tensors, "c": manifest.tensors["a"]})
    with pytest.raises(CorruptObject, match="tensor 'c' has SHA-256"):
        assemble(store, wrong)


def test_the_manifest_and_the_objects_name_the_same_tensors(store: MemoryStore) -> None:
    manifest = publish(store)
    lacking = {name: digest for name, digest in manifest.tensors.items() if name != "b"}
    with pytest.raises(CorruptObject, match=r"have \['b'\] besides"):
        assemble(store, replace(manifest, tensors=lacking))
    with pytest.raises(CorruptObject, match=r"lack \['e'\]"):
        assemble(store, replace(manifest, tensors={**manifest.tensors, "e": "0"}))


def test_a_dtype_other_than_the_manifests_is_refused(store: MemoryStore) -> None:
    with pytest.raises(CorruptObject, match=r"is torch\.float32, the manifest says torch\.bfloat16"):
        assemble(store, replace(publish(store), dtype="bfloat16"))


def test_the_same_tensor_in_two_objects_is_refused(store: MemoryStore) -> None:
    manifest = publish(store)
    twice = replace(manifest.files[0], key=manifest.files[1].key)
    store.put(twice.key, store.get(manifest.files[0].key).body)
    with pytest.raises(CorruptObject, match="as does an earlier object"):
        assemble(store, replace(manifest, files=(manifest.files[0], twice)))


def test_an_object_that_is_no_safetensors(store: MemoryStore) -> None:
    import hashlib

    body = b"not safetensors"
    manifest = publish(store)
    key = manifest.files[0].key
    store.put(key, body)
    entry = FileEntry(key, len(body), hashlib.sha256(body).hexdigest())
    with pytest.raises(CorruptObject, match=f"{key} is no safetensors object"):
        assemble(store, replace(manifest, files=(entry,)))


def test_tensors_must_fit_the_model(store: MemoryStore) -> None:
    manifest = publish(store)
    shapes = dict.fromkeys(tensors(), (6, 3))
    check_fit(tensors(), shapes, manifest)
    with pytest.raises(CorruptObject, match=r"lack \['x'\]"):
        check_fit(tensors(), {**shapes, "x": (1,)}, manifest)
    with pytest.raises(CorruptObject, match=r"'a' of version 000001-0001 has shape \(6, 3\)"):
        check_fit(tensors(), {**shapes, "a": (3, 6)}, manifest)
