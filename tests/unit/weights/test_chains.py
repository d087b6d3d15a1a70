"""Anchors and deltas through the store: what a reader ends up with, whatever it held and whatever is broken."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from driftline.errors import CorruptObject, ObjectMissing, PublishRefused
from driftline.records import Chain, FileEntry, PolicyVersion, Probe, WeightsManifest, encode
from driftline.store import keys
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from driftline.weights.assemble import assemble, assemble_onto, chain_to
from driftline.weights.chain import REQUEST_BYTES, anchor_due, extended, reader_cost
from driftline.weights.publisher import NothingChanged, WeightsPublisher
from driftline.weights.tensors import HeldWeights, tensor_digest

PROBE = Probe((1, 2), (-1.0,))
SHAPES = {"embed": (400, 100), "norm": (100,), "deep": (300, 100)}


class Trainer:
    """Weights that change a little at every step, and their publisher."""

    def __init__(self, store: MemoryStore | None = None, dtype: str = "bfloat16", **options: object) -> None:
        self.run_store = RunStore(store or MemoryStore(), "r")
        generator = torch.Generator().manual_seed(0)
        self.tensors = {name: torch.randn(*shape, generator=generator) for name, shape in SHAPES.items()}
        self.publisher = WeightsPublisher(
            self.run_store,
            dtype=dtype,  # pyright: ignore[reportArgumentType]
            **{"chain_factor": 20.0, **options},  # pyright: ignore[reportArgumentType]
        )
        self.manifests: list[WeightsManifest] = []
        self.versions: list[dict[str, Tensor]] = []
        self._dtype = getattr(torch, dtype)

    def step(self, share: float = 0.01, names: tuple[str, ...] = ("embed", "deep")) -> None:
        """Change a share of the elements, in place, as an optimizer does."""
        generator = torch.Generator().manual_seed(len(self.versions))
        for name in names:
            mask = torch.rand(self.tensors[name].shape, generator=generator) < share
            self.tensors[name][mask] *= 1.25

    def publish(self, *, expect_change: bool = True, epoch: int = 1) -> WeightsManifest:
        manifest = self.publisher.publish(
            self.tensors.items(),
            version=PolicyVersion(len(self.manifests), epoch),
            probe=PROBE,
            previous=self.manifests[-1] if self.manifests else None,
            expect_change=expect_change and bool(self.manifests),
        )
        self.manifests.append(manifest)
        self.versions.append({name: tensor.to(self._dtype, copy=True) for name, tensor in self.tensors.items()})
        return manifest

    def run(self, versions: int) -> Trainer:
        for _ in range(versions):
            self.publish()
            self.step()
        return self

    def held(self, number: int) -> HeldWeights:
        tensors = {name: tensor.clone() for name, tensor in self.versions[number].items()}
        return HeldWeights(self.manifests[number], tensors)

    def holds(self, tensors: dict[str, Tensor], number: int) -> bool:
        wanted = self.versions[number]
        return tensors.keys() == wanted.keys() and all(torch.equal(tensors[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_late_reader_comes_to_every_version_of_a_long_chain(dtype: str) -> None:
    trainer = Trainer(dtype=dtype).run(9)
    assert [manifest.kind for manifest in trainer.manifests] == ["anchor"] + ["delta"] * 8
    for number, manifest in enumerate(trainer.manifests):
        assert trainer.holds(assemble(trainer.run_store.store, manifest), number)
        assert set(manifest.tensors) == set(SHAPES), "every tensor has its digest, changed or not"
        assert {n: tensor_digest(t) for n, t in trainer.versions[number].items()} == dict(manifest.tensors)


def test_a_delta_holds_what_changed_and_says_how_much() -> None:
    trainer = Trainer().run(3)
    before, manifest = trainer.manifests[1:]
    changed = {n: int((trainer.versions[1][n] != trainer.versions[2][n]).sum()) for n in SHAPES}
    assert manifest.changed_elements == sum(changed.values()) > 0
    assert manifest.elements == sum(tensor.numel() for tensor in trainer.tensors.values())
    assert (manifest.base, before.base) == (before.version, trainer.manifests[0].version)
    entries = load(trainer.run_store.store.get(manifest.files[0].key).body)
    assert set(entries) == {"embed:u8", "embed:values", "deep:u8", "deep:values"}
    assert [entries[f"{name}:values"].numel() for name in ("embed", "deep")] == [changed["embed"], changed["deep"]]
    assert entries["embed:values"].dtype == torch.bfloat16
    assert manifest.tensors["norm"] == before.tensors["norm"]
    size = manifest.files[0].bytes
    assert manifest.chain == Chain(trainer.manifests[0].files[0].bytes, before.files[0].bytes + size, 2)


@pytest.mark.parametrize(("start", "end", "deltas"), [(0, 1, 1), (0, 6, 6), (3, 6, 3), (6, 6, 0)])
def test_versions_may_be_skipped_and_one_applied_twice_changes_nothing(start: int, end: int, deltas: int) -> None:
    """prime-rl#1667, #1671."""
    trainer = Trainer().run(7)
    before = trainer.versions[start]
    fetched = count_gets(trainer)
    found = assemble_onto(trainer.run_store.store, trainer.manifests[end], trainer.held(start))
    assert trainer.holds(found.held.tensors, end)
    assert found.held.manifest == trainer.manifests[end]
    assert found.deltas == deltas
    assert len(fetched) == max(0, 2 * deltas - 1), "the deltas, and the manifests between: never the anchor"
    for name in SHAPES:
        differs = (before[name] != trainer.versions[end][name]).flatten().nonzero().flatten().tolist()
        indices = found.changed.get(name)
        assert (indices is None) == (differs == [])
        assert set(differs) <= set([] if indices is None else indices.tolist())
    again = assemble_onto(trainer.run_store.store, trainer.manifests[end], found.held)
    assert (again.held, dict(again.changed), again.deltas) == (found.held, {}, 0)


