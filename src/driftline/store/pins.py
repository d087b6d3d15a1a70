"""Pins: what a reader is reading must not be collected. A pin is a small object with a lease on the store's clock."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

from driftline.errors import CorruptObject
from driftline.records import FORMAT, PolicyVersion, decode, encode
from driftline.store import keys
from driftline.store.protocol import ObjectStore

logger = logging.getLogger(__name__)

PIN_S = 900.0
"""How long a pin holds if its reader dies; longer than any reader may take."""


@dataclass(frozen=True, slots=True)
class Pin:
    """What one reader needs. `expires_unix` is on the store's clock."""

    reader: str
    versions: tuple[PolicyVersion, ...]
    keys: tuple[str, ...]
    """Other objects."""
    expires_unix: float
    format: int = FORMAT


@contextmanager
def pinned(
    store: ObjectStore,
    run: str,
    reader: str,
    *,
    versions: Iterable[PolicyVersion] = (),
    objects: Iterable[str] = (),
    lease_s: float = PIN_S,
) -> Generator[None, None, None]:
    """Keep policy versions, with the chains that they need, and other objects from being collected meanwhile.

    Args:
        store: Where the run is.
        run: Its name.
        reader: Names the reader, uniquely among those that read at the same time.
        versions: Policy versions.
        objects: Keys of other objects.
        lease_s: Seconds (of the store's clock) for which the pin holds if it is not taken away.
    """
    key, pin = keys.pin(run, reader), Pin(reader, tuple(versions), tuple(objects), 0.0)
    now = store.put(key, encode(pin)).store_unix
    store.put(key, encode(Pin(reader, pin.versions, pin.keys, now + lease_s)))
    try:
        yield
    finally:
        store.delete([key])


def pins(store: ObjectStore, run: str) -> list[Pin]:
    """The pins that hold at the moment, by the store's clock.

    Raises:
        CorruptObject: A pin cannot be read: nobody can say what it keeps.
    """
    held: list[Pin] = []
    for info in store.list(keys.pins_prefix(run)):
        found = store.get(info.key)
        try:
            pin = decode(Pin, found.body, key=info.key)
        except CorruptObject as error:
            raise CorruptObject(f"{error}: delete it if its reader is gone") from None
        if pin.expires_unix >= found.store_unix:
            held.append(pin)
    return held
