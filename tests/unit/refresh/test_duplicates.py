"""Copies are found, exact or near, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from driftline.environment import Task
from driftline.refresh import duplicates
from environments.pointer_chase import PointerChase

FAMILY = PointerChase()
LIMIT = 0.8


def text_task(*words: str) -> Task:
    return Task.create("text/v1", {"prompt": " ".join(words)})


def numbered(count: int, seed: int = 0) -> list[str]:
    rng = Random(seed)
    return [f"w{rng.randrange(10**9)}" for _ in range(count)]


def found(
    proposed: Sequence[Task], held_out: Sequence[Task] = (), earlier: Sequence[Task] = ()
) -> duplicates.Distinct:
    return duplicates.distinct(proposed, held_out=held_out, earlier=earlier, limit=LIMIT)


def test_different_tasks_all_stay_in_order() -> None:
    tasks = FAMILY.generate(1, 300)
    assert found(tasks, FAMILY.generate(2, 50), FAMILY.generate(3, 50)).kept == tuple(tasks)


@pytest.mark.parametrize("where", ["held-out", "earlier", "proposals"])
def test_an_exact_copy_is_dropped_whatever_its_id(where: str) -> None:
    task, copy = FAMILY.generate(1, 1)[0], FAMILY.generate(1, 1)[0]
    copy = Task("another-id", copy.environment, dict(reversed([*copy.payload.items()])))
    result = found(
        [task, copy] if where == "proposals" else [copy],
        [task] if where == "held-out" else (),
        [task] if where == "earlier" else (),
    )
    assert [(one.of, one.where, one.similarity) for one in result.dropped] == [(task.id, where, 1.0)]


def test_a_near_copy_is_dropped_and_a_less_similar_task_stays() -> None:
    words = numbered(60)
    near, far = [*words[:59], "other"], [*words[:40], *numbered(20, seed=1)]
    result = found([text_task(*near), text_task(*far)], [text_task(*words)])
    assert [one.where for one in result.dropped] == ["held-out"]
    assert result.dropped[0].similarity == pytest.approx(58 / 60)
    assert result.kept == (text_task(*far),)


def test_of_several_that_are_alike_the_nearest_is_named_and_of_these_the_first() -> None:
    words = numbered(62)
    close = text_task(*words[:56], *numbered(4, seed=1))
    closer, as_close = (text_task(*words[:60], word) for word in ("other", "another"))
    for known, nearest in (
        ([close, closer, as_close], closer),
        ([as_close, closer, close], as_close),
        ([closer, close], closer),
    ):
        [dropped] = found([text_task(*words)], known).dropped
        assert dropped.of == nearest.id
        assert dropped.similarity == pytest.approx(59 / 62)


def test_a_task_that_is_exactly_at_the_limit_is_a_near_copy() -> None:
    """0.55 x 100 is above 55 in floating point; one shingle fewer in the index, and nothing is in common."""
    words = numbered(101)
    whole, part = text_task(*words), text_task(*words[:56])
    assert (len(duplicates.shingles(whole)), len(duplicates.shingles(part))) == (100, 55)
    result = duplicates.distinct([part], held_out=[whole], earlier=[], limit=0.55)
    assert [(one.of, one.similarity) for one in result.dropped] == [(whole.id, 0.55)]


def test_what_all_tasks_of_a_family_say_makes_none_of_them_alike() -> None:
    template = numbered(100)
    tasks = [text_task(*template, *numbered(4, seed)) for seed in range(1, 60)]
    assert found(tasks).dropped == ()


def test_short_tasks_are_alike_only_if_equal() -> None:
    tasks = [Task.create("sum/v1", {"a": a, "b": b}) for a in range(5) for b in range(5)]
    assert found(tasks).kept == tuple(tasks)


words = st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=12)


@settings(deadline=None, max_examples=150)
@given(st.lists(words, min_size=1, max_size=14), st.lists(words, max_size=4))
def test_it_finds_what_comparing_all_with_all_finds(proposed: list[list[str]], held_out: list[list[str]]) -> None:
    tasks, kept_out = [text_task(*one) for one in proposed], [text_task(*one) for one in held_out]
    result = found(tasks, kept_out)
    known = [duplicates.shingles(task) for task in kept_out]
    expected: list[Task] = []
    for task in tasks:
        own = duplicates.shingles(task)
        if all(duplicates.similarity(own, other) < LIMIT for other in known):
            expected.append(task)
            known.append(own)
    assert result.kept == tuple(expected)
    assert len(result.kept) + len(result.dropped) == len(tasks)
