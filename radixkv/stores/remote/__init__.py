"""The remote level: sealed blocks on any server that speaks RESP (Valkey, Redis), alone or as a cluster.

level     the store's view: reads, writes, erasure, tombstones, counters
calls     one read or write of blocks on one server
erasure   tombstones, and the deletion of a namespace's blocks
journal   what is yet to be deleted, for the next worker
cluster   the server that keeps a key
server    one server: its connections, its breaker, the thread that connects
wire      one connection: RESP2 with deadlines and bounds
url       the value of `--remote`, and connections to its server
"""

from __future__ import annotations

from radixkv.stores.remote.level import RemoteLevel

__all__ = ["RemoteLevel"]
