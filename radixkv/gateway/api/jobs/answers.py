"""Result lines of a batch, in the form of its protocol. A response's body is copied byte for byte."""

from __future__ import annotations

import json
import uuid
from typing import Any

from radixkv.gateway.protocol.anthropic_errors import anthropic_error_body
from radixkv.gateway.protocol.errors import ApiError, error_body

__all__ = ["answer_line", "ended_line", "error_line", "refusal_line"]

_ANTHROPIC_ENDS = {"batch_cancelled": "canceled", "batch_expired": "expired"}
_WHY = {
    "batch_cancelled": "the batch was cancelled before this request was made",
    "batch_expired": "this request could not be made before the batch's completion window ended",
}


def answer_line(protocol: str, custom_id: str, status: int, body: bytes, request_id: str) -> bytes:
    """Return the result of an answered request. `body`: JSON without line breaks."""
    name = json.dumps(custom_id).encode()
    if protocol == "anthropic":
        kind, field = (b"succeeded", b"message") if status < 400 else (b"errored", b"error")
        return b'{"custom_id": %b, "result": {"type": "%b", "%b": %b}}\n' % (name, kind, field, body)
    head = json.dumps({"id": _new_id(), "custom_id": custom_id}).encode()[:-1]
    said = b'{"status_code": %d, "request_id": %b, "body": %b}' % (status, json.dumps(request_id).encode(), body)
    return b'%b, "response": %b, "error": null}\n' % (head, said)


def ended_line(protocol: str, custom_id: str, code: str) -> bytes:
    """Return the result of a request that was never sent: ``batch_cancelled`` or ``batch_expired``."""
    line: dict[str, Any]
    if protocol == "anthropic":
        line = {"custom_id": custom_id, "result": {"type": _ANTHROPIC_ENDS[code]}}
    else:
        error = {"code": code, "message": _WHY[code]}
        line = {"id": _new_id(), "custom_id": custom_id, "response": None, "error": error}
    return json.dumps(line).encode() + b"\n"


def refusal_line(protocol: str, custom_id: str, field: str) -> bytes:
    """Return the result of a request with a `field` that batches do not support, e.g. streaming."""
    message = f"{field} must be false or left out in a batch: its answers are fetched from a file"
    error = ApiError(400, message, code="unsupported_parameter", param=field)
    return error_line(protocol, custom_id, error)


def error_line(protocol: str, custom_id: str, error: ApiError) -> bytes:
    """Return the result of a request that is rejected without being sent."""
    request_id = f"req_{uuid.uuid4().hex}"
    body = anthropic_error_body(error, request_id) if protocol == "anthropic" else error_body(error)
    return answer_line(protocol, custom_id, error.status, json.dumps(body).encode(), request_id)


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
