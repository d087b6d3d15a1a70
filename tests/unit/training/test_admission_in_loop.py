"""Admission in the trainer's loop: who is scored, dropped, replaced; what is on record, and after a restart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from driftline.errors import LimitExceeded, LogprobsNotFinite
from driftline.records import Group, StepRecord, TokenLedger
from driftline.tracking import metrics
from driftline.tracking.bias import find_bias
from driftline.tracking.sink import NullSink
from driftline.training.resume import batch_of_record
from tests.support.trainer_bench import Bench, eager_cell, stopped_after, sync
from tests.support.training import OPEN, FakeGroup, group, parameters, trajectory

CURRENT = -0.5
"""What the policy gives every token: the log-probability with which `trajectory` samples."""
FAR = (0.0, -4.0, 0.0, -4.0)
"""Ratios of e^3.5: k3 of 28.6 nats a token."""
LESS_FAR = (0.0, -1.5, 0.0, -1.5)
"""Ratios of e: k3 of e - 2 = 0.718 nats a token, between the two limits."""
LIMITS = {"down_weight_k3_nats": 0.3, "drop_k3_nats": 1.0}


def with_logprobs(one: Group, **logprobs: tuple[float, ...]) -> Group:
    """The group with other log-probabilities for some members: `m1=...` of member 1."""
    members = [
        replace(member, logprobs=logprobs.get(f"m{member.member}", member.logprobs)) for member in one.trajectories
    ]
    return replace(one, trajectories=tuple(members))


def bench_of(cell: Any = lambda bench: None, **sections: Any) -> Bench:
    bench = Bench(sync(training={"steps": 1}, **{"admission": LIMITS, **sections}), cell)
    bench.group = FakeGroup(CURRENT)
    return bench


def once(*groups: Group) -> Any:
    return lambda bench: bench.finish(*groups) if not bench.sequence else None


def the_step(bench: Bench) -> StepRecord:
    bench.loop().run()
    return bench.run_store.steps()[-1]


def ledger_of(record: StepRecord) -> TokenLedger:
    assert record.ledger is not None
    assert record.ledger.imbalance == 0
    return record.ledger


def test_a_far_member_is_dropped_a_less_far_one_weighs_less_and_baselines_stay():
    mixed = with_logprobs(group(0, [1, 0, 1, 0]), m1=FAR, m2=LESS_FAR)
    bench = bench_of(once(mixed, group(1, [1, 0, 0, 1])))
    record = the_step(bench)
    uses = record.groups[0].uses
    assert [(use.verdict, use.reason) for use in uses] == [
        ("keep", ""),
        ("drop", "k3"),
        ("down_weight", "k3"),
        ("keep", ""),
    ]
    weight = 0.3 / (math.e - 2)
    assert [use.weight for use in uses] == pytest.approx([1.0, 0.0, weight, 1.0])
    plain = 3**0.5 / 2
    assert bench.group.batches[0].advantages_N.tolist()[:4] == pytest.approx([plain, 0.0, plain * weight, -plain])
    assert [use.trained_tokens for use in uses] == [2, 0, 2, 2]
    assert uses[1].segments[0].k3 == pytest.approx(math.exp(3.5) - 4.5)
    assert (uses[1].segments[0].start, uses[1].segments[0].version, uses[1].segments[0].tokens) == (0, 0, 2)
    assert uses[0].seconds == 10.0
    ledger = ledger_of(record)
    assert (ledger.trained, ledger.stale, ledger.stale_by) == (14, 2, {"k3": 2})
    assert record.metrics[metrics.ADMISSION_DROPPED_SHARE] == 2 / 16
    assert record.metrics[metrics.ADMISSION_DROPPED["k3"]] == 1
    assert record.metrics[metrics.ADMISSION_DOWN_WEIGHTED_SHARE] == 2 / 16
    assert record.metrics[metrics.LEDGER_STALE["k3"]] == 2
    near = (math.e - 2) * 2 / 14
    assert record.metrics[metrics.TRAINED_K3] == pytest.approx(near), "without the dropped member"
    assert record.metrics[metrics.TRAINED_ESS_FRACTION] == pytest.approx(
        (12 + 2 * math.e) ** 2 / (14 * (12 + 2 * math.e**2))
    )


def test_a_far_group_is_given_up_and_replaced_at_once():
    """What is dropped is not waited for: HEAD moves, and the cell starts another."""
    heads: list[tuple[int, tuple[int, ...]]] = []

    def cell(bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        heads.append((head.spent, head.given_up))
        if not bench.sequence:
            far = with_logprobs(group(0, [1, 0, 1]), m0=FAR, m2=FAR)
            bench.finish(far, group(1, [1, 0, 1]))
        elif head.spent == 1 and bench.sequence == 1:
            bench.finish(group(2, [1, 0, 0]))

    record = the_step(bench_of(cell))
    assert heads[-1] == (1, (0,))
    assert [use.group for use in record.groups] == [1, 2]
    (give_up,) = record.give_ups
    assert give_up.reason.startswith("divergence: 1 of 3 members admitted; dropped 2 x k3 (largest 28.6 nats")
    assert give_up.task_id == "task-0"
    assert [use.weight for use in give_up.uses] == [0.0, 0.0, 0.0]
    assert [use.verdict for use in give_up.uses] == ["drop", "keep", "drop"]
    assert give_up.uses[0].segments[0].k3 == pytest.approx(math.exp(3.5) - 4.5)
    ledger = ledger_of(record)
    assert ledger.stale_by == {"group": 2, "k3": 4}
    assert (ledger.stale, ledger.failed) == (6, 0)
    assert record.metrics[metrics.GROUPS_DIVERGED] == 1


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_number_that_is_none_fails_its_member_and_never_the_run(bad: float):
    spoilt = with_logprobs(group(0, [1, 0, 1]), m1=(0.0, bad, 0.0, -0.5))
    bench = bench_of(once(spoilt, group(1, [1, 0])))
    record = the_step(bench)
    assert [use.reason for use in record.groups[0].uses] == ["", "not_finite", ""]
    assert record.groups[0].valid_members == 2
    assert record.groups[0].weight == 0.0, "those that are left have the same reward"
    assert bench.group.batches[0].sequences == 4
    assert ledger_of(record).failed == 2


def test_a_member_the_current_policy_has_no_number_for_is_in_no_statistic():
    """The trainer's own forward pass fails on one sequence: that one is left out before the step."""
    unscorable = trajectory(0, 1, reward=0.0, logprobs=(0.0, -1e307, 0.0, -1e307), finished=5.0)
    assert unscorable.valid, "as it was sampled there is nothing wrong with it"
    first, _, third = group(0, [1, 0, 0]).trajectories
    mixed = Group(0, "task-0", "v1", (first, unscorable, third))
    bench = bench_of(once(mixed, group(1, [1, 0])))
    bench.group.current = None
    measure = bench.group.measure

    def fails_on_one(batch: Any) -> Any:
        found = measure(batch)
        lowest = [float(values.min()) for values in batch.behaviour_S.split(batch.lengths_N.tolist())]
        spoilt = [
            replace(one, k3=math.nan) if low < -1e300 else one
            for one, low in zip(found.by_sequence, lowest, strict=True)
        ]
        return replace(found, by_sequence=tuple(spoilt))

    bench.group.measure = fails_on_one  # type: ignore[method-assign]
    record = the_step(bench)
    assert [use.reason for use in record.groups[0].uses] == ["", "not_finite", ""]
    assert [use.segments == () for use in record.groups[0].uses] == [False, True, False]
    assert record.groups[0].reward_mean == 0.5, "the rewards of the other two"
    assert bench.group.batches[0].sequences == 4
    assert ledger_of(record).failed == 2
    assert record.metrics[metrics.MEMBERS_INVALID] == 1
    assert record.metrics[metrics.REWARD_MEAN] == 0.5, "of the members in the batch"
    assert record.metrics[metrics.LAG_SECONDS_MAX] == record.metrics[metrics.LAG_SECONDS_MEAN], "as are all others"


