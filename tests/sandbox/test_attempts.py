"""Attempts to get out of the sandbox, each contained, and nothing left behind."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from driftline.sandbox import SandboxProfile, open_sandbox
from tests.sandbox import leaving, taking
from tests.sandbox.attempt import Attempt

ATTEMPTS = [*leaving.ATTEMPTS, *taking.ATTEMPTS]
PROFILE = SandboxProfile(
    cpu_s=20.0, wall_s=60.0, memory_bytes=192 * 2**20, file_bytes=4 * 2**20, disk_bytes=16 * 2**20, files=2000
)
HASTY = replace(PROFILE, cpu_s=0.7, wall_s=1.5)
"""For attempts that only time ends."""
MARKER = b"the-secret-" + b"marker"
CHECKOUT = Path(__file__).resolve().parents[2]
COUNT_PROCESSES = "import os; print(len([one for one in os.listdir('/proc') if one.isdigit()]))"
MEMORY_OVERSHOOT = 256 * 2**20
"""What a tree may take between two looks, on a busy machine."""


@pytest.fixture(scope="module")
def outside() -> Iterator[dict[str, str]]:
    """What there is to steal and to reach: a secret file, and listeners on the host."""
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_bytes(MARKER)
        Path(folder).chmod(0o755)
        listener = socket.create_server(("127.0.0.1", 0))
        abstract, local = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        name = f"driftline-{os.getpid()}"
        abstract.bind("\0" + name)
        local.bind(f"{folder}/socket")
        Path(f"{folder}/socket").chmod(0o777)
        with listener, abstract, local:
            abstract.listen()
            local.listen()
            yield {
                "SECRET_PATH": str(secret),
                "CHECKOUT": str(CHECKOUT),
                "PORT": str(listener.getsockname()[1]),
                "ABSTRACT": name,
                "SOCKET_PATH": f"{folder}/socket",
                "OUTSIDE": str(os.getpid()),
            }
            assert secret.read_bytes() == MARKER


@pytest.fixture(scope="module", autouse=True)
def _nothing_left() -> Iterator[None]:
    """No process, mount or file is left by all of them together."""
    before = _traces()
    yield
    after = _traces()
    assert after["processes"] <= before["processes"]
    assert after["mounts"] == before["mounts"]
    assert after["files"] <= before["files"]
    assert after["descriptors"] <= before["descriptors"] + 2


def _traces() -> dict:
    return {
        "processes": {one.pid for one in psutil.Process().children(recursive=True)}
        | {one.pid for one in psutil.process_iter(["name"]) if one.info["name"] == "bwrap"},
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "files": {str(one) for one in Path(tempfile.gettempdir()).glob("driftline-sandbox-*")},
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
    }


def test_there_are_two_hundred() -> None:
    assert len(ATTEMPTS) >= 200
    assert len({one.name for one in ATTEMPTS}) == len(ATTEMPTS)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
async def test_contained(attempt: Attempt, outside: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", MARKER.decode())
    monkeypatch.setenv("DRIFTLINE_SIGNING_KEY", MARKER.decode())
    told = b""
    for patience in (1.0, 5.0, 25.0):
        told = await _contained(attempt, outside, patience)
        if b"TRIED" in told:
            return
    raise AssertionError(f"the attempt never began: {told.decode(errors='replace')}")


async def _contained(attempt: Attempt, outside: dict[str, str], patience: float) -> bytes:
    """What the attempt said, which was contained. On a machine that is busy it may not have got to anything."""
    profile = replace(HASTY, wall_s=HASTY.wall_s * patience) if "wall" in attempt.ends else PROFILE
    sandbox = await open_sandbox(
        {"main.py": attempt.source()}, profile, backend="bubblewrap", readonly={"/hidden/answer.txt": MARKER}
    )
    try:
        result = await sandbox.run(["python3", "main.py"], environment=outside)
        told = result.stdout + result.stderr
        assert b"ESCAPED" not in told, told.decode(errors="replace")
        assert result.limit in attempt.ends, result
        assert len(told) <= profile.output_bytes
        assert result.seconds < profile.wall_s + 5.0
        assert result.peak_memory_bytes < profile.memory_bytes + MEMORY_OVERSHOOT
        # The sandbox is as good as new, but for its files.
        again = await sandbox.run(["python3", "-I", "-S", "-c", COUNT_PROCESSES])
        if result.limit == "files":
            assert again.limit == "files"
        elif "wall" not in attempt.ends or again.limit is None:
            assert (again.exit_code, again.limit) == (0, None), again
            assert again.stdout == b"2\n", "process 1, and the one that looks"
        return told
    finally:
        await sandbox.close()
