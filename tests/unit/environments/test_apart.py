"""A module in a process of its own: its hash seed, its answer, and what is said when there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from driftline.environment.apart import run_apart
from driftline.errors import EnvironmentFailed

CHILD = """
import json, os, sys, time
from driftline.environment.apart import answer

request = json.load(sys.stdin)
if request == "sleep":
    time.sleep(60)
if request == "fail":
    sys.exit("it cannot be done")
print("a library says something")
if request != "silent":
    answer({"asked": request, "seed": os.environ["PYTHONHASHSEED"], "hash": hash("text")})
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run_apart_child.py").write_text(CHILD)
    monkeypatch.syspath_prepend(tmp_path)


def test_the_answer_is_that_of_the_hash_seed() -> None:
    first, again, other = (
        run_apart("run_apart_child", [1, "two"], hash_seed=seed, timeout_s=60.0) for seed in ("3", "3", "4")
    )
    assert (first["asked"], first["seed"], other["seed"]) == ([1, "two"], "3", "4")
    assert first == again
    assert first["hash"] != other["hash"]


@pytest.mark.parametrize(
    ("request_", "timeout_s", "message"),
    [
        ("fail", 60.0, "run_apart_child ended with 1: it cannot be done"),
        ("sleep", 0.5, r"run_apart_child has not ended within 0\.5 s"),
        ("silent", 60.0, "run_apart_child gave no answer"),
    ],
)
def test_without_an_answer_it_says_why(request_: str, timeout_s: float, message: str) -> None:
    with pytest.raises(EnvironmentFailed, match=message):
        run_apart("run_apart_child", request_, hash_seed="0", timeout_s=timeout_s)
