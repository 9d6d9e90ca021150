"""Call the application for a request of a batch, or of a gateway that is gone: same routes and checks as for a posted one."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Scope

from radixkv.gateway.http.auth import Tenant
from radixkv.gateway.http.request_context import REQUEST_CONTEXT

__all__ = ["JOB", "TAKEN_OVER", "Answer", "post"]

JOB = "radixkv.job"
"""Key of the tenant in the scope of such a request; requests from outside never have it."""


TAKEN_OVER = "radixkv.taken_over"
"""Key, in the scope of such a request, of the id of the response that it goes on with; of replies, their request."""


class Answer(NamedTuple):
    """The response. `code`: the stable name of its error, if any. `retry_after_s`: of its Retry-After header, or 0."""

    status: int
    body: bytes
    request_id: str
    code: str | None
    retry_after_s: float


async def post(app: ASGIApp, tenant: Tenant, path: str, body: bytes, taken_over: str | None = None) -> Answer:
    """Send a request to the application. Cancelling it acts as a disconnect of the client."""
    unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    told: list[Message] = []

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()
        raise AssertionError("nobody hangs up")

    async def send(message: Message) -> None:
        told.append(message)

    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ],
        "client": None,
        "server": None,
        "state": {},
        JOB: tenant,
    }
    if taken_over is not None:
        scope[TAKEN_OVER] = taken_over
    await app(scope, receive, send)
    start, *rest = told
    headers = dict(start["headers"])
    after = headers.get(b"retry-after", b"0").decode()
    return Answer(
        start["status"],
        b"".join(message.get("body", b"") for message in rest),
        scope[REQUEST_CONTEXT].request_id,
        scope[REQUEST_CONTEXT].error_code,
        float(after) if after.isdigit() else 0.0,
    )
