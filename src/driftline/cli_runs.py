"""What the command line does with one run's objects: replay a step, collect garbage."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

from driftline.errors import DriftlineError
from driftline.params import RunParameters
from driftline.process import supervise
from driftline.store.collection import Plan
from driftline.store.run_store import RunStore
from driftline.training.environment_variables import training_environment


def replay(run_store: RunStore, step: int, say: Callable[[str], None]) -> Mapping[str, Any]:
    """Replay a step in a child process; returns its result event.

    Args:
        run_store: The run.
        step: Number of a committed step.
        say: Called with each line of the child's log.

    Raises:
        ConfigurationError: There is no such run or step, or its inputs were collected.
        ProcessFailed: The child failed.
    """
    params = RunParameters.model_validate(run_store.describe().parameters)
    outcome = asyncio.run(
        supervise(
            [sys.executable, "-m", "driftline.training.replay", "--run", run_store.run, "--step", str(step)],
            env={**os.environ, **training_environment(params, os.environ)},
            on_log=say,
        )
    )
    if outcome.result is None:
        raise DriftlineError("the replay ended without a result: see its log")
    return outcome.result


def replay_table(result: Mapping[str, Any]) -> Table:
    """A replay's figures beside the record's."""
    title = f"step {result['step']} of run {result['run']}, from version {result['version_in']}"
    table = Table("figure", "record", "replay", "difference", "allowed", title=title, title_justify="left")
    for name, figure in result["figures"].items():
        differs = (f"{figure[what]:.1e}" for what in ("difference", "allowed"))
        table.add_row(name, f"{figure['record']:.8g}", f"{figure['replay']:.8g}", *differs)
    return table


def plan_table(plan: Plan) -> Table:
    """What a collection deletes, by reason."""
    table = Table("what", "objects", "bytes", title=f"run {plan.run}", title_justify="left")
    for reason, (objects, size) in sorted(plan.by_reason().items()):
        table.add_row(reason, str(objects), f"{size:,}")
    table.add_row("all that goes", str(len(plan.doomed)), f"{plan.bytes:,}")
    table.add_row("what stays", "", f"{plan.kept_bytes:,}")
    return table


def plan_dict(plan: Plan, *, applied: bool) -> dict[str, Any]:
    """A collection as JSON."""
    return {
        "run": plan.run,
        "applied": applied,
        "objects": len(plan.doomed),
        "bytes": plan.bytes,
        "kept_bytes": plan.kept_bytes,
        "unreplayable_steps": list(plan.unreplayable),
        "by_reason": {reason: {"objects": o, "bytes": b} for reason, (o, b) in sorted(plan.by_reason().items())},
    }


def steps_text(steps: tuple[int, ...]) -> str:
    """Step numbers in few words."""
    if len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1:
        return f"{steps[0]} to {steps[-1]}"
    return ", ".join(map(str, steps))
