"""Time to a trainable batch, by cause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.records import EpisodeSeconds, Group
from driftline.tracking.critical_path import attribute
from driftline.tracking.metrics import CAUSES
from tests.support.tracking_records import group, trajectory

PHASES = EpisodeSeconds(queued=1, resetting=1, prefilling=1, decoding=3, in_tools=1, in_reward=1)


def batch() -> list[Group]:
    """Two groups of one member: one from 101 to 105, the last from 102 to 110."""
    return [group(trajectory(101, 105)), group(trajectory(102, 110, seconds=PHASES, group=1))]


def test_with_stragglers_by_hand() -> None:
    parts = attribute(100, 112, batch(), applied_unix=101, straggler_share=0.5)
    assert parts == pytest.approx(
        {
            "apply": 1,  # 100 to 101: the engine took up the weights
            "queue": 1 + 2 / 6,  # 101 to 102, and its share of 103 to 105
            "reset": 1,  # 102 to 103
            "prefill": 2 / 6,
            "decode": 1,
            "tool": 2 / 6,
            "straggler": 5,  # 105, when half the batch was there, to 110
            "reward": 0,  # 109 to 110 lies within the straggling
            "publish": 2,
            "admission": 0,
            "trainer": 0,
        }
    )


def test_without_stragglers_the_run_of_the_last_member_is_split_by_its_phases() -> None:
    parts = attribute(100, 112, batch(), applied_unix=101, straggler_share=1.0)
    assert parts == pytest.approx(
        {
            "apply": 1,
            "queue": 2,
            "reset": 1,
            "prefill": 1,
            "decode": 3,
            "tool": 1,
            "straggler": 0,
            "reward": 1,
            "publish": 2,
            "admission": 0,
            "trainer": 0,
        }
    )


def test_scoring_and_a_trainer_that_is_not_there_yet_are_not_publishing() -> None:
    """The last member ends at 110; the trainer waits from 110.5 on, and scores from 111 to 111.25, twice told."""
    scoring = [(105.0, 106.0), (110.0, 110.6), (111.0, 111.2), (111.1, 111.25), (111.9, 115.0)]
    parts = attribute(100, 112, batch(), applied_unix=101, wait_begin=110.5, admission=scoring)
    assert parts["trainer"] == pytest.approx(0.5)
    assert parts["admission"] == pytest.approx(0.1 + 0.25 + 0.1)
    assert parts["publish"] == pytest.approx(2 - 0.5 - 0.45)
    assert sum(parts.values()) == pytest.approx(12)


def test_a_batch_that_was_there_cost_what_the_trainer_did_before_it_waited() -> None:
    parts = attribute(120, 121, batch(), wait_begin=120.75)
    assert {cause: value for cause, value in parts.items() if value} == {"trainer": 0.75, "publish": 0.25}


def test_phases_are_scaled_to_the_members_run() -> None:
    half = EpisodeSeconds(queued=0.5, resetting=0.5, prefilling=0.5, decoding=1.5, in_tools=0.5, in_reward=0.5)
    whole = [group(trajectory(102, 110, seconds=PHASES))]
    scaled = [group(trajectory(102, 110, seconds=half))]
    assert attribute(100, 112, scaled, straggler_share=1.0) == pytest.approx(
        attribute(100, 112, whole, straggler_share=1.0)
    )


def test_a_run_that_began_before_the_commit_counts_from_the_commit_on() -> None:
    parts = attribute(104, 112, batch(), applied_unix=104.5, straggler_share=1.0)
    assert parts["apply"] == parts["reset"] == 0
    assert parts["reward"] == 1
    assert parts["decode"] == pytest.approx(5 * 3 / 6)
    assert sum(parts.values()) == pytest.approx(8)


def test_without_the_acknowledgement_waiting_is_queueing() -> None:
    parts = attribute(100, 112, batch())
    assert (parts["apply"], parts["queue"]) == (0, pytest.approx(2 + 1))


def test_a_batch_that_was_there_before_the_commit_cost_only_its_reading() -> None:
    parts = attribute(120, 120.5, batch())
    assert parts == {cause: 0.5 if cause == "publish" else 0 for cause in CAUSES}
    assert sum(attribute(120, 119, batch()).values()) == 0


def test_a_member_without_measured_phases_was_decoding() -> None:
    parts = attribute(100, 112, [group(trajectory(102, 110))], straggler_share=1.0)
    assert (parts["decode"], parts["queue"], parts["publish"]) == (8, 2, 2)


def test_an_empty_batch_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no member"):
        attribute(0, 1, [])


SECONDS = st.floats(0, 50, allow_nan=False)
MEMBERS = st.builds(
    lambda start, length, parts: trajectory(1.8e9 + start, 1.8e9 + start + length, seconds=EpisodeSeconds(*parts)),
    SECONDS,
    st.floats(-30, 50, allow_nan=False),  # below 0 where the clock was set back meanwhile
    st.tuples(*[st.floats(0, 20)] * 6),
)


@given(
    members=st.lists(MEMBERS, min_size=1, max_size=12),
    previous=st.floats(-60, 60),
    length=st.floats(-20, 120),
    applied=st.none() | st.floats(-10, 80),
    begun=st.none() | st.floats(-10, 130),
    scoring=st.lists(st.tuples(st.floats(-10, 130), st.floats(-10, 130)), max_size=6),
    share=st.floats(0.01, 1),
)
def test_every_instant_goes_to_one_cause(
    members: list,
    previous: float,
    length: float,
    applied: float | None,
    begun: float | None,
    scoring: list[tuple[float, float]],
    share: float,
) -> None:
    start, end = 1.8e9 + previous, 1.8e9 + previous + length
    acknowledged = None if applied is None else start + applied
    parts = attribute(
        start,
        end,
        [group(*members)],
        applied_unix=acknowledged,
        wait_begin=None if begun is None else start + begun,
        admission=[(start + first, start + last) for first, last in scoring],
        straggler_share=share,
    )
    assert list(parts) == list(CAUSES)
    assert min(parts.values()) >= 0
    assert sum(parts.values()) == pytest.approx(max(0.0, end - start), abs=1e-5)
