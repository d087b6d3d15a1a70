"""The check that nothing depends on PYTHONHASHSEED: two processes with different seeds play the same.

python -m driftline.environment.checks.hash_seed < names.json > records.json      (what each of them runs)
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from driftline.environment.checks.findings import Broken, Case, ensure, first_difference, short

SEEDS = ("1", "2")
START_S = 120.0
FAMILY_S = 60.0
MODULE = "driftline.environment.checks.hash_seed_child"

Records = Mapping[str, Any]
"""Name of a family -> ids and episodes, or `error`."""


def play_under_seeds(names: Sequence[str], *, seed: int, tasks: int, deadline_s: float) -> tuple[Records, ...]:
    """What families say in two processes, one for each hash seed.

    Raises:
        Broken: A process failed, or took too long.
    """
    request = json.dumps({"names": list(names), "seed": seed, "tasks": tasks, "deadline_s": deadline_s})
    return tuple(_play_under(hash_seed, request, START_S + FAMILY_S * len(names)) for hash_seed in SEEDS)


def _play_under(hash_seed: str, request: str, timeout_s: float) -> Records:
    paths = [str(Path.cwd()), *(path for path in sys.path if path)]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}
    try:
        done = subprocess.run(
            [sys.executable, "-m", MODULE], input=request, env=environment, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Broken(f"a process that plays the tasks has not ended within {timeout_s:g} s") from None
    if done.returncode:
        raise Broken(f"a process that plays the tasks ended with {done.returncode}: {done.stderr.strip()[-400:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def hash_seed(case: Case, records: Sequence[Records]) -> None:
    """Ids and episodes are equal in both, and as here."""
    first, second = (one[case.name] for one in records)
    for record in (first, second):
        ensure("error" not in record, f"in a process of its own: {record.get('error')}")
    own = [task.id for task in case.tasks]
    for ids in (first["ids"], second["ids"]):
        ensure(ids == own, f"the ids of tasks depend on PYTHONHASHSEED: {short(own)}, then {short(ids)}")
    for task, one, other in zip(case.tasks, first["episodes"], second["episodes"], strict=True):
        difference = first_difference(one, other)
        ensure(not difference, f"task {task.id} depends on PYTHONHASHSEED: it differs at {difference}")
