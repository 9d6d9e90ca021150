"""What cannot be replayed."""

from __future__ import annotations

from radixkv.core.errors import RadixKVError

__all__ = ["TraceError"]


class TraceError(RadixKVError):
    """A trace that is not there, or that says something else than a trace says; names the file, the line and what was found."""
