"""`repo_repair/v1` without a sandbox: faults, catalogue, tasks, the oracle's edit, and the judge's comparisons."""

from __future__ import annotations

import ast
import json
from collections import Counter

import pytest

from driftline.environment import Task
from driftline.errors import ConfigurationError, EnvironmentFailed
from environments.repo_repair import RepoRepair
from environments.repo_repair.catalogue import CATALOGUE, as_json, faults, repositories
from environments.repo_repair.judging import canonical, expectations, judge, without_expectations
from environments.repo_repair.mutations import GENERATOR, Mutation, mutations
from environments.repo_repair.state import inverse_edit, repository_of

SOURCE = """\
def clip(value, low, high):
    if value < low and value != 7:
        return low
    total = value + 1
    total += min(value, high)
    return (total, high)
"""
OPERATORS = {
    "arithmetic", "boolean", "boundary", "comparison", "off by one", "removed statement", "return",
    "swapped arguments",
}  # fmt: skip


def changed_lines(mutation: Mutation) -> list[str]:
    before, after = SOURCE.splitlines(), mutation.apply(SOURCE).splitlines()
    return [new.strip() for old, new in zip(before, after, strict=True) if old != new]


def test_faults_are_made_where_they_belong_and_change_one_line() -> None:
    found = {(one.operator, *changed_lines(one)) for one in mutations(SOURCE)}
    assert {
        ("boundary", "if value <= low and value != 7:"),
        ("comparison", "if value > low and value != 7:"),
        ("comparison", "if value < low and value == 7:"),
        ("boolean", "if value < low or value != 7:"),
        ("boolean", "if (not (value < low and value != 7)):"),
        ("off by one", "if value < low and value != 8:"),
        ("return", "return None"),
        ("arithmetic", "total = (value - 1)"),
        ("off by one", "total = value + 0"),
        ("removed statement", "pass"),
        ("swapped arguments", "total += min(high, value)"),
        ("return", "return (high, total)"),
    } <= found


def test_faults_are_in_order_distinct_and_code() -> None:
    for repository in repositories().values():
        found = mutations(repository.module)
        assert found == mutations(repository.module)
        texts = [one.apply(repository.module) for one in found]
        assert repository.module not in texts
        assert all(ast.parse(text) for text in texts)
        assert [one.start for one in found] == sorted(one.start for one in found)


def test_the_catalogue_is_of_these_repositories_and_this_generator() -> None:
    """Otherwise: python -m environments.repo_repair.validation."""
    head = json.loads(CATALOGUE.read_text())
    assert head["generator"] == GENERATOR
    assert list(head["repositories"]) == list(repositories())
    for name, entry in head["repositories"].items():
        digests = entry["repository"], entry["mutations"]
        assert digests == (repositories()[name].digest(), repositories()[name].mutations_digest()), name
    assert as_json(list(faults())) == CATALOGUE.read_text()
    for fault in faults():
        repository = repositories()[fault.repository]
        names = list(expectations(repository.hidden))
        assert sorted([*fault.fail_to_pass, *fault.pass_to_pass]) == sorted(names)
        assert fault.fail_to_pass
        assert fault.pass_to_pass


def test_there_are_enough_tasks_of_every_kind() -> None:
    assert len(faults()) >= 60
    assert {fault.repository for fault in faults()} == set(repositories())
    assert len(repositories()) >= 12
    kinds = Counter(fault.mutation.operator for fault in faults())
    assert set(kinds) == OPERATORS
    assert min(kinds.values()) >= 5, kinds


def test_tasks_follow_from_the_seed_and_hash_their_state() -> None:
    family = RepoRepair()
    tasks = family.generate(3, 40)
    assert tasks == RepoRepair().generate(3, 40)
    assert len({task.id for task in tasks}) == 40
    assert [task.id for task in tasks] != [task.id for task in family.generate(4, 40)]
    for task in tasks:
        assert task.id == Task.create(family.id, json.loads(json.dumps(task.payload))).id
        assert set(task.payload) >= {"files", "hidden_tests", "generator", "seed", "python", "sandbox"}
    all_of_them = family.generate(1, len(faults()))
    assert len({task.id for task in all_of_them}) == len(faults())
    with pytest.raises(ConfigurationError, match=r"lower environment\.train_tasks"):
        family.generate(1, len(faults()) + 1)


