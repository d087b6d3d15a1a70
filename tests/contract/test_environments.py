"""The contract suite: shipped families keep the contract, and each of its checks finds a family that does not."""

from __future__ import annotations

import pytest

from driftline.environment.checks import CHECKS, HASH_SEED, TYPES, Report, check, check_all
from driftline.errors import ConfigurationError

MODULE = "tests.support.faulty_environments"
SNAPSHOT, CANCEL, CHANCE = "snapshot and restore", "cancellation cleans up", "no global random state"
OTHERS, ALPHABET = "another task's answer does not solve", "the alphabet covers what is said"
LEVELS = "levels of difficulty"
HASHED, SEEDED = "task id is the hash of its state", "tasks follow from the seed"

FAULTY = [
    ("NoVersion", "versioned id", "the id is 'counting'"),
    ("OthersTasks", "versioned id", "other/v1"),
    ("NumberedTasks", HASHED, "has the id 0"),
    ("PayloadOfTuples", HASHED, "is not JSON"),
    ("TwinTasks", HASHED, "a task twice"),
    ("UnseededTasks", SEEDED, "then"),
    ("OtherLevels", LEVELS, "level_of says 0 of a task that was made for level 3"),
    ("NoHighestLevel", LEVELS, "generate_level(4, ...) returned 1 tasks, and levels is 4"),
    ("UnseededLevels", LEVELS, "another task the second time"),
    ("Unseeded", "determinism", "differs at turn 1"),
    ("SharesState", "determinism", "beside an episode of another task, it differs at turn 2"),
    ("RemembersAfterRecycle", "determinism", "after recycle, an episode differs at the prompt"),
    ("ForgetsTurnsLeft", SNAPSHOT, "restored in a new environment"),
    ("ForgetsChance", SNAPSHOT, "restored in a new environment"),
    ("LivingSnapshot", SNAPSHOT, "has changed with the turns after it"),
    ("PickledSnapshot", SNAPSHOT, "a pickle"),
    ("SnapshotOfSets", SNAPSHOT, "neither bytes nor JSON"),
    ("WrongOracle", "oracle solves", "'success': False"),
    ("EndlessOracle", "oracle solves", "goes on after all 1 actions"),
    ("AnythingSolves", "no-op does not solve", "saying '' succeeds"),
    ("PaysForNothing", "no-op does not solve", "earns 1.0, and the oracle 1.0"),
    ("AnyAnswerSolves", OTHERS, "is solved by another task's answer, 'done "),
    ("LacksOfItsPrompt", ALPHABET, "which the alphabet lacks"),
    ("LacksOfAnObservation", ALPHABET, "'!', which the alphabet lacks"),
    ("LacksOfADemonstration", ALPHABET, "'PU', which the alphabet lacks: 'UP'"),
    ("LacksItsStop", ALPHABET, "stop has ';', which"),
    ("LongStop", ALPHABET, "one character ends a turn"),
    ("PlainStep", TYPES, "step is a plain function: it returned StepResult without an await"),
    ("StepsToATuple", TYPES, "step returned tuple"),
    ("PromptOfText", TYPES, "reset returned str"),
    ("PromptOfTexts", TYPES, "reset returned str among its messages"),
    ("NoTurnLimit", "turn limit", "goes on after turn 1"),
    ("RaisesAtNonsense", "any text is answered", "raised ValueError: what is this?"),
    ("ExitsAtNonsense", "any text is answered", "raised SystemExit: 0"),
    ("GivesUpAtNonsense", "any text is answered", "raised CancelledError"),
    ("LeavesTasks", CANCEL, "tasks are left after close: ['forgotten'"),
    ("LeavesThreads", CANCEL, "threads are left after close: ['left-behind'"),
    ("LeavesProcesses", CANCEL, "processes are left after close: ['sleep 60"),
    ("LeavesFiles", CANCEL, "files are left after close"),
    ("SwallowsCancel", CANCEL, "a call did not end within 3 s of its cancel: ['step']"),
    ("SeedsTheGlobalState", CHANCE, "the global state of random"),
    ("DrawsFromNumpy", CHANCE, "the global state of numpy.random"),
    ("HashesText", HASH_SEED, "depends on PYTHONHASHSEED: it differs at turn 1"),
    ("OrderOfASet", HASH_SEED, "the ids of tasks depend on PYTHONHASHSEED"),
    ("CannotGenerate", "tasks", "ZeroDivisionError: no tasks today"),
]
NOT_APPLICABLE = {
    "arithmetic/v1": {LEVELS, ALPHABET},
    "pointer_chase/v1": set[str](),
    "repo_repair/v1": {LEVELS, OTHERS, ALPHABET},
    "trace_replay/v1": {LEVELS, "oracle solves", "no-op does not solve", OTHERS, "turn limit"},
}
FIRST_PARTY = list(NOT_APPLICABLE)


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    names = [f"{MODULE}:{name}" for name in ("Counting", *(name for name, _, _ in FAULTY))]
    return {report.name.partition(":")[2]: report for report in check_all(names)}


@pytest.mark.parametrize(("name", "wanted", "detail"), FAULTY, ids=[name for name, _, _ in FAULTY])
def test_a_broken_clause_is_found_with_a_remedy(
    reports: dict[str, Report], name: str, wanted: str, detail: str
) -> None:
    failed = {finding.check: finding for finding in reports[name].failed}
    assert detail in failed[wanted].detail
    assert failed[wanted].remedy


def test_every_check_is_proved_by_a_family_that_fails_it_and_one_that_passes_it(reports: dict[str, Report]) -> None:
    assert {wanted for _, wanted, _ in FAULTY} == {*CHECKS, HASH_SEED, TYPES, "tasks"}
    assert {finding.check: finding.verdict for finding in reports["Counting"].findings} == dict.fromkeys(
        [*CHECKS, HASH_SEED], "ok"
    )


def test_what_breaks_one_clause_fails_no_other(reports: dict[str, Report]) -> None:
    beside = {
        name: extra
        for name, wanted, _ in FAULTY
        if (extra := {finding.check for finding in reports[name].failed} - {wanted})
    }
    assert beside == {
        "Unseeded": {SNAPSHOT, HASH_SEED, CHANCE},
        "UnseededTasks": {HASH_SEED, CHANCE},
        "SharesState": {SNAPSHOT},
        "TwinTasks": {SEEDED},
    }


@pytest.mark.parametrize("name", FIRST_PARTY)
def test_a_shipped_family_keeps_the_contract(name: str) -> None:
    report = check(name)
    assert report.ok, report.failed
    idle = {finding.check for finding in report.findings if finding.verdict == "not applicable"}
    assert idle == NOT_APPLICABLE[name]


def test_what_is_no_family_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is no task family: it lacks id, alphabet, stop, generate"):
        check("driftline.environment:resolve")
    with pytest.raises(ConfigurationError, match=r"Counter\(\) needs arguments: name an instance"):
        check(f"{MODULE}:Counter")
