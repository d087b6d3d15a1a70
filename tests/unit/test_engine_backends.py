"""The comparison of the engine's two places: ratios are of one repeat."""

from __future__ import annotations

import pytest

from benchmarks.engine_backends import ratios


def test_a_ratio_is_of_two_engines_in_one_repeat() -> None:
    kept = {
        "vllm": [{"short_s": 1.0, "long_s": 2.0}, {"short_s": 10.0, "long_s": 2.0}, {"short_s": 2.0, "long_s": 1.0}],
        "vllm_server": [
            {"short_s": 1.5, "long_s": 3.0}, {"short_s": 20.0, "long_s": 2.0}, {"short_s": 1.0, "long_s": 8.0}
        ],
    }  # fmt: skip
    figures = ratios(kept)
    assert figures["short"]["each"] == pytest.approx([1.5, 2.0, 0.5])
    assert figures["long"]["each"] == pytest.approx([1.5, 1.0, 8.0])
    assert figures["short"]["server_to_in_process"] == pytest.approx(1.5)
    assert figures["long"]["server_to_in_process"] == pytest.approx(1.5)
