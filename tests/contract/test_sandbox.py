"""What every sandbox backend does alike: bubblewrap, none, and a container where docker or podman answers."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from driftline.errors import ConfigurationError, SandboxFailed, SandboxRefused, SandboxUnavailable
from driftline.sandbox import BackendName, Sandbox, SandboxProfile, bubblewrap, open_sandbox
from driftline.sandbox.unconfined import UnconfinedWarning

PROFILE = SandboxProfile(cpu_s=20.0, wall_s=60.0)
TEMPLATE = {"main.py": b"print(6 * 7)\n", "pack/age.py": b"x = 1\n", "empty": b""}


def container_answers() -> bool:
    """Whether docker or podman can start something here."""
    return any(
        shutil.which(name) and subprocess.run([name, "info"], check=False, capture_output=True).returncode == 0
        for name in ("docker", "podman")
    )


@pytest.fixture(params=["bubblewrap", "none", *(["container"] if container_answers() else [])])
def backend(request: pytest.FixtureRequest) -> BackendName:
    return request.param


@asynccontextmanager
async def opened(
    backend: BackendName, profile: SandboxProfile = PROFILE, template: dict[str, bytes] = TEMPLATE
) -> AsyncIterator[Sandbox]:
    if backend == "none":
        with pytest.warns(UnconfinedWarning, match="no walls"):
            sandbox = await open_sandbox(template, profile, backend=backend)
    else:
        sandbox = await open_sandbox(template, profile, backend=backend)
    try:
        yield sandbox
    finally:
        await sandbox.close()


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = traces()
    yield
    deadline = time.monotonic() + 10.0
    while traces() - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not traces() - before


def traces() -> set[str]:
    """Sandboxes on this machine: processes below this one, and folders."""
    return {f"process {one.pid}" for one in psutil.Process().children(recursive=True)} | {
        str(one) for one in Path(tempfile.gettempdir()).glob("driftline-sandbox-*")
    }


async def python(sandbox: Sandbox, program: str, **arguments: object):
    return await sandbox.run(["python3", "-I", "-S", "-c", program], **arguments)  # pyright: ignore[reportArgumentType]


async def test_runs_a_program_to_its_end(backend: BackendName) -> None:
    async with opened(backend) as sandbox:
        result = await sandbox.run(["python3", "main.py"])
        assert (result.exit_code, result.stdout, result.stderr, result.limit) == (0, b"42\n", b"", None)
        assert 0 < result.cpu_seconds < 20
        assert result.seconds > 0


async def test_passes_input_environment_and_exit_codes(backend: BackendName) -> None:
    async with opened(backend) as sandbox:
        echo = await sandbox.run(["/bin/sh", "-c", 'cat; echo "$GREETING" >&2; exit 3'], stdin=b"x" * 300_000,
                                 environment={"GREETING": "hello"})  # fmt: skip
        assert echo.limit == "output"
        echo = await sandbox.run(["/bin/sh", "-c", 'cat; echo "$GREETING" >&2; exit 3'], stdin=b"in",
                                 environment={"GREETING": "hello"})  # fmt: skip
        assert (echo.exit_code, echo.stdout, echo.stderr) == (3, b"in", b"hello\n")
        assert (await sandbox.run(["/bin/sh", "-c", "kill -9 $$"])).exit_code == -9
        missing = await sandbox.run(["no-such-program"])
        assert missing.exit_code == 127
        assert b"no-such-program" in missing.stderr


async def test_a_program_that_does_not_read_its_input_is_no_error(backend: BackendName) -> None:
    async with opened(backend) as sandbox:
        assert (await sandbox.run(["/bin/true"], stdin=b"x" * 10**6)).exit_code == 0


async def test_inherits_no_secret(backend: BackendName, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    async with opened(backend) as sandbox:
        assert b"hunter2" not in (await sandbox.run(["/usr/bin/env"])).stdout


@pytest.mark.parametrize(
    ("program", "limits", "limit"),
    [
        ("while True: pass", {"cpu_s": 0.3}, "cpu"),
        ("import time; time.sleep(60)", {"wall_s": 0.5}, "wall"),
        ("held = []\nwhile True: held.append(bytearray(b'x' * 2**20))", {"memory_bytes": 100 * 2**20}, "memory"),
        ("import os\nwhile True: os.write(1, b'x' * 4096)", {"output_bytes": 10_000}, "output"),
    ],
)
async def test_ends_what_is_above_a_limit(
    backend: BackendName, program: str, limits: dict[str, float], limit: str
) -> None:
    async with opened(backend, replace(PROFILE, **limits)) as sandbox:
        result = await python(sandbox, program)
        # The address space alone may be the tighter bound of the two on memory.
        assert result.limit == limit or (limit == "memory" and b"MemoryError" in result.stderr)
        assert len(result.stdout) <= 64 * 1024
        assert (await sandbox.run(["/bin/true"])).exit_code == 0


async def test_a_run_that_may_take_no_time_is_ended_at_once(backend: BackendName) -> None:
    async with opened(backend) as sandbox:
        result = await sandbox.run(["sleep", "60"], timeout_s=0.0)
        assert (result.limit, result.seconds < 5) == ("wall", True)


async def test_no_child_outlives_its_run(backend: BackendName) -> None:
    async with opened(backend) as sandbox:
        result = await sandbox.run(
            ["/bin/sh", "-c", "(setsid sleep 77 &) ; (setsid sh -c 'sleep 78; true' &) ; sleep 79 &"]
        )
        assert result.exit_code == 0
        assert result.seconds < 30
        assert not [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[:2] in
                    (["sleep", "77"], ["sleep", "78"], ["sleep", "79"])]  # fmt: skip


async def test_keeps_files_between_runs(backend: BackendName) -> None:
    async with opened(backend) as sandbox:
        await sandbox.write({"new/deep/file.txt": b"one", "main.py": b"print('new')"})
        await sandbox.run(["/bin/sh", "-c", "cat new/deep/file.txt main.py > both; chmod +x both; ln -s both link"])
        assert await sandbox.read("both") == b"oneprint('new')"
        entries = {one.path: one for one in await sandbox.entries()}
        assert sorted(entries) == ["both", "empty", "link", "main.py", "new/deep/file.txt", "pack/age.py"]
        assert entries["link"].link == "both"
        assert entries["both"].executable
        assert entries["both"].size == 15
        await sandbox.remove("both")
        assert await sandbox.snapshot() == {
            "empty": b"",
            "main.py": b"print('new')",
            "new/deep/file.txt": b"one",
            "pack/age.py": b"x = 1\n",
        }


async def test_a_snapshot_opens_the_same_tree_again(backend: BackendName) -> None:
    async with opened(backend) as sandbox:
        await sandbox.write({"other": bytes(range(256))})
        saved = await sandbox.snapshot()
    async with opened(backend, template=saved) as again:
        assert await again.snapshot() == TEMPLATE | {"other": bytes(range(256))}


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x",
        "a/../../x",
        "",
        ".",
        "a//b",
        "a/./b",
        "x\0y",
        "\ud800",
        "a" * 2000,
        "main.py/x",
        "link/x",
    ],
)
async def test_refuses_paths_that_lead_elsewhere(backend: BackendName, path: str) -> None:
    async with opened(backend) as sandbox:
        await sandbox.run(["/bin/ln", "-s", "/", "link"])
        for operation in (sandbox.read(path), sandbox.write({path: b"x"}), sandbox.remove(path)):
            with pytest.raises(SandboxRefused):
                await operation
        assert (await sandbox.run(["/bin/true"])).exit_code == 0


async def test_follows_no_link_and_opens_no_device(backend: BackendName, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    async with opened(backend) as sandbox:
        await sandbox.run(["/bin/ln", "-s", str(secret), "link"])
        await sandbox.run(["/bin/ln", "-s", "/proc/self/mem", "mem"])
        await sandbox.run(["/bin/mkdir", "folder"])
        for path in ("link", "mem", "folder", "missing"):
            with pytest.raises(SandboxRefused):
                await sandbox.read(path)
        assert "link" not in await sandbox.snapshot()
        await sandbox.write({"link": b"a file of its own"})
        assert await sandbox.read("link") == b"a file of its own"
        with pytest.raises(SandboxRefused, match="folder"):
            await sandbox.write({"folder": b"x"})
    assert secret.read_text() == "secret"


async def test_a_write_does_not_go_through_a_hard_link(backend: BackendName) -> None:
    async with opened(backend) as sandbox:
        await sandbox.run(["/bin/ln", "main.py", "second"])
        await sandbox.write({"main.py": b"other"})
        assert await sandbox.read("second") == TEMPLATE["main.py"]


async def test_takes_one_call_at_a_time(backend: BackendName) -> None:
    async with opened(backend) as sandbox:
        running = asyncio.create_task(sandbox.run(["sleep", "0.5"]))
        await asyncio.sleep(0)
        with pytest.raises(SandboxFailed, match="busy"):
            await sandbox.read("main.py")
        assert (await running).exit_code == 0


async def test_a_cancelled_call_ends_the_sandbox(backend: BackendName) -> None:
    async with opened(backend) as sandbox:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await sandbox.run(["sleep", "60"])
        with pytest.raises(SandboxFailed, match="has ended"):
            await sandbox.read("main.py")


@pytest.mark.parametrize("milliseconds", [0, 1, 2, 4, 6, 8, 10, 12, 14, 17, 20, 25, 30])
async def test_a_start_that_is_cancelled_leaves_nothing(backend: BackendName, milliseconds: int) -> None:
    """bubblewrap's child waits for its parent for a while, and would for ever if that alone were killed."""
    before = sandboxes()
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UnconfinedWarning)
            opening = asyncio.ensure_future(open_sandbox(TEMPLATE, PROFILE, backend=backend))
            await asyncio.wait([opening], timeout=milliseconds / 1000)
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await opening).close()
    assert await asyncio.to_thread(comes_true, lambda: not sandboxes() - before)


