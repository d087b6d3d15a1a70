"""A run's name, its description, and what a resume has to agree with."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from driftline.errors import ConfigurationError
from driftline.params import RunParameters
from driftline.records import Head, ModelSource, RunDescription
from driftline.store.memory import MemoryStore
from driftline.store.run_store import RunStore
from tasks import naming, runs

MODEL = ModelSource("d" * 32, "models/d/", (), False)


def described(**parameters: Any) -> RunDescription:
    stored = RunParameters.model_validate(parameters).model_dump(mode="json")
    return RunDescription("r1", 0.0, stored, "0.1.0", MODEL, "v", "h", None)


def test_a_retried_flow_run_has_the_same_run():
    when = datetime(2026, 3, 1, 4, 5, 6, tzinfo=UTC)
    assert naming.name_of("0f3b9d1c-2222-4444-8888-000000000000", when) == "20260301-040506-0f3b9d"


def test_a_flow_run_that_resumes_a_run_works_on_that_one():
    when = datetime(2026, 3, 1, 4, 5, 6, tzinfo=UTC)
    assert naming.run_of("0f3b9d1c-2222", when, {"run": "r1"}) == "r1"
    assert naming.run_of("0f3b9d1c-2222", when, {"run": None}) == "20260301-040506-0f3b9d"


def test_only_fields_that_were_given_count_as_set():
    given = RunParameters.model_validate({"seed": 0, "training": {"steps": 3}, "rollout": {}})
    assert runs.set_fields(given) == [("seed", 0), ("training.steps", 3)]


def test_a_resume_without_parameters_takes_those_of_the_run():
    found = runs.check_agreement(RunParameters(), described(seed=7, training={"steps": 3}))  # pyright: ignore[reportCallIssue]
    assert (found.seed, found.training.steps) == (7, 3)


def test_a_resume_with_equal_parameters_is_taken():
    given = RunParameters.model_validate({"seed": 7, "engine": {"cpus": [0]}})
    assert runs.check_agreement(given, described(seed=7, engine={"cpus": [0]})).engine.cpus == (0,)


@pytest.mark.parametrize(
    ("given", "field"),
    [({"seed": 8}, "seed"), ({"seed": 7, "training": {"steps": 30}}, "training.steps")],
)
def test_a_resume_with_another_parameter_names_it(given: dict[str, Any], field: str):
    with pytest.raises(ConfigurationError, match=rf"^{field}: run 'r1' was started with"):
        runs.check_agreement(RunParameters.model_validate(given), described(seed=7, training={"steps": 3}))


def test_parameters_of_another_version_are_refused_with_its_name():
    foreign = RunDescription("r1", 0.0, {"sede": 1}, "9.9.9", MODEL, "v", "h", None)
    with pytest.raises(ConfigurationError, match=r"(?s)driftline 9\.9\.9.*sede"):
        runs.stored_parameters(foreign)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> RunStore:
    found = RunStore(MemoryStore(), "r1")
    monkeypatch.setattr(runs, "run_store", lambda _run: found)
    monkeypatch.setattr(runs, "shared_store", lambda **_options: found.store)
    return found


PARAMETERS = RunParameters.model_validate({"overlap": {"lead_groups": 4}})
HEAD = Head(epoch=2, step=3, version=None, record=None, spent=48, given_up=(), lead_groups=16, task_sets=((0, "v"),))


async def test_ending_a_run_writes_state_and_reason_once(store: RunStore):
    store.create_head(HEAD)
    await runs.end("r1", "failed", "the engine died")
    await runs.end("r1", "cancelled", "later")
    head, _ = store.read_head()
    assert (head.state, head.reason, head.step, head.spent) == ("failed", "the engine died", 3, 48)


async def test_ending_a_run_that_never_began_changes_nothing(store: RunStore):
    await runs.end("r1", "failed", "the engine died")
    assert list(store.store.list("")) == []


async def test_a_new_run_gets_the_head_in_which_nothing_has_happened(store: RunStore):
    assert await runs.open_head(described(), PARAMETERS) is None
    head, _ = store.read_head()
    assert head == Head(0, 0, None, None, 0, (), 4, ((0, "v"),))
    assert await runs.open_head(described(), PARAMETERS) == "running"
    assert store.read_head()[0] == head


async def test_opening_lets_a_failed_run_go_on_from_where_it_stood(store: RunStore):
    store.create_head(HEAD)
    await runs.end("r1", "failed", "the engine died")
    assert await runs.open_head(described(), PARAMETERS) == "failed"
    head, _ = store.read_head()
    assert (head.state, head.reason, head.step, head.task_sets) == ("running", "", 3, ((0, "v"),))


async def test_a_finished_run_is_not_reopened(store: RunStore):
    store.create_head(HEAD)
    await runs.end("r1", "finished", "")
    assert await runs.open_head(described(), PARAMETERS) == "finished"
    assert store.read_head()[0].state == "finished"


async def test_the_description_is_found_or_not(store: RunStore):
    assert await runs.find_description("r1") is None
    store.create(described(seed=7))
    found = await runs.find_description("r1")
    assert found == described(seed=7)


def test_the_code_version_begins_with_the_packages():
    assert runs.code_version().startswith("0.1.0")
