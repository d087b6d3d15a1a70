"""Runs a repository's tests in a sandbox: the visible ones for the policy, the hidden ones to judge."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from driftline.errors import EnvironmentFailed, SandboxRefused
from driftline.sandbox import BackendName, RunResult, Sandbox, SandboxProfile, default_backend, open_sandbox
from environments.repo_repair.catalogue import FOLDER, Repository
from environments.repo_repair.judging import Verdict, expectations, judge, without_expectations

PROFILE = SandboxProfile(
    cpu_s=8.0, wall_s=8.0, processes=16, file_bytes=2**20, disk_bytes=4 * 2**20, files=256, output_bytes=64 * 1024
)
TEST_SECONDS = 1
"""Processor time of one test."""
HIDDEN_PATH = "/hidden/tests.py"
RUNNER = (Path(FOLDER) / "inside.py").read_text()
JUDGE_SECONDS = 4.0
"""Wall clock of a run of the hidden tests, which takes a tenth of a second. Two of them find room in the default of
`environment.step_deadline_s`."""
IDLE_CPU_S = 1.0
"""A run that used less processor time than this and yet all of its wall clock may have been kept from running."""


async def show_tests(sandbox: Sandbox, path: str) -> str:
    """Run visible tests; what the policy is told."""
    result = await sandbox.run(command("shown", path))
    if result.limit is not None:
        return f"the tests were ended: they exceed the limit of {result.limit}"
    text = result.stdout.decode(errors="replace").strip()
    return text or f"no test can be run: {result.stderr.decode(errors='replace').strip()[-300:]}"


async def score(repository: Repository, files: Mapping[str, bytes], *, backend: BackendName | None = None) -> Verdict:
    """Judge files by the hidden tests, in a sandbox of their own, where alone these are mounted.

    Visible tests and `checks.py` are those of the repository, whatever the files say.

    Raises:
        EnvironmentFailed: The files were kept from running twice, and so was the repository without a fault: the
            machine is too busy. That is no reward.
    """
    expected = expectations(repository.hidden)
    try:
        result = await _record(repository, files, backend)
        if _stalled(result):
            result = await _record(repository, files, backend)
    except SandboxRefused:
        # There is no room for the tests beside what the policy has left.
        return judge(expected, b"")
    if _stalled(result):
        control = await _record(repository, sound(repository), backend)
        if control.limit or control.seconds > JUDGE_SECONDS / 2:
            raise EnvironmentFailed("this machine is too busy to run tests: lower rollout.episodes_in_flight")
    return judge(expected, result.stdout)


def _stalled(result: RunResult) -> bool:
    """Whether time ran out and little was computed: the program waits for nothing, or was kept from running."""
    return result.limit == "wall" and result.cpu_seconds < IDLE_CPU_S


def sound(repository: Repository) -> dict[str, bytes]:
    """The files of a repository without a fault."""
    return {path: text.encode() for path, text in repository.files().items()}


async def _record(repository: Repository, files: Mapping[str, bytes], backend: BackendName | None) -> RunResult:
    kept = sound(repository)
    del kept[repository.module_path]
    whole = {**files, **kept}
    hidden = without_expectations(repository.hidden).encode()
    if (backend or default_backend()) == "none":
        path, readonly = "hidden_tests.py", {}
        whole[path] = hidden
    else:
        path, readonly = HIDDEN_PATH, {HIDDEN_PATH: hidden}
    sandbox = await open_sandbox(whole, PROFILE, backend=backend, readonly=readonly)
    try:
        return await sandbox.run(command("silent", path), timeout_s=JUDGE_SECONDS)
    finally:
        await sandbox.close()


def command(mode: str, path: str) -> list[str]:
    """Run the tests of a file in a sandbox: `shown` or `silent`."""
    return ["python3", "-I", "-S", "-B", "-c", RUNNER, mode, path, str(TEST_SECONDS)]
