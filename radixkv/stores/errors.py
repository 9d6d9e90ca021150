"""Errors of the block store, below `RadixKVError`. Once a level runs, none of them leaves it: a fault costs a miss."""

from __future__ import annotations

from radixkv.core.errors import RadixKVError

__all__ = ["SealError", "StoreError", "StoreKeyError"]


class StoreError(RadixKVError):
    """A level cannot be opened; the message is one line, names the flag and a remedy."""


class StoreKeyError(StoreError):
    """The key file cannot be read, written or trusted."""


class SealError(StoreError):
    """A sealed block does not open: it is damaged, of another name, namespace or model, or its key was erased."""
