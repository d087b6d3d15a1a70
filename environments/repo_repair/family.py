"""The tasks of `repo_repair/v1`: small repositories with one fault each, from a catalogue of validated ones.

A task's payload is its whole state: the files that the policy sees, the hidden tests' digest and names, the number
of the fault and the version of what makes it (`generator`), the version of Python, and the digest of the sandbox's
limits. Which seed drew a task changes nothing of it, so its id does not depend on that.

The oracle's actions undo the fault by one edit, then submit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from driftline.environment import Placement, Task
from driftline.errors import ConfigurationError
from driftline.sandbox import BackendName
from environments.repo_repair.catalogue import faults
from environments.repo_repair.episode import Episode, tools_of
from environments.repo_repair.state import inverse_edit, repository_of, task_of


@dataclass(frozen=True)
class RepoRepair:
    """The family. Its programs run in this machine's sandbox, unless another backend is named."""

    backend: BackendName | None = None
    id: str = "repo_repair/v1"
    alphabet: str | None = None
    stop: str = "\n"
    # Its own code waits for pipes and never computes; the sandbox ends with the thread that opened it.
    runs_in: Placement = "thread"

    @property
    def tool_schemas(self) -> Sequence[Mapping[str, Any]]:
        """The tools: list_files, read_file, edit, run_tests, submit."""
        return tools_of(Episode(1, self.backend)).schemas

    def generate(self, seed: int, count: int) -> list[Task]:
        """Return `count` tasks, each with another fault."""
        known = faults()
        if count > len(known):
            raise ConfigurationError(
                f"{self.id} has {len(known)} tasks, not {count}: lower environment.train_tasks and "
                f"environment.held_out_tasks to {len(known)} together"
            )
        return [task_of(self.id, fault) for fault in Random(f"{self.id}:{seed}").sample(known, count)]

    def make(self, *, max_turns: int = 20) -> Episode:
        """Make an environment; after `max_turns` turns the repository is judged as it is."""
        return Episode(max_turns, self.backend)

    def oracle(self, task: Task) -> Sequence[str]:
        """Undo the fault, and submit."""
        repository = repository_of(task)
        old, new = inverse_edit(repository.module, task.payload["files"][repository.module_path])
        return [
            tool_call("edit", path=repository.module_path, old=old, new=new),
            tool_call("submit"),
        ]

    def demonstrate(self, task: Task, rng: Random) -> Sequence[str] | None:
        """There is no weak demonstrator."""
        return None


def tool_call(name: str, **arguments: str) -> str:
    """A call as a policy writes it."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
