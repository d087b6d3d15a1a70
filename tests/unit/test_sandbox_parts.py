"""The parts of the sandbox that start nothing: its profile, its filter, its command lines."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from driftline.errors import ConfigurationError, SandboxUnavailable
from driftline.sandbox import SandboxProfile, container, supervised
from driftline.sandbox.interpreter import Interpreter, interpreter, supervisor_source
from driftline.sandbox.supervised import Launch, SupervisedSandbox
from driftline.sandbox.system_calls import ALLOWED, compiled_filter


def test_a_profile_s_digest_is_of_its_values_and_the_same_everywhere() -> None:
    assert SandboxProfile().digest() == SandboxProfile().digest() == "ed01750865fde773"
    assert replace(SandboxProfile(), wall_s=3.0).digest() != SandboxProfile().digest()


@pytest.mark.parametrize("values", [{"cpu_s": 0.0}, {"processes": -1}, {"file_bytes": 2**30}])
def test_an_impossible_profile_is_refused(values: dict[str, float]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(values))):
        SandboxProfile(**values)  # pyright: ignore[reportArgumentType]


def test_the_filter_is_a_program_that_ends_in_a_refusal() -> None:
    instructions = list(struct.iter_unpack("=HBBI", compiled_filter()))
    assert len(instructions) > 50
    answers = {value for code, _, _, value in instructions if code == 0x06}
    assert answers == {0x7FFF0000, 0x00050000 | 38, 0x00000000}, "allowed, no such call, and another architecture's"
    names = ALLOWED.split()
    assert len(names) == len(set(names))
    assert not {"ptrace", "mount", "memfd_create", "bpf", "io_uring_setup", "clone3", "socket", "mmap"} & set(names)


def test_the_program_inside_imports_nothing_of_the_library() -> None:
    loaded = subprocess.run(
        [sys.executable, "-I", "-S", "-c", supervisor_source() + "\nprint(*sorted(sys.modules))"],
        input=b"",
        capture_output=True,
        check=True,
    )
    source = supervisor_source()
    assert "import driftline" not in source
    assert "from driftline" not in source.replace("    from driftline", ""), "but where only a type checker looks"
    assert loaded.stderr == b""


def test_an_interpreter_below_a_closed_folder_is_known_as_such(tmp_path: Path) -> None:
    folder = tmp_path / "closed" / "python"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o700)
    assert not Interpreter(folder, folder / "bin" / "python3").open_to_others()
    assert Interpreter(Path("/usr"), Path("/usr/bin/python3")).open_to_others()
    assert interpreter().program.exists()


def test_a_container_has_no_network_no_rights_and_the_limits() -> None:
    arguments = container.arguments(SandboxProfile(), "name", "image", [(Path("/tmp/x"), "/hidden/tests.py")])
    line = " ".join(arguments)
    for expected in (
        "--network none", "--cap-drop ALL", "--security-opt no-new-privileges", "--read-only", "--pids-limit 33",
        f"--memory {(256 + 32) * 2**20} --memory-swap {(256 + 32) * 2**20}", "size=33554432,nr_inodes=4096",
        "--mount type=bind,source=/tmp/x,target=/hidden/tests.py,readonly", "--pull never",
    ):  # fmt: skip
        assert expected in line
    assert arguments[-1] == "image"


def test_a_cleanup_that_fails_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []

    def hangs() -> None:
        raise subprocess.TimeoutExpired("docker rm", 30)

    launch = Launch(argv=[], root="/", environment={}, cleanups=[lambda: done.append("folder"), hangs])
    supervised._clean_up(launch)  # pyright: ignore[reportPrivateUsage]
    assert (done, launch.cleanups) == (["folder"], [])
    assert "docker rm" in caplog.text


LIAR = """
import os, sys
os.write(1, (2).to_bytes(4, "big") + int(sys.argv[1]).to_bytes(4, "big") + b"{}")
sys.stdin.read()
"""


async def test_an_answer_of_more_than_the_limits_allow_is_not_waited_for() -> None:
    """Whoever got hold of the supervisor writes the lengths."""
    profile = SandboxProfile()
    argv = [sys.executable, "-c", LIAR, str(profile.disk_bytes + profile.output_bytes + 1)]
    launch = Launch(argv=argv, root="/", environment={"PATH": "/usr/bin"})
    with pytest.raises(SandboxUnavailable, match="answers with more than its limits allow"):
        await SupervisedSandbox.start(launch, profile, {})


async def test_a_start_that_is_cancelled_stays_cancelled_where_the_command_is_missing() -> None:
    launch = Launch(argv=["/no/such/command"], root="/", environment={"PATH": "/usr/bin"})
    starting = asyncio.create_task(SupervisedSandbox.start(launch, SandboxProfile(), {}))
    await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
