"""The routes."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import SecretStr
from starlette.middleware import Middleware

from driftline import __version__
from driftline.offsets import answers, problems, series
from driftline.offsets.access import Access
from driftline.offsets.exposition import expose
from driftline.offsets.followed import DEADLINE_S, MOST_RUNS, Latest
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
from driftline.offsets.problems import Problem, ProblemError
from driftline.offsets.reader import RunView
from driftline.offsets.service import MOST_LISTED, Service, encoded, freshness, respond
from driftline.sections.section import NAME_PATTERN
from driftline.store.protocol import ObjectStore

LARGEST = 2**53 - 1
"""Largest integer that every JSON reader takes."""
MOST_POINTS = 2_000
MOST_SPANS = 1_500
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
PAGE_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

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


def build_app(
    store: ObjectStore,
    *,
    token: SecretStr | None = None,
    deadline_s: float = DEADLINE_S,
    clock: Callable[[], float] = time.time,
    monotonic: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """The application.

    Args:
        store: Where the runs are. Its patience should be short: a request never waits longer than `deadline_s`.
        token: What every request about runs has to bear; None asks for none.
        deadline_s: Longest that a request waits for the store.
        clock: Unix seconds.
        monotonic: Seconds that never go back.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        app.state.service = Service(store, deadline_s=deadline_s, clock=clock, monotonic=monotonic)
        try:
            yield
        finally:
            await app.state.service.close()

    app = FastAPI(
        title="Driftline offsets",
        summary="How far the generating policies are from the one that is trained.",
        version=__version__,
        docs_url=None,  # Its page loads scripts from elsewhere.
        redoc_url=None,
        lifespan=lifespan,
        middleware=[Middleware(Access, token=token)],
        generate_unique_id_function=lambda route: route.name,
    )
    problems.install(app)
    _add_api(app)
    _add_page(app)
    app.openapi = lambda: _openapi(app, secured=token is not None)  # type: ignore[method-assign]
    return app


def _key(found: Latest[RunView], *what: object) -> tuple[object, ...]:
    """What an answer about a run's committed steps depends on."""
    head = found.value.head
    return found.value.run, found.value.description.created_unix, head.record if head is not None else None, *what


def _add_api(app: FastAPI) -> None:
    def get(path: str, model: Any, *statuses: int) -> Any:
        every = problems.responses(400, 401, 503, *statuses)
        return app.get(path, response_model=model, responses=every, dependencies=[Depends(_no_other_parameters)])

    @get("/v1/runs", Runs, 422)
    async def list_runs(service: Served, limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 50) -> Response:
        """The newest runs."""
        found = await service.runs()
        return _changing(answers.runs(found, limit), found)

    @get("/v1/runs/{run}/offset", Offset, 404, 422, 502)
    async def offset(service: Served, run: RunName) -> Response:
        """Where a run stands, and how far each engine is behind."""
        found = await service.view(run)
        return _changing(answers.offset(found, service.clock()), found)

    @get("/v1/runs/{run}/divergence", Divergence, 404, 422, 502)
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
        return respond(request, service.body(key, lambda: series.divergence(found.value, by, steps)), found)

    @get("/v1/runs/{run}/ledger", Ledger, 404, 422, 502)
    async def ledger(request: Request, service: Served, run: RunName) -> Response:
        """What became of every token sampled in the run."""
        found = await service.view(run)
        return respond(request, service.body(_key(found, "ledger"), lambda: answers.ledger(found.value)), found)

    @get("/v1/runs/{run}/trajectories/{group}/{member}", TrajectoryAnswer, 404, 422, 502)
    async def trajectory(request: Request, service: Served, run: RunName, group: Number, member: Number) -> Response:
        """The segments of a trajectory, and their divergence from the policy that trained on them."""
        answer = await service.trajectory(run, group, member)
        return respond(request, encoded(answer))

    @get("/v1/runs/{run}/history", History, 404, 422, 502)
    async def history(
        request: Request,
        service: Served,
        run: RunName,
        points: Annotated[int, Query(ge=2, le=MOST_POINTS, description="Most values of a series.")] = 240,
    ) -> Response:
        """The run's steps as series, in few points."""
        found = await service.view(run)
        key = _key(found, "history", points)
        return respond(request, service.body(key, lambda: series.history(found.value, points)), found)

    @get("/v1/runs/{run}/timeline", Timeline, 404, 422, 502)
    async def timeline(
        request: Request,
        service: Served,
        run: RunName,
        seconds: Annotated[float, Query(ge=0.1, le=86_400, allow_inf_nan=False)] = 60.0,
    ) -> Response:
        """What worked when, in the last seconds that were recorded."""
        found = await service.view(run)
        key = _key(found, "timeline", seconds, found.value.newest_spans)
        return respond(request, service.body(key, lambda: series.timeline(found.value, seconds, MOST_SPANS)), found)

    @app.get("/metrics", response_class=Response, responses=_metrics_responses())
    async def metrics(service: Served) -> Response:
        """Gauges of the running runs, as Prometheus scrapes them."""
        found, unread = await service.running(MOST_RUNS)
        text = expose(found, service.clock(), unread=unread, store_requests=service.store.requests)
        return Response(text, headers={"Cache-Control": "no-store", "Content-Type": PROMETHEUS})

    @app.get("/healthz", response_model=Health, responses=problems.responses(400))
    async def healthz() -> Health:
        """That the service runs; asks nobody."""
        return Health(status="ok")


def _metrics_responses() -> dict[int | str, dict[str, Any]]:
    text = {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    return {200: text, **problems.responses(400, 401, 503)}


def _changing(answer: Runs | Offset, found: Latest[Any]) -> Response:
    """An answer that holds ages, so that it is never the same twice."""
    headers = {"Cache-Control": "no-store", **freshness(found)}
    return Response(answer.model_dump_json(), media_type="application/json", headers=headers)


def _add_page(app: FastAPI) -> None:
    """The page and its files, from the package; nothing else is served."""
    folder = resources.files("driftline.offsets") / "page"
    files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}

    def served(name: str) -> Response:
        if name not in files:
            raise ProblemError(404, "no-such-page", f"the page has no file {name!r}")
        kind = PAGE_TYPES.get("." + name.rpartition(".")[2], "application/octet-stream")
        headers = {"Cache-Control": "no-cache", "Content-Type": f"{kind}; charset=utf-8"}
        return Response(files[name], headers=headers)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        """The page."""
        return served("index.html")

    @app.get("/page/{name}", include_in_schema=False)
    async def page_file(name: str) -> Response:
        """One of its files."""
        return served(name)


def _openapi(app: FastAPI, *, secured: bool) -> dict[str, Any]:
    """The description of the API, with problem documents, and with the token where one is needed."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = found.setdefault("components", {}).setdefault("schemas", {})
        schemas["Problem"] = Problem.model_json_schema()
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        if secured:
            found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            for path, operations in found["paths"].items():
                if path != "/healthz":
                    operations["get"]["security"] = [{"token": []}]
        app.openapi_schema = found
    return app.openapi_schema
