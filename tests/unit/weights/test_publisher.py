"""The publisher: what lies in the store afterwards, and what it refuses."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
import torch
from safetensors.torch import load
from torch import Tensor

from driftline.errors import ObjectMissing, PreconditionFailed, PublishRefused
from driftline.records import PolicyVersion, Probe, WeightsManifest
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.weights.publisher import publish_anchor

VERSION = PolicyVersion(3, 2)
PROBE = Probe((5, 6, 7), (-0.5, -1.5))


@pytest.fixture
def run_store() -> RunStore:
    return RunStore(MemoryStore(), "r")


def tensors() -> list[tuple[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens.weight": (7, 4), "model.norm.weight": (4,), "lm_head.weight": (7, 4)}
    return [(name, torch.randn(*shape, generator=generator)) for name, shape in shapes.items()]


def publish(run_store: RunStore, pairs: object = None, **options: object) -> WeightsManifest:
    defaults: dict[str, object] = {"run": "r", "version": VERSION, "dtype": "float32", "probe": PROBE}
    return publish_anchor(
        run_store,
        tensors() if pairs is None else pairs,  # pyright: ignore[reportArgumentType]
        **{**defaults, **options},  # pyright: ignore[reportArgumentType]
    )


def stored(run_store: RunStore, manifest: WeightsManifest) -> dict[str, Tensor]:
    return {k: v for file in manifest.files for k, v in load(run_store.store.get(file.key).body).items()}


def test_objects_hold_the_tensors_bit_for_bit_and_the_manifest_names_them(run_store: RunStore) -> None:
    manifest = publish(run_store)
    assert run_store.read_manifest(VERSION) == manifest
    found = stored(run_store, manifest)
    for name, tensor in tensors():
        assert torch.equal(found[name], tensor)
        assert manifest.tensors[name] == hashlib.sha256(tensor.numpy().tobytes()).hexdigest()
    assert set(manifest.tensors) == set(found)
    assert (manifest.kind, manifest.base, manifest.probe, manifest.dtype) == ("anchor", None, PROBE, "float32")
    for file in manifest.files:
        body = run_store.store.get(file.key).body
        assert (file.bytes, file.sha256) == (len(body), hashlib.sha256(body).hexdigest())
        assert file.key.startswith("runs/r/policy/000003-0002/")


def test_shards_are_bounded_and_together_complete(run_store: RunStore) -> None:
    manifest = publish(run_store, shard_bytes=128)
    assert len(manifest.files) == 2, "112 + 16 bytes, then 112"
    assert set(stored(run_store, manifest)) == {name for name, _ in tensors()}


def test_a_tensor_larger_than_a_shard_has_its_own(run_store: RunStore) -> None:
    manifest = publish(run_store, shard_bytes=8)
    assert [list(load(run_store.store.get(f.key).body)) for f in manifest.files] == [[n] for n, _ in tensors()]


def test_tensors_stream_through_one_shard_at_a_time(run_store: RunStore) -> None:
    """A large model is never in memory twice: when a tensor is asked for, earlier full shards are in the store."""
    objects_when_asked: list[int] = []

    def lazily() -> Iterator[tuple[str, Tensor]]:
        for index in range(6):
            objects_when_asked.append(len(list(run_store.store.list("runs/r/policy/"))))
            yield f"t{index}", torch.full((16,), float(index))

    publish(run_store, lazily(), shard_bytes=128)
    assert objects_when_asked == [0, 0, 0, 1, 1, 2]


def test_a_tied_model_is_published_without_its_output_head(run_store: RunStore) -> None:
    manifest = publish(run_store, tied_embeddings=True)
    assert set(manifest.tensors) == {"model.embed_tokens.weight", "model.norm.weight"}


def test_bfloat16_is_rounded_as_torch_does_and_integers_stay(run_store: RunStore) -> None:
    counts = torch.arange(5)
    manifest = publish(run_store, [*tensors(), ("counts", counts)], dtype="bfloat16")
    found = stored(run_store, manifest)
    assert all(torch.equal(found[name], tensor.bfloat16()) for name, tensor in tensors())
    assert torch.equal(found["counts"], counts)
    assert manifest.dtype == "bfloat16"


def test_views_of_one_flat_buffer_are_published_each_by_itself(run_store: RunStore) -> None:
    """Optimizers keep parameters as views of a flat buffer; a transposed view is written in its own order."""
    flat = torch.arange(12.0)
    pairs = [("a", flat[:4]), ("b", flat[4:].view(2, 4)), ("c", flat.view(3, 4).t())]
    found = stored(run_store, publish(run_store, pairs))
    assert found["a"].tolist() == [0, 1, 2, 3]
    assert found["b"].tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]
    assert found["c"].tolist() == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7, 11]]


def test_a_parameter_that_requires_gradients_is_published(run_store: RunStore) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    assert stored(run_store, publish(run_store, [("w", parameter)]))["w"].tolist() == [1, 1, 1]


def test_weights_that_did_not_change_after_a_step_are_refused(run_store: RunStore) -> None:
    """verl#7495: frozen weights sent again and again, bit-identical."""
    first = publish(run_store)
    following = PolicyVersion(4, 2)
    with pytest.raises(PublishRefused, match="bit-identical"):
        publish(run_store, version=following, previous=first, expect_change=True)
    with pytest.raises(ObjectMissing):
        run_store.read_manifest(following)
    pairs = tensors()
    pairs[1][1][0] += 1e-6
    changed = publish(run_store, pairs, version=PolicyVersion(5, 2), previous=first, expect_change=True)
    assert [name for name in first.tensors if first.tensors[name] != changed.tensors[name]] == ["model.norm.weight"]


