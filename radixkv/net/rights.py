"""Rights: the roles and namespaces of each method, one row for each. A method without a row is denied.

client   generates, and pins, retains and drops cached branches, in its namespaces
reader   reads the trees of its namespaces, and figures of whole pools, which show load and no content
holder   attaches to pools and names its namespaces in Steps
admin    everything, in every namespace
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from radixkv.core import validation
from radixkv.core.errors import InvalidArgumentError, PermissionDeniedError
from radixkv.net.calls.callers import Caller
from radixkv.wire.values import named_namespace, namespace_of

__all__ = ["NAMESPACE_METADATA", "POOL_METADATA", "SERVICE_NAMES", "check_call", "is_open", "narrowed"]

SERVICE_NAMES = (
    "sglang.grpc.scheduler.SglangScheduler",
    "tokenspeed.grpc.scheduler.TokenSpeedScheduler",
    "trtllm.TrtllmService",
    "vllm.grpc.engine.VllmEngine",
)
"""Services whose method `SubscribeKvEvents` routers call, by the kind of engine that they expect."""


POOL_METADATA = "radixkv-pool"


NAMESPACE_METADATA = "radixkv-namespace"


_Names = Callable[[Any, Any], Iterable[str | None]]
"""The namespaces named by a request and its metadata; None stands for all of them."""


class _Rule(NamedTuple):
    """`is_own`: a request without a namespace means the caller's, which is filled in."""

    roles: tuple[str, ...]
    names: _Names
    is_own: bool = False


def narrowed(metadata: Any) -> tuple[str, str | None]:
    """The pool and namespace in a call's metadata: the pool empty for the only one, the namespace None for all."""
    named = dict(metadata or ())
    namespace = named.get(NAMESPACE_METADATA)
    if NAMESPACE_METADATA + "-bin" in named:
        try:
            namespace = named[NAMESPACE_METADATA + "-bin"].decode()
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(NAMESPACE_METADATA + "-bin", str(error), "UTF-8") from None
    return str(named.get(POOL_METADATA, "")), None if namespace is None else validation.check_namespace(namespace)


def _nothing(_request: Any, _metadata: Any) -> Iterable[str | None]:
    return ()


def _one(request: Any, _metadata: Any) -> Iterable[str | None]:
    return (namespace_of(request),)


def _one_or_all(request: Any, _metadata: Any) -> Iterable[str | None]:
    return (named_namespace(request),)


def _one_and_also(request: Any, metadata: Any) -> Iterable[str | None]:
    return (*_one(request, metadata), *request.also)


def _all(_request: Any, _metadata: Any) -> Iterable[str | None]:
    return (None,)


def _in_metadata(_request: Any, metadata: Any) -> Iterable[str | None]:
    return (narrowed(metadata)[1],)


_EVERYBODY = ("client", "reader", "holder")
_CACHE = {
    "Match": _Rule(("reader",), _one),
    "Route": _Rule(("client", "reader"), _one),
    "Explain": _Rule(("reader",), _one_and_also),
    "Pins": _Rule(("reader",), _one_or_all),
    "Usage": _Rule(("reader",), _one_or_all),
    "Dump": _Rule(("reader",), _one_or_all),
    "Events": _Rule(("reader",), _one_or_all),
    "Stats": _Rule(("reader", "holder"), _nothing),
    "Check": _Rule(("reader",), _all),  # the text of a violation may contain tokens
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
    "ForkGeneration": _Rule(("client",), _nothing),  # the owner of the generation is checked where it is found
    "GetModel": _Rule(_EVERYBODY, _nothing),
    "Tokenize": _Rule(_EVERYBODY, _one, is_own=True),
    "Detokenize": _Rule(_EVERYBODY, _nothing),
    "SpellTokens": _Rule(_EVERYBODY, _nothing),
    "GetStats": _Rule(_EVERYBODY, _nothing),
    "FindStored": _Rule(("reader",), _one),
    "Erase": _Rule(("client",), _one),
    "Export": _Rule(("holder",), _one),
    "Import": _Rule(("holder",), _nothing),  # the first of its messages names the namespace, and is checked there
    "VerifyBlock": _Rule((), _one),  # it reveals whether another tenant's prompt is cached
}
_RULES = {
    **{f"/radixkv.v1.PrefixCache/{name}": rule for name, rule in _CACHE.items()},
    **{f"/radixkv.v1.Generation/{name}": rule for name, rule in _GENERATION.items()},
    **{f"/{service}/SubscribeKvEvents": _Rule(("reader",), _in_metadata) for service in SERVICE_NAMES},
    **{f"/{service}/HealthCheck": _Rule(_EVERYBODY, _nothing) for service in SERVICE_NAMES},
    "/radixkv.v1.Workers/Attach": _Rule(("holder",), _nothing),  # its messages are checked one by one
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": _Rule(_EVERYBODY, _nothing),
}
_OPEN_SERVICES = ("/grpc.health.v1.Health/",)


def is_open(method: str) -> bool:
    """Whether a method needs no credential: health alone."""
    return method.startswith(_OPEN_SERVICES)


def check_call(caller: Caller, method: str, request: Any, metadata: Any) -> None:
    """Check that a caller may call a method with this request; fill in the caller's namespace where it applies.

    Args:
        method: its full name, ``/package.Service/Method``.
        request: the message; unused where the caller sends a stream.
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
