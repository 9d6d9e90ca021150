"""Requests that a browser sends for somebody else's page, and callers whose key is taken back while they listen.

Without keys whoever reaches the gateway may do everything, so on an address of this machine alone the browser of its user is
the way in for others: by a page whose name was made to mean this machine (DNS rebinding), or by one that posts here blindly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.protocol.errors import ApiError
from radixkv.net.addresses import is_own_host

__all__ = ["WhileKnown", "check_origin"]

RECHECK_S = 2.0
"""How often a caller who listens is looked up again."""

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def check_origin(scope: Scope, config: GatewayConfig) -> None:
    """Make sure that a request without a key is meant for this server by whoever has sent it.

    Raises:
        ApiError: 403: it knows the server by another's name, or a page of elsewhere would change something.
    """
    sent = Headers(scope=scope)
    host = sent.get("host", "")
    listen = config.listen.rpartition(":")[0]
    if host and (config.allow_hosts or is_own_host(listen)):
        name = _host_name(host)
        if not (is_own_host(name) or name in {listen.strip("[]").lower(), *map(str.lower, config.allow_hosts)}):
            message = (
                f"this server does not answer to the name {name[:128]!r}; radixkv: --allow-host NAME, or --keys FILE"
            )
            raise ApiError(403, message, type="permission_error", code="unknown_host")
    origin = sent.get("origin")
    if origin is None or scope["method"] in _SAFE_METHODS:
        return
    if "*" not in config.cors_origins and origin not in config.cors_origins and urlsplit(origin).netloc != host:
        message = f"pages of {origin[:128]!r} may change nothing here; radixkv: --cors ORIGIN"
        raise ApiError(403, message, type="permission_error", code="foreign_origin")


def _host_name(host: str) -> str:
    """Without its port, lower-case, without brackets."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).strip("[]").lower()


class WhileKnown:
    """What a caller sends, which ends as if it had hung up once it is known no more.

    Args:
        receive: gives its messages.
        is_known: looks the caller up again.

    `is_over`: it was known no more.
    """

    def __init__(self, receive: Receive, is_known: Callable[[], bool]) -> None:
        self._receive = receive
        self._is_known = is_known
        self.is_over = False

    async def receive(self) -> Message:
        """The next message."""
        coming = asyncio.ensure_future(self._receive())
        try:
            while not (await asyncio.wait((coming,), timeout=RECHECK_S))[0]:
                self.is_over = not self._is_known()
                if self.is_over:
                    return {"type": "http.disconnect"}
            return coming.result()
        finally:
            coming.cancel()