def test_at_learning_rate_zero_unchanged_weights_are_published(run_store: RunStore) -> None:
    first = publish(run_store)
    second = publish(run_store, version=PolicyVersion(4, 2), previous=first, expect_change=False)
    assert second.tensors == first.tensors


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([("w", torch.empty(0))], "'w' is empty"),
        ([("w", torch.ones(2)), ("w", torch.ones(2))], "'w' is published twice"),
        ([("w", torch.tensor([1.0, float("nan")]))], "'w' holds NaN"),
        ([("w", torch.tensor([1e39], dtype=torch.float64))], "'w' holds NaN or infinity"),
        ([], "no tensors"),
    ],
)
def test_what_no_engine_could_use_is_refused_before_the_manifest(
    run_store: RunStore, pairs: list[tuple[str, Tensor]], said: str
) -> None:
    """trl#6386: partitioned parameters published as tensors of size 0."""
    with pytest.raises(PublishRefused, match=said):
        publish(run_store, pairs)
    with pytest.raises(ObjectMissing):
        run_store.read_manifest(VERSION)


def test_the_manifest_comes_after_all_files(run_store: RunStore) -> None:
    """SpecForge#659: a half-written checkpoint is read."""
    written: list[str] = []
    create = run_store.store.create

    def noting(key: str, body: bytes) -> object:
        written.append(key)
        return create(key, body)

    run_store.store.create = noting  # pyright: ignore[reportAttributeAccessIssue]
    manifest = publish(run_store, shard_bytes=8)
    assert written == [*(file.key for file in manifest.files), "runs/r/policy/000003-0002/manifest.json"]


def test_publishing_again_after_a_crash_in_between_succeeds(run_store: RunStore) -> None:
    manifest = publish(run_store, clock=lambda: 1.0)
    run_store.store.delete(["runs/r/policy/000003-0002/manifest.json"])
    assert publish(run_store, clock=lambda: 1.0) == manifest


def test_another_publisher_of_the_same_version_is_refused(run_store: RunStore) -> None:
    publish(run_store)
    with pytest.raises(PreconditionFailed, match="other contents"):
        publish(run_store, [("w", torch.ones(2))])
