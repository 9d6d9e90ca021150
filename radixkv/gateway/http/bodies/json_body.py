"""JSON bodies: parsed within bounds, large ones off the event loop.

    at most SMALL_BYTES   parsed at once
    more                  parsed on one thread, round robin over tenants

Parsing holds the GIL most of the time, so there is one thread: a second would take the lock from the loop as well.
Faults of a body are raised after the route's dependencies ran, since those count requests.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute

from radixkv.gateway.http.refusals import refusal_of
from radixkv.gateway.http.request_context import REQUEST_CONTEXT
from radixkv.gateway.protocol.api_model import ApiModel, unknown_fields
from radixkv.gateway.protocol.errors import ApiError
from radixkv.util.calls import Calls
from radixkv.util.json_text import read_json

__all__ = ["SMALL_BYTES", "JsonRoute", "off_loop"]

SMALL_BYTES = 64 * 1024

_Result = TypeVar("_Result")


class _Read(NamedTuple):
    """A parsed body: the route's value or the rejection, and the fields that its model does not have."""

    value: Any
    refusal: ApiError | None
    unknown: Sequence[str] = ()


class _JsonRequest(Request):
    """A request whose body is validated where it is parsed. FastAPI takes the resulting model as it is."""

    def __init__(self, request: Request, field: Any) -> None:
        super().__init__(request.scope, request.receive)
        self.refusal: ApiError | None = None
        self.is_small = True
        self._text = b""
        self._field = field

    async def body(self) -> bytes:
        """Return the body; where a model is read from it, only its first byte, so that the text is freed early."""
        body = await super().body()
        self.is_small = len(body) <= SMALL_BYTES
        if self._field is None:
            return body
        self._text, self._body = body, b""
        return body[:1]

    async def json(self) -> Any:
        text, self._text = self._text, b""
        read = await off_loop(self, partial(_read, text, self._field))
        self.refusal = read.refusal
        self.scope[REQUEST_CONTEXT].leave_out(read.unknown)
        return read.value


class JsonRoute(APIRoute):
    """A route that rejects with 400 a body out of the bounds of `core.json_text`, or of its model; with 415 one that is sent as
    no JSON, or compressed.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            request = _JsonRequest(request, self.body_field)
            try:
                return await handle(request)
            except RequestValidationError as error:
                encoding = request.headers.get("content-encoding", "identity")
                if request.refusal is not None and encoding != "identity":
                    raise _compressed(encoding) from None
                if request.refusal is not None:
                    raise request.refusal from None
                sent = request.headers.get("content-type", "")
                if "json" not in sent and any(each["loc"][0] == "body" for each in error.errors()):
                    raise _not_json(sent) from None
                raise

        return answer


def _not_json(sent: str) -> ApiError:
    message = f"the body is sent as {sent[:128]!r}; send it with the header 'content-type: application/json'"
    return ApiError(415, message, code="not_json")


def _compressed(encoding: str) -> ApiError:
    message = f"the body is compressed with {encoding[:128]!r}; send it as it is, without the header 'content-encoding'"
    return ApiError(415, message, code="unsupported_encoding")


async def off_loop(request: Request, function: Callable[[], _Result]) -> _Result:
    """Return the result of a function whose time grows with the body: run inline for a small body, else on the thread."""
    if not isinstance(request, _JsonRequest) or request.is_small:
        return function()
    calls: Calls = request.app.state.body_calls
    return await calls.call(partial(_uncollected, function))


def _uncollected(function: Callable[[], _Result]) -> _Result:
    """Run it without the process's garbage collector, which would scan all new objects again and again.

    That took two thirds of the time for 20,000 messages. JSON has no cycles, so there is no garbage to find.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return function()
    finally:
        if was_enabled:
            gc.enable()


def _read(body: bytes, field: Any) -> _Read:
    """Parse and validate a body. A rejected body returns a value that no model accepts, and none of its content."""
    try:
        value = read_json(body)
    except ValueError as error:
        reason = getattr(error, "msg", "it is no text")
        return _Read(b"", ApiError(400, f"the body cannot be read as JSON: {reason}", code="invalid_json"))
    model, errors = field.validate(value, {}, loc=("body",))
    if errors:
        return _Read(b"", refusal_of(errors, value))
    unknown: Sequence[str] = ()
    try:
        if isinstance(model, ApiModel):
            unknown = unknown_fields(model, value)
            model.check()
    except ApiError as refusal:
        return _Read(b"", refusal, unknown)
    return _Read(model, None, unknown)
