"""Keeps the end of what child processes print, and passes all of it on."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Generator
from multiprocessing import resource_tracker

LINES = 30


class LogTail:
    """The last lines that processes started within `inherited` have printed, on either stream.

    Their output goes through a pipe to this process's stderr, also after the context has been left.
    """

    def __init__(self, lines: int = LINES) -> None:
        self._lines: deque[str] = deque(maxlen=lines)
        self._reader: threading.Thread | None = None

    @property
    def text(self) -> str:
        """The lines, indented, to be added to a message."""
        return "".join(f"\n  {line}" for line in list(self._lines))

    @contextlib.contextmanager
    def inherited(self) -> Generator[None]:
        """Within, file descriptors 1 and 2 are the pipe: children inherit them."""
        # It outlives every engine, and would hold the pipe open.
        resource_tracker.ensure_running()
        write_end = self._open()
        _flush()
        saved = [os.dup(1), os.dup(2)]
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        os.close(write_end)
        try:
            yield
        finally:
            _flush()
            for target, descriptor in enumerate(saved, start=1):
                os.dup2(descriptor, target)
                os.close(descriptor)

    @contextlib.contextmanager
    def for_child(self) -> Generator[int]:
        """Within, a file descriptor for a child's output; the child alone holds the pipe afterwards."""
        write_end = self._open()
        try:
            yield write_end
        finally:
            os.close(write_end)

    def wait(self, timeout_s: float) -> None:
        """Wait until every process that holds the pipe is gone and its last words are read."""
        if self._reader is not None:
            self._reader.join(timeout_s)

    def _open(self) -> int:
        """Begin to read a new pipe, whose other end this returns."""
        read_end, write_end = os.pipe()
        self._reader = threading.Thread(
            target=self._forward, args=(read_end, os.dup(2)), name="engine-log", daemon=True
        )
        self._reader.start()
        return write_end

    def _forward(self, source: int, target: int) -> None:
        rest = b""
        with contextlib.suppress(OSError):
            while chunk := os.read(source, 2**16):
                with contextlib.suppress(OSError):
                    os.write(target, chunk)
                *whole, rest = (rest + chunk).split(b"\n")
                self._lines.extend(line.decode(errors="replace").rstrip() for line in whole if line.strip())
        os.close(source)
        os.close(target)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