def count_gets(trainer: Trainer) -> list[str]:
    """The keys read from now on."""
    fetched: list[str] = []
    store = trainer.run_store.store
    get = store.get

    def noting(key: str) -> object:
        fetched.append(key)
        return get(key)

    store.get = noting  # pyright: ignore[reportAttributeAccessIssue]
    return fetched


def test_an_older_version_and_one_behind_a_new_anchor_come_from_their_anchors() -> None:
    trainer = Trainer().run(3)
    trainer.step(1.0, tuple(SHAPES))
    trainer.publish()
    trainer.step(0.01, ("norm",))
    trainer.publish()
    assert [manifest.kind for manifest in trainer.manifests] == ["anchor", "delta", "delta", "anchor", "delta"]
    older = assemble_onto(trainer.run_store.store, trainer.manifests[1], trainer.held(4))
    assert trainer.holds(older.held.tensors, 1)
    newer = assemble_onto(trainer.run_store.store, trainer.manifests[4], trainer.held(1))
    assert trainer.holds(newer.held.tensors, 4)
    assert newer.deltas == 1


def test_behind_an_anchor_only_tensors_that_differ_count_as_changed() -> None:
    trainer = Trainer().run(1)
    trainer.publish()
    trainer.publisher = WeightsPublisher(trainer.run_store, dtype="bfloat16", chain_factor=20.0)
    trainer.step(0.01, ("deep",))
    assert trainer.publish().kind == "anchor", "a publisher that does not know the version before"
    found = assemble_onto(trainer.run_store.store, trainer.manifests[-1], trainer.held(1))
    assert found.changed == {"deep": None}


def damage(store: MemoryStore, manifest: WeightsManifest, how: str) -> None:
    """Break one link of a chain in the store."""
    key, manifest_key = manifest.files[0].key, keys.policy_manifest(manifest.run, manifest.version)
    body = store.get(key).body
    match how:
        case "missing object":
            store.delete([key])
        case "missing manifest":
            store.delete([manifest_key])
        case "truncated object":
            store.put(key, body[:-1])
        case "flipped bit":
            store.put(key, body[:-1] + bytes([body[-1] ^ 1]))
        case "truncated manifest":
            store.put(manifest_key, encode(manifest)[:-9])
        case "newer manifest":
            store.put(manifest_key, json.dumps({**json.loads(encode(manifest)), "format": 2}).encode())
        case "another run's manifest":
            store.put(manifest_key, encode(replace(manifest, run="other")))
        case "another version's manifest":
            store.put(manifest_key, encode(replace(manifest, version=PolicyVersion(77, 1))))
        case "upward chain":
            store.put(manifest_key, encode(replace(manifest, base=PolicyVersion(9, 1))))
        case _:
            rewrite(store, manifest, how)


