"""Runs one program at a time, and ends whatever it has started."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import time

from driftline.sandbox.inside.streams import Streams, ready_descriptors
from driftline.sandbox.inside.watch import TICK_S, Watch, others

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from driftline.sandbox.inside.frames import Answer, Request

PR_SET_DUMPABLE = 4
SIGKILL, SIGXCPU = 9, 24
NICER = 5
"""Programs run at this much lower priority, so that they cannot starve the watch."""


class Programs:
    """Runs programs in the folder `root`, as long as there is somebody at the other end of the pipe `parent`."""

    def __init__(
        self, libc: ctypes.CDLL, parent: int, root: int, environment: dict[str, str], limits: dict[str, Any]
    ) -> None:
        self.libc = libc
        self.parent = parent
        self.root = root
        self.environment = environment
        self.limits = limits
        self.alone = os.getpid() == 1

    def run(self, request: Request, stdin: bytes) -> Answer:
        """Run a program and watch it; whatever it has started ends with it."""
        watch = Watch(self.limits, self.alone, self.root, request["timeout_s"])
        reads, writes = os.pipe(), (os.pipe(), os.pipe())
        pid = os.fork()
        if pid == 0:
            self.become(request, reads[0], writes[0][1], writes[1][1])
        for descriptor in (reads[0], writes[0][1], writes[1][1]):
            os.close(descriptor)
        streams = Streams(stdin, reads[1], writes[0][0], writes[1][0], self.limits["output_bytes"])
        try:
            limit = follow(pid, self.parent, watch, streams)
            code = os.waitstatus_to_exitcode(self.end_all(pid))
            os.fchmod(self.root, 0o755)
            limit = limit or ("output" if streams.drain() else None)
        finally:
            streams.close()
        if code == -SIGXCPU and limit is None:
            limit = "cpu"
        answer = {
            "exit_code": code,
            "limit": limit,
            "stdout": len(streams.taken[0]),
            "seconds": time.monotonic() - watch.began,
            "cpu_seconds": watch.cpu_s(),
            "peak_memory_bytes": watch.peak_memory,
        }
        return answer, bytes(streams.taken[0]) + bytes(streams.taken[1])

    def become(self, request: Request, stdin: int, stdout: int, stderr: int) -> NoReturn:
        """In the child: take the limits and be the program. Never returns."""
        try:
            os.setsid()
            self.offer_to_oom_killer()
            os.fchdir(self.root)
            for target, source in enumerate((stdin, stdout, stderr)):
                os.dup2(source, target)
            os.closerange(3, 256)
            os.umask(0o022)
            os.nice(NICER)
            self.limit_self()
            environment = {**self.environment, **request["environment"]}
            os.execvpe(request["argv"][0], request["argv"], environment)
        except BaseException as error:
            os.write(2, f"{request['argv'][0]}: {error}\n".encode(errors="replace"))
        finally:
            os._exit(127)

    def offer_to_oom_killer(self) -> None:
        """If the machine itself runs out of memory, this program goes first."""
        self.libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
        try:
            with open("/proc/self/oom_score_adj", "w") as file:
                file.write("1000")
        except OSError:
            pass

    def limit_self(self) -> None:
        """Hard limits, which are inherited and which nobody without capabilities can raise."""
        limits, cpu_s = self.limits, int(self.limits["cpu_s"]) + 1
        wanted = [
            (resource.RLIMIT_CPU, cpu_s),
            (resource.RLIMIT_AS, limits["memory_bytes"]),
            (resource.RLIMIT_FSIZE, limits["file_bytes"]),
            (resource.RLIMIT_NOFILE, limits["open_files"]),
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_SIGPENDING, limits["processes"] * 8),
        ]
        if limits["count_processes"]:
            # Counted in the user namespace, where the supervisor is one.
            wanted.append((resource.RLIMIT_NPROC, limits["processes"] + 1))
        for which, value in wanted:
            resource.setrlimit(which, (value, value + 1 if which == resource.RLIMIT_CPU else value))

    def end_all(self, leader: int) -> int:
        """Kill every other process and reap it; returns the leader's status."""
        found = 0
        while True:
            self.kill_others()
            try:
                while True:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                    if pid == 0:
                        break
                    if pid == leader:
                        found = status
            except ChildProcessError:
                return found
            time.sleep(0.001)

    def kill_others(self) -> None:
        """Kill what is below."""
        if self.alone:
            try:
                os.kill(-1, SIGKILL)
            except ProcessLookupError:
                pass
            return
        for pid in others(self.alone):
            try:
                os.kill(pid, SIGKILL)
            except OSError:
                pass


def follow(pid: int, parent: int, watch: Watch, streams: Streams) -> str | None:
    """Serve the pipes until the program ends or exceeds a limit; returns the limit or None."""
    leader = os.pidfd_open(pid)
    poll = select.poll()
    try:
        while True:
            limit = watch.exceeded()
            if limit:
                return limit
            ready = ready_descriptors(poll, leader, parent, streams, TICK_S)
            if parent in ready:
                # Nobody will read the answer; the run ends, and then the supervisor.
                return "wall"
            if streams.into in ready:
                streams.send()
            for descriptor in list(streams.outs):
                if descriptor in ready and streams.take(descriptor):
                    return "output"
            if leader in ready and not any(descriptor in ready for descriptor in streams.outs):
                return None
    finally:
        os.close(leader)
