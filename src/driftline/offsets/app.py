"""The application: routes, page, problems, access, and its description."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from fastapi import FastAPI, Response
from fastapi.openapi.utils import get_openapi
from pydantic import SecretStr
from starlette.middleware import Middleware

from driftline import __version__
from driftline.offsets import problems
from driftline.offsets.access import Access
from driftline.offsets.followed import DEADLINE_S
from driftline.offsets.problems import Problem, ProblemError
from driftline.offsets.routes import router
from driftline.offsets.service import Service
from driftline.store.protocol import ObjectStore

PAGE_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


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
    app.include_router(router)
    _add_page(app)
    app.openapi = lambda: _openapi(app, secured=token is not None)  # type: ignore[method-assign]
    return app


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
