"""Groups near to and far from the policy that is trained, and a trainer with limits for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from driftline.records import Group, StepRecord, TokenLedger
from tests.support.trainer_bench import Bench, sync
from tests.support.training import FakeGroup, trajectory

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
