"""The gRPC service: conversion, leases, readers' calls, rights of callers, health and reflection.

`CacheService` serves, `ServiceThread` serves from a background thread, `run_service` serves until a signal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixkv.net.tls import Security, ServerTls
    from radixkv.service.config import ServiceConfig
    from radixkv.service.quotas import Quota
    from radixkv.service.server import CacheService, ServiceThread, run_service

__all__ = ["CacheService", "Quota", "Security", "ServerTls", "ServiceConfig", "ServiceThread", "run_service"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that the client, which needs only the conversion, loads no server."""
    if name == "ServiceConfig":
        from radixkv.service.config import ServiceConfig

        return ServiceConfig
    if name == "Quota":
        from radixkv.service.quotas import Quota

        return Quota
    if name in ("Security", "ServerTls"):
        from radixkv.net import tls as security

        return getattr(security, name)
    if name in __all__:
        from radixkv.service import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
