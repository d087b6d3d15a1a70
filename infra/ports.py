"""Which ports are free, and who holds the others. Everything here is about 127.0.0.1."""

from __future__ import annotations

import errno
import socket
from collections.abc import Collection, Mapping

import psutil

from driftline.errors import StackError

HOST = "127.0.0.1"
LAST = 65535
INTERNAL_START = 21800
"""SeaweedFS's own ports are looked for from here on, below the range that outgoing connections use."""


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now.

    Raises:
        StackError: The port may not be used at all, such as one below 1024 without privileges.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise StackError(f"port {port} cannot be used: {error.strerror}: choose one above 1023") from error
    return True


def holder(port: int) -> str:
    """The process that listens on the port, in words; empty where the system does not show it."""
    try:
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if listens and connection.pid:
                process = psutil.Process(connection.pid)
                return f"{process.name()} (pid {connection.pid}, {' '.join(process.cmdline())[:80]})"
    except psutil.Error:
        pass
    return ""


def require_free(ports: Mapping[str, int]) -> None:
    """Refuse to start on a port that is taken.

    Args:
        ports: Part -> port, for the ports that have a flag (`--<part>-port`).

    Raises:
        StackError: Names the port, its holder if visible, and the flag that changes it.
    """
    doubled = {port for port in ports.values() if list(ports.values()).count(port) > 1}
    if doubled:
        raise StackError(f"port {min(doubled)} is asked for twice: give each part its own")
    for part, port in ports.items():
        if not is_free(port):
            by = holder(port)
            raise StackError(
                f"port {port}, for {part}, is taken{f' by {by}' if by else ''}: end that process, "
                f"or use --{part}-port N (DRIFTLINE_{part.upper()}_PORT) or --auto-ports"
            )


def pick_free(count: int, *, start: int = INTERNAL_START, avoid: Collection[int] = ()) -> list[int]:
    """The first `count` free ports from `start` on.

    Raises:
        StackError: There are too few.
    """
    found: list[int] = []
    for port in range(start, LAST + 1):
        if port not in avoid and is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise StackError(f"fewer than {count} free ports between {start} and {LAST}: end what holds them")
