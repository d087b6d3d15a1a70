"""The floor of a cell is that of its newest incarnation: a mended engine is not blamed for the one before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from driftline.divergence.diagnosis import CAUSES
from driftline.measured import NOTHING, DivergenceSummary
from driftline.records import Group, OffsetReport, StepRecord, decode, encode
from driftline.store.memory import MemoryStore
from driftline.store.trajectories import decode_object, encode_groups
from driftline.tracking import metrics
from driftline.training.batching import judge
from driftline.training.floors import CellFloor, floors_of
from driftline.training.members import MemberScore
from driftline.training.steering import FLOOR_MEMORY_STEPS, Steering, batch_divergence
from tests.support.records import step_record
from tests.support.training import GroupStream, group, new_run, outcome, parameters, trajectory
from tests.unit.training.test_steering import FAR, controlled, record, report, summary

GOOD, BAD = summary(1e-9), summary(1e-4)


def told(step: int, floors: dict[str, tuple[str, DivergenceSummary]]) -> StepRecord:
    """A step with these floors, each of an incarnation."""
    return replace(
        record(step, floors={cell: floor for cell, (_, floor) in floors.items()}),
        incarnations={cell: incarnation for cell, (incarnation, _) in floors.items()},
    )


def member_of(number: int, cell: str, key: str, incarnation: str) -> Group:
    member = replace(trajectory(number, 0, segments=((0, 5),)), cell=cell)
    return Group(number, "t", "v1", (member,), key, incarnation)


def test_of_two_incarnations_of_a_cell_the_one_with_the_newest_object_makes_its_floor():
    groups = [
        member_of(0, "c0", "c0/00000007.parquet", "old"),
        member_of(1, "c0", "c0/00000009.parquet", "new"),
        member_of(2, "c0", "c0/00000010.parquet", "new"),
        member_of(3, "c1", "c1/00000001.parquet", "other"),
    ]
    k3 = (1e-4, 1e-9, 3e-9, 5e-9)
    statistics = replace(outcome().statistics, by_sequence=tuple(summary(value, 2) for value in k3))
    for order in (groups, groups[::-1]):
        ordered = replace(statistics, by_sequence=tuple(statistics.by_sequence[one.number] for one in order))
        found = batch_divergence(order, ordered, version=5)
        assert found.floor_by_cell["c0"].k3 == pytest.approx(2e-9)
        assert dict(found.incarnations) == {"c0": "new", "c1": "other"}


def test_members_without_sampled_tokens_make_no_floor_and_no_incarnation():
    one = member_of(0, "c0", "k", "i")
    found = floors_of([(one, one.trajectories[0], NOTHING)])
    assert (found.by_cell, found.incarnations) == ({}, {})


def causes(steering: Steering, records: Sequence[StepRecord], reports: Sequence[OffsetReport]) -> list[str]:
    return [CAUSES[int(steering.judge(one, reports)[0].metrics[metrics.CAUSE])] for one in records]


def test_a_mended_engine_is_not_read_as_the_one_before():
    """With a deep lead no newer floor may come for a long time: the cell's report says that its engine is another."""
    before = [report("c0", incarnation="a"), report("c1", incarnation="b")]
    after = [report("c0", incarnation="a"), report("c1", incarnation="b2")]
    steering = Steering([], controlled())
    assert causes(steering, [told(1, {"c0": ("a", GOOD), "c1": ("b", BAD)})], before) == ["failed weight sync"]
    without = [told(step, {}) for step in range(2, 6)]
    assert causes(steering, without, before) == ["failed weight sync"] * 4
    assert causes(steering, [told(step, {}) for step in range(6, 9)], after) == ["healthy"] * 3


