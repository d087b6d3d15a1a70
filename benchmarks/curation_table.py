"""The table and the plots of the curation study: what each arm needed to the same held-out success."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.figures import markdown_table

TARGETS = (0.5, 0.6, 0.7, 0.8, 0.9)
"""Held-out successes that the arms are compared at, besides the one that the fixed arm ends with."""
BESIDE = 1
"""Evaluations before and after one that a success is averaged with: one alone is of 256 episodes, and has a standard
error of 0.03. (The mean of those before alone would lag by steps, and the more tokens the more a step generates.)"""
COLORS: Mapping[str, str] = {
    "fixed": "#c4622d",
    "refreshed": "#8a7fb0",
    "sampled": "#3b7dd8",
    "curated": "#2f8f6b",
}
PIXELS = 110


def summarise(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a seed, arm and target: steps and tokens of `fixed` and of the arm until they first reached it."""
    rows: list[dict[str, Any]] = []
    for fixed in sorted(_of("fixed", results), key=lambda found: found["seed"]):
        final = smoothed(fixed)[-1]["success"]
        targets = [("fixed's last", final), *((f"{target:g}", target) for target in TARGETS)]
        others = [found for arm in COLORS for found in _of(arm, results) if found["seed"] == fixed["seed"]]
        rows += [_row(fixed, found, *target) for found in others if found is not fixed for target in targets]
    return rows


def _of(arm: str, results: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [found for found in results if found["arm"] == arm]


def _row(fixed: Mapping[str, Any], found: Mapping[str, Any], name: str, target: float) -> dict[str, Any]:
    one, other = reached(fixed, target), reached(found, target)
    return {
        "seed": fixed["seed"],
        "arm": found["arm"],
        "target": name,
        "success": target,
        "fixed_steps": one and one["step"],
        "steps": other and other["step"],
        "steps_ratio": _ratio(one, other, "step"),
        "fixed_tokens": one and one["tokens"],
        "tokens": other and other["tokens"],
        "tokens_ratio": _ratio(one, other, "tokens"),
        "fixed_zero_variance": fixed["zero_variance_share"],
        "zero_variance": found["zero_variance_share"],
        "zero_variance_ratio": found["zero_variance_share"] / max(1e-9, fixed["zero_variance_share"]),
    }


def smoothed(found: Mapping[str, Any]) -> list[dict[str, float]]:
    """An arm's held-out success, each the mean with the evaluations beside it, with its step and tokens."""
    points = found["held_out"]
    return [
        {**point, "success": statistics.fmean(p["success"] for p in points[max(0, at - BESIDE) : at + BESIDE + 1])}
        for at, point in enumerate(points)
    ]


def reached(found: Mapping[str, Any], target: float) -> dict[str, float] | None:
    """Where an arm's held-out success first reached a target, in proportion between two evaluations, or None."""
    points = smoothed(found)
    if points[0]["success"] >= target:
        return points[0]
    for before, after in pairwise(points):
        if after["success"] >= target:
            share = (target - before["success"]) / (after["success"] - before["success"])
            return {key: before[key] + share * (after[key] - before[key]) for key in ("step", "tokens", "success")}
    return None


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table."""
    if not rows:
        return "no seed has another arm beside fixed yet"
    return markdown_table(((title, title) for title in rows[0]), rows)


def plot(results: Sequence[Mapping[str, Any]], directory: Path) -> None:
    """Draw held-out success over steps and over tokens, and the share of groups without variance."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    FigureCanvasAgg(figure)
    over_steps, over_tokens, variance = figure.subplots(1, 3)
    for found in results:
        color, points = COLORS[found["arm"]], smoothed(found)
        success = [point["success"] for point in points]
        over_steps.plot([point["step"] for point in points], success, color=color, lw=1)
        over_tokens.plot([point["tokens"] / 1e3 for point in points], success, color=color, lw=1)
        shares = [point["zero_variance_share"] for point in found["curve"]]
        means = [statistics.fmean(shares[max(0, at - 4) : at + 1]) for at in range(len(shares))]
        variance.plot(range(1, len(means) + 1), means, color=color, lw=1)
    over_steps.set(xlabel="step", ylabel="held-out success")
    over_tokens.set(xlabel="thousand tokens generated, measuring included", ylabel="held-out success")
    variance.set(xlabel="step", ylabel="share of groups without variance, mean of 5 steps")
    for arm, color in COLORS.items():
        if not _of(arm, results):
            continue
        over_steps.plot([], [], color=color, label=arm)
    over_steps.legend(fontsize=8)
    directory.mkdir(parents=True, exist_ok=True)
    figure.savefig(directory / "curation-study.png", dpi=PIXELS)


def _ratio(one: Mapping[str, float] | None, other: Mapping[str, float] | None, key: str) -> float | None:
    return other[key] / one[key] if one and other and one[key] else None
