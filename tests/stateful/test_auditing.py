"""An audit in slices finds what is wrong, and finds nothing wrong in a cache that is used meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.errors import CorruptionError
from radixkv.core.inspect.audit import Audit
from radixkv.core.nodes.node import Node

from .test_adoption import Drive


@pytest.mark.parametrize("part", range(2))
def test_an_audit_finds_nothing_wrong_while_the_cache_is_used(part: int) -> None:
    num_passes = 0
    for seed in range(part * 20, part * 20 + 20):
        drive = Drive(seed)
        audit, audited = drive.wire.pool.cache.audit(), drive.wire.pool
        for _ in range(120):
            drive.step()
            if audit.is_done or audited is not drive.wire.pool:
                num_passes += audit.is_done
                audit, audited = drive.wire.pool.cache.audit(), drive.wire.pool
            audit.take(drive.random.choice((1, 8, 64)))
    assert num_passes > 100


def run(audit: Audit) -> None:
    while not audit.is_done:
        audit.take()


def used_cache() -> PrefixCache:
    """Two branches on one prefix, one of them open, and a block to spare."""
    cache = PrefixCache(num_blocks=8, block_size=4)
    cache.acquire([1] * 8 + [2] * 4, seq_id=1)
    cache.insert(1, 12)
    cache.acquire([1] * 8 + [3] * 3, seq_id=2)
    cache.insert(2, 8)
    cache.release(1)
    run(cache.audit())
    return cache


def nodes(cache: PrefixCache) -> list[Node]:
    forest = cache._forest
    return list(forest.nodes(forest.roots["default"]))


def two_nodes_own_a_block(cache: PrefixCache) -> None:
    first, second = nodes(cache)[:2]
    second.blocks[0] = first.blocks[0]


def a_cached_block_is_free_too(cache: PrefixCache) -> None:
    cache._forest.pool._free[0] = nodes(cache)[0].blocks[0]


def a_cached_block_is_private_too(cache: PrefixCache) -> None:
    cache._sequences[2].table[-1] = nodes(cache)[0].blocks[0]


def a_block_is_lost(cache: PrefixCache) -> None:
    cache._forest.pool._free.pop()


def a_lock_is_missed(cache: PrefixCache) -> None:
    next(node for node in nodes(cache) if node.num_standers()).lock_ref += 1


def a_child_hangs_nowhere(cache: PrefixCache) -> None:
    nodes(cache)[-1].end_bytes += 4


@pytest.mark.parametrize(
    "corrupt",
    [
        two_nodes_own_a_block,
        a_cached_block_is_free_too,
        a_cached_block_is_private_too,
        a_block_is_lost,
        a_lock_is_missed,
        a_child_hangs_nowhere,
    ],
)
def test_an_audit_finds_what_is_wrong(corrupt: Callable[[PrefixCache], None]) -> None:
    cache = used_cache()
    corrupt(cache)
    with pytest.raises(CorruptionError):
        run(cache.audit())