def rewrite(store: MemoryStore, manifest: WeightsManifest, how: str) -> None:
    """Replace a delta's object by another whose digest the manifest knows: only the contents are wrong."""
    import hashlib

    key = manifest.files[0].key
    entries = load(store.get(key).body)
    said = {"driftline": "delta/1", "run": "r", "version": str(manifest.version), "base": str(manifest.base)}
    match how:
        case "another run's object":
            said["run"] = "other"
        case "another version's object":
            said["version"] = "000001-0001"
        case "newer object":
            said["driftline"] = "delta/2"
        case "wrong value":
            entries["deep:values"][0] += 1
        case "index too far":
            entries["embed:u8"] = torch.full_like(entries["embed:u8"], 254)
        case "foreign key":
            key = f"runs/other/policy/{manifest.version}/delta-00000.safetensors"
    body = save(entries, said)
    store.put(key, body)
    entry = FileEntry(key, len(body), hashlib.sha256(body).hexdigest())
    store.put(keys.policy_manifest("r", manifest.version), encode(replace(manifest, files=(entry,))))


DAMAGES = {
    "missing object": (ObjectMissing, "delta-00000"),
    "missing manifest": (ObjectMissing, "builds upon 000003-0001, which is gone"),
    "truncated object": (CorruptObject, "its manifest says"),
    "flipped bit": (CorruptObject, "its manifest says"),
    "truncated manifest": (CorruptObject, "truncated or overwritten"),
    "newer manifest": (CorruptObject, "newer format 2, .*: upgrade"),
    "another run's manifest": (CorruptObject, "belongs to run 'other'"),
    "another version's manifest": (CorruptObject, "describes version 000077"),
    "upward chain": (CorruptObject, "must be of an older version"),
    "another run's object": (CorruptObject, "of run 'other'"),
    "another version's object": (CorruptObject, "belongs to version 000001-0001"),
    "newer object": (CorruptObject, "upgrade driftline"),
    "wrong value": (CorruptObject, "tensor 'deep' has SHA-256"),
    "index too far": (CorruptObject, "version 000003-0001 does not fit 000002-0001"),
    "foreign key": (CorruptObject, "which is not its own"),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_broken_link_is_named_and_never_a_wrong_weight(how: str) -> None:
    trainer = Trainer().run(6)
    store = trainer.run_store.store
    assert isinstance(store, MemoryStore)
    damage(store, trainer.manifests[3], how)
    error, said = DAMAGES[how]
    last = trainer.manifests[5]
    for held in (None, trainer.held(1)):
        with pytest.raises(error, match=said):
            assemble_onto(store, last, held)
    assert trainer.holds(assemble_onto(store, last, trainer.held(3)).held.tensors, 5), "the link is behind it"
    assert trainer.holds(assemble(store, trainer.manifests[2]), 2)


def test_what_is_held_and_wrong_is_replaced_from_the_anchor() -> None:
    trainer = Trainer().run(4)
    held = trainer.held(2)
    held.tensors["embed"][0] += 1
    found = assemble_onto(trainer.run_store.store, trainer.manifests[3], held)
    assert trainer.holds(found.held.tensors, 3)
    assert found.deltas == 3
    assert dict(found.changed) == dict.fromkeys(SHAPES), "everything must be loaded again"


def test_deltas_are_published_until_a_late_reader_would_pay_too_much() -> None:
    trainer = Trainer(chain_factor=2.0, store=MemoryStore())
    for name in ("embed", "deep"):
        trainer.tensors[name] = torch.randn(600, 1000)
    trainer.run(24)
    kinds = "".join(manifest.kind[0] for manifest in trainer.manifests)
    chains = [len(part) for part in kinds.split("a")[1:]]
    assert chains[0] >= 5
    assert all(abs(length - chains[0]) <= 1 for length in chains[:-1])
    for manifest in trainer.manifests:
        assert manifest.chain is not None
        assert reader_cost(manifest.chain) <= 2.0 * reader_cost(Chain(manifest.chain.anchor_bytes))


def test_the_anchor_rule_by_hand() -> None:
    megabyte = 2**20
    chain = Chain(100 * megabyte)
    assert anchor_due(chain, 75 * megabyte) == ""
    assert "2.01 times an anchor, 2 is allowed" in anchor_due(Chain(100 * megabyte, 99 * megabyte, 1), 2 * megabyte)
    assert "saves too little" in anchor_due(chain, 76 * megabyte, factor=10)
    lengths: dict[int, int] = {}
    for size in (100 * megabyte, megabyte):
        chain, lengths[size] = Chain(size), 0
        while not anchor_due(chain, size // 100):
            chain = extended(chain, size // 100)
            lengths[size] += 1
    assert lengths == {100 * megabyte: 89, megabyte: 8}, "requests weigh more where the model is small"
    assert reader_cost(Chain(megabyte, 5, 2)) == megabyte + 5 + 6 * REQUEST_BYTES


def test_a_step_that_changes_nothing_is_refused_and_the_next_version_is_an_anchor() -> None:
    """verl#7495: frozen weights sent again and again, bit-identical."""
    trainer = Trainer().run(2)
    trainer.publish()
    with pytest.raises(NothingChanged, match="bit-identical to those of 000002-0001"):
        trainer.publish()
    with pytest.raises(ObjectMissing):
        trainer.run_store.read_manifest(PolicyVersion(3, 1))
    assert issubclass(NothingChanged, PublishRefused)
    trainer.step()
    assert trainer.publish().kind == "anchor"


def test_at_learning_rate_zero_an_empty_delta_is_published() -> None:
    trainer = Trainer().run(1)
    trainer.publish()
    manifest = trainer.publish(expect_change=False)
    assert (manifest.kind, manifest.files, manifest.changed_elements) == ("delta", (), 0)
    assert trainer.holds(assemble(trainer.run_store.store, manifest), 2)
    found = assemble_onto(trainer.run_store.store, manifest, trainer.held(1))
    assert (dict(found.changed), found.held.manifest) == ({}, manifest)


def test_a_restarted_trainer_goes_on_with_deltas_from_weights_that_are_the_published_ones() -> None:
    trainer = Trainer().run(3)
    trainer.publish()
    trainer.publisher = WeightsPublisher(trainer.run_store, dtype="bfloat16", chain_factor=20.0)
    assert trainer.publisher.adopt(trainer.manifests[-1], trainer.tensors.items())
    trainer.step()
    assert trainer.publish(epoch=2).kind == "delta"
    assert trainer.holds(assemble(trainer.run_store.store, trainer.manifests[-1]), 4)
    trainer.publisher = WeightsPublisher(trainer.run_store, dtype="bfloat16", chain_factor=20.0)
    trainer.step()
    assert not trainer.publisher.adopt(trainer.manifests[-1], trainer.tensors.items())
    assert trainer.publish(epoch=3).kind == "anchor"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop("norm"), "'norm' of version 000001-0001 is missing"),
        (lambda tensors: tensors.update(extra=torch.ones(2)), "'extra' is not in version 000001-0001"),
        (lambda tensors: tensors.update(norm=torch.ones(50)), "'norm' is not in version 000001-0001, or in another"),
        (lambda tensors: tensors["norm"].fill_(float("nan")), "'norm' holds NaN"),
        (lambda tensors: tensors["deep"][0].fill_(float("inf")), "'deep' holds NaN or infinity"),
    ],
)
def test_tensors_that_do_not_follow_are_refused(change: object, said: str) -> None:
    trainer = Trainer().run(2)
    change(trainer.tensors)  # pyright: ignore[reportCallIssue]
    with pytest.raises(PublishRefused, match=said):
        trainer.publish()


def test_the_copy_is_no_alias_of_the_parameters() -> None:
    """In the same dtype on the host, a published tensor may be the parameter itself, which the next step changes."""
    trainer = Trainer(dtype="float32").run(5)
    assert [manifest.kind for manifest in trainer.manifests[1:]] == ["delta"] * 4
    assert trainer.holds(assemble(trainer.run_store.store, trainer.manifests[4]), 4)


def test_a_chain_is_read_back_from_the_version_asked_for() -> None:
    trainer = Trainer().run(5)
    store, manifests = trainer.run_store.store, trainer.manifests
    assert chain_to(store, manifests[4], None) == manifests
    assert chain_to(store, manifests[4], manifests[2]) == manifests[3:]
    assert chain_to(store, manifests[0], manifests[2]) == manifests[:1]
