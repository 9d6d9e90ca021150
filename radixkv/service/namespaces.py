"""The namespaces that a worker makes of its callers': an adapter's KV is another model's, so it lies in one of its own."""

from __future__ import annotations

from radixkv.core.errors import InvalidArgumentError

__all__ = ["adapter_namespace", "adapter_of", "is_made_here", "owner_of"]

_MARK = "#adapter="


def adapter_namespace(namespace: str, adapter: str) -> str:
    """Where what an adapter computes for requests in `namespace` is cached; `namespace` itself without one.

    Raises:
        InvalidArgumentError: `namespace` looks like one that was made here, whose KV is another model's.
    """
    if _MARK in namespace:
        raise InvalidArgumentError("namespace", namespace, f"without {_MARK!r}, which sets an adapter's apart")
    return f"{namespace}{_MARK}{adapter}" if adapter else namespace


def adapter_of(namespace: str) -> str:
    """The adapter for which `adapter_namespace` made this one; empty if it did not."""
    return namespace.partition(_MARK)[2]


def owner_of(namespace: str) -> str:
    """The caller's namespace of which `adapter_namespace` made this one; itself if it did not."""
    return namespace.partition(_MARK)[0]


def is_made_here(namespace: str) -> bool:
    """Whether it is, or looks like, an adapter's."""
    return _MARK in namespace
