"""What each process of the check of hash seeds runs.

python -m driftline.environment.checks.hash_seed_child < request.json > records.json
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from driftline.environment.apart import answer
from driftline.environment.checks.findings import Case
from driftline.environment.checks.playing import RAISED, actions_for, in_a_loop, play
from driftline.environment.registry import resolve


def _record(name: str, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        family = resolve(name)
        tasks = tuple(family.generate(request["seed"], request["tasks"]))
        case = Case(name, family, tasks, request["seed"], request["deadline_s"])
        episodes = [in_a_loop(play(case, task, actions_for(case, task))) for task in tasks]
    except RAISED as error:  # the policy: whatever a family raises is told, and the others are played
        return {"error": f"{type(error).__name__}: {error}"}
    return {"ids": [task.id for task in tasks], "episodes": episodes}


def main() -> None:
    """Play what standard input names; the record is the last line of standard output."""
    request = json.loads(sys.stdin.read())
    records = {name: _record(name, request) for name in request["names"]}
    answer(records)
    # Environments may leave threads that never end, and nobody is to wait for them.
    os._exit(0)


if __name__ == "__main__":
    main()
