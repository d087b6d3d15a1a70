from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from driftline.records import TaskSampling
from driftline.rollout import assignment

GOLDEN_ORDER = [0, 7, 3, 6, 1, 9, 5, 2, 4, 8]
GOLDEN_SEED = 5806583850874399762
GOLDEN_ENVIRONMENT_SEED = 3069277933041199203


def test_the_task_set_is_the_newest_that_has_begun() -> None:
    task_sets = [(0, "a"), (40, "b"), (64, "c")]
    assert [assignment.task_set_of(task_sets, group) for group in (0, 39, 40, 63, 64, 999)] == [*"aabbcc"]


def test_golden_values_hold_on_every_machine() -> None:
    """verl#3126: not reproducible."""
    assert [assignment.task_index(7, group, "set", 10) for group in range(10)] == GOLDEN_ORDER
    assert assignment.request_seed(7, 3, 2, 1) == GOLDEN_SEED
    assert assignment.environment_seed(7, 3) == GOLDEN_ENVIRONMENT_SEED


def test_they_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "from driftline.rollout import assignment as a;"
        "print([a.task_index(7, g, 'set', 10) for g in range(10)], a.request_seed(7, 3, 2, 1))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {f"{GOLDEN_ORDER} {GOLDEN_SEED}\n"}


@pytest.mark.parametrize("tasks", [1, 2, 7, 256])
def test_each_pass_plays_each_task_once_in_its_own_order(tasks: int) -> None:
    passes = [
        [assignment.task_index(1, group, "set", tasks) for group in range(n * tasks, (n + 1) * tasks)] for n in (0, 1)
    ]
    assert all(sorted(order) == list(range(tasks)) for order in passes)
    assert tasks < 7 or passes[0] != passes[1]


def test_seed_and_task_set_change_the_order() -> None:
    orders = {
        tuple(assignment.task_index(seed, group, name, 64) for group in range(64))
        for seed in (1, 2)
        for name in ("a", "b")
    }
    assert len(orders) == 4


def test_request_seeds_are_distinct_and_fit_a_signed_64_bit_integer() -> None:
    seeds = Counter(
        assignment.request_seed(1, group, member, turn, part)
        for group in range(30)
        for member in range(8)
        for turn in range(10)
        for part in range(2)
    )
    assert max(seeds.values()) == 1
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) > 2**62


POOLS = {"useful": [0, 3, 5, 8], "hard": [1, 2], "easy": [4, 6, 7]}
WEIGHTS = {"useful": 0.75, "hard": 0.125, "easy": 0.125}
GOLDEN_POOLED = [8, 2, 5, 3, 0, 3, 5, 4, 0, 8, 0, 5]


def test_each_block_of_groups_draws_from_the_pools_by_their_weights() -> None:
    of_index = {index: pool for pool, members in POOLS.items() for index in members}
    for block in (0, 1, 7):
        numbers = range(block * 64, block * 64 + 64)
        drawn = Counter(of_index[assignment.pooled_task_index(3, g, "v", POOLS, WEIGHTS)] for g in numbers)
        assert drawn == {"useful": 48, "hard": 8, "easy": 8}


def test_a_pass_over_a_pool_plays_each_of_its_tasks_once() -> None:
    drawn = [assignment.pooled_task_index(3, group, "v", POOLS, WEIGHTS) for group in range(640)]
    useful = [index for index in drawn if index in POOLS["useful"]]
    assert all(sorted(useful[at : at + 4]) == POOLS["useful"] for at in range(0, len(useful), 4))


def test_pooled_draws_hold_on_every_machine() -> None:
    drawn = [assignment.pooled_task_index(7, group, "v", POOLS, WEIGHTS) for group in range(12)]
    assert drawn == GOLDEN_POOLED
    turned = {pool: WEIGHTS[pool] for pool in reversed(WEIGHTS)}
    assert [assignment.pooled_task_index(7, group, "v", POOLS, turned) for group in range(12)] == GOLDEN_POOLED


def test_a_pool_without_a_weight_is_not_drawn_from() -> None:
    drawn = {assignment.pooled_task_index(7, group, "v", POOLS, {"hard": 1.0}) for group in range(20)}
    assert drawn == {1, 2}


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=2), st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_block_counts_add_up_and_leave_no_pool_out(weights: dict[str, float]) -> None:
    counts = dict(assignment.block_counts(tuple(sorted(weights.items()))))
    assert sum(counts.values()) == assignment.BLOCK_GROUPS
    assert min(counts.values()) >= 1


STRATA = {"a": [0, 3, 5, 8], "b": [1, 2, 9, 10, 11, 12], "c": [4, 6, 7]}
SAMPLING = TaskSampling(0, {"a": 0.5, "b": 0.05}, 0.2)
ALIKE = dict.fromkeys(STRATA, 1.0)
GOLDEN_STRATIFIED = [12, 8, 4, 5, 5, 7, 3, 8, 3, 8, 7, 0]


def test_strata_are_drawn_by_their_weight_times_their_tasks() -> None:
    of_index = {index: stratum for stratum, members in STRATA.items() for index in members}
    for first in (0, 1000, 123_456):
        numbers = range(first, first + 290)
        drawn = Counter(
            of_index[assignment.stratified_task_index(3, g, "v", STRATA, SAMPLING, ALIKE)] for g in numbers
        )
        assert all(abs(drawn[name] - wanted) <= 3 for name, wanted in (("a", 200), ("b", 30), ("c", 60)))


def test_stratified_draws_hold_on_every_machine() -> None:
    drawn = [assignment.stratified_task_index(7, group, "v", STRATA, SAMPLING, ALIKE) for group in range(12)]
    assert drawn == GOLDEN_STRATIFIED
    other = [assignment.stratified_task_index(8, group, "v", STRATA, SAMPLING, ALIKE) for group in range(12)]
    assert other != drawn


@given(
    st.integers(0, 2**31),
    st.integers(0, 2**40),
    st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-5, 1.0), max_size=6),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1, max_size=6),
)
def test_every_group_has_a_task_of_some_stratum(
    seed: int, group: int, weights: dict[str, float], sizes: dict[str, int]
) -> None:
    shares = {name: 0.01 * at for at, name in enumerate(sizes, 1)}
    strata = {name: [100 * at + n for n in range(size)] for at, (name, size) in enumerate(sizes.items())}
    index = assignment.stratified_task_index(seed, group, "v", strata, TaskSampling(0, weights, 0.5), shares)
    assert any(index in members for members in strata.values())