def test_without_limits_a_number_that_is_none_ends_the_run_and_names_the_member():
    bench = bench_of(once(group(0, [1, None, 0]), group(7, [1, None, None, 0])), admission=OPEN)

    def fails(batch: Any) -> Any:
        error = LogprobsNotFinite("sequence 3 of the batch has a log-probability that is no number")
        error.sequence = batch.sequences - 1
        raise error

    bench.group.train = fails  # type: ignore[method-assign]
    with pytest.raises(LogprobsNotFinite, match=r"^group 7 member 3 \(cell c0\): sequence 3 of the batch"):
        bench.loop().run()


def test_what_no_step_was_trained_on_is_in_no_figure_of_training():
    """A group without variance and one with a member too few: neither is trained on, and neither is admission's."""
    bench = bench_of(once(group(0, [1, 1]), group(1, [1, None]), group(2, [0, 0])))
    record = the_step(bench)
    assert [use.trained_tokens for group_used in record.groups for use in group_used.uses] == [0, 0, 0, 0]
    assert ledger_of(record).zero_variance == 8
    assert metrics.TRAINED_K3 not in record.metrics
    assert [give_up.group for give_up in record.give_ups] == [1]
    assert record.metrics[metrics.ADMISSION_DROPPED_SHARE] == 0


