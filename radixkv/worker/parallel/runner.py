"""A model on several ranks, one process each: heads, matrices and KV are shared out, and every rank runs every step.

    engine ──▶ rank 0  ParallelRunner ── forward(rows), carry_out, save, load ──▶ ranks 1 .. N - 1  RankRunner
                       │                        one message a call                 │
                       └────── all_reduce after every row-parallel matrix ─────────┘

Only rank 0 talks to the cache service and chooses tokens. Block ids mean the same block on every rank: its share of the heads.
transformers shares out the weights by the plan that each architecture has there, as they are read. Where there are more ranks
than KV heads, every rank computes all of them and stores the one that its queries read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from radixkv.core.api import Copy
from radixkv.core.errors import InvalidArgumentError
from radixkv.generation.verification import BlockDifference
from radixkv.kernels.spec import AttentionSpec
from radixkv.worker.errors import ModelError
from radixkv.worker.model.attention import AttentionSite
from radixkv.worker.model.kv_pool import KVPool
from radixkv.worker.model.model import ForwardRow, ModelRunner
from radixkv.worker.model.model_loading import read_config
from radixkv.worker.model.shares import plan_shares
from radixkv.worker.parallel.ranks import Ranks

__all__ = ["CALLS", "ParallelRunner", "RankRunner"]


class RankRunner(ModelRunner):
    """One rank's share of a model. Every rank makes the same calls in the same order.

    Args:
        model, options: see `ModelRunner`. The group of ranks exists.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self._kv_heads: slice | None = None
        super().__init__(model, num_blocks=None, num_ranks=dist.get_world_size(), **options)

    def _load(self, model: Any, quantization: str, progress: bool) -> Any:
        loaded = super()._load(model, quantization, progress)
        config = loaded.config.get_text_config()
        num_kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        has_own_queries = "layers.*.self_attn.q_proj" in config.base_model_tp_plan
        if has_own_queries and dist.get_world_size() > num_kv_heads:
            first = dist.get_rank() * num_kv_heads // dist.get_world_size()
            self._kv_heads = slice(first, first + 1)
        return loaded

    def _answer(self, token_ids: Tensor, positions: Tensor, kept: Tensor, site: AttentionSite) -> Tensor:
        if self._kv_heads is not None:
            site = _OwnHeads(site, self._kv_heads)
        return super()._answer(token_ids, positions, kept, site)


class _OwnHeads:
    """A site that gets the KV heads of one rank out of all."""

    def __init__(self, site: AttentionSite, kv_heads: slice) -> None:
        self._site = site
        self._kv_heads = kv_heads

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, spec: AttentionSpec) -> Tensor:
        return self._site.attend(layer, query, key[:, self._kv_heads], value[:, self._kv_heads], spec)

    def attend_latents(self, layer: int, query: Tensor, latents: Tensor, value_dim: int, spec: AttentionSpec) -> Tensor:
        return self._site.attend_latents(layer, query, latents, value_dim, spec)


class ParallelRunner(RankRunner):
    """Rank 0, and with it all ranks.

    Args:
        model: a folder.
        num_ranks: at least 2.
        options: of `ModelRunner`. On a CPU the ranks share this process's threads, and weights are not rounded. On CUDA each
            rank has a device, and no graphs are captured.

    Raises:
        ModelError: as `ModelRunner`; or the architecture has no plan for shares, or a rank has ended.
        InvalidArgumentError: more ranks than devices, or a number that the heads cannot be shared out to.
    """

    def __init__(self, model: str, *, num_ranks: int, device: str, **options: Any) -> None:
        if (quantization := options.get("quantization")) in ("int8", "int4"):
            raise InvalidArgumentError("quantization", quantization, "auto or none with tensor_parallel")
        plan_shares(read_config(model).get_text_config(), num_ranks)  # before processes are started
        options["cuda_graphs"] = False
        sent = {"model": model, "device": device, **options, "progress": False}
        self._ranks = Ranks(num_ranks, max(1, torch.get_num_threads() // num_ranks), sent)
        try:
            self._ranks.await_ready()
            own = self._ranks.seat(0).join(device)
            super().__init__(model, device=own, **options)
        except BaseException:
            self.close()
            raise

    @property
    def fault(self) -> str:
        """Which rank has ended; empty while all live."""
        return self._ranks.fault

    def close(self) -> None:
        """End the other ranks. May be repeated."""
        self._ranks.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def allocate_pool(
        self, num_blocks: int, block_size: int, num_host_blocks: int = 0, num_window_blocks: int | None = None
    ) -> None:
        sizes = num_blocks, block_size, num_host_blocks, num_window_blocks
        self._ranks.send("allocate_pool", *sizes)
        super().allocate_pool(*sizes)

    def release_pool(self) -> None:
        self._ranks.send("release_pool")
        super().release_pool()

    def prepare(self, num_tokens: int) -> None:
        self._ranks.send("prepare", num_tokens)
        super().prepare(num_tokens)

    def carry_out(self, ops: Sequence[Copy]) -> None:
        self._ranks.send("carry_out", ops)
        super().carry_out(ops)

    def forward(self, rows: Sequence[ForwardRow], drawn_ids: Tensor | None = None) -> Tensor:
        assert drawn_ids is None, "the other ranks do not have them"
        self._ranks.send("forward", rows)
        try:
            return super().forward(rows)
        except RuntimeError as error:  # of the group, which notices first that a rank has ended
            if fault := self._ranks.await_fault():
                raise ModelError(fault) from error
            raise

    def _make_pool(self, *sizes: Any, **format: Any) -> KVPool:
        return _SharedPool(self._ranks, *sizes, **format)


class _SharedPool(KVPool):
    """Rank 0's share of a pool, and with it all shares."""

    def __init__(self, ranks: Ranks, *sizes: Any, **format: Any) -> None:
        super().__init__(*sizes, **format)
        self._ranks = ranks

    def save(self, block_ids: Sequence[int], slots: Sequence[int]) -> None:
        self._ranks.send("pool.save", block_ids, slots)
        super().save(block_ids, slots)

    def load(self, slots: Sequence[int], block_ids: Sequence[int]) -> None:
        self._ranks.send("pool.load", slots, block_ids)
        super().load(slots, block_ids)

    def difference(self, block_id: int, other_id: int) -> BlockDifference | None:
        others: list[BlockDifference | None] = self._ranks.ask("pool.difference", block_id, other_id)
        shares = (share for share in (super().difference(block_id, other_id), *others) if share is not None)
        return max(shares, key=lambda layer: (layer.relative, layer.largest), default=None)


CALLS: Mapping[str, Callable[[RankRunner], Callable[..., Any]]] = {
    "allocate_pool": lambda runner: runner.allocate_pool,
    "release_pool": lambda runner: runner.release_pool,
    "prepare": lambda runner: runner.prepare,
    "carry_out": lambda runner: runner.carry_out,
    "forward": lambda runner: runner.forward,
    "pool.save": lambda runner: runner.pool.save,
    "pool.load": lambda runner: runner.pool.load,
    "pool.difference": lambda runner: runner.pool.difference,
}
"""The calls that rank 0 sends to the others, by name."""
