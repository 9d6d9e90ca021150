"""Calls that a cache must refuse."""

from __future__ import annotations

from collections.abc import Callable

from radixkv.core.api import CacheHolder, Retention
from radixkv.core.tokens import pack_tokens

from ..oracle.oracle import Branch

__all__ = ["NO_SUCH_ID", "bad_calls"]

NO_SUCH_ID = 999


def bad_calls(holder: CacheHolder, branch: Branch | None) -> list[Callable[[], object]]:
    """Calls that must be refused: on no sequence, and on this one."""
    some = pack_tokens([0, 1])
    calls: list[Callable[[], object]] = [
        lambda: holder.acquire(b""),
        lambda: holder.acquire(b"\0\0\0"),
        lambda: holder.acquire(some, reserve=-1),
        lambda: holder.acquire(some, namespace=""),
        lambda: holder.acquire(some, at_least=-1),
        lambda: holder.acquire(some, at_least=3),
        lambda: holder.acquire_or_wait(b""),
        lambda: holder.acquire(b"", share_prefix=False),
        lambda: holder.acquire(some, retention=[Retention(2, 2)]),
        lambda: holder.retain(some, retention=[Retention(priority=101)]),
        lambda: holder.retain(some, retention=[Retention(duration_s=0)]),
        lambda: holder.match([-1]),
        lambda: holder.match(some, namespace=""),
        lambda: holder.evict(-1),
        lambda: holder.set_quota("other", -1),
        lambda: holder.set_quota("other", 1 << 40),
        lambda: holder.set_quota("other", 0, -1),
        lambda: holder.set_quota("", 0),
        lambda: holder.set_quota("other#salt=1", 0),
        lambda: holder.extend(NO_SUCH_ID, 3),
        lambda: holder.insert(NO_SUCH_ID, 0),
        lambda: holder.fork(NO_SUCH_ID, 1),
        lambda: holder.release(NO_SUCH_ID),
    ]
    if branch is None:
        return calls
    seq_id, computed, room = branch.seq_id, branch.num_computed, branch.room
    return [
        *calls,
        lambda: holder.acquire(some, seq_id=seq_id),
        lambda: holder.acquire_or_wait(some, seq_id=seq_id),
        lambda: holder.extend(seq_id, 0),
        lambda: holder.insert(seq_id, computed - 1),
        lambda: holder.insert(seq_id, len(branch.tokens) + 1),
        lambda: holder.insert(seq_id, room + 1, [0] * (room + 1)),
        lambda: holder.insert(seq_id, computed, [2**32]),
        lambda: holder.insert(seq_id, computed, [0] * 200),
        lambda: holder.fork(seq_id, 0),
        lambda: holder.fork(seq_id, computed + 1),
        lambda: holder.fork(seq_id, computed, n=0),
        lambda: holder.fork(seq_id, computed, reserve=-1),
        lambda: holder.fork(seq_id, computed, n=2, seq_ids=[NO_SUCH_ID]),
        lambda: holder.fork(seq_id, computed, n=2, seq_ids=[NO_SUCH_ID, NO_SUCH_ID]),
        lambda: holder.fork(seq_id, computed, seq_ids=[seq_id]),
    ]
