"""A peer of the tree benchmark: SGLang's two prefix caches, each in this process and on the CPU.

    classic    `RadixCache`, Python
    unified    `UnifiedRadixCache`, its default, over a Rust core

Its wheel is fetched from the package index with no dependencies into a folder outside the project, and only the modules
of its prefix caches are executed (`peer_stand_ins`). KV slots go to an allocator that only counts freed ones, so the peer pays
nothing for its block pool.
"""

from __future__ import annotations

import importlib
import types
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.tree.stand_ins import StandIns
from bench.tree.wheel import PeerMissingError, fetch_wheels, require_wheel, wheel_folder

__all__ = ["SGLANG_VERSION", "SGLang", "fetch_sglang", "load_sglang"]

SGLANG_VERSION = "0.5.23"
# msgspec is small and in the measured path, so it is real.
REQUIREMENTS = (f"sglang=={SGLANG_VERSION}", "msgspec>=0.20")
PAGE_SIZE = 16

EXECUTED = (
    "sglang.srt.disaggregation.kv_events",
    "sglang.srt.environ",
    "sglang.srt.mem_cache",
    "sglang.srt.runtime_context",
    "sglang.srt.rust_extensions",
    "sglang.srt.session.streaming_session",
    "sglang.srt.utils.common",
    "sglang.srt.utils.msgspec_utils",
    "sglang.srt.utils.poll_timer",
    "sglang.srt.utils.rank_consensus_checker",
)
INERT = (
    "sglang.srt.mem_cache.hybrid_cache",
    "sglang.srt.mem_cache.memory_pool",
    "sglang.srt.mem_cache.pool_host",
    "sglang.srt.mem_cache.storage",
    "sglang.srt.mem_cache.swa_memory_pool",
)
FORWARDED = {"sglang.srt.utils": "sglang.srt.utils.common"}


def fetch_sglang(folder: Path) -> None:
    """Download its wheel (39 MB) into a folder of `folder`, if missing. Errors as of `fetch_wheels`."""
    fetch_wheels(wheel_folder("sglang", SGLANG_VERSION, folder), "sglang", REQUIREMENTS)


class _CountingAllocator:
    """Takes freed KV slots and counts them."""

    device = "cpu"
    page_size = PAGE_SIZE

    def __init__(self) -> None:
        self.num_freed = 0

    def free_segment(self, slots: Any, start_pos: int = 0) -> None:  # noqa: ARG002 - the peer's signature
        self.num_freed += len(slots)

    def free(self, slots: Any) -> None:
        self.num_freed += len(slots)


class SGLang:
    """One of the peer's caches with the calls that the benchmark times; see `bench.tree.systems.System`.

    Keys are arrays of 64-bit ids, the peer's own form, made outside the clock: its callers make them elsewhere.
    """

    block_size = PAGE_SIZE

    def __init__(self, name: str, make_cache: Callable[[], Any], params: types.ModuleType, radix_key: Any) -> None:
        self.name = name
        self._make_cache = make_cache
        self._match_params = params.MatchPrefixParams
        self._insert_params = params.InsertParams
        self._evict_params = params.EvictParams
        self._radix_key = radix_key
        self._torch = importlib.import_module("torch")
        self.reset()

    def reset(self, num_blocks: int = 0) -> None:  # noqa: ARG002 - it has no pool of its own
        """Start on an empty tree."""
        self._cache = self._make_cache()
        self._num_slots = 0

    def key(self, tokens: bytes) -> array[int]:
        """Packed uint32 ids in the peer's form."""
        return array("q", array("I", tokens))

    def load(self, tokens: bytes) -> None:
        """Publish a history, without a lock on it."""
        prepared = self.prepare_insert(tokens)
        self.insert(prepared)

    def match(self, key: array[int]) -> Any:
        """Longest cached prefix, a whole number of pages."""
        return self._cache.match_prefix(self._match_params(key=self._radix_key(key)))

    def num_matched(self, answer: Any) -> int:
        return int(answer.device_prefix_len)

    def acquire(self, key: array[int]) -> tuple[Any, Any]:
        """Match, lock the path, and collect its slot indices: a request's work before it runs."""
        node = self._cache.match_prefix(self._match_params(key=self._radix_key(key))).last_device_node
        return self._cache.lock(node), self._cache.path_device_indices(node)

    def num_held(self, held: tuple[Any, Any]) -> int:
        return len(held[1])

    def release(self, held: tuple[Any, Any]) -> None:
        self._cache.unlock(held[0])

    def prepare_insert(self, tokens: bytes) -> tuple[array[int], Any]:
        """Its key, and fresh slot indices as from the peer's allocator."""
        num_tokens = len(tokens) // 4
        self._num_slots += num_tokens
        slots = self._torch.arange(self._num_slots - num_tokens, self._num_slots, dtype=self._torch.int64)
        return self.key(tokens), slots

    def insert(self, prepared: tuple[array[int], Any]) -> None:
        key, slots = prepared
        self._cache.insert(self._insert_params(key=self._radix_key(key), value=slots))

    def finish_insert(self, prepared: tuple[array[int], Any]) -> None:
        """Do nothing: an insert of the peer leaves nothing open."""

    def fill(self) -> None:
        """Do nothing: it evicts on request."""

    def evict(self, num_tokens: int) -> int:
        """Evict least recently used leaves. Returns the number of tokens evicted."""
        return int(self._cache.evict(self._evict_params(num_tokens=num_tokens)).num_tokens_evicted)


def load_sglang(folder: Path) -> list[SGLang]:
    """Its caches, classic first, each on an empty tree.

    Raises:
        PeerMissingError: the wheel is not below `folder`, torch is missing, or the wheel does not load here.
    """
    wheel = require_wheel("sglang", SGLANG_VERSION, folder)
    stand_ins = StandIns(wheel, "sglang", EXECUTED, INERT, FORWARDED, needed=("torch", "msgspec"))
    memory = "sglang.srt.mem_cache"
    try:
        classic, unified, init, params, component = stand_ins.load(
            [
                f"{memory}.radix_cache",
                f"{memory}.unified_radix_cache",
                f"{memory}.cache_init_params",
                f"{memory}.base_prefix_cache",
                f"{memory}.unified_cache.component_type",
            ]
        )

        def make_classic() -> Any:
            return classic.RadixCache.create_simulated(page_size=PAGE_SIZE, mock_allocator=_CountingAllocator())

        def make_unified() -> Any:
            return unified.UnifiedRadixCache(
                init.CacheInitParams(
                    disable=False,
                    req_to_token_pool=None,
                    token_to_kv_pool_allocator=_CountingAllocator(),
                    page_size=PAGE_SIZE,
                    tree_components=(component.ComponentType.FULL,),
                )
            )

        core = "Rust" if type(make_unified().tree_core).__name__.startswith("Rust") else "Python"
        return [
            SGLang("SGLang classic (Python)", make_classic, params, classic.RadixKey),
            SGLang(f"SGLang unified ({core})", make_unified, params, classic.RadixKey),
        ]
    except Exception as error:
        raise PeerMissingError(
            f"sglang {SGLANG_VERSION} does not load here: {type(error).__name__}: {error}"
        ) from error
