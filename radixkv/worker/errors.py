"""Errors of the worker's own, below `RadixKVError`."""

from __future__ import annotations

from radixkv.core.errors import RadixKVError

__all__ = ["ModelError"]


class ModelError(RadixKVError):
    """A model cannot be fetched, read or run by the worker; the message is one line and names a remedy."""
