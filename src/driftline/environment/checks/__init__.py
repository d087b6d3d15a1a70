"""The contract as a suite that anybody can run on their own family: `driftline environments check NAME`.

    report = check("my_package:MyFamily")
    assert report.ok, report.failed

Each check is a function that raises `Broken` where the contract is not kept, and `NotApplicable` where it has nothing
to examine. `CHECKS` is the list, with the remedies; where `reset` or `step` has a wrong type, that alone is told.
Call `check` outside of any event loop: every check has one of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from driftline.environment.answers import REMEDY
from driftline.environment.checks import (
    alphabet,
    call_types,
    episodes,
    hash_seed,
    others,
    surroundings,
    taking_up,
    tasks,
)
from driftline.environment.checks.findings import Broken as Broken
from driftline.environment.checks.findings import Case as Case
from driftline.environment.checks.findings import Finding as Finding
from driftline.environment.checks.findings import NotApplicable as NotApplicable
from driftline.environment.checks.findings import Report as Report
from driftline.environment.checks.playing import RAISED
from driftline.environment.registry import missing_members, resolve
from driftline.errors import ConfigurationError

TASKS = 3
SEED = 7
DEADLINE_S = 60.0

CHECKS: Mapping[str, tuple[Callable[[Case], None], str]] = MappingProxyType(
    {
        "versioned id": (
            tasks.versioned_id,
            "name it family/v1, register it under that, and give Task.create the family's id; a changed task is v2",
        ),
        "task id is the hash of its state": (
            tasks.task_id,
            "make tasks with Task.create, and put all they need, as JSON values, into the payload",
        ),
        "tasks follow from the seed": (
            tasks.tasks_of_a_seed,
            "draw from Random(f'{self.id}:{seed}') alone, and drop duplicates by Task.id",
        ),
        "levels of difficulty": (
            tasks.levels,
            "draw a level's tasks from Random(f'{self.id}:{level}:{seed}'), note the level in the payload, and "
            "refuse levels that are not there with ConfigurationError",
        ),
        "determinism": (
            episodes.determinism,
            "take all chance from the task and the seed of reset, keep state in the instance, and read no clock",
        ),
        "snapshot and restore": (
            taking_up.snapshot,
            "put all that reset and step change into the snapshot, copied, turns left and random state included; "
            "return bytes or JSON values",
        ),
        "oracle solves": (
            episodes.oracle,
            "mend the oracle or the scoring; return None from oracle where there is none; end with success=True",
        ),
        "no-op does not solve": (
            episodes.no_op,
            "judge what was done, not that the episode ended: an empty answer is no success",
        ),
        "another task's answer does not solve": (others.do_not_solve, REMEDY),
        "the alphabet covers what is said": (
            alphabet.covers,
            "put the character into alphabet, or do without it; alphabet = None where no base policy is warm-started",
        ),
        "turn limit": (episodes.turn_limit, "count turns from reset, and return truncated=True after max_turns"),
        "any text is answered": (
            episodes.any_text,
            "answer what cannot be understood with an observation, and raise only where the environment is broken",
        ),
        "cancellation cleans up": (
            surroundings.cancellation,
            "let CancelledError through, end in finally what a call has started, and in close what the episode has",
        ),
        "no global random state": (
            surroundings.random_state,
            "draw from a Random of your own (numpy: default_rng(seed)), never from the module's functions",
        ),
    }
)
TYPES = "types of reset and step"
TYPES_REMEDY = (
    "async def reset(self, task, seed) returns a tuple such as (Message('user', text),), and async def step(self, "
    "action) a StepResult; nothing else is checked before they do"
)
HASH_SEED = "independence of PYTHONHASHSEED"
HASH_SEED_REMEDY = "sort sets before they are used in order, and never use hash() of text"


def check(name: str, *, tasks: int = TASKS, seed: int = SEED, deadline_s: float = DEADLINE_S) -> Report:
    """Run every check on a family.

    Args:
        name: Its id, or the dotted path of its class or of an instance.
        tasks: How many of its tasks are played.
        seed: Of the tasks and the episodes.
        deadline_s: Of one call of an environment.

    Raises:
        ConfigurationError: There is no such family, or what is there is none.
    """
    return check_all([name], tasks=tasks, seed=seed, deadline_s=deadline_s)[0]


def check_all(
    names: Sequence[str],
    *,
    tasks: int = TASKS,
    seed: int = SEED,
    deadline_s: float = DEADLINE_S,
    say: Callable[[Report], None] = lambda _: None,
) -> list[Report]:
    """Run every check on several families; `say` hears of each as soon as it is done. As `check`."""
    families = {name: resolve(name) for name in names}
    for name, family in families.items():
        if lacking := missing_members(family):
            raise ConfigurationError(
                f"{name} is no task family: it lacks {', '.join(lacking)} (driftline.environment.TaskFamily)"
            )
    records, broken = _records(names, tasks=tasks, seed=seed, deadline_s=deadline_s)
    reports: list[Report] = []
    for name, family in families.items():
        generated = _generated(Case(name, family, (), seed, deadline_s), tasks)
        if isinstance(generated, Finding):
            reports.append(Report(name, (generated,)))
        else:
            reports.append(_report(generated, partial(_hash_seed, records=records, broken=broken)))
        say(reports[-1])
    return reports


def _records(
    names: Sequence[str], *, tasks: int, seed: int, deadline_s: float
) -> tuple[Sequence[hash_seed.Records], str]:
    try:
        return hash_seed.play_under_seeds(names, seed=seed, tasks=tasks, deadline_s=deadline_s), ""
    except Broken as error:
        return (), str(error)


def _generated(case: Case, count: int) -> Case | Finding:
    """The case with its tasks, or what is wrong with `generate`."""
    try:
        generated = tuple(case.family.generate(case.seed, count))
    except RAISED as error:  # the policy: whatever a family raises is a finding
        detail = f"generate({case.seed}, {count}) raised {type(error).__name__}: {error}"
        return Finding("tasks", "failed", detail, "generate must return so many tasks; ask for fewer with --tasks")
    if not generated:
        return Finding("tasks", "failed", f"generate({case.seed}, {count}) returned no task", "return distinct tasks")
    return Case(case.name, case.family, generated, case.seed, case.deadline_s)


def _report(case: Case, last: Callable[[Case], None]) -> Report:
    types_found = _finding(TYPES, call_types.answers, case, TYPES_REMEDY)
    if types_found.verdict == "failed":
        return Report(case.name, (types_found,))
    findings = [_finding(check, run, case, remedy) for check, (run, remedy) in CHECKS.items()]
    return Report(case.name, (*findings, _finding(HASH_SEED, last, case, HASH_SEED_REMEDY)))


def _hash_seed(case: Case, records: Sequence[hash_seed.Records], broken: str) -> None:
    if broken:
        raise Broken(broken)
    hash_seed.hash_seed(case, records)


def _finding(check: str, run: Callable[[Case], None], case: Case, remedy: str) -> Finding:
    try:
        run(case)
    except NotApplicable as reason:
        return Finding(check, "not applicable", str(reason))
    except Broken as broken:
        return Finding(check, "failed", str(broken), remedy)
    except TimeoutError:
        late = f"a call took longer than {case.deadline_s:g} s"
        return Finding(check, "failed", late, "make calls end, or raise --deadline-s")
    except RAISED as error:  # the policy: whatever an environment raises is a finding
        return Finding(check, "failed", f"{type(error).__name__}: {error}", f"{remedy} (an exception is a defect)")
    return Finding(check, "ok")
