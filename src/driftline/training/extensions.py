"""DeepSpeed's compiled operator: built once, in set-up, and found by every trainer afterwards.

`deepspeed.init_distributed` compiles a shared-memory operator (about a minute, needs g++) when it does not find it in
`TORCH_EXTENSIONS_DIR`. torch guards that directory with a file named `lock`, which a killed process leaves behind
and on which every later process then waits for ever; `clear_stale_locks` removes such a file.

    python -m driftline.training.extensions      builds it (`make setup` does)
"""

# pyright: basic
from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sys
import time
from pathlib import Path

import psutil

from driftline.errors import ConfigurationError
from driftline.params import settings

logger = logging.getLogger(__name__)

OPERATOR = "deepspeed_shm_comm"
RELEASE_S = 0.5
"""How long a holder may take between closing its lock file and removing it."""


def is_built(directory: Path) -> bool:
    """Whether the operator lies in the directory."""
    return (directory / OPERATOR / f"{OPERATOR}.so").is_file()


def clear_stale_locks(directory: Path) -> list[Path]:
    """Remove lock files that no living process holds; returns them.

    torch keeps the file open while it holds the lock, so that the kernel knows whether there is a holder. Call it
    before the processes of a trainer are started.
    """
    locks = [lock for lock in directory.glob("*/lock") if not _is_open(lock)]
    if not locks:
        return []
    time.sleep(RELEASE_S)
    stale = [lock for lock in locks if lock.exists() and not _is_open(lock)]
    for lock in stale:
        lock.unlink(missing_ok=True)
        logger.warning("removed %s, which a killed build had left behind", lock)
    return stale


def build(directory: Path) -> float:
    """Build the operator unless it is there; returns the seconds it took. Concurrent calls build once.

    Raises:
        ConfigurationError: There is no C++ compiler.
    """
    began = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "build.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        clear_stale_locks(directory)
        if not is_built(directory) and shutil.which("g++") is None and shutil.which("c++") is None:
            raise ConfigurationError(
                "DeepSpeed compiles an operator, and there is no g++: install a C++ compiler (Debian: g++)"
            )
        if not is_built(directory):
            os.environ |= {"TORCH_EXTENSIONS_DIR": str(directory), "DS_ACCELERATOR": "cpu"}
            from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

            ShareMemCommBuilder().load(verbose=False)
    return time.monotonic() - began


def _is_open(path: Path) -> bool:
    """Whether a process of this user holds the file open."""
    for process in psutil.process_iter():
        try:
            if any(Path(file.path) == path for file in process.open_files()):
                return True
        except (psutil.Error, OSError):
            continue
    return False


if __name__ == "__main__":
    try:
        seconds = build(settings().torch_extensions_dir)
    except ConfigurationError as error:
        sys.exit(f"{error}")
    sys.stderr.write(f"DeepSpeed's operator is in {settings().torch_extensions_dir} ({seconds:.0f} s)\n")
