"""The table and the plots of the staleness study, from the results of its arms."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import markdown_table

COLUMNS = (
    ("arm", "arm"),
    ("steps", "steps"),
    ("success", "success"),
    ("to synchronous", "success_difference"),
    ("wall clock s", "wall_clock_s"),
    ("a step to synchronous", "step_ratio"),
    ("effective lead", "effective_lead_batches"),
    ("lead", "lead_batches_mean"),
    ("k3 nats", "k3_nats"),
    ("ESS", "ess_fraction"),
    ("dropped", "dropped_share"),
)
SYNCHRONOUS = "none-0"
COLORS: Mapping[str, str] = {
    "none": "#c4622d", "truncated": "#7a5aa6", "admission": "#3b6fb6", "controller": "#2f8f6b"
}  # fmt: skip
PIXELS = 110


def summarise(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row an arm: means over its seeds. What is relative to the synchronous arm is of the same seed."""
    base = {found["seed"]: found for found in results if found["arm"] == SYNCHRONOUS}
    rows: list[dict[str, Any]] = []
    for arm in dict.fromkeys(found["arm"] for found in results):
        own = [found for found in results if found["arm"] == arm]
        paired = [(found, base[found["seed"]]) for found in own if found["seed"] in base]
        rows.append(
            {
                "arm": arm,
                "seeds": [found["seed"] for found in own],
                "success_by_seed": [found["success"] for found in own],
                "success_difference": _mean([found["success"] - other["success"] for found, other in paired]),
                "step_ratio": _mean([found["step_s"] / other["step_s"] for found, other in paired]),
                "wall_clock_ratio": _mean([found["wall_clock_s"] / other["wall_clock_s"] for found, other in paired]),
                **{key: _mean([found[key] for found in own if key in found]) for key in _MEANS},
            }
        )
    return rows


_MEANS = (
    "steps", "success", "wall_clock_s", "step_s", "effective_lead_batches", "lead_batches_mean", "k3_nats",
    "ess_fraction", "dropped_share", "reward_last", "admission_s", "admission_forward_s",
    "steering_s", "steering_share",
)  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table."""
    return markdown_table(COLUMNS, rows)


def plot(results: Sequence[Mapping[str, Any]], directory: Path) -> None:
    """Draw success over wall clock and over steps, k3 over the effective lead, and the controller's lead."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    (over_time, against_lead), (over_steps, of_controller) = figure.subplots(2, 2)
    for found in results:
        color, style = COLORS[found["correction"]], _style(found["lead_batches"])
        smoothed = _smooth([point["success"] for point in found["curve"]])
        over_time.plot([point["seconds"] for point in found["curve"]], smoothed, style, color=color, lw=1)
        over_steps.plot(range(1, len(smoothed) + 1), smoothed, style, color=color, lw=1)
        against_lead.scatter(found["effective_lead_batches"], found["k3_nats"], color=color, s=30)
        if found["correction"] == "controller":
            leads = [point["lead_groups"] for point in found["curve"]]
            of_controller.plot(range(1, len(leads) + 1), leads, color=color, lw=1)
    over_time.set(xlabel="seconds since the first batch was awaited", ylabel="success in training")
    over_steps.set(xlabel="step", ylabel="success in training")
    against_lead.set(xlabel="effective lead: mean lag of trained tokens, versions", ylabel="k3, nats a token")
    against_lead.set_yscale("log")
    of_controller.set(xlabel="step", ylabel="lead set by the controller, groups")
    for name, color in COLORS.items():
        over_time.plot([], [], color=color, label=name)
    for lead in sorted({found["lead_batches"] for found in results}):
        over_steps.plot([], [], _style(lead), color="black", label=f"lead {lead}")
    over_time.legend(fontsize=8)
    over_steps.legend(fontsize=8)
    directory.mkdir(parents=True, exist_ok=True)
    figure.savefig(directory / "staleness-study.png", dpi=PIXELS)


def _style(lead: int) -> str:
    return {0: "-", 1: "--", 4: "-."}.get(lead, ":")


def _smooth(values: Sequence[float], window: int = 5) -> list[float]:
    return [_mean(values[max(0, index - window + 1) : index + 1]) or 0.0 for index in range(len(values))]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