def test_no_task_shows_its_hidden_tests() -> None:
    for task in RepoRepair().generate(0, len(faults())):
        shown = "".join(task.payload["files"].values())
        hidden = repositories()[task.payload["repository"]].hidden
        own = set(expectations(hidden)) - set(expectations(repositories()[task.payload["repository"]].tests))
        assert own
        assert not [name for name in own if f"def {name}(" in shown]


def test_the_oracle_s_edit_undoes_every_fault() -> None:
    for fault in faults():
        original = repositories()[fault.repository].module
        faulty = fault.mutation.apply(original)
        old, new = inverse_edit(original, faulty)
        assert faulty.count(old) == 1
        assert faulty.replace(old, new) == original


def test_an_edit_reaches_as_far_as_it_must_to_be_unique() -> None:
    assert inverse_edit("a\nx = 1\nb\nx = 2\n", "a\nx = 2\nb\nx = 2\n") == ("a\nx = 2\nb\n", "a\nx = 1\nb\n")
    assert inverse_edit("a\nb\nc\nd\n", "a\npass\nd\n") == ("pass\n", "b\nc\n")


def test_a_task_of_another_version_is_refused() -> None:
    task = RepoRepair().generate(0, 1)[0]
    for name, match in (
        ("hidden_tests", "other hidden tests"),
        ("sandbox", "other sandbox limits"),
        ("python", r"made for Python 0, and this is 3\.\d+: generate"),
    ):
        other = Task.create(task.environment, {**task.payload, name: "0"})
        with pytest.raises(EnvironmentFailed, match=match):
            repository_of(other)


HIDDEN = """\
def test_one():
    x = f(1)
    assert x == 2
    assert f([1, "a"]) == {"k": (1, 2.0)}

def test_two():
    assert f(3) == True
"""


def test_expectations_stay_outside() -> None:
    assert expectations(HIDDEN) == {
        "test_one": [canonical(2), canonical({"k": (1, 2.0)})],
        "test_two": ['["bool", true]'],
    }
    inside = without_expectations(HIDDEN)
    assert "True" not in inside
    assert '"k"' not in inside.replace("'", '"')
    assert inside.count("== None") == 3


@pytest.mark.parametrize(
    "source",
    [
        "def test_x():\n    assert f(1)\n",
        "def test_x():\n    assert f(1) == g(2)\n",
        "def test_x():\n    assert f(1) < 3\n",
        "def test_x():\n    for i in range(3):\n        assert f(i) == 1\n",
        "def test_x():\n    f(1)\n",
        "def test_x():\n    assert (f(1) == 2) == True\n",
    ],
)
def test_hidden_tests_of_another_form_are_refused(source: str) -> None:
    with pytest.raises(ValueError, match=r"test|malformed|judge"):
        expectations(source)


def line(name: str, *values: object) -> str:
    return json.dumps({"test": name, "values": json.dumps([json.loads(canonical(value)) for value in values])})


@pytest.mark.parametrize(
    ("reported", "passed"),
    [
        ([line("test_one", 2, {"k": (1, 2.0)}), line("test_two", True)], {"test_one", "test_two"}),
        ([line("test_one", 2, {"k": (1, 2)}), line("test_two", 1)], set()),
        ([line("test_one", 2), line("test_two", True, True)], set()),
        ([line("test_two", True), line("test_two", True)], set()),
        (["nonsense", "{}", '{"test": 1}', '{"test": "test_two", "values": "["}', "[" * 100_000], set()),
        ([line("test_three", 1), line("test_two", True)], {"test_two"}),
        ([], set()),
    ],
)
def test_what_is_reported_is_compared_type_by_type(reported: list[str], passed: set[str]) -> None:
    verdict = judge(expectations(HIDDEN), "\n".join(reported).encode())
    assert verdict.passed == passed
    assert verdict.passed | verdict.failed == {"test_one", "test_two"}
