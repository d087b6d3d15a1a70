"""Packages that are not in the lock, for the slow tests that need the real ones; fetched by uv, as in set-up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from infra.set_up import pip_settings, uv_variables

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "cpu.lock"
DEADLINE_S = 900.0


def beside_ours(directory: Path, *requirements: str, other_than_locked: Collection[str] = ()) -> dict[str, str]:
    """Install an extra's packages into a directory, none in another version than the lock's but those named.

    Returns:
        The environment in which our Python finds them, the checkout and its library.
    """
    constraints = directory / "constraints.txt"
    locked = [line for line in LOCK.read_text().splitlines() if line.partition("==")[0] not in other_than_locked]
    constraints.write_text("\n".join(locked))
    apart = ("--target", str(directory), "--constraint", str(constraints))
    _uv("pip", "install", "--python", sys.executable, *apart, *requirements)
    paths = [directory, ROOT / "src", ROOT]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}


def on_their_own(directory: Path, *requirements: str) -> Path:
    """Make an environment with those packages alone; returns its folder of programs."""
    _uv("venv", "--python", sys.executable, str(directory))
    _uv("pip", "install", "--python", str(directory / "bin" / "python"), *requirements)
    return directory / "bin"


def ours(program: str, environment: dict[str, str], *arguments: str) -> str:
    """Run a program text with our Python, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def _uv(*arguments: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    environment = {**os.environ, **uv_variables(pip_settings(sys.executable), os.environ)}
    done = subprocess.run(
        [str(uv), *arguments], env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 0, f"uv {' '.join(arguments)}: {done.stderr[-4000:]}"
