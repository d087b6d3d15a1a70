"""The host's side of a sandbox: starts a supervisor behind whatever walls, and speaks to it over a pipe.

What comes back may have been written by whoever got hold of the supervisor, so lengths are bounded, and an answer is
JSON and nothing else. A request that gets no answer in time, or is cancelled, leaves the sandbox in an unknown state:
it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import marshal
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from driftline.errors import SandboxFailed, SandboxRefused, SandboxUnavailable
from driftline.sandbox.profile import SandboxProfile
from driftline.sandbox.protocol import FileEntry, RunResult

logger = logging.getLogger(__name__)

START_DEADLINE_S = 20.0
ANSWER_GRACE_S = 10.0
"""How much later than a run's own deadline its answer may come, on a machine that is busy."""
FILES_DEADLINE_S = 30.0
CLOSE_DEADLINE_S = 5.0
LONGEST_HEAD = 8 * 2**20
LONGEST_COMPLAINT = 2000


@dataclass(slots=True)
class Launch:
    """How a supervisor is started, and what to do when it has ended."""

    argv: Sequence[str]
    root: str
    """The working folder, as the supervisor sees it."""
    environment: Mapping[str, str]
    """All variables of the programs; `PATH` and `TMPDIR` are among them."""
    descriptors: Sequence[int] = ()
    """Open files that the command inherits. They are closed here once it runs."""
    information: int | None = None
    """Where the command tells the process id of the supervisor, as bubblewrap does with `--info-fd`."""
    own_user_namespace: bool = False
    """Whether the kernel counts the sandbox's processes apart from those of the user outside."""
    remedy: str = ""
    """What may be wrong if it does not start."""
    cleanups: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


