"""The repositories, and the catalogue of their validated faults.

A repository is a module, its visible tests and `checks.py`; its hidden tests stay outside. `catalogue.json` lists the
faults that were validated in the sandbox (`python -m environments.repo_repair.validation`): each by its number among
the mutations of the module, with the numbers of the hidden tests that it fails. Digests tell when it is out of date.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from environments.repo_repair.judging import expectations
from environments.repo_repair.mutations import GENERATOR, Mutation, mutations

FOLDER = Path(__file__).parent
MODULES = FOLDER / "modules"
CATALOGUE = FOLDER / "catalogue.json"


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository without a fault."""

    name: str
    module: str
    """The text of `{name}.py`."""
    tests: str
    """The text of `test_{name}.py`, which the policy sees."""
    hidden: str
    checks: str

    @property
    def module_path(self) -> str:
        """Where the module is."""
        return f"{self.name}.py"

    @property
    def tests_path(self) -> str:
        """Where the visible tests are."""
        return f"test_{self.name}.py"

    def files(self, module: str | None = None) -> dict[str, str]:
        """All that the policy sees, with another module where one is given."""
        return {
            self.module_path: self.module if module is None else module,
            self.tests_path: self.tests,
            "checks.py": self.checks,
        }

    def digest(self) -> str:
        """Hash of everything, hidden tests included."""
        return _digest([self.files(), self.hidden])

    def mutations_digest(self) -> str:
        """Hash of what the generator makes of the module."""
        return _digest([[one.operator, one.apply(self.module)] for one in mutations(self.module)])

    def hidden_digest(self) -> str:
        """Hash of the hidden tests."""
        return _digest(self.hidden)


@dataclass(frozen=True, slots=True)
class Fault:
    """One validated fault of a repository."""

    repository: str
    number: int
    """Among all mutations of the module: what the generator makes it from."""
    mutation: Mutation
    fail_to_pass: tuple[str, ...]
    """Hidden tests that it fails, and that pass without it."""
    pass_to_pass: tuple[str, ...]


@cache
def repositories() -> dict[str, Repository]:
    """All repositories, by name."""
    checks = (MODULES / "checks.py").read_text()
    found: dict[str, Repository] = {}
    for folder in sorted(path for path in MODULES.iterdir() if path.is_dir() and not path.name.startswith("_")):
        module, tests, hidden = (
            (folder / f"{prefix}{folder.name}.py").read_text() for prefix in ("", "test_", "hidden_")
        )
        found[folder.name] = Repository(folder.name, module, tests, hidden, checks)
    return found


@cache
def faults() -> tuple[Fault, ...]:
    """The catalogue: repository after repository, in the order of the faults' places."""
    known = json.loads(CATALOGUE.read_text())["repositories"]
    return tuple(fault for name, entry in known.items() for fault in _of_repository(repositories()[name], entry))


def fault_of(repository: Repository, number: int, failing: frozenset[str]) -> Fault:
    """The fault of that number, which fails those hidden tests."""
    names = list(expectations(repository.hidden))
    return Fault(
        repository.name,
        number,
        _mutations(repository.module)[number],
        tuple(name for name in names if name in failing),
        tuple(name for name in names if name not in failing),
    )


def as_json(found: list[Fault]) -> str:
    """The text of the catalogue, a line for each repository."""
    lines: list[str] = []
    for name, repository in repositories().items():
        names = list(expectations(repository.hidden))
        entry = {
            "repository": repository.digest(),
            "mutations": repository.mutations_digest(),
            "faults": {
                fault.number: [names.index(test) for test in fault.fail_to_pass]
                for fault in found
                if fault.repository == name
            },
        }
        lines.append(f"  {json.dumps(name)}: {json.dumps(entry)}")
    head = f' "generator": {json.dumps(GENERATOR)},\n "repositories": {{\n'
    return "{\n" + head + ",\n".join(lines) + "\n }\n}\n"


def _of_repository(repository: Repository, entry: dict[str, Any]) -> list[Fault]:
    names = list(expectations(repository.hidden))
    return [
        fault_of(repository, int(number), frozenset(names[test] for test in failing))
        for number, failing in entry["faults"].items()
    ]


@cache
def _mutations(module: str) -> list[Mutation]:
    return mutations(module)


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
