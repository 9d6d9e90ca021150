"""Who may call what, and whose namespaces a call may name: one row for each method. A method without a row is denied.

client   generates, and pins, retains and drops what is cached, in its namespaces
reader   looks at what is cached in its namespaces, and at figures of whole pools, which tell load and no content
holder   attaches to pools and names its namespaces in Steps
admin    everything, in every namespace
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from radixkv.core.api import DEFAULT_NAMESPACE
from radixkv.core.errors import PermissionDeniedError
from radixkv.service.callers import Caller
from radixkv.service.kv_events import SERVICE_NAMES as KV_EVENT_SERVICES
from radixkv.service.kv_events import narrowed

__all__ = ["check_call", "is_open"]

_Names = Callable[[Any, Any], Iterable[str | None]]
"""The namespaces that a request and its metadata name; None stands for all of them."""


class _Rule(NamedTuple):
    """`is_own`: a request without a namespace means the caller's, and is rewritten to say so."""

    roles: tuple[str, ...]
    names: _Names
    is_own: bool = False


def _nothing(_request: Any, _metadata: Any) -> Iterable[str | None]:
    return ()


def _one(request: Any, _metadata: Any) -> Iterable[str | None]:
    return (request.namespace if request.HasField("namespace") else DEFAULT_NAMESPACE,)


def _one_or_all(request: Any, _metadata: Any) -> Iterable[str | None]:
    return (request.namespace if request.HasField("namespace") else None,)


def _one_and_also(request: Any, metadata: Any) -> Iterable[str | None]:
    return (*_one(request, metadata), *request.also)


def _all(_request: Any, _metadata: Any) -> Iterable[str | None]:
    return (None,)


def _in_metadata(_request: Any, metadata: Any) -> Iterable[str | None]:
    return (narrowed(metadata)[1],)


_EVERYBODY = ("client", "reader", "holder")
_CACHE = {
    "Match": _Rule(("reader",), _one),
    "Explain": _Rule(("reader",), _one_and_also),
    "Pins": _Rule(("reader",), _one_or_all),
    "Usage": _Rule(("reader",), _one_or_all),
    "Dump": _Rule(("reader",), _one_or_all),
    "Events": _Rule(("reader",), _one_or_all),
    "Stats": _Rule(("reader", "holder"), _nothing),
    "Check": _Rule(("reader",), _all),  # a violation may be told by what is cached
    "Pin": _Rule(("client",), _one),
    "Unpin": _Rule(("client",), _one),
    "Retain": _Rule(("client",), _one),
    "Clear": _Rule(("client",), _one),
    "EvictBranch": _Rule(("client",), _one),
    "Evict": _Rule((), _all),
    "SetQuota": _Rule((), _all),
}
_GENERATION = {
    "Generate": _Rule(("client",), _one, is_own=True),
    "ForkGeneration": _Rule(("client",), _nothing),  # whose generation it is, is asked where it is found
    "GetModel": _Rule(_EVERYBODY, _nothing),
    "Tokenize": _Rule(_EVERYBODY, _one, is_own=True),
    "Detokenize": _Rule(_EVERYBODY, _nothing),
    "SpellTokens": _Rule(_EVERYBODY, _nothing),
    "GetStats": _Rule(_EVERYBODY, _nothing),
    "VerifyBlock": _Rule((), _one),  # it tells whether somebody else's prompt is cached
}
_RULES = {
    **{f"/radixkv.v1.PrefixCache/{name}": rule for name, rule in _CACHE.items()},
    **{f"/radixkv.v1.Generation/{name}": rule for name, rule in _GENERATION.items()},
    **{f"/{service}/SubscribeKvEvents": _Rule(("reader",), _in_metadata) for service in KV_EVENT_SERVICES},
    **{f"/{service}/HealthCheck": _Rule(_EVERYBODY, _nothing) for service in KV_EVENT_SERVICES},
    "/radixkv.v1.Workers/Attach": _Rule(("holder",), _nothing),  # its messages are checked one by one
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _Rule(_EVERYBODY, _nothing),
}
_OPEN_SERVICES = ("/grpc.health.v1.Health/",)


def is_open(method: str) -> bool:
    """Whether anybody may call a method, known or not: health alone."""
    return method.startswith(_OPEN_SERVICES)


def check_call(caller: Caller, method: str, request: Any, metadata: Any) -> None:
    """Make sure that somebody may call a method with this request; where its namespace is the caller's, fill it in.

    Args:
        method: its full name, ``/package.Service/Method``.
        request: the message; not looked at where the caller sends a stream.
        metadata: pairs that came with the call.

    Raises:
        PermissionDeniedError: it may not. InvalidArgumentError: the metadata name a namespace that cannot be read.
    """
    rule, tenant = _RULES.get(method), caller.tenant
    if rule is None or not tenant.has_role(rule.roles):
        needed = " or ".join((*rule.roles, "admin")) if rule else "admin"
        raise PermissionDeniedError(f"this credential may not call {method}; it would need the role {needed}")
    if rule.is_own and not request.HasField("namespace"):
        request.namespace = tenant.namespace
    for namespace in rule.names(request, metadata):
        if namespace is None and not tenant.sees_all:
            raise PermissionDeniedError("this credential does not see all namespaces: name one that it may see")
        if namespace is not None and (denial := caller.denial(namespace)) is not None:
            raise denial