class SupervisedSandbox:
    """A `Sandbox` whose files and programs are a supervisor's."""

    def __init__(self, launch: Launch, profile: SandboxProfile, process: asyncio.subprocess.Process) -> None:
        self._launch = launch
        self._profile = profile
        self._process = process
        self._supervisor: int | None = None
        """The process id of the supervisor, where it is not the child itself."""
        self._asked = False
        self._usable = True
        self._closed = False

    @classmethod
    async def start(cls, launch: Launch, profile: SandboxProfile, template: Mapping[str, bytes]) -> SupervisedSandbox:
        """Start a supervisor and hand it the first files.

        Raises:
            SandboxUnavailable: It did not start; the message says why, and what to do.
            SandboxRefused: A file of the template cannot be written.
        """
        try:
            process = await _started(launch)
        except BaseException as error:
            await asyncio.to_thread(_clean_up, launch)
            if isinstance(error, OSError):
                raise SandboxUnavailable(f"the sandbox does not start: {error}: {launch.remedy}") from error
            raise
        finally:
            for descriptor in launch.descriptors:
                os.close(descriptor)
        sandbox = cls(launch, profile, process)
        try:
            await sandbox._begin(template)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> RunResult:
        """Run a program to its end or to a limit."""
        wall_s = self._profile.wall_s if timeout_s is None else min(timeout_s, self._profile.wall_s)
        request = {"argv": list(argv), "timeout_s": wall_s, "environment": dict(environment or {})}
        answer, body = await self._ask("run", request, stdin, wall_s + ANSWER_GRACE_S)
        with _understood():
            out = int(answer["stdout"])
            return RunResult(
                exit_code=int(answer["exit_code"]),
                stdout=body[:out],
                stderr=body[out:],
                limit=answer["limit"],
                seconds=float(answer["seconds"]),
                cpu_seconds=float(answer["cpu_seconds"]),
                peak_memory_bytes=int(answer["peak_memory_bytes"]),
            )

    async def read(self, path: str) -> bytes:
        """The content of a file."""
        return (await self._ask("read", {"path": path}))[1]

    async def write(self, files: Mapping[str, bytes]) -> None:
        """Write files."""
        await self._ask("write", {"files": _sizes(files)}, b"".join(files.values()))

    async def remove(self, path: str) -> None:
        """Remove a file or a link."""
        await self._ask("remove", {"path": path})

    async def entries(self) -> list[FileEntry]:
        """All files and links, sorted by path."""
        answer, _ = await self._ask("entries", {})
        with _understood():
            found = [FileEntry(path, size, executable, link) for path, size, executable, link in answer["entries"]]
        return sorted(found, key=lambda entry: entry.path)

    async def snapshot(self) -> dict[str, bytes]:
        """The content of every file, by path."""
        answer, body = await self._ask("snapshot", {})
        files: dict[str, bytes] = {}
        at = 0
        with _understood():
            for path, size in answer["files"]:
                files[str(path)] = body[at : at + size]
                at += size
        return dict(sorted(files.items()))

    async def close(self) -> None:
        """End every process and drop every file."""
        if self._closed:
            return
        self._closed = True
        self._usable = False
        try:
            await self._end()
        finally:
            # In a thread: it may wait for a container's runtime.
            await asyncio.to_thread(_clean_up, self._launch)

    async def _begin(self, template: Mapping[str, bytes]) -> None:
        launch = self._launch
        request = {
            "root": launch.root,
            "environment": dict(launch.environment),
            "limits": _limits(self._profile) | {"count_processes": launch.own_user_namespace},
            "files": _sizes(template),
        }
        try:
            answer, _ = await self._ask("start", request, b"".join(template.values()), START_DEADLINE_S)
        except SandboxFailed as error:
            complaint = await self._complaint()
            raise SandboxUnavailable(f"the sandbox does not start: {complaint or error}: {launch.remedy}") from None
        if not answer.get("ready"):
            raise SandboxUnavailable(f"the sandbox does not start: {launch.remedy}")
        if launch.information is not None:
            with _understood():
                self._supervisor = int(json.loads(os.read(launch.information, 4096))["child-pid"])

    async def _ask(
        self, operation: str, request: Mapping[str, Any], body: bytes = b"", deadline_s: float = FILES_DEADLINE_S
    ) -> tuple[dict[str, Any], bytes]:
        if not self._usable:
            raise SandboxFailed(f"{operation}: the sandbox has ended: open another one")
        if self._asked:
            raise SandboxFailed(f"{operation}: the sandbox is busy: it takes one call at a time")
        self._asked = True
        answered = False
        try:
            async with asyncio.timeout(deadline_s):
                answer, content = await self._exchange({"op": operation, **request}, body)
            answered = True
        except TimeoutError:
            raise SandboxFailed(f"{operation}: the sandbox gave no answer within {deadline_s:g} s") from None
        except (ConnectionError, asyncio.IncompleteReadError):
            raise SandboxFailed(f"{operation}: the sandbox has ended by itself") from None
        finally:
            self._asked = False
            if not answered:
                self._usable = False
                self._kill()
        if "refused" in answer:
            raise SandboxRefused(f"{operation}: {answer['refused']}")
        return answer, content

    async def _exchange(self, request: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        head = marshal.dumps(dict(request))
        requests.write(len(head).to_bytes(4, "big") + len(body).to_bytes(4, "big") + head + body)
        await requests.drain()
        lengths = await answers.readexactly(8)
        head_length, body_length = int.from_bytes(lengths[:4], "big"), int.from_bytes(lengths[4:], "big")
        if head_length > LONGEST_HEAD or body_length > self._profile.disk_bytes + self._profile.output_bytes:
            raise SandboxFailed("the sandbox answers with more than its limits allow")
        with _understood():
            answer: dict[str, Any] = dict(json.loads(await answers.readexactly(head_length)))
        return answer, await answers.readexactly(body_length)

    async def _complaint(self) -> str:
        """What the command said before it ended."""
        assert self._process.stderr is not None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_DEADLINE_S):
                return (await self._process.stderr.read(LONGEST_COMPLAINT)).decode(errors="replace").strip()
        return ""

    async def _end(self) -> None:
        """The supervisor ends with its input; what does not is killed. Returns when the last process is gone."""
        process = self._process
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(CLOSE_DEADLINE_S):
                await process.wait()
            return
        except TimeoutError:
            pass
        finally:
            self._kill()
        try:
            async with asyncio.timeout(CLOSE_DEADLINE_S):
                await process.wait()
        except TimeoutError:
            raise SandboxFailed(f"process {process.pid} of a sandbox does not end, though it was killed") from None

    def _kill(self) -> None:
        """Kill the supervisor and with it, where it is process 1, all the others."""
        # The command outside follows when the supervisor is gone, and reaps it; were it killed first, nobody might.
        if self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._supervisor is None:
                # Early on bubblewrap's child waits for it, in its group, and does not yet end when it does.
                os.killpg(self._process.pid, signal.SIGKILL)
            else:
                os.kill(self._supervisor, signal.SIGKILL)


@contextlib.contextmanager
def _understood():
    """What cannot be read is the sandbox's failure."""
    try:
        yield
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise SandboxFailed(f"the sandbox answers what cannot be read: {type(error).__name__}: {error}") from None


async def _started(launch: Launch) -> asyncio.subprocess.Process:
    """Start the command. If that is cancelled, its whole group is killed; asyncio would kill the command alone."""
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *launch.argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            pass_fds=launch.descriptors,
            env={"PATH": launch.environment["PATH"]},
            start_new_session=True,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        with contextlib.suppress(OSError):  # it could not be started: nothing is left
            await _killed(await starting)
        raise


async def _killed(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


def _clean_up(launch: Launch) -> None:
    """Let go of what is the sandbox's; what fails is told, and does not keep the rest."""
    if launch.information is not None:
        os.close(launch.information)
        launch.information = None
    while launch.cleanups:
        try:
            launch.cleanups.pop()()
        except (OSError, subprocess.SubprocessError) as error:
            logger.warning("a sandbox leaves something behind: %s", error)


def _sizes(files: Mapping[str, bytes]) -> list[tuple[str, int]]:
    return [(path, len(content)) for path, content in files.items()]


def _limits(profile: SandboxProfile) -> dict[str, float]:
    names = ("cpu_s", "wall_s", "memory_bytes", "processes", "file_bytes", "files", "open_files", "output_bytes")
    return {name: getattr(profile, name) for name in names}
