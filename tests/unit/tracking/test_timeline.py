"""The timeline as lanes and as a picture."""

from __future__ import annotations

import io

import matplotlib.image
import numpy as np

from driftline.tracking.timeline import COLORS, draw, lanes
from tests.support.tracking_records import span


def test_lanes_are_disjoint_and_waiting_is_what_is_left() -> None:
    found = lanes([span("rollout", 1, 4), span("rollout", 3, 6), span("training", 5, 8), span("apply", 8, 12)], 0, 10)
    assert found == {
        "rollout": [(1, 6)],
        "training": [(5, 8)],
        "publish": [],
        "apply": [(8, 10)],
        "waiting/rollout": [(0, 1), (6, 10)],
        "waiting/train": [(0, 5), (8, 10)],
    }


def test_recorded_waiting_is_kept() -> None:
    found = lanes([span("rollout", 0, 4), span("waiting/rollout", 5, 6)], 0, 10)
    assert found["waiting/rollout"] == [(5, 6)]


def colors_of(picture: bytes) -> set[tuple[int, int, int]]:
    pixels = matplotlib.image.imread(io.BytesIO(picture), format="png")[:, :, :3]
    return {tuple(color) for color in np.unique((pixels * 255).round().astype(int).reshape(-1, 3), axis=0).tolist()}


def test_the_picture_shows_each_lane_in_its_color() -> None:
    spans = [span("rollout", 0, 10), span("training", 4, 8), span("publish", 8, 9), span("apply", 9, 10)]
    picture = draw(spans, title="run r", commits=[2, 4, 6, 8, 9, 10])
    assert picture is not None
    assert picture.startswith(b"\x89PNG")
    seen = colors_of(picture)
    for lane, color in COLORS.items():
        rgb = (int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16))
        assert rgb in seen, lane


def test_a_longer_run_gets_a_close_up() -> None:
    spans = [span("rollout", 0, 10)]
    short, long = draw(spans, commits=[1, 2]), draw(spans, commits=range(11))
    assert short is not None
    assert long is not None
    height = [int.from_bytes(picture[20:24], "big") for picture in (short, long)]
    assert height == [320, 640]


def test_without_spans_there_is_no_picture() -> None:
    assert draw([]) is None
    assert draw([span("rollout", 5, 5)]) is None
