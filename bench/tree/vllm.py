"""A peer of the tree benchmark: vLLM's block pool, a hash table of whole blocks used by its KV cache manager, on the CPU.

A request is hashed block by block, each hash over the one before, and looked up block by block; that is its match. Its
blocks are cached when they are allocated, so an allocation counts as an insert, and in a full pool also as an eviction. Its
wheel is fetched from the package index with no dependencies; its Python files are kept, and of these only the manager's modules
are executed (`peer_stand_ins`). The request is a plain record of the fields that they read.
"""

from __future__ import annotations

import types
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from bench.tree.stand_ins import StandIns
from bench.tree.wheel import PeerMissingError, fetch_sources, require_wheel, wheel_folder

__all__ = ["VLLM_VERSION", "VLLMBlockPool", "fetch_vllm", "load_vllm"]

VLLM_VERSION = "0.33.0"
BLOCK_SIZE = 16
MAX_MODEL_LEN = 1 << 20

EXECUTED = (
    "vllm.utils.hashing",
    "vllm.utils.math_utils",
    "vllm.v1.attention.backends.registry",
    "vllm.v1.core",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_layout",
    "vllm.v1.kv_cache_spec_registry",
)
INERT = ("vllm.v1.core.sched",)


def fetch_vllm(folder: Path) -> None:
    """Download its wheel (336 MB) and keep the Python files in a folder of `folder`, if missing.

    Errors as of `fetch_wheels`.
    """
    fetch_sources(wheel_folder("vllm", VLLM_VERSION, folder), "vllm", f"vllm=={VLLM_VERSION}")


@dataclass(slots=True)
class _Request:
    """The fields of a request that the manager reads."""

    request_id: str
    all_token_ids: list[int]
    num_tokens: int
    num_prompt_tokens: int
    block_hashes: list[bytes] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    num_preemptions: int = 0
    mm_features: tuple[()] = ()
    lora_request: None = None
    prompt_embeds: None = None
    cache_salt: None = None
    session_id: None = None
    shared_prefix_boundary: int = 0
    status: None = None
    skip_reading_prefix_cache: bool = False


class VLLMBlockPool:
    """vLLM's manager with the calls that the benchmark times; see `bench.tree.systems.System`.

    Keys are lists of ids, its own form, made outside the clock. The hash is SHA-256 over the pickled ids, its default.
    """

    name = "vLLM block pool"
    block_size = BLOCK_SIZE

    def __init__(
        self, make_manager: Callable[[int], Any], hasher: Callable[[Any], list[bytes]], num_blocks: int
    ) -> None:
        self._make_manager = make_manager
        self._hasher = hasher
        self._num_blocks = num_blocks
        self.reset()

    def reset(self, num_blocks: int = 0) -> None:
        """Start with an empty pool, of `num_blocks` if given. One more block is the null block."""
        self._manager = self._make_manager((num_blocks or self._num_blocks) + 1)
        self._ids = count()

    def key(self, tokens: bytes) -> list[int]:
        """Packed uint32 ids in its own form."""
        return array("I", tokens).tolist()

    def load(self, tokens: bytes) -> None:
        """Publish a history, without a lock on it."""
        prepared = self.prepare_insert(tokens)
        self.insert(prepared)
        self.finish_insert(prepared)

    def hash(self, key: list[int]) -> _Request:
        """A request with hashed blocks: the part of a match that reads the prompt."""
        request = _Request(str(next(self._ids)), key, len(key), len(key))
        request.block_hashes = self._hasher(request)
        return request

    def match(self, key: list[int]) -> tuple[_Request, Any, int]:
        """Hash and look up: the longest cached prefix, a whole number of blocks."""
        request = self.hash(key)
        blocks, num_tokens, _ = self._manager.get_computed_blocks(request, request.num_tokens)
        return request, blocks, num_tokens

    def num_matched(self, answer: tuple[_Request, Any, int]) -> int:
        return answer[2]

    def acquire(self, key: list[int]) -> tuple[_Request, list[int]]:
        """Match, take a reference on every block, and collect their ids."""
        request, blocks, num_tokens = self.match(key)
        self._manager.allocate_slots(request, 0, num_tokens, blocks, has_scheduled_reqs=False)
        return request, self._manager.get_block_ids(request.request_id)[0]

    def num_held(self, held: tuple[_Request, list[int]]) -> int:
        return len(held[1]) * BLOCK_SIZE

    def release(self, held: tuple[_Request, list[int]]) -> None:
        self._manager.free(held[0])

    def prepare_insert(self, tokens: bytes) -> tuple[_Request, Any, int]:
        """Its request, hashed and looked up."""
        return self.match(self.key(tokens))

    def insert(self, prepared: tuple[_Request, Any, int]) -> None:
        """Allocate blocks for uncached tokens, and cache them."""
        request, blocks, num_tokens = prepared
        num_new = request.num_tokens - num_tokens
        if self._manager.allocate_slots(request, num_new, num_tokens, blocks, has_scheduled_reqs=False) is None:
            raise AssertionError(f"{self.name}: the pool is full of blocks in use")

    def finish_insert(self, prepared: tuple[_Request, Any, int]) -> None:
        self._manager.free(prepared[0])

    def fill(self) -> None:
        """Take every empty block, so that the next allocation evicts."""
        pool = self._manager.block_pool
        pool.get_new_blocks(pool.get_num_free_blocks() - len(pool.cached_block_hash_to_block))

    def evict(self, num_tokens: int) -> int:
        """Allocate from a full pool, which evicts the least recently used blocks. Returns the number of their tokens."""
        return len(self._manager.block_pool.get_new_blocks(num_tokens // BLOCK_SIZE)) * BLOCK_SIZE


def load_vllm(folder: Path, num_blocks: int) -> list[VLLMBlockPool]:
    """Its block pool, empty.

    Raises:
        PeerMissingError: its files are missing below `folder`, torch is missing, or they do not load here.
    """
    wheel = require_wheel("vllm", VLLM_VERSION, folder)
    stand_ins = StandIns(wheel, "vllm", EXECUTED, INERT, needed=("torch",))
    core = "vllm.v1.core"
    try:
        interface, registry, managers, manager, utils, hashing = stand_ins.load(
            [
                "vllm.v1.kv_cache_interface",
                "vllm.v1.kv_cache_spec_registry",
                f"{core}.single_type_kv_cache_manager",
                f"{core}.kv_cache_manager",
                f"{core}.kv_cache_utils",
                "vllm.utils.hashing",
            ]
        )
        registry.KVCacheSpecRegistry.register(interface.FullAttentionSpec, managers.FullAttentionManager)
        utils.init_none_hash(hashing.sha256)

        def make_manager(num_blocks: int) -> Any:
            return manager.KVCacheManager(
                _config(interface, num_blocks),
                max_model_len=MAX_MODEL_LEN,
                scheduler_block_size=BLOCK_SIZE,
                hash_block_size=BLOCK_SIZE,
            )

        return [VLLMBlockPool(make_manager, utils.get_request_block_hasher(BLOCK_SIZE, hashing.sha256), num_blocks)]
    except Exception as error:
        raise PeerMissingError(f"vllm {VLLM_VERSION} does not load here: {type(error).__name__}: {error}") from error


def _config(interface: types.ModuleType, num_blocks: int) -> Any:
    """One group of layers with full attention."""
    import torch

    spec = interface.FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32)
    group = interface.KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=spec)
    return interface.KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[group])
