"""A container for each sandbox, by the command line of docker or podman. UNTRIED: written where neither could run.

The same supervisor is process 1 of the container. The runtime brings its own filter of system calls, and its memory
and process limits are control groups': they hold exactly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from driftline.errors import SandboxUnavailable
from driftline.sandbox.interpreter import program_variables, supervisor_source
from driftline.sandbox.profile import SandboxProfile
from driftline.sandbox.supervised import Launch

PROGRAMS = ("docker", "podman")
ROOT, SCRATCH = "/box/work", "/box/tmp"
SEARCH_PATH = "/usr/local/bin:/usr/bin:/bin"
SUPERVISOR_PROCESS_BYTES = 32 * 2**20
"""What the supervisor itself takes, on top of the profile's memory."""
REMEDY = (
    "see that `docker info` or `podman info` answers for this user, and that the image of DRIFTLINE_SANDBOX_IMAGE is "
    "there and has python3"
)


def launch(profile: SandboxProfile, readonly: Mapping[str, bytes], image: str) -> Launch:
    """How to start a sandbox; `readonly` are files that are mounted read-only, by absolute path.

    Raises:
        SandboxUnavailable: There is neither docker nor podman.
    """
    found = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if found is None:
        raise SandboxUnavailable(
            "neither docker nor podman is there: install one, or bubblewrap, which needs neither"
        )
    name = f"driftline-sandbox-{os.urandom(8).hex()}"
    cleanups = [partial(_remove, found, name)]
    mounts: list[tuple[Path, str]] = []
    if readonly:
        folder = Path(mkdtemp(prefix="driftline-sandbox-"))
        cleanups.insert(0, partial(shutil.rmtree, folder, True))
        folder.chmod(0o755)
        for number, (path, content) in enumerate(readonly.items()):
            source = folder / str(number)
            source.write_bytes(content)
            mounts.append((source, path))
    argv = [found, *arguments(profile, name, image, mounts), "python3", "-I", "-S", "-B", "-c", supervisor_source()]
    variables = program_variables(SEARCH_PATH, SCRATCH)
    return Launch(argv=argv, root=ROOT, environment=variables, remedy=REMEDY, cleanups=cleanups)


def arguments(profile: SandboxProfile, name: str, image: str, mounts: list[tuple[Path, str]]) -> list[str]:
    """The arguments up to the image's name."""
    argv = [
        *("run", "--rm", "--interactive", "--name", name, "--pull", "never", "--network", "none", "--read-only"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65534:65534", "--ipc", "private"),
        *("--memory", str(profile.memory_bytes + SUPERVISOR_PROCESS_BYTES)),
        *("--memory-swap", str(profile.memory_bytes + SUPERVISOR_PROCESS_BYTES)),
        *("--pids-limit", str(profile.processes + 1), "--ulimit", "core=0"),
        *("--tmpfs", f"/box:rw,nosuid,nodev,mode=1777,size={profile.disk_bytes},nr_inodes={profile.files}"),
        *("--tmpfs", "/tmp:rw,nosuid,nodev,mode=1777,size=1m,nr_inodes=64", "--hostname", "box"),
    ]
    for source, path in mounts:
        argv += ["--mount", f"type=bind,source={source},target={path},readonly"]
    return [*argv, "--entrypoint", "", image]


def _remove(program: str, name: str) -> None:
    """Remove the container if it is still there."""
    subprocess.run([program, "rm", "--force", name], check=False, capture_output=True, timeout=30)
