"""What a service, a gateway, a tenant and a request may be told: each bound is taken, and what lies past it is named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from radixkv.core.errors import InvalidArgumentError
from radixkv.gateway.config import GatewayConfig
from radixkv.gateway.storage.transcript_cache import TranscriptCacheLimits
from radixkv.generation.request import ForkParams, GenerateParams
from radixkv.net.tenants import TenantLimits
from radixkv.service import ServiceConfig
from radixkv.service.quotas import Quota

Case = tuple[Callable[..., Any], str, Any]
COUNTS: dict[type[Any], tuple[str, ...]] = {
    ServiceConfig: tuple(field.name for field in fields(ServiceConfig) if field.name.startswith("max_")),
    GatewayConfig: tuple(
        field.name for field in fields(GatewayConfig) if field.name.startswith("max_") and field.name != "max_waiting"
    ),
    TranscriptCacheLimits: ("max_tokens", "max_entries", "max_total_tokens", "max_total_entries"),
    TenantLimits: ("requests_per_minute", "tokens_per_minute", "max_concurrent"),
}


def fork(**asked: Any) -> ForkParams:
    return ForkParams(generation_id="g", **asked)


TAKEN: list[Case] = [
    *((kind, name, 1) for kind, names in COUNTS.items() for name in names),
    *((TenantLimits, name, None) for name in COUNTS[TenantLimits]),
    (ServiceConfig, "lease_ttl_s", 0.001),
    (ServiceConfig, "unread_s", 1e-9),
    (ServiceConfig, "request_s", 1e-9),
    (ServiceConfig, "audit_s", 0.0),
    (ServiceConfig, "drain_s", 0.0),
    (ServiceConfig, "pin_budget", 0.0),
    (ServiceConfig, "pin_budget", None),
    (ServiceConfig, "quotas", (Quota("a", percent=60.0), Quota("b", percent=40.0))),
    (GatewayConfig, "max_waiting", 0),
    (GatewayConfig, "drain_s", 0.0),
    (GatewayConfig, "worker_wait_s", 0.0),
    (GatewayConfig, "unread_s", 1e-9),
    (GatewayConfig, "response_ttl_s", 1e-9),
    (TranscriptCacheLimits, "ttl_s", 1e-9),
    *(
        (ask, name, value)
        for ask in (GenerateParams, fork)
        for name, value in (
            ("priority", 100),
            ("priority", -100),
            ("timeout_s", 30 * 24 * 3600.0),
            ("timeout_s", 1e-9),
            ("timeout_s", None),
            ("request_id", "x" * 128),
        )
    ),
    (GenerateParams, "truncate_prompt_tokens", -1),
]

REFUSED: list[Case] = [
    *((kind, name, 0) for kind, names in COUNTS.items() for name in names),
    (ServiceConfig, "addresses", ()),
    (ServiceConfig, "quotas", (Quota("a", percent=60.0), Quota("b", percent=40.5))),
    (ServiceConfig, "quotas", (Quota("a", blocks=1), Quota("a", sequences=1))),
    (ServiceConfig, "quotas", tuple(Quota(f"n{number}", blocks=1) for number in range(1025))),
    (ServiceConfig, "eviction", "nobody's"),
    (ServiceConfig, "kv_events_replay_endpoint", "tcp://127.0.0.1:5558"),
    *(
        (kind, name, value)
        for kind, names, beyond in (
            (ServiceConfig, ("lease_ttl_s",), 0.0009),
            (ServiceConfig, ("unread_s", "request_s"), 0.0),
            (ServiceConfig, ("audit_s", "drain_s", "pin_budget"), -0.1),
            (GatewayConfig, ("max_waiting",), -1),
            (GatewayConfig, ("drain_s", "worker_wait_s"), -0.1),
            (GatewayConfig, ("unread_s", "response_ttl_s"), 0.0),
            (TranscriptCacheLimits, ("ttl_s",), 0.0),
        )
        for name in names
        for value in ((beyond,) if name == "max_waiting" else (beyond, math.nan))
    ),
    *(
        (ask, name, value)
        for ask in (GenerateParams, fork)
        for name, value in (
            ("priority", 101),
            ("priority", -101),
            ("timeout_s", 30 * 24 * 3600.0 + 1),
            ("timeout_s", 0.0),
            ("timeout_s", math.nan),
            ("request_id", "x" * 129),
        )
    ),
    (GenerateParams, "truncate_prompt_tokens", -2),
]


@pytest.mark.parametrize(("kind", "name", "value"), TAKEN)
def test_a_setting_at_its_bound_is_taken(kind: Callable[..., Any], name: str, value: Any) -> None:
    assert getattr(kind(**{name: value}), name) == value


@pytest.mark.parametrize(("kind", "name", "value"), REFUSED)
def test_a_setting_past_its_bound_is_named(kind: Callable[..., Any], name: str, value: Any) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        kind(**{name: value})
    assert refusal.value.argument == name
