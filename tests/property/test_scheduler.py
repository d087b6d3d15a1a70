"""The admission rule against whole simulated runs: nothing starts twice, nothing is skipped, the lag is bounded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from driftline.records import Head, PolicyVersion
from driftline.rollout import scheduler
from driftline.rollout.scheduler import GroupLedger


@dataclass
class Simulation:
    """One trainer, one cell: who does what next is drawn; every decision is the scheduler's."""

    groups_per_step: int
    lead_groups: int
    give_up_share: float
    rng: Random
    version: int = 0
    spent: int = 0
    engine_version: int | None = None
    acknowledged: Head | None = None
    ledger: GroupLedger = field(default_factory=GroupLedger)
    waiting: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    started_with: dict[int, int] = field(default_factory=dict[int, int])
    running: set[int] = field(default_factory=set[int])
    finished: list[int] = field(default_factory=list[int])
    trained_at: dict[int, int] = field(default_factory=dict[int, int])
    given_up: set[int] = field(default_factory=set[int])

    @property
    def head(self) -> Head:
        return Head(1, self.version, PolicyVersion(self.version, 1), None, self.spent, (), self.lead_groups, ())

    def act(self, *, in_order: bool) -> None:
        action = self.rng.choice([self.acknowledge, self.claim, self.start, self.finish, self.train])
        if action == self.finish:
            self.finish(in_order=in_order)
        else:
            action()
        self.acknowledged = scheduler.acknowledged_head(self.acknowledged, self.head, self.engine_version)

    def acknowledge(self) -> None:
        self.engine_version = self.version

    def claim(self) -> None:
        limit = scheduler.admission_limit(self.head, self.groups_per_step)
        for group in self.ledger.take(limit, 4, now=0.0):
            self.waiting[group] = [0]

    def start(self) -> None:
        if self.acknowledged is None or self.engine_version is None:
            return
        limit = scheduler.admission_limit(self.acknowledged, self.groups_per_step)
        for group, _ in scheduler.starts(self.waiting, 6 - len(self.running), limit):
            assert group not in self.started_with
            del self.waiting[group]
            self.started_with[group] = self.engine_version
            self.running.add(group)

    def finish(self, *, in_order: bool = False) -> None:
        if self.running:
            group = min(self.running) if in_order else self.rng.choice(sorted(self.running))
            self.running.remove(group)
            self.finished.append(group)

    def train(self) -> None:
        self.finished.sort()
        if self.finished and self.rng.random() < self.give_up_share:
            self.given_up.add(self.finished.pop(0))
            self.spent += 1
        if len(self.finished) >= self.groups_per_step:
            for group in self.finished[: self.groups_per_step]:
                self.trained_at[group] = self.version
            del self.finished[: self.groups_per_step]
            self.spent += self.groups_per_step
            self.version += 1


def simulate(seed: int, per_step: int, lead: int, give_up_share: float, *, in_order: bool) -> Simulation:
    simulation = Simulation(per_step, lead, give_up_share, Random(seed))
    for _ in range(400):
        simulation.act(in_order=in_order)
        in_flight = len(simulation.started_with) - len(simulation.trained_at) - len(simulation.given_up)
        assert in_flight <= per_step + lead
    return simulation


runs = {
    "seed": st.integers(0, 2**32),
    "per_step": st.integers(1, 5),
    "lead": st.integers(0, 12),
    "give_up_share": st.sampled_from([0.0, 0.3]),
}


@settings(max_examples=60, deadline=None)
@given(**runs)
def test_lag_is_bounded_by_the_lead_when_groups_finish_in_order(
    seed: int, per_step: int, lead: int, give_up_share: float
) -> None:
    simulation = simulate(seed, per_step, lead, give_up_share, in_order=True)
    bound = math.ceil(lead / per_step)
    for group, trained_from in simulation.trained_at.items():
        assert 0 <= trained_from - simulation.started_with[group] <= bound


@settings(max_examples=60, deadline=None)
@given(**runs)
def test_no_lead_is_exactly_synchronous_in_any_order(
    seed: int, per_step: int, lead: int, give_up_share: float
) -> None:
    simulation = simulate(seed, per_step, 0, give_up_share, in_order=False)
    for group, trained_from in simulation.trained_at.items():
        assert trained_from == simulation.started_with[group]


@settings(max_examples=60, deadline=None)
@given(**runs)
def test_every_group_is_offered_once_and_in_order(seed: int, per_step: int, lead: int, give_up_share: float) -> None:
    simulation = simulate(seed, per_step, lead, give_up_share, in_order=False)
    known = sorted([*simulation.waiting, *simulation.started_with])
    assert known == list(range(len(known)))


@settings(max_examples=100, deadline=None)
@given(
    limits=st.lists(st.integers(0, 60), max_size=8),
    cells=st.integers(1, 4),
    closed=st.sets(st.integers(0, 60), max_size=20),
    counts=st.integers(1, 9),
)
def test_ledgers_of_all_cells_offer_every_open_number_once(
    limits: list[int], cells: int, closed: set[int], counts: int
) -> None:
    for cell in range(cells):
        ledger = GroupLedger(closed=closed, offset=cell, stride=cells)
        offered: list[int] = []
        for limit in limits:
            while taken := ledger.take(limit, counts, now=0.0):
                own = [group % cells == cell for group in taken]
                assert own == sorted(own, reverse=True)
                offered += taken
        assert sorted(offered) == sorted(set(range(max(limits, default=0))) - closed)
