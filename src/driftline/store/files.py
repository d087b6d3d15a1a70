"""Directories of files (models, checkpoints) in the store, every file held by its SHA-256."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path, PurePosixPath

from driftline.errors import ConfigurationError, CorruptObject
from driftline.records import FileEntry, ModelSource
from driftline.store.protocol import ObjectStore

THREADS = 4


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def directory_digest(directory: Path) -> str:
    """One digest of a directory's contents: relative paths and bytes, nothing else (24 hexadecimal digits)."""
    lines = [f"{path.relative_to(directory).as_posix()}\0{file_digest(path)}\n" for path in _files(directory)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:24]


def upload_file(store: ObjectStore, key: str, path: Path) -> FileEntry:
    """Write one file to the store, whatever was under the key."""
    body = path.read_bytes()
    store.put(key, body)
    return FileEntry(key, len(body), hashlib.sha256(body).hexdigest())


def upload_directory(store: ObjectStore, prefix: str, directory: Path) -> tuple[FileEntry, ...]:
    """Write all files under a directory to the store, below `prefix` (which ends with a slash).

    The manifest that names them is the caller's, to be written after this has returned.

    Returns:
        The entries, sorted by key.

    Raises:
        ConfigurationError: There is no such directory, or it is empty.
    """
    paths = _files(directory)
    if not paths:
        raise ConfigurationError(f"{directory} is no directory with files in it")
    keys = [f"{prefix}{path.relative_to(directory).as_posix()}" for path in paths]
    with ThreadPoolExecutor(THREADS, "upload") as pool:
        entries = pool.map(partial(upload_file, store), keys, paths)
        return tuple(sorted(entries, key=lambda entry: entry.key))


def download(store: ObjectStore, entries: Iterable[FileEntry], prefix: str, directory: Path) -> None:
    """Bring files of the store into a directory, each under its key without `prefix`.

    A file that is there with the right digest is not fetched again. A file appears whole or not at all.

    Raises:
        CorruptObject: An object has another size or digest than its entry, or a key would leave the directory.
    """
    wanted = tuple(entries)
    targets = [_target(entry.key, prefix, directory) for entry in wanted]
    with ThreadPoolExecutor(THREADS, "download") as pool:
        deque(pool.map(partial(_fetch, store), wanted, targets), maxlen=0)


def local_model(store: ObjectStore, model: ModelSource, work_dir: Path) -> Path:
    """Bring a base model to this machine, below its scratch space; returns the model directory, absolute.

    Raises:
        CorruptObject: As `download`.
    """
    directory = (work_dir / "models" / model.digest).resolve()
    download(store, model.files, model.prefix, directory)
    return directory


def entry_of(key: str, body: bytes) -> FileEntry:
    """The entry of an object."""
    return FileEntry(key, len(body), hashlib.sha256(body).hexdigest())


def read_checked(store: ObjectStore, entry: FileEntry) -> bytes:
    """Read one object and compare it with its entry.

    Raises:
        CorruptObject: It has another size or digest.
    """
    body = store.get(entry.key).body
    digest = hashlib.sha256(body).hexdigest()
    if len(body) != entry.bytes or digest != entry.sha256:
        raise CorruptObject(
            f"{entry.key} has {len(body)} bytes with SHA-256 {digest[:12]}..., its manifest says {entry.bytes} "
            f"with {entry.sha256[:12]}...: it was damaged or overwritten"
        )
    return body


def _fetch(store: ObjectStore, entry: FileEntry, target: Path) -> None:
    if target.is_file() and target.stat().st_size == entry.bytes and file_digest(target) == entry.sha256:
        return
    body = read_checked(store, entry)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(body)
        Path(name).chmod(0o644)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _target(key: str, prefix: str, directory: Path) -> Path:
    relative = PurePosixPath(key.removeprefix(prefix))
    if not key.startswith(prefix) or relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise CorruptObject(f"{key} is no key below {prefix}")
    return directory / relative


def _files(directory: Path) -> Sequence[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())
