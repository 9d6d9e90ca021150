"""A router's picture of one worker, kept by the published schema of `SubscribeKvEvents` and its rules of admission."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
from smg_grpc_proto.generated import common_pb2, sglang_scheduler_pb2_grpc, vllm_engine_pb2_grpc

__all__ = ["Block", "Router", "subscribe"]

STUBS = {
    "sglang": sglang_scheduler_pb2_grpc.SglangSchedulerStub,
    "vllm": vllm_engine_pb2_grpc.VllmEngineStub,
}


class Block(NamedTuple):
    """What is known of a block: the hash above it, its token ids, and the salt of its requests."""

    parent: int | None
    token_ids: tuple[int, ...]
    salt: str


def subscribe(channel: grpc.Channel, start: int = 0, engine: str = "vllm", **metadata: str) -> Any:
    """The call, by the published stubs; `metadata`: of radixkv's own, without its prefix."""
    request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=start)
    named = [(f"radixkv-{name}", value) for name, value in metadata.items()]
    return STUBS[engine](channel).SubscribeKvEvents(request, metadata=named)


class Router:
    """Blocks by hash, and the last sequence number that was applied."""

    def __init__(self) -> None:
        self.blocks: dict[int, Block] = {}
        self.last = 0
        self.num_snapshots = 0
        self._num_chunks_left = 0

    def apply(self, batch: Any) -> None:
        """Asserts that nothing was left out, and that parents are told of before their children."""
        if batch.HasField("snapshot"):
            self._begin_chunk(batch)
        else:
            assert not self._num_chunks_left, "a change came inside a snapshot"
            assert self.last in (0, batch.sequence_number - 1), f"{batch.sequence_number} came after {self.last}"
        self.last = batch.sequence_number
        for event in batch.events:
            kind = event.WhichOneof("data")
            if kind == "cleared":
                self.blocks.clear()
            elif kind == "removed":
                assert event.removed.tier == common_pb2.KV_CACHE_TIER_DEVICE
                for block_hash in event.removed.block_hashes:
                    del self.blocks[block_hash]
            else:
                self._store(event.stored)

    def _begin_chunk(self, batch: Any) -> None:
        chunk = batch.snapshot
        if chunk.index == 0:
            assert batch.events[0].WhichOneof("data") == "cleared"
            self._num_chunks_left = chunk.count
            self.num_snapshots += 1
        else:
            assert batch.sequence_number == self.last + 1
        assert self._num_chunks_left == chunk.count - chunk.index
        self._num_chunks_left -= 1

    def _store(self, stored: Any) -> None:
        parent = stored.parent_block_hash if stored.HasField("parent_block_hash") else None
        assert parent is None or parent in self.blocks, "a block came before its parent"
        assert stored.tier == common_pb2.KV_CACHE_TIER_DEVICE
        for block in stored.blocks:
            assert len(block.token_ids) == block.block_size
            assert block.block_hash not in self.blocks
            self.blocks[block.block_hash] = Block(parent, tuple(block.token_ids), stored.cache_salt)
            parent = block.block_hash

    def histories(self) -> set[tuple[str, tuple[int, ...]]]:
        """Every history that ends with a cached block, with its salt."""
        return {(block.salt, self._history(block)) for block in self.blocks.values()}

    def _history(self, block: Block) -> tuple[int, ...]:
        above = () if block.parent is None else self._history(self.blocks[block.parent])
        return above + block.token_ids

    def follow(self, batches: Iterator[Any], until: int) -> None:
        """Apply what comes until `until` blocks are known, and no snapshot is under way."""
        for batch in batches:
            self.apply(batch)
            if len(self.blocks) == until and not self._num_chunks_left:
                return
