"""Error of a trace that cannot be replayed."""

from __future__ import annotations

from radixkv.core.errors import RadixKVError

__all__ = ["TraceError"]


class TraceError(RadixKVError):
    """A trace that is missing or malformed; names the file, the line and the content found."""
