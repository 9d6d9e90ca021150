"""Reject cross-site requests of browsers; end a stream whose key is revoked.

Without keys, any client that reaches the gateway has every right. On a loopback address the user's browser is the way in:
a page whose name resolves to this machine (DNS rebinding), or a page that posts here without reading the response.
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
"""How often the key of an open stream is checked again, in seconds."""

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def check_origin(scope: Scope, config: GatewayConfig) -> None:
    """Check that a request without a key is addressed to this server and not sent by another site's page.

    Raises:
        ApiError: 403: the Host header names another server, or another origin sends a changing request.
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
    """Return the host lower-case, without port and brackets."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).strip("[]").lower()


class WhileKnown:
    """ASGI receive of a request that reports a disconnect once the caller's key is revoked.

    Args:
        receive: the server's.
        is_known: checks the caller's key again.

    `is_over`: the key was revoked.
    """

    def __init__(self, receive: Receive, is_known: Callable[[], bool]) -> None:
        self._receive = receive
        self._is_known = is_known
        self.is_over = False

    async def receive(self) -> Message:
        """Return the next message."""
        coming = asyncio.ensure_future(self._receive())
        try:
            while not (await asyncio.wait((coming,), timeout=RECHECK_S))[0]:
                self.is_over = not self._is_known()
                if self.is_over:
                    return {"type": "http.disconnect"}
            return coming.result()
        finally:
            coming.cancel()
