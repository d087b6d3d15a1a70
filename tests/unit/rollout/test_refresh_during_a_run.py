"""A version that is published while cells and trainer work: in use within one batch, and never two in one group."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

from driftline.records import TaskSampling
from driftline.refresh import strata
from driftline.store import tasksets
from driftline.store.memory import MemoryStore
from driftline.store.tasksets import TaskNote
from tests.support.rollout import FAMILY
from tests.support.toy_run import Cell, ToyTrainer, check_once_each, create_run, run_all, toy_parameters

NAME = "pointer-chase"


async def test_the_next_groups_are_of_the_new_version_and_every_group_is_of_one():
    params = toy_parameters(rollout={"cells": 2})
    store = create_run(MemoryStore(), params)
    first = store.describe().task_set
    per_step, admitted = params.rollout.groups_per_step, list[int]()

    async def refresh() -> str:
        while store.read_head()[0].step < 3:  # noqa: ASYNC110 (the store has no event)
            await asyncio.sleep(0.005)
        tasks = FAMILY.generate(55, 40)
        notes = {task.id: TaskNote("useful" if n < 30 else "too_hard") for n, task in enumerate(tasks)}
        weights = {"useful": 0.75, "too_hard": 0.25}
        version = tasksets.publish(store.store, NAME, tasks, notes=notes, weights=weights, parent=first)
        head, _ = store.read_head()
        admitted.append(head.spent + per_step + head.lead_groups)
        return version

    refreshing = asyncio.create_task(refresh())
    trainer = ToyTrainer(store, params, steps=16, train_s=0.03)
    await run_all(trainer, *(Cell(store, params, name, options={"step_s": 0.001}) for name in ("c0", "c1")))
    second = await refreshing
    head, _ = store.read_head()
    assert [version for _, version in head.task_sets] == [first, second]
    begins = head.task_sets[1][0]
    assert begins <= admitted[0] + per_step, "in use within one batch"
    groups = store.new_groups()
    check_once_each(groups, params.rollout.group_size)
    for group in groups:
        assert {member.task_set for member in group.trajectories} == {second if group.number >= begins else first}
    notes = tasksets.load_set(store.store, NAME, second).notes
    drawn = Counter(notes[group.task_id].pool for group in groups if group.number >= begins)
    assert drawn["useful"] > drawn["too_hard"] > 0


async def test_groups_play_the_strata_that_head_names_and_their_trajectories_tell_which():
    params = toy_parameters()
    store = create_run(MemoryStore(), params)
    tasks = FAMILY.generate(55, 40)
    notes = {task.id: TaskNote("useful", level=n % 2) for n, task in enumerate(tasks)}
    version = tasksets.publish(store.store, NAME, tasks, notes=notes, weights={"useful": 1.0})
    head, etag = store.read_head()
    levels = [strata.of_level(tasks[0].environment, level) for level in (0, 1)]
    samplings = (TaskSampling(0, {levels[0]: 1.0}, 1e-9), TaskSampling(8, {levels[1]: 1.0}, 1e-9))
    store.swap_head(replace(head, task_sets=((0, version),), task_sampling=samplings), etag)
    await run_all(ToyTrainer(store, params, steps=8, train_s=0.01), Cell(store, params))
    groups = store.new_groups()
    assert {group.number < 8 for group in groups} == {True, False}
    for group in groups:
        wanted = levels[group.number >= 8]
        assert {member.stratum for member in group.trajectories} == {wanted}
        assert strata.of_level(tasks[0].environment, notes[group.task_id].level or 0) == wanted
