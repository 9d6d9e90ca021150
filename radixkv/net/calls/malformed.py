"""Requests that do not parse as their type: rejected with INVALID_ARGUMENT.

gRPC itself calls such a request a fault of the server, INTERNAL, and writes a traceback.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from radixkv.core.errors import InvalidArgumentError
from radixkv.net.calls.field_count import MAX_FIELDS, has_few_fields

__all__ = ["Malformed", "reader"]


class Malformed:
    """Stands for a request that could not be parsed.

    Every message has `HasField` and `WhichOneof`. Here they raise the error, so that the reader of a stream needs no other
    check.
    """

    __slots__ = ("_bound", "_num_bytes")

    def __init__(self, num_bytes: int, bound: str = "a message of the method's request type") -> None:
        self._num_bytes = num_bytes
        self._bound = bound

    @property
    def error(self) -> InvalidArgumentError:
        """The error for its caller."""
        return InvalidArgumentError("request", f"{self._num_bytes} bytes", self._bound)

    def WhichOneof(self, _name: str) -> str:  # noqa: N802  # protobuf's name
        """Raises: InvalidArgumentError: always."""
        raise self.error

    HasField = WhichOneof


def reader(parse: Callable[[bytes], Any], *, is_bounded: bool = True) -> Callable[[bytes], Any]:
    """Wrap `parse`, a message type's `FromString`: unreadable bytes, or too many fields where bounded, give a `Malformed`."""
    descriptor = getattr(parse, "__self__").DESCRIPTOR  # noqa: B009  # its type does not show that it is a class's method

    def read(serialised: bytes) -> Any:
        if is_bounded and not has_few_fields(serialised, descriptor):
            bound = f"a message of the method's request type, of at most {MAX_FIELDS:,} fields"
            return Malformed(len(serialised), bound)
        try:
            return parse(serialised)
        except (DecodeError, RecursionError):
            return Malformed(len(serialised))

    return read
