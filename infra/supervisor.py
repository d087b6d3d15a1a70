"""supervisord as the process manager: its configuration, its start, and its RPC interface over a Unix socket."""

from __future__ import annotations

import http.client
import os
import shlex
import socket
import subprocess
import time
import xmlrpc.client
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from supervisor.xmlrpc import Faults

from driftline.errors import StackError
from infra.layout import Layout
from infra.parts import Part, program

START_DEADLINE_S = 30.0
ANSWER_S = 10.0
PROVED_S = 60
"""A process that ends sooner than this after its start has failed to start."""
START_RETRIES = 3
LOG_BYTES = 10 * 2**20
LOG_BACKUPS = 2


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What supervisord says about one part."""

    state: str
    """STOPPED, STARTING, RUNNING, BACKOFF, STOPPING, EXITED, FATAL or UNKNOWN."""
    pid: int
    started_unix: float
    detail: str

    @property
    def alive(self) -> bool:
        return self.state in ("STARTING", "RUNNING")

    @property
    def died(self) -> bool:
        return self.state in ("BACKOFF", "EXITED", "FATAL")


def configuration(layout: Layout, parts: Iterable[Part]) -> str:
    """The text of `supervisord.conf`. It holds no secret: those come through the environment."""
    as_root = "user=root\n" if os.getuid() == 0 else ""
    head = f"""\
; Written by `driftline up`; edits are lost.
[supervisord]
nodaemon=false
{as_root}directory={_escape(layout.repository)}
logfile={_escape(layout.log("supervisord"))}
logfile_maxbytes={LOG_BYTES}
logfile_backups={LOG_BACKUPS}
pidfile={_escape(layout.sockets / "supervisord.pid")}
childlogdir={_escape(layout.logs)}
umask=077

[unix_http_server]
file={_escape(layout.supervisor_socket)}
chmod=0600

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface
"""
    return head + "".join(_program(layout, part) for part in parts)


def _program(layout: Layout, part: Part) -> str:
    return f"""
[program:{part.name}]
command={_escape(shlex.join(part.command))}
directory={_escape(layout.repository)}
autostart=false
autorestart=true
startsecs={PROVED_S}
startretries={START_RETRIES}
stopsignal=TERM
stopasgroup=true
stopwaitsecs={part.stop_s}
killasgroup=true
redirect_stderr=true
stdout_logfile={_escape(layout.log(part.name))}
stdout_logfile_maxbytes={LOG_BYTES}
stdout_logfile_backups={LOG_BACKUPS}
"""


def _escape(value: object) -> str:
    """supervisord expands `%(name)s` and takes ` ;` for a comment."""
    text = str(value)
    if "\n" in text or " ;" in text:
        raise StackError(f"the path or argument {text!r} cannot be written to supervisord.conf: move the checkout")
    return text.replace("%", "%%")


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket, with a deadline on every wait."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class _UnixTransport(xmlrpc.client.Transport):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self._connection_to = _UnixConnection(path)

    def make_connection(self, host: Any) -> http.client.HTTPConnection:
        return self._connection_to

    def close(self) -> None:
        self._connection_to.close()


class SupervisorClient:
    """The RPC interface of a running supervisord."""

    def __init__(self, layout: Layout) -> None:
        self._socket = layout.supervisor_socket

    def processes(self) -> dict[str, ProcessState]:
        """The state of every part.

        Raises:
            StackError: supervisord does not answer.
        """
        rows = cast("list[dict[str, Any]]", self._call("getAllProcessInfo"))
        return {
            row["name"]: ProcessState(
                row["statename"], row["pid"], float(row["start"]), row["spawnerr"] or row["description"]
            )
            for row in rows
        }

    def start(self, names: Iterable[str]) -> None:
        """Ask for parts to be started; `processes` shows what becomes of it. What runs already is passed over."""
        for name in names:
            try:
                self._call("startProcess", name, False)
            except xmlrpc.client.Fault as fault:
                if fault.faultCode != Faults.ALREADY_STARTED:
                    raise

    def stop(self, names: Iterable[str], *, deadline_s: float) -> None:
        """Stop parts together and wait for them. What is not running is passed over."""
        waiting = set(names)
        for name in sorted(waiting):
            try:
                self._call("stopProcess", name, False)
            except xmlrpc.client.Fault:
                waiting.discard(name)
        until = time.monotonic() + deadline_s
        while waiting and time.monotonic() < until:
            states = self.processes()
            waiting = {name for name in waiting if states[name].state in ("STOPPING", "STARTING", "RUNNING")}
            time.sleep(0.1)

    def shutdown(self) -> None:
        """Ask supervisord to stop everything and end."""
        self._call("shutdown")

    def answers(self) -> bool:
        """Whether supervisord is there."""
        try:
            self._call("getState")
        except StackError:
            return False
        return True

    def _call(self, method: str, *arguments: object) -> object:
        transport = _UnixTransport(self._socket)
        proxy = xmlrpc.client.ServerProxy("http://localhost", transport=transport)
        try:
            return getattr(proxy.supervisor, method)(*arguments)
        except xmlrpc.client.Fault:
            raise
        except (OSError, http.client.HTTPException, xmlrpc.client.ProtocolError) as error:
            raise StackError(
                f"the process manager does not answer ({error}): run `driftline down`, then up"
            ) from error
        finally:
            transport.close()


def launch(layout: Layout, environment: Mapping[str, str]) -> None:
    """Start supervisord, which leaves this process's session, and wait until it answers.

    Raises:
        StackError: It refused its configuration, or did not answer in time.
    """
    layout.supervisor_socket.unlink(missing_ok=True)
    log = layout.log("supervisord-start")
    with log.open("wb") as output:
        code = subprocess.run(
            [program("supervisord"), "-c", str(layout.configuration)],
            env=dict(environment),
            cwd=layout.repository,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            check=False,
            timeout=START_DEADLINE_S,
        ).returncode
    if code:
        raise StackError(f"the process manager did not start:\n{tail(log)}")
    client = SupervisorClient(layout)
    until = time.monotonic() + START_DEADLINE_S
    while not client.answers():
        if time.monotonic() > until:
            raise StackError(f"the process manager did not answer within {START_DEADLINE_S:.0f} s: see {log}")
        time.sleep(0.1)


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log file, indented; says so where there are none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 16384))
            found = file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        found = []
    return "\n".join(f"    {line}" for line in found) or "    (its log is empty)"
