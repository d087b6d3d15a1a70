"""The run as a picture: one lane each for rollout, training, publish, apply and the waiting of both pools.

The upper panel is the whole run, the lower one a few steps from its middle. Thin lines are commits.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from driftline.records import Span
from driftline.tracking.intervals import Interval, clip, complement, union

ROLLOUT, TRAINING, PUBLISH, APPLY = "rollout", "training", "publish", "apply"
WAITING = "waiting/"
WAITING_ROLLOUT = f"{WAITING}rollout"
POOLS: Mapping[str, str] = {"rollout": ROLLOUT, "train": TRAINING}
"""Pool -> the lane on which it works."""
COLORS: Mapping[str, str] = {
    ROLLOUT: "#3b6fb6",
    TRAINING: "#c4622d",
    PUBLISH: "#7a5aa6",
    APPLY: "#2f8f6b",
    WAITING: "#b9bdc4",
}
CLOSE_UP_STEPS = 4
PIXELS = 1400


def lanes(spans: Sequence[Span], start: float, end: float) -> dict[str, list[Interval]]:
    """Disjoint intervals of each lane within `[start, end]`, in the order of the picture.

    A pool whose waiting nobody recorded waits whenever its own lane is empty.
    """
    found: dict[str, list[Interval]] = {lane: [] for lane in (ROLLOUT, TRAINING, PUBLISH, APPLY)}
    for span in spans:
        found.setdefault(span.lane, []).append((span.start_unix, span.end_unix))
    for pool, lane in POOLS.items():
        found.setdefault(WAITING + pool, complement(found[lane], start, end))
    order = [
        *(lane for lane in found if not lane.startswith(WAITING)),
        *sorted(n for n in found if n.startswith(WAITING)),
    ]
    return {lane: union(clip(found[lane], start, end)) for lane in order}


def draw(spans: Sequence[Span], *, title: str = "", commits: Sequence[float] = ()) -> bytes | None:
    """Draw the timeline as a PNG.

    Args:
        spans: What the processes recorded.
        title: Headline of the picture.
        commits: Unix seconds of the commits, in order.

    Returns:
        The bytes of a PNG file, or None where no span was recorded.
    """
    timed = [span for span in spans if span.end_unix > span.start_unix]
    if not timed:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    whole = (min(span.start_unix for span in timed), max(span.end_unix for span in timed))
    panels = [whole, close] if (close := _close_up(commits, whole)) else [whole]
    figure: Any = Figure(figsize=(PIXELS / 100, 3.2 * len(panels)), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for index, window in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, index + 1)
        _panel(axes, lanes(timed, *whole), window, whole[0], commits)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _close_up(commits: Sequence[float], whole: Interval) -> Interval | None:
    """From one commit to the one `CLOSE_UP_STEPS` later, in the middle of a run that is longer than that."""
    if len(commits) <= CLOSE_UP_STEPS + 1:
        return None
    first = (len(commits) - CLOSE_UP_STEPS) // 2
    start, end = commits[first], commits[first + CLOSE_UP_STEPS]
    return (start, end) if whole[0] <= start < end <= whole[1] else None


def _panel(
    axes: Any, by_lane: Mapping[str, Sequence[Interval]], window: Interval, origin: float, commits: Sequence[float]
) -> None:
    start, end = window
    pixel_s = (end - start) / PIXELS
    names = list(by_lane)
    for row, name in enumerate(reversed(names)):
        color = COLORS.get(WAITING if name.startswith(WAITING) else name, "#555555")
        bars = union(clip(by_lane[name], start, end), gap_s=pixel_s)
        axes.broken_barh([(first - origin, last - first) for first, last in bars], (row - 0.35, 0.7), color=color)
    for commit in commits:
        if start <= commit <= end:
            axes.axvline(commit - origin, color="#000000", linewidth=0.5, alpha=0.35)
    axes.set_yticks(range(len(names)), labels=list(reversed(names)))
    axes.set_xlim(start - origin, end - origin)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xlabel("seconds")
