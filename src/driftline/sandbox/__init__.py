r"""Runs programs that nobody has read: tests of code that a policy has written, or that code itself.

    sandbox = await open_sandbox({"main.py": b"print(6 * 7)"}, SandboxProfile(wall_s=2.0))
    try:
        result = await sandbox.run(["python3", "main.py"])      # exit_code=0, stdout=b"42\n", limit=None
    finally:
        await sandbox.close()

    protocol     what a sandbox offers: `Sandbox`, `RunResult`
    profile      its limits, a value with a digest: `SandboxProfile`
    making       `open_sandbox`, by the backend's name: bubblewrap, container or none
    bubblewrap   the command line of the default backend; `system_calls` is its filter
    container    the same by docker or podman
    unconfined   `none`: limits, and no walls
    supervised   the host's side of every backend; `inside` is the program at the other end of the pipe

What holds what is in docs/sandbox.md.
"""

from driftline.sandbox.making import BackendName, default_backend, open_sandbox
from driftline.sandbox.profile import SandboxProfile
from driftline.sandbox.protocol import FileEntry, Limit, RunResult, Sandbox

__all__ = [
    "BackendName",
    "FileEntry",
    "Limit",
    "RunResult",
    "Sandbox",
    "SandboxProfile",
    "default_backend",
    "open_sandbox",
]
