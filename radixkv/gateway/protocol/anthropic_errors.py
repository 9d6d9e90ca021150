"""Errors in the form of the Anthropic API: ``{"type": "error", "error": {"type", "message"}, "request_id"}``."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import Headers
from starlette.types import Scope

from radixkv.gateway.protocol.errors import ApiError

__all__ = ["anthropic_error_body", "anthropic_status", "speaks_anthropic"]

_VERSION_HEADER = "anthropic-version"

OVERLOADED = 529
"""The protocol's status of an overloaded server; 429 is the caller's own limit."""

_OVERLOADED_CODES = ("out_of_blocks",)
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}
_DETAILS = {"thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}
"""By the refused field. This one makes the SDKs' tool runners send every turn with the whole conversation."""


def speaks_anthropic(scope: Scope) -> bool:
    """Whether a request uses the Anthropic API: by its path or by its header."""
    path: str = scope["path"]
    return path == "/v1/messages" or path.startswith("/v1/messages/") or _VERSION_HEADER in Headers(scope=scope)


def anthropic_status(error: ApiError) -> int:
    """Return the status of an error's response."""
    return OVERLOADED if error.status == 503 or error.code in _OVERLOADED_CODES else error.status


def anthropic_error_body(error: ApiError, request_id: str) -> dict[str, Any]:
    """Return the JSON of an error, also for the last event of a stream that fails midway."""
    status = anthropic_status(error)
    kind = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    message = error.message
    if error.overflow is not None:
        message = "prompt is too long: {} tokens > {} maximum".format(*error.overflow)
    told: dict[str, Any] = {"type": kind, "message": message}
    if details := _DETAILS.get(error.param or ""):
        told["details"] = details
    return {"type": "error", "error": told, "request_id": request_id}
