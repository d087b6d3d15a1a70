"""A module run in a process of its own, under a hash seed of its own: a JSON value in, a JSON value out.

The module (`python -m MODULE`) reads its request from standard input, and writes the answer with `answer`; what it or
a library prints before that does not matter. It finds what this process finds: working directory and `sys.path` are
the same.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from driftline.errors import EnvironmentFailed

LONGEST_ERROR = 400
"""Characters of what the module said last that go into the error."""


def run_apart(module: str, request: Any, *, hash_seed: str, timeout_s: float) -> Any:
    """The module's answer to a request. Blocks.

    Args:
        module: Dotted path of the module.
        request: A JSON value.
        hash_seed: PYTHONHASHSEED of the process.
        timeout_s: When it is killed, in seconds.

    Raises:
        EnvironmentFailed: It failed, took too long, or gave no answer.
    """
    paths = dict.fromkeys([str(Path.cwd()), *(path for path in sys.path if path)])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(paths)}
    try:
        done = subprocess.run(
            [sys.executable, "-m", module], input=json.dumps(request), env=environment, capture_output=True,
            text=True, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise EnvironmentFailed(f"{module} has not ended within {timeout_s:g} s: ask it for less") from None
    said = done.stderr.strip()[-LONGEST_ERROR:]
    if done.returncode:
        raise EnvironmentFailed(f"{module} ended with {done.returncode}: {said}")
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        raise EnvironmentFailed(f"{module} gave no answer: {said}") from None


def answer(value: Any) -> None:
    """In the module: give the answer, on a line of its own."""
    sys.stdout.write("\n" + json.dumps(value) + "\n")
    sys.stdout.flush()
