"""What a cell remembers of the objects that it has written."""

from __future__ import annotations

from driftline.rollout.written import WrittenObjects


def test_the_groups_of_a_damaged_object_are_given_out_once() -> None:
    written = WrittenObjects()
    written.note("a", range(2))
    written.note("b", [7])
    assert written.take(["another cell's", "a"]) == {"a": [0, 1]}
    assert written.take(["a", "b"]) == {"b": [7]}


def test_the_oldest_is_forgotten() -> None:
    written = WrittenObjects(remembered=2)
    for number, key in enumerate("abc"):
        written.note(key, [number])
    assert written.take("abc") == {"b": [1], "c": [2]}
