"""What every sandbox backend offers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Limit = Literal["cpu", "wall", "memory", "processes", "files", "output"]
"""The limit for which a run was ended. Others make a call inside fail instead: the disk (`ENOSPC`), the size of one
file (`EFBIG`), open files (`EMFILE`) and, with namespaces, the number of processes (`EAGAIN`)."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a program ended."""

    exit_code: int
    """Negative for a signal, as `subprocess` has it; 127 where there was no such program."""
    stdout: bytes
    stderr: bytes
    limit: Limit | None
    """The limit for which it was ended. Then `exit_code` says nothing."""
    seconds: float
    cpu_seconds: float
    """Of the whole tree of processes."""
    peak_memory_bytes: int
    """Largest that was seen of the tree's own memory and the files; looked at every 20 ms."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A regular file, or a symbolic link, of the sandbox."""

    path: str
    size: int
    executable: bool = False
    link: str | None = None
    """Where the link points; never followed."""


class Sandbox(Protocol):
    """Files, and programs that run among them. One call at a time; a call that is cancelled ends the sandbox.

    Paths are relative to the working folder. No call follows a symbolic link, and whatever is neither a file nor a
    folder is refused: `SandboxRefused`. All raise `SandboxFailed` if the sandbox is gone.
    """

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> RunResult:
        """Run a program in the working folder, to its end or to a limit; when it returns, no process is left.

        Args:
            argv: The program and its arguments; looked up in `/usr/bin` and the interpreter's folder.
            stdin: What it reads.
            timeout_s: Wall-clock seconds, at most the profile's `wall_s`, which is the default.
            environment: Variables beside the few that are always set. Nothing is inherited.
        """
        ...

    async def read(self, path: str) -> bytes:
        """The content of a file.

        Raises:
            SandboxRefused: It is missing, or not a file.
        """
        ...

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Write files, in order, making their folders.

        Raises:
            SandboxRefused: A path leads through a link, or the disk is full. Earlier files are written.
        """
        ...

    async def remove(self, path: str) -> None:
        """Remove a file or a link.

        Raises:
            SandboxRefused: It is missing, or a folder.
        """
        ...

    async def entries(self) -> list[FileEntry]:
        """All files and links, sorted by path."""
        ...

    async def snapshot(self) -> dict[str, bytes]:
        """The content of every file, by path; a template from which the same tree can be opened again."""
        ...

    async def close(self) -> None:
        """End every process and drop every file; may be called at any time, more than once."""
        ...
