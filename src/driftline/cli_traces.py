"""What `driftline traces` does."""

from __future__ import annotations

import re
from pathlib import Path

from rich.table import Table

from driftline.errors import ConfigurationError
from driftline.store.run_store import RunStore
from driftline.store.trace_export import Export, export
from driftline.traces import groups_of, write


def export_to(run_store: RunStore, path: Path, steps: str | None) -> tuple[Table, str]:
    """Write a trace of a run into a new file; returns its figures and its digest.

    Args:
        run_store: The run.
        path: A new file.
        steps: `4`, `4-9`, or None for every finished group.

    Raises:
        ConfigurationError: Bad steps, nothing to replay, or the file exists.
    """
    chosen = None if steps is None else steps_of(steps)
    if path.exists():
        raise ConfigurationError(f"{path} exists, and a trace never changes: choose another name")
    made = export(run_store, chosen)
    digest = write(path, made.trace)
    return summary(path, made), digest


def steps_of(text: str) -> tuple[int, int]:
    """First and last step that `4` or `4-9` names.

    Raises:
        ConfigurationError: It names none.
    """
    found = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", text.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if first < 1 or last < first:
        raise ConfigurationError(f"--steps {text}: give a step, such as 4, or the first and the last, such as 4-9")
    return first, last


def summary(path: Path, made: Export) -> Table:
    """A trace in few figures, and what is not in it."""
    trace = made.trace
    table = Table("figure", "value", title=str(path), title_justify="left")
    turns = sorted(shape.turns for shape in trace)
    seconds = sorted(value for shape in trace for value in shape.tool_seconds)
    table.add_row("groups", str(len(groups_of(trace))))
    table.add_row("episodes", str(len(trace)))
    table.add_row("turns of an episode", f"median {turns[len(turns) // 2]}, most {turns[-1]}")
    table.add_row("sampled tokens", f"{sum(sum(shape.sampled_tokens) for shape in trace):,}")
    table.add_row("tool call", f"median {seconds[len(seconds) // 2]:.6g} s, longest {seconds[-1]:.6g} s")
    for reason, count in sorted(made.left_out.items()):
        table.add_row("groups left out", f"{count}: {reason}")
    return table
