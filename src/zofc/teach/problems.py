"""Errors of the API, each with a remedy: RFC 9457 problem details, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from zofc.errors import ZofcError
from zofc.teach.models import Problem

TITLES = {
    400: "The request cannot be understood", 401: "A token is needed", 403: "The request is refused",
    404: "There is no such thing", 405: "The method is not allowed", 409: "A lesson is running",
    413: "The request is too large", 421: "The host is wrong", 422: "The request cannot be carried out",
    500: "A defect of zofc",
}  # fmt: skip
NOT_TEACHING = "See the OpenAPI description for what exists: /api/v1/openapi.json."


class Refusal(ZofcError):
    """A request that is refused, with a status and what to do instead."""

    status = 422

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.remedy = remedy


class Missing(Refusal):
    """What a request is about does not exist."""

    status = 404


class Busy(Refusal):
    """A lesson is running."""

    status = 409


class TooLarge(Refusal):
    """More than one request may bring."""

    status = 413


def problem(status: int, detail: str, remedy: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """A problem as a response."""
    title = TITLES.get(status, "The request failed")
    content = Problem(type="about:blank", title=title, status=status, detail=detail, remedy=remedy)
    return JSONResponse(content.model_dump(), status, headers, "application/problem+json")


def handle_errors(app: FastAPI) -> None:
    """Answer every error as a problem."""

    @app.exception_handler(ZofcError)
    def refused(_request: Request, error: ZofcError) -> JSONResponse:
        if isinstance(error, Refusal):
            return problem(error.status, str(error), error.remedy)
        return problem(422, str(error), "Change what the message names, then try again.")

    @app.exception_handler(RequestValidationError)
    def invalid(_request: Request, error: RequestValidationError) -> JSONResponse:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:5]]
        return problem(422, "; ".join(faults), NOT_TEACHING)

    @app.exception_handler(HTTPException)
    def other(_request: Request, error: HTTPException) -> JSONResponse:
        status = 413 if "Too many" in str(error.detail) else error.status_code
        return problem(status, str(error.detail), NOT_TEACHING, error.headers)

    @app.exception_handler(Exception)
    def defect(_request: Request, error: Exception) -> JSONResponse:
        return problem(500, f"{type(error).__name__}: {error}"[:300], "Nothing was changed; please report it.")