def test_a_floor_of_the_new_engine_takes_the_place_of_all_of_the_old_ones():
    steering = Steering([], controlled())
    bad = [told(step, {"c0": ("a", GOOD), "c1": ("b", BAD)}) for step in range(1, 5)]
    assert set(causes(steering, bad, ())) == {"failed weight sync"}
    mended = told(5, {"c0": ("a", GOOD), "c1": ("b2", GOOD)})
    assert causes(steering, [mended], ()) == ["healthy"], "not pooled with the window of the engine before"
    late = told(6, {"c0": ("a", GOOD), "c1": ("b", BAD)})
    assert causes(steering, [late], ()) == ["healthy"], "what the old engine had generated comes in late"
    assert causes(Steering([*bad, mended, late], controlled()), [told(7, {})], ()) == ["healthy"], "after a restart"


def test_an_engine_that_is_broken_again_is_named_again():
    steering = Steering([], controlled())
    first = told(1, {"c0": ("a", GOOD), "c1": ("b", GOOD)})
    broken = told(2, {"c0": ("a", GOOD), "c1": ("b2", BAD)})
    assert causes(steering, [first, broken], [report("c1", incarnation="b2")]) == ["healthy", "failed weight sync"]


def test_a_report_of_before_says_nothing_against_the_floor_of_the_new_engine():
    steering = Steering([], controlled())
    first = told(1, {"c0": ("a", GOOD), "c1": ("b", GOOD)})
    broken = told(2, {"c0": ("a", GOOD), "c1": ("b2", BAD)})
    assert causes(steering, [first, broken], [report("c1", incarnation="b")])[-1] == "failed weight sync"


def test_records_of_before_incarnations_were_told_apart_are_read_as_they_were():
    steering = Steering([], controlled())
    old = record(1, floors={"c0": GOOD, "c1": BAD})
    assert causes(steering, [old], [report("c1", incarnation="b")]) == ["failed weight sync"]


def test_groups_that_no_step_uses_are_of_an_incarnation_too():
    """What is scored and given up replaces the floor of its cell, unless it is of an engine that is gone."""
    steering = Steering([told(1, {"c0": ("a", GOOD), "c1": ("b", GOOD)})], controlled())

    def cause(incarnation: str, reported: str) -> str:
        member = replace(trajectory(9, 0, mask=(True,) * 4, segments=((0, 5),)), cell="c1")
        dropped = Group(9, "t", "v1", (member, replace(member, member=1)), "c1/00000003.parquet", incarnation)
        score = MemberScore(summary(4.0, 200), {0: summary(4.0, 200)})
        judged = judge(dropped, (score, score), version=5, policy=FAR)
        found = steering.diagnose_unused([judged], [report("c1", incarnation=reported)])
        assert found is not None
        return found.cause

    assert cause("b2", "b2") == "failed weight sync"
    assert cause("b2", "b") == "failed weight sync", "a report of before"
    assert cause("b", "b2") == "healthy", "its engine was replaced since"


def test_a_floor_is_forgotten_with_its_steps():
    floor = CellFloor("a", 2)
    for step in (1, 2, 3):
        floor.follow("a", step, summary(step * 1e-3))
    assert floor.pooled.k3 == pytest.approx(2.5e-3)
    assert floor.last_step == 3
    steering = Steering([told(1, {"c1": ("b", BAD), "c0": ("a", GOOD)})], controlled())
    last = FLOOR_MEMORY_STEPS + 1
    assert causes(steering, [told(step, {}) for step in range(2, last + 1)], ())[-2:] == [
        "failed weight sync",
        "healthy",
    ]


def test_a_group_says_which_start_of_its_cell_wrote_it():
    run_store = new_run(MemoryStore(), "r", parameters())
    key = GroupStream(run_store).write(group(0, [1.0, 0.0]))
    (found,) = run_store.new_groups()
    assert (found.key, found.incarnation) == (key, "i1")
    bare = decode_object(encode_groups("r", [found]), run="r", key=key)[0][0]
    assert bare.incarnation == "", "an object without an account"


def test_a_step_record_without_incarnations_is_still_one():
    body = encode(step_record(3, None)).replace(b'"incarnations":{},', b"", 1)
    assert b'"incarnations":{}' not in body
    assert decode(StepRecord, body).incarnations == {}