def sandboxes() -> set[int]:
    """Processes of bubblewrap on this machine, whoever is their parent by now."""
    return {one.pid for one in psutil.process_iter(["name"]) if one.info["name"] == "bwrap"}


async def test_may_be_closed_twice_and_then_says_so(backend: BackendName) -> None:
    async with opened(backend) as sandbox:
        await sandbox.close()
        await sandbox.close()
        with pytest.raises(SandboxFailed, match="open another one"):
            await sandbox.run(["/bin/true"])


async def test_a_template_that_does_not_fit_is_refused_and_leaves_nothing(backend: BackendName) -> None:
    small = replace(PROFILE, disk_bytes=2**16, file_bytes=2**16)
    template = {"a" * 300: b"x"} if backend == "none" else {"big": bytes(2**20)}  # `none` does not limit the disk
    with pytest.raises(SandboxRefused, match=r"space|too long"):
        async with opened(backend, small, template):
            pass


def test_is_gone_with_the_process_that_opened_it(backend: BackendName) -> None:
    program = (
        "import asyncio, warnings; warnings.simplefilter('ignore')\n"
        "from driftline.sandbox import *\n"
        "async def main():\n"
        f"    sandbox = await open_sandbox({{}}, SandboxProfile(), backend={backend!r})\n"
        "    await sandbox.run(['sleep', '123.25'])\n"
        "asyncio.run(main())\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        assert comes_true(lambda: sleeping("123.25"))
        left = psutil.Process(child.pid).children(recursive=True)
    finally:
        child.kill()
        child.wait()
    _, alive = psutil.wait_procs(left, timeout=5)
    assert all(one.status() == psutil.STATUS_ZOMBIE for one in alive), "nobody may be there to reap orphans"
    assert comes_true(lambda: not sleeping("123.25"))
    for folder in Path(tempfile.gettempdir()).glob("driftline-sandbox-*"):
        shutil.rmtree(folder)  # which `none` cannot remove when it is killed


def comes_true(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 30.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def sleeping(argument: str) -> bool:
    return any(one.info["cmdline"] == ["sleep", argument] for one in psutil.process_iter(["cmdline"]))


async def test_read_only_files_are_there_and_stay() -> None:
    hidden = {"/hidden/tests.py": b"assert 1\n"}
    sandbox = await open_sandbox(TEMPLATE, PROFILE, backend="bubblewrap", readonly=hidden)
    try:
        result = await sandbox.run(["/bin/sh", "-c", "cat /hidden/tests.py; echo x > /hidden/tests.py"])
        assert result.stdout == b"assert 1\n"
        assert result.exit_code != 0
        assert "hidden/tests.py" not in await sandbox.snapshot()
    finally:
        await sandbox.close()


async def test_none_mounts_nothing_and_must_be_asked_for() -> None:
    with pytest.raises(ConfigurationError, match="mounts nothing"):
        await open_sandbox({}, PROFILE, backend="none", readonly={"/hidden": b""})


async def test_what_is_missing_is_said_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    bubblewrap.program.cache_clear()
    monkeypatch.setenv("PATH", "/nowhere")
    try:
        with pytest.raises(SandboxUnavailable, match=r"apt-get install bubblewrap.*DRIFTLINE_SANDBOX=container"):
            await open_sandbox({}, PROFILE, backend="bubblewrap")
    finally:
        bubblewrap.program.cache_clear()


@pytest.fixture
def refusing_program() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "bwrap"
        program.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
        program.chmod(0o755)
        Path(folder).chmod(0o755)
        yield str(program)


async def test_walls_that_do_not_stand_are_no_sandbox(monkeypatch: pytest.MonkeyPatch, refusing_program: str) -> None:
    monkeypatch.setattr(bubblewrap, "program", lambda: refusing_program)
    with pytest.raises(SandboxUnavailable, match=r"No permissions.*user\.max_user_namespaces"):
        await open_sandbox({}, PROFILE, backend="bubblewrap")
