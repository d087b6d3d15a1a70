"""Errors as problem documents (RFC 9457): what is wrong, and what to do about it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from driftline.errors import CorruptObject, DeadlineExceeded, ObjectMissing, StoreUnavailable

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2


class Problem(BaseModel):
    """A problem document."""

    model_config = ConfigDict(extra="forbid")

    type: str = Field(description="Names the kind of problem.", examples=["unknown-run"])
    title: str = Field(description="The kind of problem, in words.")
    status: int = Field(description="The HTTP status.", ge=400, le=599)
    detail: str = Field(description="What is wrong here.")
    remedy: str = Field("", description="What to do about it.")
    errors: list[str] = Field([], description="Each wrong parameter, for status 422.")


class ProblemError(Exception):
    """Ends a request with a problem document."""

    def __init__(
        self, status: int, kind: str, detail: str, remedy: str = "", *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.problem = Problem(
            type=kind, title=kind.replace("-", " "), status=status, detail=detail, remedy=remedy, errors=[]
        )
        self.headers = dict(headers or {})


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the description of the API says of these statuses."""
    meaning = {
        400: "The request is for another host.",
        401: "No bearer token, or a wrong one.",
        404: "There is no such thing in the store.",
        422: "A parameter is impossible.",
        502: "The store holds something that cannot be read.",
        503: "The store does not answer, or is still being read.",
    }
    schema = {"schema": {"$ref": "#/components/schemas/Problem"}}
    return {status: {"description": meaning[status], "content": {MEDIA_TYPE: schema}} for status in statuses}


def respond(error: ProblemError) -> JSONResponse:
    """The answer of a problem."""
    headers = {"Cache-Control": "no-store", **error.headers}
    return JSONResponse(error.problem.model_dump(), error.problem.status, headers=headers, media_type=MEDIA_TYPE)


def of(error: Exception) -> ProblemError:
    """The problem of an error that Driftline knows."""
    again = {"Retry-After": str(RETRY_AFTER_S)}
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, ObjectMissing):
        return ProblemError(404, "unknown-run", str(error), "GET /v1/runs lists the runs of the bucket")
    if isinstance(error, CorruptObject):
        return ProblemError(502, "unreadable-object", str(error), "look at the object that the detail names")
    if isinstance(error, DeadlineExceeded):
        return ProblemError(503, "still-reading", str(error), "ask again", headers=again)
    if isinstance(error, StoreUnavailable):
        return ProblemError(503, "store-unavailable", str(error), "ask again once the store is back", headers=again)
    logger.error("a request failed", exc_info=error)
    return ProblemError(500, "defect", "the service failed", "its log has the traceback; please report it")


def install(app: FastAPI) -> None:
    """Answer every error of an application with a problem document."""

    async def known(_request: Request, error: Exception) -> JSONResponse:
        return respond(of(error))

    async def invalid(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        problem = ProblemError(
            422, "impossible-parameter", "a parameter is impossible", "see `errors`, and /openapi.json"
        )
        problem.problem.errors.extend(_words(one) for one in error.errors())
        return respond(problem)

    async def routed(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        remedy = "see /openapi.json for what there is"
        kind = {404: "no-such-page", 405: "method-not-allowed"}.get(error.status_code, "refused")
        return respond(ProblemError(error.status_code, kind, str(error.detail), remedy, headers=error.headers))

    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, routed)
    for kind in (ProblemError, ObjectMissing, CorruptObject, DeadlineExceeded, StoreUnavailable, Exception):
        app.add_exception_handler(kind, known)


def _words(error: Mapping[str, Any]) -> str:
    place = ".".join(str(part) for part in error["loc"])
    return f"{place}: {error['msg']}"
