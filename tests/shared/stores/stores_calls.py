"""Blocks for tests of a level of the block store, and reads of them that check their deadline."""

from __future__ import annotations

import time

from resp_servers import oversleep
from waiting import wait_until

from radixkv.stores.block import SealedBlock
from radixkv.stores.remote import RemoteLevel

__all__ = [
    "BLOCK_BYTES",
    "FINGERPRINT",
    "NAMESPACE",
    "VALUE_BYTES",
    "block",
    "names",
    "read_many",
    "reads_again",
    "timed_read",
]

BLOCK_BYTES = 20_000
VALUE_BYTES = 16 + BLOCK_BYTES
"""After the name of a block's parent."""

FINGERPRINT = b"fingerprint of a model, 32 bytes"
NAMESPACE = bytes(range(16))


def block(number: int, size_bytes: int = BLOCK_BYTES, namespace_id: bytes = NAMESPACE) -> SealedBlock:
    name = number.to_bytes(16, "big")
    return SealedBlock(name, bytes(16), namespace_id, (name * (size_bytes // 16 + 1))[:size_bytes])


def names(count: int) -> list[bytes]:
    return [block(number).name for number in range(count)]


def read_many(remote: RemoteLevel, wanted: list[bytes], namespace_id: bytes, deadline_s: float) -> list[bytes | None]:
    """The sealed blocks of these names; None for each that did not come."""
    found: list[bytes | None] = [None] * len(wanted)

    def receive(index: int, sealed: memoryview) -> None:
        found[index] = bytes(sealed)

    remote.read_each(wanted, namespace_id, deadline_s, receive)
    return found


def timed_read(remote: RemoteLevel, wanted: list[bytes], deadline_s: float) -> list[bytes | None]:
    """Read, and check that the deadline holds within 100 ms, but for what this machine is late by itself."""
    with oversleep() as late_s:
        begin_s = time.monotonic()
        found = read_many(remote, wanted, NAMESPACE, deadline_s)
        elapsed_s = time.monotonic() - begin_s
    assert elapsed_s < deadline_s + 0.1 + late_s()
    return found


def reads_again(remote: RemoteLevel, number: int = 0) -> None:
    """Check that the level finds a block again by itself; it is written again where it is lost."""

    def works() -> bool:
        remote.write_many([block(number)], 1.0)
        return read_many(remote, [block(number).name], NAMESPACE, 1.0) == [block(number).sealed]

    wait_until(works)
