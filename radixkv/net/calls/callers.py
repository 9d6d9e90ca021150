"""The caller of the call that is being served: set by the guard, read by servicers."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from radixkv.core.errors import PermissionDeniedError, RadixKVError, UnauthenticatedError
from radixkv.net.tenants import Tenant

__all__ = ["Caller", "current_caller", "set_caller", "share_key", "unknown_caller"]

MAX_TOLD_CHARACTERS = 128


class Caller:
    """A tenant, for as long as its credential is good.

    Args:
        tenant: the authenticated tenant.
        find: looks the same credential up again.
    """

    __slots__ = ("_find", "tenant")

    def __init__(self, tenant: Tenant, find: Callable[[], Tenant | None]) -> None:
        self.tenant = tenant
        self._find = find

    @property
    def identity(self) -> tuple[str, str]:
        """Identifies callers whose answers must not be mixed up."""
        return self.tenant.name, self.tenant.namespace

    def check_alive(self) -> None:
        """Check that the credential is still valid, with unchanged rights. For streams: at each message.

        Raises:
            UnauthenticatedError: it was revoked or changed.
        """
        if self._find() != self.tenant:
            raise UnauthenticatedError(
                "the credential of this stream was taken back or has other rights now; call again"
            )

    def check_pool(self, name: str) -> None:
        """Check that the caller may attach to a pool.

        Raises:
            PermissionDeniedError: it may not.
        """
        if not self.tenant.may_hold(name):
            raise PermissionDeniedError(f"this credential may not hold pool {name[:MAX_TOLD_CHARACTERS]!r}")

    def denial(self, namespace: str) -> RadixKVError | None:
        """The error for a namespace outside the caller's, whether that namespace exists or not; None if it may name it."""
        if self.tenant.may_name(namespace):
            return None
        return PermissionDeniedError(f"this credential may not name namespace {namespace[:MAX_TOLD_CHARACTERS]!r}")


_CALLER: ContextVar[Caller | None] = ContextVar("radixkv_caller", default=None)


def current_caller() -> Caller | None:
    """The caller that this task or thread serves; None where callers need no credential."""
    return _CALLER.get()


def set_caller(caller: Caller) -> None:
    """Set the caller that this task or thread serves from now on."""
    _CALLER.set(caller)


def share_key(caller: Caller | None) -> str | None:
    """The tenant whose share a call counts against; None where callers need no credential."""
    return None if caller is None else caller.tenant.name


def unknown_caller() -> UnauthenticatedError:
    """The error for a missing or unknown credential; it does not distinguish the two."""
    return UnauthenticatedError(
        "who calls is not known: send a key as metadata 'authorization: Bearer KEY' (radixkv: --token-file FILE), or a client "
        "certificate that the server knows"
    )
