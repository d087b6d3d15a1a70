"""`none`: limits, and no walls. What runs can read and write whatever its user can, and reach the network.

For trusted programs, and for machines that allow nothing else. Processor time, memory, files, output and the wall
clock are watched as elsewhere, and all descendants are ended; the size of all files together is not limited.
"""

from __future__ import annotations

import os
import shutil
import stat
import warnings
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from driftline.errors import ConfigurationError
from driftline.sandbox.interpreter import interpreter, program_variables, supervisor_source
from driftline.sandbox.supervised import Launch

WARNING = "the sandbox `none` has no walls: programs inside may do whatever this user may; run only what you trust"


class UnconfinedWarning(UserWarning):
    """Programs run without walls."""


def launch(readonly: Mapping[str, bytes]) -> Launch:
    """How to start a folder of its own, with limits.

    Raises:
        ConfigurationError: Files are to be mounted, which needs a mount namespace.
    """
    if readonly:
        raise ConfigurationError("the sandbox `none` mounts nothing: write the files into the template")
    warnings.warn(WARNING, UnconfinedWarning, stacklevel=3)
    folder = Path(os.path.realpath(mkdtemp(prefix="driftline-sandbox-")))
    python = interpreter()
    environment = program_variables(python.search_path, str(folder / "tmp"))
    argv = [str(python.program), "-I", "-S", "-B", "-c", supervisor_source()]
    return Launch(argv=argv, root=str(folder / "work"), environment=environment, cleanups=[partial(_remove, folder)])


def _remove(folder: Path) -> None:
    """Remove all that is there, also where a program took the rights to."""

    def again(function: Any, path: str, _: Any) -> None:
        at = Path(path)
        for one in (at.parent, at):
            if not one.is_symlink() and one.is_relative_to(folder):
                one.chmod(one.stat().st_mode | stat.S_IRWXU)
        if at.is_dir() and not at.is_symlink():
            shutil.rmtree(at, ignore_errors=True)
        else:
            function(path)

    shutil.rmtree(folder, onerror=again)
