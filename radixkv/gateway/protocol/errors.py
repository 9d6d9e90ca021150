"""Errors in the form of the OpenAI API: ``{"error": {"message", "type", "param", "code"}}`` under a fitting status.

ApiError       rejected by the gateway itself
RadixKVError   rejected by the worker: `ApiError.of` translates, by the nearest class of one table

`refusals` turns them into responses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from radixkv.core.errors import (
    AbortedError,
    DeadlineExceededError,
    InvalidArgumentError,
    LeaseError,
    LimitError,
    OutOfBlocksError,
    PermissionDeniedError,
    QuotaError,
    RadixKVError,
    RateLimit,
    UnauthenticatedError,
    UnavailableError,
    UnimplementedError,
    UnknownSequenceError,
)
from radixkv.net.limits import duration

__all__ = [
    "RATE_LIMIT_HEADERS",
    "ApiError",
    "conflict",
    "error_body",
    "invalid",
    "missing",
    "named",
    "not_found",
    "rate_limit_headers",
]

RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{what}-{kind}" for kind in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)

RETRY_AFTER_S = 1
"""Default of the Retry-After header, in seconds."""


class ApiError(Exception):
    """A rejection with everything that its HTTP response contains.

    Attributes:
        status: of the response.
        message: for people; names the field and the bound.
        type, code, param: the kind of error, its stable name, and the faulty field of the request, as in the OpenAI API.
        headers: other headers of the response.
        overflow: of a prompt that is too long: its tokens, or as many as were counted, and the model's maximum.
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
        overflow: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})
        self.overflow = overflow

    @classmethod
    def of(cls, error: Exception) -> ApiError:
        """Translate an exception of the worker or of the framework; any unforeseen exception becomes a plain 500."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, InvalidArgumentError):
            return _of_invalid_argument(error)
        if isinstance(error, UnauthenticatedError | PermissionDeniedError):
            message = f"the worker or the cache service refuses this gateway, whatever the caller's key: {error}"
            return cls(502, message, type="server_error", code="gateway_refused")
        for row in _TABLE:
            if isinstance(error, row.error):
                headers = {"Retry-After": str(_retry_after(error))} if row.status in (429, 503) else {}
                if isinstance(error, LimitError):
                    headers |= rate_limit_headers(error.rates)
                return cls(row.status, str(error), type=row.type, code=row.code, headers=headers)
        return cls(500, "the server failed; its log tells why", type="server_error", code="internal_error")


def invalid(message: str, param: str | None) -> ApiError:
    """Return the rejection of a request that is invalid in every state. `param`: the faulty field."""
    return ApiError(400, message, code="invalid_value", param=param)


def missing(param: str) -> ApiError:
    """Return the rejection of a request without this field."""
    return ApiError(400, f"{param} is missing", code="missing_value", param=param)


@contextmanager
def named(**params: str) -> Iterator[None]:
    """Name arguments of the worker by the request's fields, where an `InvalidArgumentError` is about them."""
    try:
        yield
    except InvalidArgumentError as error:
        if error.argument not in params:
            raise
        raise InvalidArgumentError(params[error.argument], error.value, error.bound) from None


def not_found(what: str, told: str | None, param: str) -> ApiError:
    """Return the rejection of an id that is unknown, or another tenant's. `what`: kind of the object; `param`: the field."""
    return ApiError(404, f"{what} with id {told!r} not found", code="not_found", param=param)


def conflict(message: str, param: str | None = None) -> ApiError:
    """Return the rejection of a request that conflicts with the stored state."""
    return ApiError(409, message, code="conflict", param=param)


def rate_limit_headers(rates: Iterable[RateLimit]) -> dict[str, str]:
    """Return the response headers with the caller's limits and what remains of them."""
    headers = {}
    for rate in rates:
        headers[f"x-ratelimit-limit-{rate.kind}"] = str(rate.limit)
        headers[f"x-ratelimit-remaining-{rate.kind}"] = str(rate.remaining)
        headers[f"x-ratelimit-reset-{rate.kind}"] = duration(rate.reset_s)
    return headers


def _retry_after(error: Exception) -> int:
    """Return whole seconds for the header."""
    known_s: float | None = getattr(error, "retry_after_s", None)
    return RETRY_AFTER_S if known_s is None else max(1, math.ceil(known_s))


class _Row(NamedTuple):
    error: type[RadixKVError]
    status: int
    type: str
    code: str


_TABLE = (
    _Row(UnknownSequenceError, 404, "invalid_request_error", "not_found"),  # a generation, over the wire or not
    _Row(AbortedError, 409, "invalid_request_error", "conflict"),
    _Row(OutOfBlocksError, 429, "rate_limit_error", "out_of_blocks"),
    _Row(QuotaError, 429, "rate_limit_error", "quota_exceeded"),
    _Row(LimitError, 429, "rate_limit_error", "rate_limit_exceeded"),
    _Row(UnimplementedError, 501, "server_error", "not_implemented"),
    _Row(DeadlineExceededError, 504, "timeout_error", "deadline_exceeded"),
    _Row(LeaseError, 503, "server_error", "unavailable"),
    _Row(UnavailableError, 503, "server_error", "unavailable"),
)

_PARAMS = {"timeout_s": "timeout", "grammar": "response_format", "grammar.text": "response_format"}
"""Argument name of the worker -> field name of the request, where the two differ."""


def _of_invalid_argument(error: InvalidArgumentError) -> ApiError:
    """Translate; a prompt that is too long gets the wording by which clients know to shorten it."""
    param = _PARAMS.get(error.argument, error.argument)
    bound = re.match(r"at most (\d+) tokens", error.bound)
    counted = re.findall(r"\d+", str(error.value))
    if bound is None or not counted or error.argument not in ("prompt", "history", "prompt + max_tokens"):
        return invalid(str(error), param or None)
    message = f"This model's maximum context length is {bound[1]} tokens: {error}"
    overflow = (int(counted[-1]), int(bound[1]))
    return ApiError(400, message, code="context_length_exceeded", param=param, overflow=overflow)


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the JSON of an error, also for the last event of a stream that fails midway."""
    return {"error": {"message": error.message, "type": error.type, "param": error.param, "code": error.code}}
