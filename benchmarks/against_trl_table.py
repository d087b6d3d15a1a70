"""The table of the comparison with TRL: seconds a step, seconds to the target, and what a user writes. Pure."""

from __future__ import annotations

import ast
import io
import statistics
import tokenize
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.figures import cell, markdown_table

SKIPPED_STEPS = 2
"""First steps that do not count in seconds a step: what is computed for the first time costs more."""
COLUMNS = (
    ("tools", "tools"),
    ("arm", "arm"),
    ("seeds", "seeds"),
    ("s a step", "step_s"),
    ("TRL with vLLM, a step", "step_of_vllm"),
    ("TRL's best, a step", "step_of_best"),
    ("s to target", "to_target_s"),
    ("reached", "reached"),
    ("TRL with vLLM, to target", "target_of_vllm"),
    ("TRL's best, to target", "target_of_best"),
    ("last success", "last_success"),
    ("lines", "lines"),
)
_IGNORED = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
    tokenize.ENDMARKER,
}  # fmt: skip


def step_seconds(result: Mapping[str, Any]) -> float:
    """Mean seconds a step."""
    seconds = [step["seconds"] for step in result["steps"]]
    return statistics.fmean(seconds[SKIPPED_STEPS:] or seconds)


def seconds_to(result: Mapping[str, Any], target: float) -> float | None:
    """Seconds until the first evaluated step whose held-out success is the target; None if none reached it."""
    reached = [int(step) for step, success in result["held_out"].items() if success >= target]
    return sum(step["seconds"] for step in result["steps"][: min(reached)]) if reached else None


def summarise(results: Sequence[Mapping[str, Any]], lines: Mapping[str, int], target: float) -> list[dict[str, Any]]:
    """One row for each arm with and without tool waits: medians over its seeds.

    Ratios are of two arms of one seed that one run of the benchmark has played; above 1 the row's arm is the quicker.
    TRL's best is the best of its arms that are there.
    """
    rows: list[dict[str, Any]] = []
    for waits in (False, True):
        here = [one for one in results if one["waits"] == waits]
        for arm in dict.fromkeys(one["arm"] for one in here):
            own = [one for one in here if one["arm"] == arm]
            rows.append({"tools": "20 ms" if waits else "instant", "arm": arm} | _row(own, here, target))
            rows[-1]["lines"] = lines[arm]
    return rows


def _row(own: Sequence[Mapping[str, Any]], here: Sequence[Mapping[str, Any]], target: float) -> dict[str, Any]:
    to_target = [seconds_to(one, target) for one in own]
    reached = [seconds for seconds in to_target if seconds is not None]
    row: dict[str, Any] = {
        "seeds": [one["seed"] for one in own],
        "step_s": statistics.median(step_seconds(one) for one in own),
        "step_s_by_seed": [step_seconds(one) for one in own],
        "to_target_s": _median(reached),
        "to_target_s_by_seed": to_target,
        "reached": f"{len(reached)} of {len(own)}",
        "last_success": _median([list(one["held_out"].values())[-1] for one in own if one["held_out"]]),
    }
    for name, chosen in (("vllm", "vllm"), ("best", "trl")):
        steps: list[float] = []
        targets: list[float] = []
        for one, seconds in zip(own, to_target, strict=True):
            others = [other for other in here if _paired(one, other) and chosen in other["arm"]]
            if others:
                steps.append(min(step_seconds(other) for other in others) / step_seconds(one))
            times = [time for other in others if (time := seconds_to(other, target)) is not None]
            if times and seconds is not None:
                targets.append(min(times) / seconds)
        row |= {f"step_of_{name}": _median(steps), f"target_of_{name}": _median(targets)}
    return row


def _paired(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return (one["seed"], one["run"]) == (other["seed"], other["run"])


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table."""
    return markdown_table(COLUMNS, rows, _cell)


def code_lines(source: str) -> int:
    """Lines of a Python source with code on them: no blank ones, comments or docstrings."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _IGNORED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _cell(value: Any) -> str:
    return str(len(value)) if isinstance(value, list) else cell(value)
