"""Identical seeds give identical task sets, under any PYTHONHASHSEED."""

from __future__ import annotations

import os
import subprocess
import sys

CODE = """
from driftline.refresh import curating, duplicates, proposing
from driftline.refresh.solving import SolveRate
from driftline.store.task_set_file import TaskNote, TaskSet
from environments.pointer_chase import PointerChase

family = PointerChase()
levels = proposing.spread(200, family.levels, {1: SolveRate(8, 4)})
windows = proposing.windows(family.id, 7, 0, size=32, levels=levels)
proposed = [task for window in windows for task in proposing.propose(family, window)]
parent = family.generate(1, 100)
kept = duplicates.distinct(proposed, held_out=family.generate(2, 50), earlier=parent, limit=0.8).kept
rates = {task.id: SolveRate(8, place % 9) for place, task in enumerate([*parent, *kept[:100]])}
found = curating.curate(parent, kept, rates, size=128, rules=curating.CurationRules(), seed=7)
notes = {task_id: TaskNote(pool) for task_id, pool in found.pools.items()}
tasks = tuple(task for task in [*parent, *kept] if task.id in notes)
print(len(tasks), TaskSet(tasks, notes, found.weights).version)
"""
GOLDEN = "128 6ad65b87e0879b9e"


def test_the_version_does_not_depend_on_the_hash_seed_or_the_machine() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", CODE],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "4242")
    }
    assert found == {GOLDEN}
