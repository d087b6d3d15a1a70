from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from driftline.records import CellAccount, Group
from driftline.rollout.background import StoreThreads, cancel_and_wait
from driftline.rollout.writer import GroupWriter


class SlowStore:
    """Takes `append_groups`, and says when it is asked and when it may answer."""

    def __init__(self) -> None:
        self.objects: list[tuple[int, list[int]]] = []
        self.accounts: list[CellAccount] = []

    def append_groups(self, cell: str, sequence: int, groups: Sequence[Group], account: CellAccount) -> str:
        self.accounts.append(account)
        self.objects.append((sequence, [group.number for group in groups]))
        return f"{cell}/{sequence}"


class Inline(StoreThreads):
    """Calls of the store that take a turn of the event loop, until `hold` is cleared."""

    def __init__(self) -> None:
        super().__init__(1)
        self.free = asyncio.Event()
        self.free.set()

    async def run(self, call: Callable[..., Any], *arguments: Any) -> Any:
        await self.free.wait()
        return call(*arguments)


def group(number: int) -> Group:
    return Group(number, "task", "set", ())


def account(groups: Sequence[Group]) -> CellAccount:
    return CellAccount("c0", "i1", 0, 0, len(groups), len(groups), 0, 0, {})


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_what_gathers_while_an_object_is_written_shares_the_next_one() -> None:
    store, threads, written = SlowStore(), Inline(), list[int]()
    writer = GroupWriter(
        store,  # pyright: ignore[reportArgumentType]
        "c0",
        7,
        threads,
        is_urgent=lambda queued: True,
        account=account,
        on_written=lambda key, groups: written.extend(group.number for group in groups),
    )
    writing = asyncio.create_task(writer.write())
    threads.free.clear()
    writer.put(group(1))
    await settle()
    for number in (2, 3, 4):
        writer.put(group(number))
    await settle()
    assert store.objects == []
    threads.free.set()
    await writer.flush()
    assert store.objects == [(7, [1]), (8, [2, 3, 4])]
    assert written == [1, 2, 3, 4]
    await cancel_and_wait([writing])
    threads.close()


async def test_what_is_not_urgent_waits_for_company_and_flush_waits_for_nothing() -> None:
    store, threads, asked = SlowStore(), Inline(), list[int]()

    def is_urgent(queued: int) -> bool:
        asked.append(queued)
        return queued == 3

    writer = GroupWriter(
        store,  # pyright: ignore[reportArgumentType]
        "c0",
        0,
        threads,
        is_urgent=is_urgent,
        account=account,
        on_written=lambda key, groups: None,
    )
    writing = asyncio.create_task(writer.write())
    writer.put(group(1))
    writer.put(group(2))
    await settle()
    assert store.objects == []
    writer.put(group(3))
    await settle()
    assert store.objects == [(0, [1, 2, 3])]
    assert asked == [1, 2, 3]
    writer.put(group(4))
    await settle()
    assert len(store.objects) == 1
    await writer.flush()
    assert store.objects[1:] == [(1, [4])]
    await cancel_and_wait([writing])
    threads.close()


async def test_nothing_lingers_for_ever() -> None:
    store, threads = SlowStore(), Inline()
    writer = GroupWriter(
        store,  # pyright: ignore[reportArgumentType]
        "c0",
        0,
        threads,
        is_urgent=lambda queued: False,
        account=account,
        on_written=lambda key, groups: None,
    )
    writing = asyncio.create_task(writer.write())
    writer.put(group(1))
    async with asyncio.timeout(5.0):
        while not store.objects:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await cancel_and_wait([writing])
    threads.close()
