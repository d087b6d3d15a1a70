"""Whether what is trained on is what was generated: length, duration, and which tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import get_args

import pytest

from driftline.measured import Reason
from driftline.records import EpisodeCounts, GiveUp, GroupUse, MemberUse, StepRecord
from driftline.tracking.bias import GROUP, REMEDIES, Bias, find_bias
from driftline.tracking.samples import LARGEST_Z, deviation, weighted_mean, welch
from tests.support.tracking_records import step_record


def member(number: int, tokens: int, seconds: float, *, trained: bool = True, weight: float = 1.0) -> MemberUse:
    verdict, reason = ("keep", "") if trained else ("drop", "age")
    weight = weight if trained else 0.0
    return MemberUse(number, "c0", verdict, reason, weight, tokens, 0, seconds, (), turns=1 + tokens // 10)


def used(number: int, members: Sequence[MemberUse], *, task: str = "") -> GroupUse:
    return GroupUse(
        number, f"k{number}", 1, task or f"task-{number}", "v1", 1.0, len(members), len(members), 0.5, 0.5, 0.5, 0.0,
        0, 0, tuple(members), "chase/v1",
    )  # fmt: skip


def given_up(number: int, members: Sequence[MemberUse], *, task: str = "") -> GiveUp:
    return GiveUp(number, "stale: x", 0, f"k{number}", task or f"task-{number}", tuple(members), "chase/v1")


def record(groups: Sequence[GroupUse], give_ups: Sequence[GiveUp] = ()) -> StepRecord:
    made = step_record(1, previous_commit=0, batch_ready=1, train=(1, 2), committed=3, uses=groups)
    return replace(made, give_ups=tuple(give_ups))


def found(groups: Sequence[GroupUse], give_ups: Sequence[GiveUp] = ()) -> Bias:
    bias = find_bias([record(groups, give_ups)])
    assert bias is not None
    return bias


def test_figures_by_hand():
    bias = found([used(0, [member(0, 10, 1.0), member(1, 30, 3.0, weight=0.5), member(2, 50, 5.0, trained=False)])])
    tokens = bias.by_environment["chase/v1"]["tokens"]
    assert (tokens.trained, tokens.generated) == (2, 3)
    assert tokens.trained_mean == pytest.approx((10 + 15) / 1.5)
    assert tokens.generated_mean == pytest.approx(30.0)
    assert tokens.difference < 0
    assert tokens.z == 0.0, "one group says nothing"
    assert bias.left_out == {"age": 1}
    assert bias.warnings == []


@pytest.mark.parametrize("seed", range(20))
def test_no_alarm_where_members_are_left_out_at_random(seed: int):
    rng = Random(seed)
    groups = [
        used(n, [member(m, round(rng.lognormvariate(3, 1)) + 1, rng.lognormvariate(0, 1), trained=rng.random() < 0.8)
                 for m in range(8)])
        for n in range(100)
    ]  # fmt: skip
    assert found(groups).warnings == []


@pytest.mark.parametrize("seed", range(20))
def test_dropping_the_longest_members_is_said(seed: int):
    """tinker-cookbook#822, marin#8936: what comes late is long."""
    rng = Random(seed)
    groups: list[GroupUse] = []
    for n in range(100):
        tokens = [round(rng.lognormvariate(3, 1)) + 1 for _ in range(8)]
        longest = max(tokens)
        groups.append(used(n, [member(m, t, t / 10, trained=t < longest) for m, t in enumerate(tokens)]))
    warnings = found(groups).warnings
    assert any(w.startswith("trained episodes of chase/v1 have fewer tokens than generated ones") for w in warnings)
    assert any(w.startswith("trained episodes of the same tasks have fewer seconds") for w in warnings)
    assert warnings[-1].startswith("left out: ")
    assert "overlap.max_lag_versions" in warnings[-1]


@pytest.mark.parametrize("seed", range(20))
def test_tasks_that_are_slow_and_left_out_are_said(seed: int):
    rng = Random(seed)
    groups: list[GroupUse] = []
    gone: list[GiveUp] = []
    for n in range(120):
        task = n % 40
        slow = task % 4 == 0
        lost = slow and rng.random() < 0.6
        members = [member(m, 20, (4.0 if slow else 1.0) * rng.uniform(0.8, 1.2), trained=not lost) for m in range(8)]
        if lost:
            gone.append(given_up(n, members, task=f"t{task}"))
        else:
            groups.append(used(n, members, task=f"t{task}"))
    bias = found(groups, gone)
    assert bias.slow_tasks is not None
    assert bias.slow_tasks.other_share == 1.0
    assert bias.slow_tasks.slow_share < 0.7
    assert any(warning.startswith("slow tasks are trained on less") for warning in bias.warnings)
    assert not bias.by_environment["chase/v1"]["tokens"].biased, "all are as long"


def test_tasks_that_are_never_trained_on_are_named():
    members = [member(0, 5, 1.0, trained=False), member(1, 5, 1.0, trained=False)]
    bias = found([used(9, [member(0, 5, 1.0)])], [given_up(n, members, task="slow-one") for n in range(3)])
    assert bias.starved_tasks == ("slow-one",)
    assert "1 task is generated and never trained on: slow-one" in bias.warnings
    assert bias.warnings[-1] == (
        "left out: 6 x age (raise overlap.max_lag_versions or lower the lead (overlap.lead_groups))"
    )


@pytest.mark.parametrize(
    ("failures", "timeouts", "remedy", "others"),
    [
        (6, 6, "6 of 6 failed episodes ran out of time: raise environment.episode_deadline_s", False),
        (6, 4, "4 of 6 failed episodes ran out of time: raise environment.episode_deadline_s", True),
        (6, 0, "episodes that failed or were cut off: see `status`", True),
    ],
)
def test_what_failed_has_the_remedy_of_its_failure(failures: int, timeouts: int, remedy: str, others: bool):
    invalid = replace(member(0, 5, 1.0, trained=False), reason="invalid")
    lost = [given_up(n, [invalid, replace(invalid, member=1)], task="slow-one") for n in range(3)]
    made = replace(
        record([used(9, [member(0, 5, 1.0)])], lost), episodes={"chase/v1": EpisodeCounts(9, failures, timeouts)}
    )
    bias = find_bias([made])
    assert bias is not None
    last = bias.warnings[-1]
    assert last.startswith(f"left out: 6 x invalid ({remedy}")
    assert ("`reason` in the trajectories" in last) is others
    assert "max_lag_versions" not in last


def test_every_reason_has_a_remedy():
    assert {"", "invalid", *REMEDIES} == {*get_args(Reason), GROUP}


def test_records_without_members_say_nothing():
    assert find_bias([record([])]) is None
    assert find_bias([]) is None


def test_it_is_json():
    rng = Random(1)
    groups = [used(n, [member(0, 5, rng.random()), member(1, 50, 9.0, trained=False)]) for n in range(30)]
    text = json.dumps(found(groups).as_dict(), allow_nan=False)
    assert json.loads(text)["by_environment"]["chase/v1"]["tokens"]["z"] == -LARGEST_Z


def test_samples_by_hand():
    assert deviation([1.0, 3.0]) == pytest.approx(2**0.5)
    assert weighted_mean([1.0, 5.0], [3.0, 1.0]) == 2.0
    assert welch([1.0, 3.0], [5.0, 7.0], 2) == pytest.approx(-4 / 2**0.5)
    assert welch([1.0], [5.0, 7.0], 2) == 0.0
    assert welch([2.0, 2.0], [2.0, 2.0], 2) == 0.0
