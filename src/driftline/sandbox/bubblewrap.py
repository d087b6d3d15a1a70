"""The default backend: bubblewrap, with every namespace, no capability, and a filter of system calls.

    /usr /bin /lib*   of the host, read-only, /usr/local hidden; the interpreter where it is elsewhere
    /etc              ld.so.cache, alternatives and a passwd of one line
    /proc             of its own processes
    /dev              null, full, random, urandom
    /box              a tmpfs of limited size: /box/work is the working folder, /box/tmp also /tmp and HOME
    else              nothing; the root itself is read-only

The user inside has no rights outside. Root lends its sandboxes a user id that owns nothing, since no limit on the
number of processes holds for root, whatever the namespace. If the interpreter lies where that user cannot go (below
/root, say), it is bound to a place that it can reach, in a mount namespace of its own.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from driftline.errors import SandboxUnavailable
from driftline.sandbox.interpreter import Interpreter, interpreter, program_variables, supervisor_bytecode
from driftline.sandbox.profile import SandboxProfile
from driftline.sandbox.supervised import Launch
from driftline.sandbox.system_calls import compiled_filter

ROOT, SCRATCH = "/box/work", "/box/tmp"
SUPERVISOR_PATH = "/driftline/supervisor.pyc"
REMEDY = (
    "bubblewrap needs user namespaces: look at user.max_user_namespaces, kernel.unprivileged_userns_clone and "
    "kernel.apparmor_restrict_unprivileged_userns (sysctl); a container needs --security-opt seccomp=unconfined and "
    "--security-opt systempaths=unconfined, or set DRIFTLINE_SANDBOX=container where docker or podman can be used"
)
MISSING = (
    "bubblewrap is missing: apt-get install bubblewrap (`make setup` does, as root); where that may not be, set "
    "DRIFTLINE_SANDBOX=container"
)
FIRST_USER, USERS = 61184, 4336
"""User ids that systemd reserves for services of the moment, so that nobody owns anything under them."""
MEETING_POINT = "/mnt"
"""A folder that every system has; hidden in the mount namespace alone."""

_numbers = itertools.count()


def launch(profile: SandboxProfile, readonly: Mapping[str, bytes]) -> Launch:
    """How to start a sandbox.

    Args:
        profile: Its limits; here the size of its files matters.
        readonly: Files that are mounted read-only, by absolute path.

    Raises:
        SandboxUnavailable: bubblewrap or libseccomp is missing.
    """
    python = interpreter()
    descriptors: list[int] = []

    def handed(content: bytes) -> str:
        descriptors.append(_in_memory(content))
        return str(descriptors[-1])

    user = FIRST_USER + (os.getpid() + next(_numbers)) % USERS if os.geteuid() == 0 else None
    hidden = user is not None and not python.open_to_others()
    try:
        argv = [*walls(profile, python, MEETING_POINT if hidden else str(python.prefix))]
        argv += ["--ro-bind-data", handed(b"box:x:1000:1000::/box/tmp:/bin/sh\n"), "/etc/passwd"]
        argv += ["--ro-bind-data", handed(supervisor_bytecode()), SUPERVISOR_PATH]
        for path, content in readonly.items():
            argv += ["--ro-bind-data", handed(content), path]
        argv += ["--seccomp", handed(compiled_filter())]
        reading, writing = os.pipe()
        descriptors.append(writing)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    argv += ["--info-fd", str(writing), "--remount-ro", "/"]
    argv += ["--", str(python.program), "-I", "-S", "-B", SUPERVISOR_PATH]
    return Launch(
        argv=argv if user is None else [*_as_user(user, python.prefix if hidden else None), *argv],
        root=ROOT,
        environment=program_variables(python.search_path, SCRATCH),
        descriptors=descriptors,
        information=reading,
        own_user_namespace=True,
        remedy=REMEDY,
    )


def walls(profile: SandboxProfile, python: Interpreter, prefix_source: str) -> list[str]:
    """Bubblewrap's arguments but for what is handed over in open files; the root is still writable."""
    argv = [
        program(),
        *("--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--die-with-parent", "--as-pid-1"),
        *("--cap-drop", "ALL", "--uid", "1000", "--gid", "1000", "--hostname", "box", "--clearenv"),
        *("--ro-bind", "/usr", "/usr", "--tmpfs", "/usr/local"),
    ]
    for name in ("bin", "lib", "lib64", "sbin"):
        at = Path("/") / name
        if at.is_symlink():
            argv += ["--symlink", str(at.readlink()), str(at)]
        elif at.exists():
            argv += ["--ro-bind", str(at), str(at)]
    for path in _interpreter_paths(python):
        source = Path(prefix_source) / path.relative_to(python.prefix)
        argv += ["--ro-bind", str(source), str(path)]
    argv += ["--remount-ro", "/usr/local"]
    for path in ("/etc/ld.so.cache", "/etc/alternatives"):
        argv += ["--ro-bind-try", path, path]
    argv += ["--proc", "/proc"]
    for device in ("null", "full", "random", "urandom"):
        argv += ["--dev-bind", f"/dev/{device}", f"/dev/{device}"]
    argv += ["--perms", "0755", "--size", str(profile.disk_bytes), "--tmpfs", "/box", "--symlink", "box/tmp", "/tmp"]
    return argv


@cache
def program() -> str:
    """Where bubblewrap is.

    Raises:
        SandboxUnavailable: Nowhere.
    """
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxUnavailable(MISSING)
    return found


def _interpreter_paths(python: Interpreter) -> list[Path]:
    """What of the interpreter's prefix must be mounted; nothing when it is the system's own."""
    if python.prefix == Path("/usr"):
        return []
    if python.prefix.is_relative_to("/usr/local"):
        return [path for path in (python.prefix / "bin", python.prefix / "lib") if path.exists()]
    return [] if python.prefix.is_relative_to("/usr") else [python.prefix]


def _as_user(user: int, hidden: Path | None) -> list[str]:
    """A command before bubblewrap's, for root: bind the interpreter where it can be seen, become the user, go on.

    Python could change the user itself, but would then copy the page tables of a process that holds a model.
    """
    become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]
    if hidden is None:
        return become
    script = f'mount --bind "$0" {MEETING_POINT} && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "--", "sh", "-c", script, str(hidden), *become]


def _in_memory(content: bytes) -> int:
    """An open file with that content, read from its start."""
    descriptor = os.memfd_create("handed")
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
