"""Many episodes that are woken at once go on in slices, in order; one alone does not wait."""

from __future__ import annotations

import asyncio
import gc

from driftline.rollout.fairness import Slices, settled_heap


async def test_a_few_go_on_in_each_round_and_what_is_due_meanwhile_runs_between():
    slices, passed, seen = Slices(most=4), list[int](), list[int]()

    async def episode(number: int) -> None:
        await slices.turn()
        passed.append(number)

    tasks = [asyncio.create_task(episode(number)) for number in range(20)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        seen.append(len(passed))
    assert passed == [*range(20)], "in the order of their coming"
    steps = [after - before for before, after in zip([0, *seen], seen, strict=False)]
    assert max(steps) == 4
    assert len(seen) <= 14, "and none waits without need"


async def test_one_alone_goes_on_at_once():
    slices = Slices(most=1)
    for _ in range(3):
        turn = slices.turn()
        try:
            turn.send(None)
        except StopIteration:
            await asyncio.sleep(0)
            continue
        raise AssertionError("it waited")


async def test_who_comes_later_does_not_overtake_those_that_wait():
    slices, passed = Slices(most=2), list[str]()

    async def episode(name: str) -> None:
        await slices.turn()
        passed.append(name)

    first = [asyncio.create_task(episode(f"a{number}")) for number in range(5)]
    await asyncio.sleep(0)
    late = [asyncio.create_task(episode(f"b{number}")) for number in range(3)]
    await asyncio.gather(*first, *late)
    assert passed == ["a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2"]


async def test_who_is_cancelled_while_it_waits_holds_nobody_up():
    slices, passed = Slices(most=1), list[int]()

    async def episode(number: int) -> None:
        await slices.turn()
        passed.append(number)

    tasks = [asyncio.create_task(episode(number)) for number in range(6)]
    await asyncio.sleep(0)
    for number in (1, 2, 5):
        tasks[number].cancel()
    async with asyncio.timeout(5.0):
        await asyncio.gather(*tasks, return_exceptions=True)
        assert passed == [0, 3, 4]
        await slices.turn()
        await slices.turn()


def test_the_collector_of_garbage_looks_at_what_is_new_alone():
    before = [[] for _ in range(1000)]
    frozen = gc.get_freeze_count()
    with settled_heap():
        assert gc.get_freeze_count() > frozen + 1000
        assert not any(one is before for one in gc.get_objects())
        inside = [[]]
        assert any(one is inside for one in gc.get_objects())
    assert gc.get_freeze_count() == 0
    assert any(one is before for one in gc.get_objects())