def test_a_step_is_run_again_with_the_weights_on_record_and_admits_nothing_anew():
    mixed = with_logprobs(group(0, [1, 0, 1, 0]), m1=FAR, m2=LESS_FAR, m3=(0.0, math.nan, 0.0, -0.5))
    bench = bench_of(once(mixed, group(1, [1, 0, 0, 1])))
    record = the_step(bench)
    scored = len(bench.group.measured)
    again = batch_of_record(bench.run_store, record, bench.params)
    before = bench.group.batches[0]
    assert all(torch.equal(a, b) for a, b in zip(again.tensors(), before.tensors(), strict=True))
    looser = bench.params.model_copy(update={"admission": bench.params.admission.model_copy(update=OPEN)})
    other = batch_of_record(bench.run_store, record, looser)
    assert torch.equal(other.advantages_N, before.advantages_N)
    assert len(bench.group.measured) == scored
    weighed = [use.weight for use in record.groups[0].uses]
    assert 0.0 in weighed
    assert 0 < min(weight for weight in weighed if weight) < 1


def test_what_waits_is_scored_again_after_each_step_and_only_then():
    def cell(bench: Bench) -> None:
        if not bench.sequence:
            bench.finish(*(group(n, [1, 0]) for n in range(4)))

    bench = Bench(parameters(training={"steps": 2}, admission=LIMITS), cell)
    bench.group = FakeGroup(CURRENT)
    bench.loop().run()
    assert bench.group.measured == [4, 4], "two groups of two, before each step; the others have had no time"


def test_without_limits_nothing_is_scored():
    bench = bench_of(once(with_logprobs(group(0, [1, 0]), m0=FAR), group(1, [1, 0])), admission=OPEN)
    record = the_step(bench)
    assert bench.group.measured == []
    assert [use.verdict for use in record.groups[0].uses] == ["keep", "keep"]
    assert record.groups[0].uses[0].segments[0].k3 > 20, "the step measures it all the same"


def test_a_run_all_of_whose_groups_are_too_far_says_so():
    bench = bench_of(
        lambda bench: bench.finish(with_logprobs(group(bench.sequence, [1, 0]), m0=FAR, m1=FAR)),
        limits={"batch_deadline_s": 20.0},
    )
    with pytest.raises(LimitExceeded, match=r"no full batch in 20 s.*given up.*divergence: 0 of 2 members.*see the"):
        bench.loop().run()
    assert bench.events[1:] == [], "a few tokens name no cause"


class Logged(NullSink):
    """Remembers what is logged."""

    def __init__(self) -> None:
        self.points: list[tuple[int, dict[str, float]]] = []

    def log(self, values: Mapping[str, float], *, step: int) -> None:
        self.points.append((step, dict(values)))


def long_and_far(number: int, *, version: int = 0) -> Group:
    """Two members of 60 sampled tokens, each as far off as a wrong temperature or tokenizer would have it."""
    members = [
        trajectory(
            number,
            member,
            reward=float(member),
            tokens=[5] * 61,
            mask=[False, *[True] * 60],
            logprobs=[0.0, *[-4.0] * 60],
            segments=((0, version),),
        )
        for member in range(2)
    ]
    return Group(number, f"task-{number}", "v1", tuple(members))


def test_a_run_all_of_whose_groups_are_too_far_names_the_cause_before_it_starves():
    """Nothing is committed, so no record says it: the error, the event and the metric do."""
    told: list[float] = []

    def cell(bench: Bench) -> None:
        bench.finish(long_and_far(bench.sequence))
        if len(bench.events) > 1 and not told:
            told.append(bench.now)

    bench = bench_of(cell, limits={"batch_deadline_s": 60.0})
    bench.sink = sink = Logged()
    with pytest.raises(LimitExceeded, match=r"no full batch in 60 s.*given up.*: engine mismatch: k3 is 2.86e"):
        bench.loop().run()
    assert told[0] < 1010.0, "as soon as a batch of groups is given up"
    (event,) = bench.events[1:]
    assert (event["event"], event["type"]) == ("warning", "Diagnosis")
    assert event["message"].startswith(
        "step 1: engine mismatch: k3 is 2.86e+01 nats a token at lag 0 over 240 tokens"
    )
    assert {(step, *values.items()) for step, values in sink.points} == {(1, (metrics.CAUSE, 1.0))}


