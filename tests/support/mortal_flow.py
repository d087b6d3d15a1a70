"""The process of a flow run that kills itself at a write to the store: `python -m tests.support.mortal_flow`.

A worker starts it in place of Prefect's own command. `DIES_AT` is a regular expression of keys, `DIES` says whether
the write that it matches is still carried out (`after`) or not (`before`).
"""

from __future__ import annotations

import functools
import os
import re
import runpy
import signal
from collections.abc import Callable
from typing import Any

from driftline.store.client import S3Store


def mortal(write: Callable[..., Any], at: str, when: str) -> Callable[..., Any]:
    """A way of writing that is the process's last act where the key matches."""

    @functools.wraps(write)
    def written(self: S3Store, key: str, *rest: Any) -> Any:
        doomed = re.search(at, key) is not None
        if doomed and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        found = write(self, key, *rest)
        if doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    return written


if __name__ == "__main__":
    for name in ("put", "create", "swap"):
        setattr(S3Store, name, mortal(getattr(S3Store, name), os.environ["DIES_AT"], os.environ["DIES"]))
    runpy.run_module("prefect.engine", run_name="__main__", alter_sys=True)
