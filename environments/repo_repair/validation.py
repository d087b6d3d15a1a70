"""Makes the catalogue: every fault of every repository, run in the sandbox and kept if its tests tell it from none.

    python -m environments.repo_repair.validation        writes catalogue.json

A fault is kept if at least one hidden test fails with it, at least one hidden test passes with it, at least one
visible test fails with it (the policy is told of a failing test), and no test runs out of time, since then the
machine would have a say. Without the fault all tests pass. What no test notices is taken for equivalent, and left
out.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace

from driftline.sandbox import Sandbox, SandboxProfile, open_sandbox
from environments.repo_repair.catalogue import CATALOGUE, Fault, Repository, as_json, fault_of, repositories
from environments.repo_repair.judging import expectations, judge, without_expectations
from environments.repo_repair.mutations import Mutation, mutations
from environments.repo_repair.scoring import PROFILE, command, score, show_tests, sound

IN_TIME, NO_TEST, ENDED = "took too long", "no test can be run", "were ended"
"""What is said of a test that used up its time, of a module that is no code, and of a limit of the sandbox."""
HIDDEN = "hidden_tests.py"
WALL_S = 300.0
"""Of a run. On a busy machine one that needs a tenth of a second of processor time was ended after 8 s of wall clock,
and a fault left out for it: here processor time alone decides."""


class NotSound(Exception):
    """A repository fails its own tests; the message says which."""


async def all_faults(repository: Repository) -> list[Fault]:
    """Every fault of a repository that is one.

    Raises:
        NotSound: The repository fails its own tests.
    """
    await check_sound(repository)
    # Nobody has a say in this sandbox, so it holds the hidden tests as well, and is used again for the next fault.
    template = sound(repository)
    template[HIDDEN] = without_expectations(repository.hidden).encode()
    sandbox = await open_sandbox(template, _patient())
    try:
        found = [
            await _validate(sandbox, repository, number, mutation)
            for number, mutation in enumerate(mutations(repository.module))
        ]
    finally:
        await sandbox.close()
    return [fault for fault in found if fault is not None]


async def check_sound(repository: Repository) -> None:
    """That all tests pass without a fault.

    Raises:
        NotSound: One does not.
    """
    sandbox = await open_sandbox(sound(repository), _patient())
    try:
        shown = await show_tests(sandbox, repository.tests_path)
    finally:
        await sandbox.close()
    if not _all_pass(shown):
        raise NotSound(f"{repository.name}: {shown}")
    verdict = await score(repository, sound(repository))
    if verdict.failed:
        raise NotSound(f"{repository.name}: hidden tests fail: {sorted(verdict.failed)}")


async def _validate(sandbox: Sandbox, repository: Repository, number: int, mutation: Mutation) -> Fault | None:
    """The fault if it is one that a task can be made of."""
    await sandbox.write({repository.module_path: mutation.apply(repository.module).encode()})
    shown = await show_tests(sandbox, repository.tests_path)
    if _all_pass(shown) or IN_TIME in shown or NO_TEST in shown or ENDED in shown:
        return None
    result = await sandbox.run(command("silent", HIDDEN))
    expected = expectations(repository.hidden)
    verdict = judge(expected, result.stdout)
    if result.limit or not verdict.failed or not verdict.passed or b'"values": ""' in result.stdout:
        return None
    return fault_of(repository, number, verdict.failed)


def _patient() -> SandboxProfile:
    return replace(PROFILE, wall_s=WALL_S)


def _all_pass(shown: str) -> bool:
    first = shown.splitlines()[0].split()
    return len(first) == 5 and first[0] == first[2]


async def _main() -> None:
    found: list[Fault] = []
    for name, repository in repositories().items():
        faults = await all_faults(repository)
        sys.stderr.write(f"{name}: {len(faults)} of {len(mutations(repository.module))}\n")
        found += faults
    CATALOGUE.write_text(as_json(found))


if __name__ == "__main__":
    asyncio.run(_main())
