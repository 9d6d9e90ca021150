"""Every failure as the OpenAI API tells it: ``{"error": {"message", "type", "param", "code"}}`` under a fitting status.

ApiError                 what the gateway itself refuses
RadixKVError             what the worker refuses: `ApiError.of` translates, by the nearest class of one table
validation, 404, 405 ... what the framework refuses
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from radixkv.core.errors import (
    DeadlineExceededError,
    InvalidArgumentError,
    LimitError,
    OutOfBlocksError,
    QuotaError,
    RadixKVError,
    UnavailableError,
)
from radixkv.worker.request import UnknownGenerationError

__all__ = ["ApiError", "add_error_handlers", "error_body", "error_response"]

RETRY_AFTER_S = 1
"""What a caller is told to wait where nothing better is known, in seconds."""


class ApiError(Exception):
    """A refusal, with everything that its HTTP response says.

    Attributes:
        status: of the response.
        message: for people; names the field and the bound.
        type, code, param: the kind of error, its stable name, and the field of the request that is at fault, as the
            OpenAI API has them.
        headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = "invalid_request_error",  # the protocol's word
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    @classmethod
    def of(cls, error: Exception) -> ApiError:
        """What an exception of the worker or of the framework means over HTTP; anything unforeseen is a plain 500."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, InvalidArgumentError):
            return _of_invalid_argument(error)
        for row in _TABLE:
            if isinstance(error, row.error):
                headers = {"Retry-After": str(RETRY_AFTER_S)} if row.status in (429, 503) else None
                return cls(row.status, str(error), type=row.type, code=row.code, headers=headers)
        return cls(500, "the server failed; its log tells why", type="server_error", code="internal_error")


class _Row(NamedTuple):
    error: type[RadixKVError]
    status: int
    type: str
    code: str


_TABLE = (
    _Row(UnknownGenerationError, 404, "invalid_request_error", "not_found"),
    _Row(OutOfBlocksError, 429, "rate_limit_error", "out_of_blocks"),
    _Row(QuotaError, 429, "rate_limit_error", "quota_exceeded"),
    _Row(LimitError, 429, "rate_limit_error", "rate_limit_exceeded"),
    _Row(DeadlineExceededError, 504, "timeout_error", "deadline_exceeded"),
    _Row(UnavailableError, 503, "server_error", "unavailable"),
)

_PARAMS = {"timeout_s": "timeout", "grammar": "response_format", "grammar.text": "response_format"}
"""What the worker calls an argument -> what the request called it, where the two differ."""


def _of_invalid_argument(error: InvalidArgumentError) -> ApiError:
    too_long = "tokens" in error.bound and error.argument in ("prompt", "history", "prompt + max_tokens")
    code = "context_length_exceeded" if too_long else "invalid_value"
    return ApiError(400, str(error), code=code, param=_PARAMS.get(error.argument, error.argument))


def error_body(error: ApiError) -> dict[str, Any]:
    """The JSON of an error, also as the last event of a stream that fails midway."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}


def error_response(error: ApiError) -> JSONResponse:
    """The HTTP response of an error."""
    return JSONResponse(error_body(error), error.status, headers=error.headers)


def add_error_handlers(app: FastAPI) -> None:
    """Make every error that leaves a route of `app` an answer in the protocol's form."""

    async def answer(_request: Request, error: Exception) -> JSONResponse:
        return error_response(ApiError.of(error))

    async def answer_validation(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_response(_of_validation(error))

    async def answer_http(_request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return error_response(_of_http(error))

    app.add_exception_handler(ApiError, answer)
    app.add_exception_handler(RadixKVError, answer)
    app.add_exception_handler(RequestValidationError, answer_validation)
    app.add_exception_handler(HTTPException, answer_http)


def _of_validation(refusal: RequestValidationError) -> ApiError:
    """What a request's schema refuses: of all that it says, what lies deepest in what the caller wrote."""
    errors = [(_path(error, refusal.body), error) for error in refusal.errors()]
    path, error = max(errors, key=lambda pair: len(pair[0]))
    if error["type"] == "json_invalid":
        reason = error.get("ctx", {}).get("error", error["msg"])
        return ApiError(400, f"the body is not JSON: {reason}", code="invalid_json")
    param = ".".join(map(str, path)) or "body"
    return ApiError(400, f"{param}: {error['msg']}", code="invalid_value", param=param)


def _path(error: Any, body: Any) -> list[str | int]:
    """Where in the request: the schema's own names for the members of a union are left out."""
    source, *places = error["loc"]
    if source != "body":
        return list(places)
    path: list[str | int] = []
    for number, place in enumerate(places, 1):
        is_missing = error["type"] == "missing" and number == len(places)
        if is_missing or (isinstance(body, dict) and place in body):
            body = None if is_missing else body[place]
            path.append(place)
        elif isinstance(body, list) and isinstance(place, int) and place < len(body):
            body = body[place]
            path.append(place)
    return path


def _of_http(error: HTTPException) -> ApiError:
    messages = {404: "there is no such URL here", 405: "this URL does not take this method"}
    codes = {404: "unknown_url", 405: "method_not_allowed", 413: "request_too_large"}
    message = messages.get(error.status_code, str(error.detail))
    code = codes.get(error.status_code)
    return ApiError(error.status_code, message, code=code, headers=error.headers)