def test_a_far_group_now_and_then_names_no_cause():
    """One in each step, as many as a batch in all: they are admission's, and nothing keeps the run from its steps."""

    def cell(bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        if head.version is not None and bench.sequence <= head.step:
            first, version = 3 * head.step, head.version.number
            near = (group(first + n, [1, 0], version=version) for n in (1, 2))
            bench.finish(long_and_far(first, version=version), *near)

    bench = Bench(sync(training={"steps": 3}, admission=LIMITS), cell)
    bench.group = FakeGroup(CURRENT)
    record = the_step(bench)
    assert record.step == 3
    assert [len(found.give_ups) for found in bench.run_store.steps()] == [1, 1, 1]
    assert [event for event in bench.events if event["event"] == "warning"] == []


def test_a_cause_named_while_nothing_was_trained_on_is_over_with_the_next_healthy_step():
    def cell(bench: Bench) -> None:
        if bench.sequence < 4:
            bench.finish(long_and_far(bench.sequence))
        else:
            bench.finish(group(bench.sequence, [1, 0]))

    bench = bench_of(cell)
    the_step(bench)
    said = [event["message"].split(":")[:2] for event in bench.events if event["event"] == "warning"]
    assert said == [["step 1", " engine mismatch"], ["step 1", " healthy"]]


def test_give_ups_for_divergence_are_the_same_after_a_restart():
    """The weights are those that gave them up, so the reason, and every term of the ledger, is found again."""

    class Killed(BaseException):
        pass

    def die(bench: Bench) -> None:
        if bench.sequence:
            raise Killed
        bench.finish(with_logprobs(group(0, [1, 0, 1]), m0=FAR, m2=FAR), group(1, [1, 0]))

    bench = bench_of(die)
    with pytest.raises(Killed):
        bench.loop().run()
    assert bench.run_store.read_head()[0].given_up == (0,)
    bench.cell = lambda bench: bench.finish(group(2, [1, 0])) if bench.sequence == 1 else None
    bench.group = FakeGroup(CURRENT)
    record = the_step(bench)
    assert record.give_ups[0].reason.startswith("divergence: 1 of 3 members admitted; dropped 2 x k3")
    assert ledger_of(record).stale_by == {"group": 2, "k3": 4}
    assert bench.run_store.read_head()[0].spent == 3


def test_the_ledger_by_reason_goes_on_across_a_resumption():
    def cell(bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        begun = len(bench.run_store.new_groups())
        if head.version is not None and begun < head.spent + 2:
            made = group(begun, [1, 0, 0, 1], version=head.version.number)
            bench.finish(with_logprobs(made, m1=FAR) if begun % 2 else made)

    bench = Bench(sync(training={"steps": 4}, admission=LIMITS, checkpoint={"every_steps": 3}), cell)
    bench.group = FakeGroup(CURRENT)
    stopped_after(bench, 2)
    bench.group = FakeGroup(CURRENT)
    bench.loop().run()
    ledgers = [ledger_of(record) for record in bench.run_store.steps()]
    assert [ledger.stale_by for ledger in ledgers] == [{"k3": 2 * step} for step in (1, 2, 3, 4)]
    assert [ledger.trained for ledger in ledgers] == [14, 28, 42, 56]
    assert bench.run_store.steps()[-1].frontier.fates.stale_by == {"k3": 8}


def test_the_lag_of_a_member_is_its_own():
    """One old member of four is dropped; with another trainer's limit the group would have been lost."""
    young = group(50, [1, 0, 1, 0], version=3).trajectories
    old = replace(young[3], segments=(replace(young[3].segments[0], version=0),))

    def cell(bench: Bench) -> None:
        step = bench.run_store.read_head()[0].step
        if bench.sequence < step + 1 <= 3:
            bench.finish(*(group(10 * step + n, [1, 0], version=step) for n in (8, 9)))
        elif bench.sequence == 3 and step == 3:
            bench.finish(Group(50, "task-50", "v1", (*young[:3], old)), group(51, [1, 0], version=3))

    bench = Bench(sync(training={"steps": 4}, admission=LIMITS), cell)
    bench.group = FakeGroup(CURRENT)
    record = the_step(bench)
    assert [use.reason for use in record.groups[0].uses] == ["", "", "", "age"]
    assert ledger_of(record).stale_by == {"age": 2}


def test_the_time_in_flight_and_the_time_in_the_queue_are_separate_figures():
    """prime-rl#2957: begun at version 0, ended at 1, trained on from 3: one version in flight, two in the queue."""

    def cell(bench: Bench) -> None:
        step = bench.run_store.read_head()[0].step
        if bench.sequence > step:
            return
        numbers, parts = (2 * step, 2 * step + 1), ((0, step),) if step < 3 else ((0, 0), (3, 1))
        bench.finish(*(Group(n, f"task-{n}", "v1", tuple(
            trajectory(n, member, reward=float(member), segments=parts) for member in range(2)
        )) for n in numbers))  # fmt: skip

    bench = Bench(parameters(training={"steps": 4}, overlap={"max_lag_versions": 3}, admission=LIMITS), cell)
    bench.group = FakeGroup(CURRENT)
    record = the_step(bench)
    figures = [record.metrics[name] for name in (metrics.LAG_IN_FLIGHT_MEAN, metrics.LAG_IN_QUEUE_MEAN)]
    assert figures == [1.0, 2.0]
    assert record.metrics[metrics.LAG_STEPS_MEAN] == 2.5


class LateCell:
    """Starts what may start; every fourth group finishes two steps later than the others, with its old tokens."""

    def __init__(self) -> None:
        self.begun = 0
        self.due: dict[int, list[Group]] = {}

    def __call__(self, bench: Bench) -> None:
        head, _ = bench.run_store.read_head()
        if head.version is None:
            return
        admitted = head.spent + bench.params.rollout.groups_per_step + head.lead_groups
        for number in range(self.begun, admitted):
            late = 2 if number % 4 == 0 else 0
            made = group(number, [1, 0, 0, 1], version=head.step)
            took = [replace(one, started_unix=one.started_unix - 15.0 * late) for one in made.trajectories]
            self.due.setdefault(head.step + late, []).append(replace(made, trajectories=tuple(took)))
        self.begun = max(self.begun, admitted)
        finished = [one for when in sorted(self.due) if when <= head.step for one in self.due.pop(when)]
        if finished:
            bench.finish(*finished)


def test_slow_tasks_that_arrive_late_are_trained_on():
    """marin#8936: groups of slow tasks finish two steps after the others, and none of them is lost."""
    overlap = {"lead_groups": 6, "max_lag_versions": 4}
    bench = Bench(parameters(training={"steps": 12}, admission=LIMITS, overlap=overlap), LateCell())
    bench.group = FakeGroup(CURRENT)
    bench.loop().run()
    records = bench.run_store.steps()
    used = [use.group for record in records for use in record.groups]
    assert [give_up for record in records for give_up in record.give_ups] == []
    assert set(range(0, 16, 4)) <= set(used)
    bias = find_bias(records)
    assert bias is not None
    assert bias.warnings == []


def test_slow_tasks_that_are_starved_are_said():
    """The same with a limit that the late ones pass: they are replaced, the run goes on, and the report says so."""
    overlap = {"lead_groups": 2, "max_lag_versions": 1}
    bench = Bench(parameters(training={"steps": 40}, admission=LIMITS, overlap=overlap), LateCell())
    bench.group = FakeGroup(CURRENT)
    bench.loop().run()
    records = bench.run_store.steps()
    gone = {give_up.group for record in records for give_up in record.give_ups}
    assert len(gone) >= 10
    assert {number % 4 for number in gone} == {0}
    bias = find_bias(records)
    assert bias is not None
    assert bias.left_out == {"age": 4 * len(gone)}
    environment = "trained episodes of pointer_chase/v1 have fewer seconds than generated ones"
    assert any(warning.startswith(environment) for warning in bias.warnings), bias.warnings


def test_the_eager_cell_is_never_bitten():
    bench = Bench(sync(), eager_cell)
    bench.loop().run()
    for record in bench.run_store.steps():
        assert record.metrics[metrics.ADMISSION_DROPPED_SHARE] == 0
        assert record.metrics[metrics.ADMISSION_WEIGHT_MEAN] == 1
