"""What an attempt is: a program that tries to get out of the sandbox, or to take more than its share.

Each is a short program. It prints `TRIED` when it is under way and `ESCAPED` if it got what it wanted, so an attempt
that never ran does not count as contained. `ends` are the limits for which it may be ended, None being its own end.
Names that the programs use without defining them are in `PRELUDE`.
"""

from __future__ import annotations

import ctypes
import textwrap
from dataclasses import dataclass

PRELUDE = """
import ctypes, errno, os, signal, socket, stat, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(one) for one in arguments))
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result

def escaped(what):
    print("ESCAPED", what, flush=True)

def must_fail(action):
    try:
        value = action()
    except (Exception, SystemExit) as error:
        print("held:", type(error).__name__, error, flush=True)
    else:
        escaped(repr(value)[:200])

def must_not_exist(number, *arguments):
    try:
        value = call(number, *arguments)
    except OSError as error:
        if error.errno not in (errno.ENOSYS,):
            escaped(f"reached the kernel: {error}")
    else:
        escaped(value)

def read(path):
    with open(path, "rb") as file:
        return file.read(4096)

def write(path, content=b"x"):
    with open(path, "wb") as file:
        file.write(content)

def fork_all(count, action):
    for _ in range(count):
        try:
            if os.fork() == 0:
                action()
                os._exit(0)
        except OSError:
            pass

print("TRIED", flush=True)
"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One program, and for which limits it may be ended."""

    name: str
    program: str
    ends: frozenset[str | None] = frozenset({None})

    def source(self) -> bytes:
        """All of its text."""
        return (PRELUDE + textwrap.dedent(self.program)).encode()


def of(subject: str, programs: dict[str, str], *ends: str | None) -> list[Attempt]:
    return [Attempt(f"{subject}: {name}", text, frozenset(ends or {None})) for name, text in programs.items()]


def number_of(name: str) -> int:
    """A system call's number on this machine."""
    return ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name(name.encode())
