"""Failures of the worker, the gateway and the framework as responses, in the protocol of the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route
from starlette.types import Scope

from radixkv.core.errors import RadixKVError
from radixkv.gateway.http.request_context import REQUEST_CONTEXT
from radixkv.gateway.protocol.anthropic_errors import anthropic_error_body, anthropic_status, speaks_anthropic
from radixkv.gateway.protocol.errors import ApiError, error_body, invalid

__all__ = ["add_error_handlers", "error_response", "refusal_of"]

_NOT_SERVED = {
    **dict.fromkeys(("embeddings", "api/embed", "api/embeddings", "embedding"), "no embeddings are served here"),
    **dict.fromkeys(("rerank", "score", "pooling", "classify"), "no scores of texts are served here"),
    "moderations": "no moderation is served here",
    **dict.fromkeys(("images", "videos"), "no images are served here"),
    **dict.fromkeys(("audio", "realtime"), "no sound is served here"),
    **dict.fromkeys(
        ("completion", "infill", "apply-template", "slots"), "of llama.cpp's own API little is served here"
    ),
    **dict.fromkeys(
        ("api/chat", "api/generate", "api/show", "api/tags", "api/ps"), "Ollama's own API is not served here"
    ),
    "generate": "SGLang's own API is not served here",
    "responses/compact": "no conversation is compacted here",
}
"""Endpoints of other servers, by the beginning of the path."""

_SHOULD_BE = "Input should be "

MAX_PARAM_CHARACTERS = 200
"""Of the path to a fault, which holds the caller's own names."""


def error_response(error: ApiError, scope: Scope) -> JSONResponse:
    """Return the HTTP response of an error to the request of `scope`."""
    scope[REQUEST_CONTEXT].error_code = error.code
    if speaks_anthropic(scope):
        body = anthropic_error_body(error, scope[REQUEST_CONTEXT].request_id)
        return JSONResponse(body, anthropic_status(error), headers=error.headers)
    return JSONResponse(error_body(error), error.status, headers=error.headers)


def add_error_handlers(app: FastAPI) -> None:
    """Turn every error that leaves a route of `app` into a response in its protocol."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        return error_response(ApiError.of(error), request.scope)

    async def answer_validation(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return error_response(refusal_of(error.errors(), error.body), request.scope)

    async def answer_http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        return error_response(_of_http(error, request), request.scope)

    app.add_exception_handler(ApiError, answer)
    app.add_exception_handler(RadixKVError, answer)
    app.add_exception_handler(RequestValidationError, answer_validation)
    app.add_exception_handler(HTTPException, answer_http)


def refusal_of(errors: Sequence[Any], body: Any) -> ApiError:
    """Return the rejection of a body by its schema: of all errors, the one deepest in the caller's JSON.

    Among those, a bound goes before a type: a list that is too long would also fail as a text. Where several types are
    allowed, all are named.
    """
    found = [(_path(error, body), error) for error in errors]
    deepest = max(map(_weight, found))
    path = next(each[0] for each in found if _weight(each) == deepest)
    first, *others = sorted({_message(each[1]) for each in found if _weight(each) == deepest and each[0] == path})
    param = ".".join(map(str, path))[:MAX_PARAM_CHARACTERS] or "body"
    return invalid(" or ".join([f"{param}: {first}", *(other.removeprefix(_SHOULD_BE) for other in others)]), param)


def _message(error: Any) -> str:
    if error["type"] == "union_tag_invalid":
        return f"{_SHOULD_BE}one of {error['ctx']['expected_tags']}"
    return "Field required" if error["type"] == "union_tag_not_found" else str(error["msg"])


def _weight(found: tuple[list[str | int], Any]) -> tuple[int, bool]:
    path, error = found
    return len(path), not error["type"].endswith("_type")


def _path(error: Any, body: Any) -> list[str | int]:
    """Return the location in the body, without the schema's own names for members of a union."""
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
    if error["type"].startswith("union_tag_"):
        path.append(error["ctx"]["discriminator"].strip("'"))
    return path


def _of_http(error: HTTPException, request: Request) -> ApiError:
    methods = ", ".join(_methods(request))
    messages = {
        404: _no_such_url(request),
        405: f"this URL does not take {request.method}; it takes {methods}",
        426: "no WebSockets are served here: send the same by POST over HTTP, with 'stream': true for events",
    }
    codes = {404: "unknown_url", 405: "method_not_allowed", 413: "request_too_large", 426: "no_websockets"}
    status, headers = error.status_code, dict(error.headers or {})
    if status == 405 and _why_not_served(request):
        status = 404
    elif status == 405 and request.headers.get("upgrade", "").lower() == "websocket":
        status, headers["upgrade"] = 426, "HTTP/1.1"  # by 426 clients know that they should go on over HTTP, by 405 not
    elif status == 405:
        headers["Allow"] = methods
    return ApiError(status, messages.get(status, str(error.detail)), code=codes.get(status), headers=headers)


def _methods(request: Request) -> list[str]:
    """Return the methods of all routes with the request's URL; the framework's own `Allow` has those of the first alone."""
    own = [route for route in request.app.router.routes if isinstance(route, Route)]
    routes = [*request.app.state.routes, *own]
    return sorted(
        {each for route in routes if route.matches(request.scope)[0] != Match.NONE for each in route.methods or ()}
    )


def _why_not_served(request: Request) -> str | None:
    asked = request.url.path.removeprefix("/v1").strip("/")
    return next((why for start, why in _NOT_SERVED.items() if f"{asked}/".startswith(f"{start}/")), None)


def _no_such_url(request: Request) -> str:
    """Return the message for an unknown URL; for an endpoint of another server, name only what is served here."""
    why = _why_not_served(request)
    if why is None and not request.url.path.startswith("/v1/"):
        return "there is no such URL here; the API lies below /v1 and is described at /docs"
    paths = [path.removeprefix("/v1") for path in request.app.state.post_paths]
    served = ", ".join(path for path in paths if "{" not in path and not path.startswith("/radixkv"))
    takes = f"POST below /v1 takes {served}; " if served else ""
    return f"{why or 'there is no such URL here'}; {takes}all is described at /docs"
