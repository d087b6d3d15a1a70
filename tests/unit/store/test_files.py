"""Directories in the store: whole, checked, and never outside of where they belong."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from driftline.errors import ConfigurationError, CorruptObject, ObjectMissing
from driftline.records import FileEntry, ModelSource
from driftline.store.files import directory_digest, download, file_digest, local_model, upload_directory
from driftline.store.memory import MemoryStore


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    (folder / "deep").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "deep" / "weights.bin").write_bytes(bytes(range(256)) * 1000)
    (folder / "empty").write_bytes(b"")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_directory_comes_back_as_it_went(store: MemoryStore, model: Path, tmp_path: Path) -> None:
    entries = upload_directory(store, "models/x/", model)
    assert [e.key for e in entries] == ["models/x/config.json", "models/x/deep/weights.bin", "models/x/empty"]
    assert entries[0] == FileEntry("models/x/config.json", 2, hashlib.sha256(b"{}").hexdigest())
    download(store, entries, "models/x/", tmp_path / "copy")
    assert contents(tmp_path / "copy") == contents(model)


def test_a_base_model_lies_under_its_digest_wherever_a_process_goes_later(
    store: MemoryStore, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = upload_directory(store, "models/0123/", model)
    source = ModelSource("0123", "models/0123/", entries, tied_embeddings=False)
    monkeypatch.chdir(tmp_path)
    found = local_model(store, source, Path("scratch"))
    assert found == tmp_path / "scratch" / "models" / "0123"
    assert contents(found) == contents(model)


def test_the_digest_of_a_directory_is_of_names_and_bytes(model: Path, tmp_path: Path) -> None:
    before = directory_digest(model)
    (model / "empty").touch()
    assert directory_digest(model) == before
    (model / "empty").rename(model / "renamed")
    renamed = directory_digest(model)
    (model / "config.json").write_text("{ }")
    assert len({before, renamed, directory_digest(model)}) == 3


def test_what_is_there_already_is_not_fetched_again(store: MemoryStore, model: Path, tmp_path: Path) -> None:
    entries = upload_directory(store, "m/", model)
    copy = tmp_path / "copy"
    download(store, entries, "m/", copy)
    store.delete([entries[1].key])
    download(store, entries, "m/", copy)
    (copy / "deep" / "weights.bin").write_bytes(bytes(256_000))
    with pytest.raises(ObjectMissing):
        download(store, entries, "m/", copy)


@pytest.mark.parametrize("damage", [b"[]", b"{}x", b""])
def test_a_damaged_object_is_refused_and_leaves_no_file(
    store: MemoryStore, model: Path, tmp_path: Path, damage: bytes
) -> None:
    entries = upload_directory(store, "m/", model)
    store.put("m/config.json", damage)
    with pytest.raises(CorruptObject, match=r"m/config\.json has"):
        download(store, entries[:1], "m/", tmp_path / "copy")
    assert contents(tmp_path / "copy") == {}


@pytest.mark.parametrize("key", ["m/../outside", "n/config.json", "m//etc/passwd", "m/"])
def test_a_key_that_leaves_the_directory_is_refused(
    store: MemoryStore, model: Path, tmp_path: Path, key: str
) -> None:
    entry = upload_directory(store, "m/", model)[0]
    store.put(key, store.get(entry.key).body)
    with pytest.raises(CorruptObject, match="is no key below m/"):
        download(store, [replace(entry, key=key)], "m/", tmp_path / "copy")
    assert not (tmp_path / "outside").exists()


def test_a_directory_without_files_is_refused(store: MemoryStore, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigurationError, match="is no directory with files in it"):
            upload_directory(store, "m/", folder)


def test_a_large_file_has_the_digest_of_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * 3_000_001)
    assert file_digest(path) == hashlib.sha256(b"x" * 3_000_001).hexdigest()
