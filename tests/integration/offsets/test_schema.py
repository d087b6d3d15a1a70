"""Schemathesis against the whole application: what the description promises holds, for right and wrong questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.config import SchemathesisConfig

from driftline.store.memory import MemoryStore
from tests.support import offset_runs
from tests.support.offset_service import serving_here

# The service runs in a thread of this process, and may draw a random number while a strategy does.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning"
)

TOKEN = "a-token-of-enough-characters"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
EXAMPLES = 30
CONFIG = SchemathesisConfig.from_dict({"generation": {"with-security-parameters": False}})
ROUTES = {
    "/v1/runs",
    "/v1/runs/{run}/offset",
    "/v1/runs/{run}/divergence",
    "/v1/runs/{run}/ledger",
    "/v1/runs/{run}/trajectories/{group}/{member}",
    "/v1/runs/{run}/history",
    "/v1/runs/{run}/timeline",
    "/metrics",
    "/healthz",
}
WITH_PARAMETERS = ROUTES - {"/metrics", "/healthz"}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A service with a run that is measured and one that is not; it asks for a token."""
    store = MemoryStore()
    offset_runs.write_run(store, "r", 5, groups=2, members=2)
    offset_runs.write_run(store, "old", 3, measured=False, groups=2, members=2)
    with serving_here(store, TOKEN) as found:
        yield found


@pytest.fixture(scope="module")
def described(address: str) -> Any:
    return schemathesis.openapi.from_url(f"{address}/openapi.json", headers=BEARER, config=CONFIG)


def asked(described: Any, path: str, mode: GenerationMode, check: Callable[[schemathesis.Case], object]) -> None:
    """Ask a route generated questions, and check each."""

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        database=None,
    )
    @given(case=described[path]["GET"].as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        check(case)

    ask()


@pytest.mark.parametrize("path", sorted(ROUTES))
def test_right_questions_are_answered_as_described(described: Any, path: str) -> None:
    """Status, content type and shape; and nothing is told without the token."""
    asked(described, path, GenerationMode.POSITIVE, lambda case: case.call_and_validate(headers=BEARER))


@pytest.mark.parametrize("path", sorted(WITH_PARAMETERS))
def test_wrong_questions_are_refused_as_described(described: Any, path: str) -> None:
    asked(described, path, GenerationMode.NEGATIVE, lambda case: case.call_and_validate(headers=BEARER))


@pytest.mark.parametrize("run", ["r", "old"])
@pytest.mark.parametrize("path", sorted(path for path in ROUTES if "{run}" in path))
def test_of_a_run_that_is_there_right_questions_have_answers(described: Any, path: str, run: str) -> None:
    """With names that exist: the answers' shapes, not only those of problems."""
    statuses: set[int] = set()

    def check(case: schemathesis.Case) -> None:
        case.path_parameters = {**case.path_parameters, "run": run}
        if "group" in case.path_parameters:
            case.path_parameters |= {"group": case.path_parameters["group"] % 8, "member": 1}
        response = case.call_and_validate(headers=BEARER)
        statuses.add(response.status_code)

    asked(described, path, GenerationMode.POSITIVE, check)
    assert 200 in statuses
    assert statuses <= {200, 404}


def test_the_description_has_every_route_and_names_its_problems(address: str) -> None:
    found = httpx.get(f"{address}/openapi.json", headers=BEARER).json()
    assert set(found["paths"]) == ROUTES
    for path, operations in found["paths"].items():
        answers = operations["get"]["responses"]
        assert answers["200"]["content"], path
        for status in set(answers) - {"200"}:
            assert answers[status]["content"]["application/problem+json"]["schema"]["$ref"].endswith("/Problem")
    assert "HTTPValidationError" not in str(found)
