"""Export and import of blocks: a file that another worker of the same model, or this one another day, takes up again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

from radixkv.core.errors import InvalidArgumentError, UnavailableError
from radixkv.core.namespaces import adapter_of
from radixkv.core.tokens import TOKEN_BYTES, num_tokens
from radixkv.core.tree.hashes import chained_hashes, namespace_hash
from radixkv.generation.block_file import ImportedBlocks
from radixkv.stores.block_file import BlockKind, read_file, write_file
from radixkv.stores.secrets.keys import NamespaceKeys
from radixkv.stores.secrets.names import names_of
from radixkv.stores.store import BlockStore
from radixkv.worker.storing.stored_blocks import StoredBlocks

__all__ = ["BlockFiles"]

MAX_FILE_BYTES = 2 << 30
"""A file is held in memory."""

_AT_ONCE = 8
"""Blocks copied out of the pool between two rounds."""

_ROWS_WAIT_S, _ROWS_LOOK_S = 5.0, 0.01
_READ_S = 10.0
"""Longest wait for the remote level, for `_AT_ONCE` blocks."""

_Result = TypeVar("_Result")


class _OnEngine(Protocol):
    """Runs a function on the engine's thread and returns its result."""

    def __call__(self, function: Callable[[], _Result], /) -> _Result: ...


class BlockFiles:
    """Exports and imports the blocks of one engine. For any thread.

    Args:
        store: the block store. stored: the names of the pool's blocks, of the engine's thread.
        block_size: in tokens. max_length: of the model. vocab_size: its token ids lie below.
    """

    def __init__(
        self,
        store: BlockStore,
        stored: StoredBlocks,
        on_engine: _OnEngine,
        block_size: int,
        max_length: int,
        vocab_size: int,
    ) -> None:
        self._store = store
        self._stored = stored
        self._on_engine = on_engine
        self._block_size = block_size
        self._block_bytes = block_size * TOKEN_BYTES
        largest = MAX_FILE_BYTES // (store.block_bytes + self._block_bytes)
        self._max_tokens = min(max_length // block_size, largest) * block_size
        self._vocab_size = vocab_size

    def export(self, tokens: bytes, namespace: str) -> list[bytes]:
        """See `Engine.export`."""
        length = num_tokens(tokens)
        if not self._block_size <= length <= self._max_tokens + self._block_size - 1:
            bound = (
                f"between {self._block_size} and {self._max_tokens:,} token ids, by the model's length and 2 GiB of KV"
            )
            raise InvalidArgumentError("tokens", f"{length:,} token ids", bound)
        keys, _, names = self._names(tokens, namespace)
        blocks = self._find(keys, names)
        if not blocks:
            raise InvalidArgumentError("tokens", f"{length:,} token ids, whose first block is not cached", "cached")
        return write_file(self._kind(namespace), tokens[: len(blocks) * self._block_bytes], blocks)

    def import_(self, pieces: Iterable[bytes], namespace: str) -> ImportedBlocks:
        """See `Engine.import_`."""
        tokens, blocks = read_file(
            self._kind(namespace), pieces, max_tokens=self._max_tokens, vocab_size=self._vocab_size
        )
        keys, parent, names = self._names(tokens, namespace)
        hashes = chained_hashes(namespace_hash(namespace), tokens, self._block_bytes)
        num_stored = self._store.save_now([parent, *names], keys, blocks, hashes)
        return ImportedBlocks(num_tokens(tokens), num_stored * self._block_size)

    def _kind(self, namespace: str) -> BlockKind:
        fingerprint = self._store.fingerprint_of(adapter_of(namespace))
        return BlockKind(fingerprint, self._block_size, self._store.block_bytes)

    def _names(self, tokens: bytes, namespace: str) -> tuple[NamespaceKeys, bytes, list[bytes]]:
        """Keys, the root name, and the names of whole blocks."""
        if self._store.is_clearing(namespace):
            raise UnavailableError("this namespace is being erased; try again")
        keys = self._store.keys_of(namespace)
        root = self._store.root(keys, adapter_of(namespace))
        return keys, root, names_of(keys, root, tokens, self._block_bytes)

    def _find(self, keys: NamespaceKeys, names: Sequence[bytes]) -> list[bytes]:
        """The leading blocks that the pool or the store has."""
        places = self._on_engine(partial(self._stored.find, names))
        blocks: list[bytes] = []
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            found = self._copy({name: places[name] for name in part if name in places})
            found |= self._store.read_now([name for name in part if name not in found], keys, _READ_S)
            for name in part:
                if name not in found:
                    return blocks
                blocks.append(found[name])
        return blocks

    def _copy(self, places: dict[bytes, int]) -> dict[bytes, bytes]:
        """The content of blocks of the pool, but of those that hold another by now."""
        copied: dict[bytes, bytes] = {}
        until_s = time.monotonic() + _ROWS_WAIT_S
        while places and time.monotonic() < until_s:
            rows = self._on_engine(partial(self._stored.copy_out, places))
            taken = {name: row for name, row in rows.items() if row is not None}
            try:
                for name, row in taken.items():
                    row.wait()
                    copied[name] = bytes(row.memory)
            finally:
                self._store.host.give_back(taken.values())
            places = {name: places[name] for name, row in rows.items() if row is None}
            if places:
                time.sleep(_ROWS_LOOK_S)
        return copied
