"""Who makes the call that is being served, for those who serve it: set by the guard in front of them."""

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
        tenant: who it is.
        find: looks the same credential up again.
    """

    __slots__ = ("_find", "tenant")

    def __init__(self, tenant: Tenant, find: Callable[[], Tenant | None]) -> None:
        self.tenant = tenant
        self._find = find

    @property
    def identity(self) -> tuple[str, str]:
        """Tells callers apart whose answers must not be mixed up."""
        return self.tenant.name, self.tenant.namespace

    def check_alive(self) -> None:
        """Make sure that the credential is still good, and for the same as before. For streams: at each message.

        Raises:
            UnauthenticatedError: it was taken back or changed.
        """
        if self._find() != self.tenant:
            raise UnauthenticatedError(
                "the credential of this stream was taken back or has other rights now; call again"
            )

    def check_pool(self, name: str) -> None:
        """Make sure that it may attach to a pool.

        Raises:
            PermissionDeniedError: it may not.
        """
        if not self.tenant.may_hold(name):
            raise PermissionDeniedError(f"this credential may not hold pool {name[:MAX_TOLD_CHARACTERS]!r}")

    def denial(self, namespace: str) -> RadixKVError | None:
        """Why it may not name a namespace, the same whether there is one of that name or not; None if it may."""
        if self.tenant.may_name(namespace):
            return None
        return PermissionDeniedError(f"this credential may not name namespace {namespace[:MAX_TOLD_CHARACTERS]!r}")


_CALLER: ContextVar[Caller | None] = ContextVar("radixkv_caller", default=None)


def current_caller() -> Caller | None:
    """Whose call this task or thread serves; None where callers need no credential."""
    return _CALLER.get()


def set_caller(caller: Caller) -> None:
    """What this task or thread serves from now on is this caller's."""
    _CALLER.set(caller)


def share_key(caller: Caller | None) -> str | None:
    """Against whose share a call counts; None where callers need no credential."""
    return None if caller is None else caller.tenant.name


def unknown_caller() -> UnauthenticatedError:
    """The error of whoever sent no credential or one that is nobody's; it does not say which."""
    return UnauthenticatedError(
        "who calls is not known: send a key as metadata 'authorization: Bearer KEY' (radixkv: --token-file FILE), or a client "
        "certificate that the server knows"
    )
