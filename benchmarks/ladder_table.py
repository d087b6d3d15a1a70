"""The table and the timelines of the rollout ladder."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import markdown_table

COLUMNS = (
    ("arm", "arm"),
    ("seconds", "wall_clock_s"),
    ("to a0", "against_a0"),
    ("to a", "against_a"),
    ("to b", "against_b"),
    ("to the bound", "against_bound"),
    ("to requests alone", "against_requests"),
    ("trainer waits, to b", "trainer_wait_against_b"),
    ("cache hits", "cache_hit_share"),
    ("length bias", "length_bias"),
    ("at half", "length_bias_halfway"),
)
WITHOUT_A_LEAD = ("a0", "a", "b")
"""Arms that begin a batch when the trainer asks for it: it waits as long whatever training takes."""
PIXELS = 110
BIN_S = 0.05


def summarise(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row an arm: medians over the repeats, and their ratios."""
    arms: Mapping[str, Sequence[Mapping[str, float]]] = found["arms"]
    balanced: Mapping[str, Sequence[Mapping[str, float]]] = found["balanced"]
    bound: Mapping[str, float] = found["bound"]
    bound_s = max(bound["tokens_s"], bound["longest_s"])
    walls = {arm: statistics.median(one["wall_clock_s"] for one in kept) for arm, kept in arms.items() if kept}
    waited = {arm: arms.get(arm, ()) for arm in WITHOUT_A_LEAD}
    waited |= {arm: kept for arm, kept in balanced.items() if kept}
    waits = {arm: statistics.median(one["trainer_wait_s"] for one in kept) for arm, kept in waited.items() if kept}
    rows: list[dict[str, Any]] = []
    for arm, wall_s in walls.items():
        kept = arms[arm]
        rows.append(
            {
                "arm": arm,
                "wall_clock_s": {"median": wall_s, "all": [one["wall_clock_s"] for one in kept]},
                "against_a0": _ratio(wall_s, walls.get("a0")),
                "against_a": _ratio(wall_s, walls.get("a")),
                "against_b": _ratio(wall_s, walls.get("b")),
                "against_bound": wall_s / bound_s,
                "against_requests": wall_s / bound["requests_s"],
                "bound_s": bound,
                "trainer_wait_s": waits.get(arm),
                "trainer_wait_against_b": _ratio(waits.get(arm), waits.get("b")),
                "cache_hit_share": statistics.median(one["cache_hit_share"] for one in kept),
                "length_bias": max((one["length_bias"] for one in kept), key=abs),
                "length_bias_halfway": statistics.median(one["length_bias_halfway"] for one in kept),
                "same_tokens_share": min(one["same_tokens_share"] for one in kept),
            }
        )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The rows as a Markdown table."""
    return markdown_table(COLUMNS, rows, _cell)


def plot(pictures: Mapping[str, Sequence[tuple[float, float]]], path: Path) -> None:
    """Draw how many requests are in the engine over time, one strip an arm, on one axis of seconds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.0 + 0.8 * len(pictures)), layout="constrained")
    FigureCanvasAgg(figure)
    strips = figure.subplots(len(pictures), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for strip, (arm, requests) in zip(strips, pictures.items(), strict=True):
        times, counts = _running(requests)
        strip.fill_between(times, counts, step="post", color="#3b6fb6", lw=0)
        strip.set_ylabel(arm, rotation=0, ha="right", va="center")
        strip.axvline(times[-1], color="#c4622d", lw=1)
    ends = sorted(_running(requests)[0][-1] for requests in pictures.values())
    strips[-1].set_xlim(0, 1.05 * (ends[-2] if len(ends) > 1 and ends[-1] > 3 * ends[-2] else ends[-1]))
    strips[-1].set_xlabel("seconds; how many requests are in the engine, the line is the end")
    figure.savefig(path, dpi=PIXELS)


def _running(requests: Sequence[tuple[float, float]]) -> tuple[list[float], list[int]]:
    """Requests under way at the begin of each bin."""
    last = max(end for _, end in requests)
    times = [number * BIN_S for number in range(int(last / BIN_S) + 2)]
    return times, [sum(start <= time < end for start, end in requests) for time in times]


def _ratio(value: float | None, to: float | None) -> float | None:
    return value / to if value is not None and to else None


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        value = value["median"]
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.3g}"
