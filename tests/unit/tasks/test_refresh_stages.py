"""A refresh from its plan to its version, and taken up again wherever it was killed."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from driftline.environment import Task, TaskFamily
from driftline.errors import ConfigurationError, EnvironmentFailed, PreconditionFailed
from driftline.refresh.solving import SolveRate
from driftline.store import keys, tasksets
from driftline.store.memory import MemoryStore
from driftline.store.probes import ProbeBook, ProbeRequest, ProbeResult
from driftline.store.run_store import RunStore
from environments.pointer_chase import PointerChase
from tasks import measuring, refresh_stages, refreshing, validation
from tasks.refresh_plan import RefreshParameters, RefreshPlan, level_of, pinned_plan, recent_rates
from tasks.refresh_stages import Published
from tests.support.toy_run import RUN, Cell, ToyTrainer, create_run, run_all, toy_parameters
from tests.unit.tasks.test_validation import OddFamily

FAMILY = PointerChase()
NAME = "pointer-chase"


def options(**given: Any) -> RefreshParameters:
    return RefreshParameters.model_validate(
        {"proposals": 48, "window": 16, "probe_tasks": 24, "probe_members": 4} | given
    )


def plan_of(store: MemoryStore, seed: int = 3, size: int = 40, run: str | None = None, **given: Any) -> RefreshPlan:
    return pinned_plan(store, FAMILY, NAME, seed=seed, size=size, held_out_tasks=8, options=options(**given), run=run)


async def never(request: ProbeRequest) -> None:
    raise AssertionError("there is no run to play with")


def by_length(store: MemoryStore) -> measuring.PlayRequest:
    """A policy that always solves chains of one file, half the time those of two, and no others."""

    async def play(request: ProbeRequest) -> None:
        book = ProbeBook(store, request.run)
        tasks = {task.id: task for task in tasksets.load(store, request.task_set, request.version)}
        for number, task_id in enumerate(request.task_ids):
            solved = {0: 4, 1: 2}.get(FAMILY.level_of(tasks[task_id]), 0)
            book.finish(ProbeResult(request.id, number, task_id, 4, solved, 0, 40, 3))

    return play


async def carry_out(store: MemoryStore, plan: RefreshPlan, play: measuring.PlayRequest = never) -> Published:
    return await refreshing.carry_out(store, FAMILY, plan, play)


def test_a_task_whose_level_its_family_does_not_know_has_none():
    class Graded(PointerChase):
        def level_of(self, task: Task) -> int | None:  # pyright: ignore[reportIncompatibleMethodOverride]
            return None

    family = Graded()
    assert level_of(family, family.generate(1, 1)[0]) is None


async def test_the_first_version_of_a_task_set_is_unmeasured_and_has_held_out_tasks():
    store = MemoryStore()
    found = await carry_out(store, plan_of(store))
    made = tasksets.load_set(store, NAME, found.version)
    assert len(made.tasks) == 40
    assert {note.pool for note in made.notes.values()} == {"unmeasured"}
    assert made.weights == {"unmeasured": 1.0}
    assert len(tasksets.load(store, f"{NAME}-held-out", found.held_out_version)) == 8
    manifest = tasksets.manifest(store, NAME, found.version)
    assert manifest.parent is None
    assert manifest.lineage["generator"] == FAMILY.id
    assert manifest.statistics["validate/accepted"] == 48


async def finished_run(store: MemoryStore, tasks: int = 32) -> None:
    params = toy_parameters()
    run_store = create_run(store, params, tasks=tasks)
    await run_all(ToyTrainer(run_store, params, steps=4), Cell(run_store, params))


async def test_a_refresh_measures_with_the_policy_of_a_finished_run_and_curates():
    store = MemoryStore()
    await finished_run(store)
    parent = tasksets.head(store, NAME).version
    plan = plan_of(store)
    assert (plan.run, plan.policy_version, plan.parent) == (RUN, 4, parent)
    found = await carry_out(store, plan, by_length(store))
    made, manifest = tasksets.load_set(store, NAME, found.version), tasksets.manifest(store, NAME, found.version)
    levels = {pool: {FAMILY.level_of(made.tasks[at]) for at in made.members[pool]} for pool in made.members}
    assert levels["useful"] == {1}
    assert 0 not in {FAMILY.level_of(t) for t in made.tasks if made.notes[t.id].attempts}
    assert manifest.parent == parent
    assert (manifest.lineage["run"], manifest.lineage["policy_version"]) == (RUN, "4")
    assert manifest.statistics["measure/tokens"] == 24 * 40
    assert "solved 2 of 4" in found.report
    assert "always solved" in found.report
    held_out = {t.id for t in tasksets.load(store, f"{NAME}-held-out", found.held_out_version)}
    assert held_out.isdisjoint(t.id for t in made.tasks)


async def test_the_same_refresh_gives_the_same_version_whatever_has_happened_since():
    store = MemoryStore()
    await finished_run(store)
    first = await carry_out(store, plan_of(store), by_length(store))
    head = tasksets.head(store, NAME)
    again = await carry_out(store, plan_of(store), never)
    assert again == first
    assert tasksets.head(store, NAME) == head
    other = await carry_out(store, plan_of(store, seed=4), by_length(store))
    assert tasksets.manifest(store, NAME, other.version).parent == first.version
    assert await carry_out(store, plan_of(store), never) == first
    assert tasksets.head(store, NAME).version == other.version, "a refresh that is repeated undoes no later one"


async def test_what_was_retired_is_not_proposed_again():
    store = MemoryStore()
    await finished_run(store)
    plan = plan_of(store)
    await carry_out(store, plan, by_length(store))
    candidates = await refresh_stages.candidates_of(store, FAMILY, plan)
    same_windows = await refresh_stages.proposed_of(store, FAMILY, plan)
    later = plan_of(store, seed=9)
    found = await refresh_stages.drop_duplicates(store, FAMILY, later, same_windows)
    kept = {task.id for task in tasksets.load(store, NAME, later.parent or "")}
    assert {task.id for task in found.tasks}.isdisjoint(kept)
    assert {one.where for one in found.dropped} == {"earlier"}
    assert len(candidates.tasks) > len(found.tasks)


class Killed(BaseException):
    pass


@dataclass
class Mortal(MemoryStore):
    """A store whose caller dies at the n-th write."""

    dies_at: int = 10**9
    writes: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        super().__init__()

    def _count(self, key: str) -> None:
        if len(self.writes) >= self.dies_at:
            raise Killed(key)
        self.writes.append(key)

    def put(self, key: str, body: bytes) -> Any:
        self._count(key)
        return super().put(key, body)

    def create(self, key: str, body: bytes) -> Any:
        self._count(key)
        return super().create(key, body)

    def swap(self, key: str, body: bytes, etag: str) -> Any:
        self._count(key)
        return super().swap(key, body, etag)


async def whole(store: MemoryStore) -> str:
    return (await carry_out(store, plan_of(store), by_length(store))).version


async def test_killed_at_any_write_it_publishes_nothing_half_and_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch,
):
    calm = Mortal()
    await finished_run(calm)
    before, parent = len(calm.writes), tasksets.head(calm, NAME).version
    expected = await whole(calm)
    writes = calm.writes[before:]
    assert writes[0].endswith(".json")
    assert "refreshes" in writes[0]
    windows = sum("refresh-window" in key for key in writes)
    played = Counter[str]()
    validate = validation.validate

    async def counted(family: TaskFamily, tasks: Any, **given: Any) -> Any:
        played.update(task.id for task in tasks)
        return await validate(family, tasks, **given)

    monkeypatch.setattr(refresh_stages, "validate", counted)
    for write in range(len(writes)):
        played.clear()
        store = Mortal()
        await finished_run(store)
        store.dies_at = len(store.writes) + write
        with pytest.raises((Killed, BaseExceptionGroup)):
            await whole(store)
        assert tasksets.head(store, NAME).version == parent, "nothing is published before the last write"
        store.dies_at = 10**9
        assert await whole(store) == expected
        assert tasksets.head(store, NAME).version == expected
        assert sum(played.values()) <= 48 + 16, f"killed at {writes[write]}: windows were validated again"
        assert len([key for key in store.writes if "refresh-window" in key]) == windows


async def test_a_damaged_cache_is_made_again():
    store = MemoryStore()
    plan = plan_of(store)
    first = await carry_out(store, plan)
    for info in list(store.list("cache/")):
        store.put(info.key, b"{}")
    assert (await carry_out(store, plan)).version == first.version


async def test_solve_rates_of_a_run_choose_the_levels_that_are_proposed():
    store = MemoryStore()
    await finished_run(store)
    plan = plan_of(store)
    assert plan.levels is not None
    assert sum(plan.levels.values()) == 48
    assert all(rate.share == 1.0 for rate in plan.rates.values())
    assert len(plan.rates) >= 8
    assert SolveRate(4, 4) in plan.rates.values()


async def test_a_broken_environment_is_quarantined_and_nothing_is_published():
    store = MemoryStore()

    @dataclass
    class Failing(OddFamily):
        def generate(self, seed: int, count: int) -> list[Any]:
            return [FAMILY.generate(seed, count)[n] for n in range(count)]

    family: Any = Failing("hangs")
    given = options(proposals=2, step_deadline_s=0.05)
    plan = pinned_plan(store, family, NAME, seed=1, size=4, held_out_tasks=2, options=given)
    with pytest.raises(EnvironmentFailed, match=r"odd/v1 is quarantined: most_failures is 0.1, found 1.000"):
        await refresh_stages.candidates_of(store, family, plan)
    assert list(store.list("tasksets/pointer-chase/HEAD")) == []


async def test_impossible_options_are_refused():
    with pytest.raises(ConfigurationError, match="below target_high"):
        _ = options(target_low=0.9).rules
    with pytest.raises(ConfigurationError, match="no pool 'easy'"):
        _ = options(weights={"easy": 1.0}).rules


async def test_a_run_that_plays_another_environment_is_refused():
    store = MemoryStore()
    await finished_run(store)
    family: Any = OddFamily("works")
    with pytest.raises(ConfigurationError, match="plays 'pointer_chase/v1', not 'odd/v1'"):
        pinned_plan(store, family, NAME, seed=1, size=4, held_out_tasks=2, options=options(), run=RUN)


@pytest.mark.parametrize("given", [{"size": 0, "held_out_tasks": 8}, {"size": 8, "held_out_tasks": 0}])
def test_a_refresh_of_no_tasks_is_refused(given: dict[str, Any]):
    with pytest.raises(ConfigurationError, match="at least one task of each"):
        pinned_plan(MemoryStore(), FAMILY, NAME, seed=1, options=options(), **given)


@pytest.mark.parametrize("begun", [False, True])
def test_a_named_run_without_a_policy_is_refused_before_anything_is_pinned(begun: bool):
    store = MemoryStore()
    run_store = create_run(store, toy_parameters())
    if not begun:
        store.delete([keys.head(run_store.run)])
    with pytest.raises(ConfigurationError, match="run: 'toy' has no policy yet"):
        plan_of(store, run=RUN)
    assert [*store.list("tasksets/pointer-chase/refreshes/")] == []


async def test_a_damaged_run_beside_it_does_not_keep_a_refresh_from_its_run():
    store = MemoryStore()
    await finished_run(store)
    for other, damaged in (("other", keys.head), ("third", keys.description)):
        create_run(store, toy_parameters(), run=other)
        store.put(damaged(other), b"{")
    assert plan_of(store).run == RUN


async def test_of_a_runs_steps_only_the_last_ones_are_read():
    store = MemoryStore()
    await finished_run(store)
    seen = RunStore(store, RUN)
    before = store.requests["get"]
    assert [record.step for record in seen.last_steps(2)] == [3, 4]
    assert store.requests["get"] == before + 1 + 2
    uses = [use for record in seen.last_steps(2) for use in record.groups]
    found = recent_rates(seen, 2)
    assert sum(rate.attempts for rate in found.values()) == sum(use.valid_members for use in uses) > 0
    assert seen.last_steps(99) == seen.steps()


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf")])
def test_a_weight_that_is_no_share_is_refused(weight: float):
    with pytest.raises(ValidationError, match="weights"):
        options(weights={"useful": 1.0, "too_hard": weight})


async def test_of_two_refreshes_from_one_version_the_later_does_not_undo_the_other():
    store = MemoryStore()
    await carry_out(store, plan_of(store))
    one, other = plan_of(store, seed=4), plan_of(store, seed=5)
    assert one.parent == other.parent
    first = await carry_out(store, one)
    with pytest.raises(PreconditionFailed, match=r"was published meanwhile.*start the refresh with another seed"):
        await carry_out(store, other)
    assert tasksets.head(store, NAME).version == first.version
    assert tasksets.manifest(store, NAME, (await carry_out(store, plan_of(store, seed=6))).version).parent == (
        first.version
    )


async def test_of_two_who_make_a_stage_at_the_same_time_both_go_on_with_the_first_ones():
    store, begun, kept = MemoryStore(), asyncio.Event(), asyncio.Event()

    async def make_slowly() -> SolveRate:
        begun.set()
        await kept.wait()
        return SolveRate(4, 1)

    async def make_quickly() -> SolveRate:
        await begun.wait()
        return SolveRate(4, 3)

    async def quick() -> SolveRate:
        found = await refresh_stages.cached(store, "measured", "inputs", SolveRate, make_quickly)
        kept.set()
        return found

    slow = refresh_stages.cached(store, "measured", "inputs", SolveRate, make_slowly)
    assert await asyncio.gather(slow, quick()) == [SolveRate(4, 3)] * 2


def test_whoever_mends_a_familys_data_has_its_tasks_validated_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "mended_family"
    package.mkdir()
    (package / "__init__.py").write_text("class Family: ...\n")
    data = package / "catalogue.json"
    data.write_text("[1]")
    monkeypatch.syspath_prepend(tmp_path)
    family = importlib.import_module("mended_family").Family
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "x.pyc").write_bytes(b"compiled")

    def digest() -> str:
        refresh_stages.source_digest.cache_clear()
        return refresh_stages.source_digest(family)

    before = digest()
    (package / "__pycache__" / "x.pyc").write_bytes(b"compiled anew")
    assert digest() == before
    data.write_text("[2]")
    assert digest() != before


async def test_a_run_under_way_has_its_cells_measure(monkeypatch: pytest.MonkeyPatch):
    from driftline.rollout import prober

    monkeypatch.setattr(prober, "POLL_S", 0.02)
    monkeypatch.setattr(measuring, "POLL_S", 0.05)
    store = MemoryStore()
    params = toy_parameters(rollout={"probe_episodes": 8})
    run_store = create_run(store, params)
    trainer = ToyTrainer(run_store, params, steps=200, train_s=0.02)
    training = asyncio.gather(trainer.run(), Cell(run_store, params).run())
    while run_store.read_head()[0].step < 2:  # noqa: ASYNC110 (the store has no event)
        await asyncio.sleep(0.01)
    plan = plan_of(store, probe_tasks=10, probe_members=3)
    found = await carry_out(store, plan, never)
    assert tasksets.manifest(store, NAME, found.version).statistics["measure/tasks"] >= 10
    assert "10 of 10 probe groups" in found.report
    trainer.steps = 0
    await training
    opened = json.loads(store.get(keys.probes_open(RUN)).body)
    assert opened["request"] == ""
