"""The curation study's rows: the first time that an arm reached a success, and ratios within a seed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from benchmarks.curation_study import (
    ARMS,
    Choice,
    figures_of,
    first_version,
    full_distribution,
    keep_refreshing,
    options,
    parameters,
)
from benchmarks.curation_table import reached, smoothed, summarise, table
from driftline.rollout.bootstrap import Surroundings
from driftline.store.memory import MemoryStore
from environments.pointer_chase import PointerChase
from tests.support.rollout import RENDERER
from tests.support.toy_run import Cell, ToyTrainer, create_run, toy_parameters
from tests.support.trainer_bench import Bench, eager_cell, sync

FAMILY = PointerChase()
CHOICE = Choice(10, "levels", 3e-4, 16, 4, 8, 2, 64, 2, 400)


def arm(name: str, successes: list[float], *, seed: int = 0, tokens: int = 100, zero: float = 0.4) -> dict[str, Any]:
    held_out = [{"step": 2 * at, "success": s, "tokens": 2 * at * tokens} for at, s in enumerate(successes)]
    return {"arm": name, "seed": seed, "held_out": held_out, "zero_variance_share": zero, "curve": []}


def test_success_is_the_mean_with_the_evaluations_beside():
    assert [p["success"] for p in smoothed(arm("fixed", [0.0, 0.6, 0.9, 0.9]))] == pytest.approx([0.3, 0.5, 0.8, 0.9])


def test_a_target_is_reached_between_two_evaluations_or_never():
    found = arm("fixed", [0.4, 0.4, 0.4, 1.0, 1.0, 1.0])
    assert reached(found, 0.3) == {"step": 0, "success": 0.4, "tokens": 0}
    point = reached(found, 0.5)
    assert point is not None
    assert (point["step"], point["tokens"]) == (pytest.approx(3.0), pytest.approx(300.0))
    assert reached(found, 1.01) is None


def test_arms_are_compared_within_a_seed():
    fixed, curated = arm("fixed", [0.2] * 3 + [0.8] * 6), arm("curated", [0.2] + [0.8] * 8, tokens=120, zero=0.2)
    results = [curated, arm("sampled", [0.9], seed=1), fixed, arm("fixed", [0.1], seed=2)]
    rows = {row["target"]: row for row in summarise(results)}
    assert {(row["seed"], row["arm"]) for row in rows.values()} == {(0, "curated")}
    last = rows["fixed's last"]
    assert last["success"] == pytest.approx(0.8)
    assert (last["fixed_steps"], last["steps"]) == (pytest.approx(8.0), pytest.approx(4.0))
    assert last["steps_ratio"] == pytest.approx(0.5)
    assert last["tokens_ratio"] == pytest.approx(0.6)
    assert last["zero_variance_ratio"] == pytest.approx(0.5)
    assert rows["0.9"]["steps_ratio"] is None
    assert "| 0 | curated | 0.9 |" in table([*rows.values()])


def test_both_arms_begin_with_the_full_distribution_and_share_what_is_held_out():
    found, other = first_version(FAMILY, 0, CHOICE), first_version(FAMILY, 1, CHOICE)
    assert {FAMILY.level_of(task) for task in found.train} == set(range(16))
    assert len(found.held_out) == 256
    assert found.held_out == other.held_out
    assert found.train != other.train
    assert not {t.id for t in found.train} & {t.id for t in found.held_out}
    assert len(full_distribution(FAMILY, "generator", 3, 20)) == 20
    assert parameters("fixed", 0, CHOICE).environment.follow_task_set is False
    assert parameters("curated", 0, CHOICE).environment.follow_task_set is True
    assert [parameters(arm, 0, CHOICE).environment.task_sampling for arm in ARMS] == [
        *("pools",) * 2,
        *("learnability",) * 2,
    ]
    assert options(CHOICE).rules.weights["useful"] == 0.8


def test_the_figures_of_an_arm_come_from_its_step_records():
    bench = Bench(sync(), eager_cell)
    bench.loop().run()
    found = figures_of("fixed", 0, bench.run_store.steps(), {0: 0.4, 3: 0.6})
    assert (found["steps"], found["zero_variance_share"]) == (3, 0.0)
    assert [(p["step"], p["success"]) for p in found["held_out"]] == [(0, 0.4), (3, 0.6)]
    assert found["held_out"][0]["tokens"] == 0
    assert found["held_out"][1]["tokens"] == found["tokens"] == found["curve"][-1]["tokens"]


@pytest.mark.timeout(280)
async def test_the_curated_arm_refreshes_beside_the_run(monkeypatch: pytest.MonkeyPatch):
    from driftline.rollout import prober
    from tasks import measuring

    monkeypatch.setattr(prober, "POLL_S", 0.02)
    monkeypatch.setattr(measuring, "POLL_S", 0.05)
    params = toy_parameters(environment={"train_tasks": 32})
    run_store = create_run(MemoryStore(), params)
    found: Any = Surroundings(run_store, run_store.describe(), params, FAMILY, None, RENDERER)  # pyright: ignore
    trainer = ToyTrainer(run_store, params, steps=10_000, train_s=0.02)
    refreshing = asyncio.create_task(keep_refreshing(FAMILY, found, 0, CHOICE))
    training = asyncio.gather(trainer.run(), Cell(run_store, params).run())
    while len(run_store.read_head()[0].task_sets) < 3:
        assert not refreshing.done(), refreshing
        await asyncio.sleep(0.05)
    trainer.steps = 0
    refreshing.cancel()
    await asyncio.gather(refreshing, training, return_exceptions=True)
    versions = [version for _, version in run_store.read_head()[0].task_sets]
    assert len({*versions}) == len(versions)
