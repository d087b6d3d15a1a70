"""One episode of `repo_repair/v1`.

    list_files, read_file(path), edit(path, old, new), run_tests, submit

The files are in a sandbox, and the visible tests run there. `submit` ends the episode; so does the last turn. Then
the files are judged by the hidden tests in a sandbox of their own:

    fail_to_pass   the share of tests that the fault fails and that pass now
    pass_to_pass   minus the share of tests that passed with the fault and fail now

Their sum is the reward: 0 for who changes nothing, 1 for who mends the fault and breaks nothing, which is success.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any, cast

from driftline.environment import Message, StepResult, Task, Toolbox
from driftline.errors import EnvironmentFailed, SandboxRefused, ToolMisused
from driftline.sandbox import BackendName, Sandbox, open_sandbox
from environments.repo_repair.catalogue import Repository, repositories
from environments.repo_repair.scoring import PROFILE, score, show_tests
from environments.repo_repair.state import repository_of

INSTRUCTIONS = """You mend faults in small Python repositories. One fault makes tests fail; there are more tests \
than you see. Call the tools list_files, read_file, edit, run_tests and submit, each as
<tool_call>{"name": "read_file", "arguments": {"path": "main.py"}}</tool_call>
Change as little as is needed, then submit."""
PROMPT = "The repository holds {files}. Tests fail. Find the fault in {module}, mend it, and submit."
NO_CALL = "error: call a tool: list_files, read_file, edit, run_tests or submit"
LONGEST_READ = 8000
LONGEST_TOLD = 3000
ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


class Episode:
    """Plays episodes, one after the other, each in a sandbox of its own."""

    def __init__(self, max_turns: int, backend: BackendName | None) -> None:
        self._max_turns = max_turns
        self._backend: BackendName | None = backend
        self._tools = tools_of(self)
        self._sandbox: Sandbox | None = None
        self._task: Task | None = None
        self._turns_left = 0
        self._submitted = False

    async def reset(self, task: Task, seed: int) -> tuple[Message, ...]:
        """Open the repository. There is no chance in it, so the seed changes nothing."""
        del seed
        repository = await self._open(task, _encoded(task.payload["files"]))
        self._turns_left = self._max_turns
        files = ", ".join(sorted(task.payload["files"]))
        prompt = PROMPT.format(files=files, module=repository.module_path)
        return Message("system", INSTRUCTIONS), Message("user", prompt)

    async def step(self, action: str) -> StepResult:
        """Carry out the calls of one turn, none after `submit`."""
        if self._turns_left == 0 or self._submitted:
            raise EnvironmentFailed("the episode has ended: call reset before the next step")
        self._turns_left -= 1
        messages = await self._tools.answer(action, ended=lambda: self._submitted) or (Message("tool", NO_CALL),)
        if self._submitted:
            return await self._judged(messages, terminated=True)
        if self._turns_left == 0:
            return await self._judged(messages, truncated=True)
        return StepResult(messages)

    async def judge(self) -> StepResult:
        """Judge the files as they are: the episode's time has run out."""
        return await self._judged(truncated=True)

    async def snapshot(self) -> dict[str, Any]:
        """Turns left, and the files that differ from the task's: content in base64, None for one that is gone."""
        task, sandbox = self._playing()
        before, now = _encoded(task.payload["files"]), await sandbox.snapshot()
        changed: dict[str, str | None] = {path: None for path in before if path not in now}
        for path, content in now.items():
            if before.get(path) != content:
                changed[path] = base64.b64encode(content).decode()
        return {"turns_left": self._turns_left, "changed": changed}

    async def restore(self, task: Task, snapshot: Any) -> None:
        """Open a sandbox with the files of a snapshot."""
        try:
            turns_left, changed = int(snapshot["turns_left"]), cast(Mapping[str, str | None], snapshot["changed"])
            files = _encoded(task.payload["files"])
            for path, content in changed.items():
                if content is None:
                    del files[path]
                else:
                    files[path] = base64.b64decode(content, validate=True)
        except (TypeError, KeyError, ValueError, AttributeError, binascii.Error) as error:
            raise EnvironmentFailed(f"this is no snapshot of repo_repair/v1: {error!r}") from None
        await self._open(task, files)
        self._turns_left = turns_left

    async def close(self) -> None:
        """End the sandbox."""
        sandbox, self._sandbox = self._sandbox, None
        self._task = None
        self._turns_left = 0
        if sandbox is not None:
            await sandbox.close()

    # The tools

    async def list_files(self) -> str:
        """List the files of the repository, with their sizes in characters."""
        _, sandbox = self._playing()
        return "\n".join(f"{entry.path} ({entry.size})" for entry in (await sandbox.entries())[:200])

    async def read_file(self, path: str) -> str:
        """Read a file.

        Args:
            path: Where it is, as list_files says.
        """
        text = await self._read(path)
        return text if len(text) <= LONGEST_READ else f"{text[:LONGEST_READ]}\n... ({len(text)} characters)"

    async def edit(self, path: str, old: str, new: str) -> str:
        """Replace a piece of a file's text.

        Args:
            path: Where the file is.
            old: The text to be replaced, exactly as it is there; it must occur once.
            new: What takes its place.
        """
        text = await self._read(path)
        count = text.count(old) if old else 0
        if count != 1:
            raise ToolMisused(f"edit: the old text occurs {count} times in {path}: it must occur once")
        _, sandbox = self._playing()
        content = text.replace(old, new).encode(errors="replace")
        if len(content) > PROFILE.file_bytes:
            raise ToolMisused(f"edit: {path} would have more than {PROFILE.file_bytes} bytes")
        try:
            await sandbox.write({path: content})
        except SandboxRefused as refused:
            raise ToolMisused(str(refused)) from None
        return "done"

    async def run_tests(self) -> str:
        """Run the tests that you can see; says which fail, and why."""
        task, sandbox = self._playing()
        told = await show_tests(sandbox, repositories()[task.payload["repository"]].tests_path)
        return ADDRESS.sub("0x...", told)[:LONGEST_TOLD]

    async def submit(self) -> str:
        """Hand the repository in as it is, and end. It is judged by tests that you cannot see."""
        self._submitted = True
        return "submitted"

    async def _read(self, path: str) -> str:
        _, sandbox = self._playing()
        try:
            return (await sandbox.read(path)).decode(errors="replace")
        except SandboxRefused as refused:
            raise ToolMisused(str(refused)) from None

    async def _open(self, task: Task, files: Mapping[str, bytes]) -> Repository:
        await self.close()
        repository = repository_of(task)
        self._sandbox = await open_sandbox(files, PROFILE, backend=self._backend)
        self._task = task
        self._submitted = False
        return repository

    def _playing(self) -> tuple[Task, Sandbox]:
        if self._task is None or self._sandbox is None:
            raise EnvironmentFailed("there is no episode: call reset first")
        return self._task, self._sandbox

    async def _judged(self, messages: tuple[Message, ...] = (), **how: bool) -> StepResult:
        task, sandbox = self._playing()
        repository = repositories()[task.payload["repository"]]
        verdict = await score(repository, await sandbox.snapshot(), backend=self._backend)
        self._turns_left = 0
        fail_to_pass, pass_to_pass = (task.payload[name] for name in ("fail_to_pass", "pass_to_pass"))
        mended = sum(name in verdict.passed for name in fail_to_pass) / len(fail_to_pass)
        broken = sum(name in verdict.failed for name in pass_to_pass) / len(pass_to_pass)
        parts = {"fail_to_pass": mended, "pass_to_pass": -broken}
        return StepResult(
            messages,
            reward=mended - broken,
            success=not verdict.failed,
            reward_parts=parts,
            info={"failed": sorted(verdict.failed)},
            **how,
        )


def tools_of(episode: Episode) -> Toolbox:
    """The tools of an episode."""
    return Toolbox(episode.list_files, episode.read_file, episode.edit, episode.run_tests, episode.submit)


def _encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: text.encode() for path, text in files.items()}
