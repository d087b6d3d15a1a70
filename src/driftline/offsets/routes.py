"""The questions: one function each, which finds the run and lets a pure function answer."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from driftline.offsets import answers, problems, series
from driftline.offsets.exposition import expose
from driftline.offsets.followed import MOST_RUNS, Latest
from driftline.offsets.models import (
    By,
    Divergence,
    Health,
    History,
    Ledger,
    Offset,
    Runs,
    Timeline,
    TrajectoryAnswer,
)
from driftline.offsets.problems import ProblemError
from driftline.offsets.reader import RunView
from driftline.offsets.service import MOST_LISTED, Service, encoded, freshness, respond
from driftline.sections.section import NAME_PATTERN

LARGEST = 2**53 - 1
"""Largest integer that every JSON reader takes."""
MOST_POINTS = 2_000
MOST_SPANS = 1_500
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter()

RunName = Annotated[
    str,
    Path(
        description="Name of a run, or `latest` for the one that was created last.",
        pattern=NAME_PATTERN,
        examples=["latest"],
    ),
]
Number = Annotated[int, Path(ge=0, le=LARGEST)]


def _service(request: Request) -> Service:
    return request.app.state.service


Served = Annotated[Service, Depends(_service)]


def _no_other_parameters(request: Request) -> None:
    """Refuse what would have no effect, such as a parameter with a typing error in its name."""
    known = {parameter.alias for parameter in request.scope["route"].dependant.query_params}
    if unknown := sorted(set(request.query_params) - known):
        allowed = ", ".join(sorted(known)) or "none"
        raise ProblemError(
            422, "impossible-parameter", f"there is no parameter {unknown[0]!r} here", f"there are: {allowed}"
        )


def _get(path: str, model: Any, *statuses: int) -> Any:
    """Add a route that answers with a model, or with a problem of one of these statuses."""
    every = problems.responses(400, 401, 503, *statuses)
    return router.get(path, response_model=model, responses=every, dependencies=[Depends(_no_other_parameters)])


def _metrics_responses() -> dict[int | str, dict[str, Any]]:
    text = {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {200: text, **problems.responses(400, 401, 503)}


@_get("/v1/runs", Runs, 422)
async def list_runs(service: Served, limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 50) -> Response:
    """The newest runs."""
    found = await service.runs()
    return _changing(answers.runs(found, limit), found)


@_get("/v1/runs/{run}/offset", Offset, 404, 422, 502)
async def offset(service: Served, run: RunName) -> Response:
    """Where a run stands, and how far each engine is behind."""
    found = await service.view(run)
    return _changing(answers.offset(found, service.clock()), found)


@_get("/v1/runs/{run}/divergence", Divergence, 404, 422, 502)
async def divergence(
    request: Request,
    service: Served,
    run: RunName,
    by: By = "lag",
    steps: Annotated[int, Query(ge=1, le=10_000, description="Over so many of the last steps.")] = 20,
) -> Response:
    """Divergence of the last batches, by lag, environment or the policy version that sampled."""
    found = await service.view(run)
    key = _key(found, "divergence", by, steps)
    return respond(request, await service.body(key, lambda: series.divergence(found.value, by, steps)), found)


@_get("/v1/runs/{run}/ledger", Ledger, 404, 422, 502)
async def ledger(request: Request, service: Served, run: RunName) -> Response:
    """What became of every token sampled in the run."""
    found = await service.view(run)
    return respond(request, await service.body(_key(found, "ledger"), lambda: answers.ledger(found.value)), found)


@_get("/v1/runs/{run}/trajectories/{group}/{member}", TrajectoryAnswer, 404, 422, 502)
async def trajectory(request: Request, service: Served, run: RunName, group: Number, member: Number) -> Response:
    """The segments of a trajectory, and their divergence from the policy that trained on them."""
    answer = await service.trajectory(run, group, member)
    return respond(request, encoded(answer))


@_get("/v1/runs/{run}/history", History, 404, 422, 502)
async def history(
    request: Request,
    service: Served,
    run: RunName,
    points: Annotated[int, Query(ge=2, le=MOST_POINTS, description="Most values of a series.")] = 240,
) -> Response:
    """The run's steps as series, in few points."""
    found = await service.view(run)
    key = _key(found, "history", points)
    return respond(request, await service.body(key, lambda: series.history(found.value, points)), found)


@_get("/v1/runs/{run}/timeline", Timeline, 404, 422, 502)
async def timeline(
    request: Request,
    service: Served,
    run: RunName,
    seconds: Annotated[float, Query(ge=0.1, le=86_400, allow_inf_nan=False)] = 60.0,
) -> Response:
    """What worked when, in the last seconds that were recorded."""
    found = await service.view(run)
    key = _key(found, "timeline", seconds, found.value.newest_spans)
    return respond(request, await service.body(key, lambda: series.timeline(found.value, seconds, MOST_SPANS)), found)


@router.get("/metrics", response_class=Response, responses=_metrics_responses())
async def metrics(service: Served) -> Response:
    """Gauges of the running runs, as Prometheus scrapes them."""
    found, unread = await service.running(MOST_RUNS)
    text = expose(found, service.clock(), unread=unread, store_requests=service.store.requests)
    return Response(text, headers={"Cache-Control": "no-store", "Content-Type": PROMETHEUS})


@router.get("/healthz", response_model=Health, responses=problems.responses(400))
async def healthz() -> Health:
    """That the service runs; asks nobody."""
    return Health(status="ok")


def _key(found: Latest[RunView], *what: object) -> tuple[object, ...]:
    """What an answer about a run's committed steps depends on."""
    head = found.value.head
    return found.value.run, found.value.description.created_unix, head.record if head is not None else None, *what


def _changing(answer: Runs | Offset, found: Latest[Any]) -> Response:
    """An answer that holds ages, so that it is never the same twice."""
    headers = {"Cache-Control": "no-store", **freshness(found)}
    return Response(answer.model_dump_json(), media_type="application/json", headers=headers)
