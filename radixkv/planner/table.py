"""Weights and KV in fewer bits next to each other, by batch and context: what fits, and what the full pool holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from radixkv.core.errors import InvalidArgumentError
from radixkv.planner.errors import PlanError
from radixkv.planner.plan import Device, Load, MemoryPlan, plan_memory
from radixkv.planner.shape import ModelShape
from radixkv.planner.sizes import format_bytes

__all__ = ["Configuration", "plan_table", "table_lines"]

BATCHES = (1, 8, 32, 128)
CONTEXTS = (1024, 8192, 32_768, 131_072)
WEIGHT_DTYPES = ("int8", "int4")
CACHE_DTYPES = ("int8", "int4")
"""Next to those that the model was published in."""


class Configuration(NamedTuple):
    """One choice of dtypes.

    plan: None where the weights leave nothing for KV. sequence_bytes: KV of one sequence of each context, in whole blocks.
    """

    dtype: str
    kv_dtype: str
    weight_bytes: int
    plan: MemoryPlan | None
    sequence_bytes: tuple[int, ...]

    def most(self, index: int) -> int:
        """Sequences of the context `index` that the full pool holds at once."""
        if self.plan is None or self.plan.kv_bytes is None:
            return 0
        return self.plan.kv_bytes // self.sequence_bytes[index]

    def as_dict(self, contexts: Sequence[int], batches: Sequence[int]) -> dict[str, Any]:
        """For JSON, sizes in bytes."""
        pool = self.plan
        cells = [
            {"context": context, "batch": batch, "kv_bytes": batch * size, "fits": batch <= self.most(index)}
            for index, (context, size) in enumerate(zip(contexts, self.sequence_bytes, strict=True))
            for batch in batches
        ]
        return {
            "dtype": self.dtype,
            "kv_dtype": self.kv_dtype,
            "weight_bytes": self.weight_bytes,
            "kv_bytes": pool and pool.kv_bytes,
            "num_blocks": pool and pool.num_blocks,
            "num_tokens": pool and pool.num_tokens,
            "at_once": {str(context): self.most(index) for index, context in enumerate(contexts)},
            "batches": cells,
        }


def contexts_of(shape: ModelShape, contexts: Sequence[int] | None, rope_scaling: float = 1.0) -> tuple[int, ...]:
    """The contexts of a table: those given, else the usual ones up to the model's length, stretched, and that length.

    Raises:
        InvalidArgumentError: one is out of bounds.
    """
    longest = int(shape.max_length * rope_scaling) if shape.max_length else shape.max_length
    if contexts is None:
        usual = {context for context in CONTEXTS if not longest or context <= longest}
        return tuple(sorted(usual | ({longest} if longest and longest < CONTEXTS[-1] else set())))
    for context in contexts:
        if context < 1 or (longest and context > longest):
            bound = (
                f"from 1 to {longest:,}, the model's length; --rope-scaling stretches it" if longest else "at least 1"
            )
            raise InvalidArgumentError("--contexts", context, bound)
    return tuple(contexts)


def plan_table(
    shape: ModelShape,
    device: Device,
    contexts: Sequence[int],
    *,
    dtype: str = "auto",
    kv_dtype: str = "auto",
    block_size: int = 16,
    max_batch_tokens: int = 320,
    rope_scaling: float = 1.0,
    tp: int = 1,
    layout: str = "least",
) -> list[Configuration]:
    """Plan each choice of dtypes; arguments as of `plan_memory`, and `"auto"` for every usual choice. O(choices · layers)."""
    configurations: dict[tuple[str, str], Configuration] = {}
    for weights in (dtype,) if dtype != "auto" else ("auto", *WEIGHT_DTYPES):
        for cached in (kv_dtype,) if kv_dtype != "auto" else ("auto", *CACHE_DTYPES):
            given: dict[str, Any] = {
                "dtype": weights,
                "kv_dtype": cached,
                "block_size": block_size,
                "tp": tp,
                "layout": layout,
            }
            alone = [
                plan_memory(shape, load=Load(context, None, max_batch_tokens, rope_scaling), **given)
                for context in contexts
            ]
            try:
                pool = plan_memory(
                    shape, load=Load(min(contexts), None, max_batch_tokens, rope_scaling), device=device, **given
                )
            except PlanError:
                pool = None
            sizes = tuple(each.sequence_bytes for each in alone)
            names = alone[0].dtype, alone[0].kv_dtype
            configurations.setdefault(names, Configuration(*names, alone[0].weight_bytes, pool, sizes))
    return list(configurations.values())


def table_lines(
    name: str, device: Device, contexts: Sequence[int], batches: Sequence[int], configurations: Sequence[Configuration]
) -> list[str]:
    """The table as text: per choice what the full pool holds, and the KV of each batch; in brackets where it does not fit."""
    head = ("weights", "KV", "full pool", "batch", *(f"{context:,}" for context in contexts))
    rows: list[tuple[str, ...]] = [head]
    for each in configurations:
        pool = each.plan
        held = "nothing fits" if pool is None else f"{format_bytes(pool.kv_bytes or 0)}, {pool.num_tokens:,} tokens"
        begin = (f"{each.dtype} {format_bytes(each.weight_bytes)}", each.kv_dtype, held)
        if pool is None:
            rows.append((*begin, "", *("-" for _ in contexts)))
            continue
        for batch in batches:
            sizes = [(batch * size, batch <= each.most(index)) for index, size in enumerate(each.sequence_bytes)]
            cells = [format_bytes(size) if fits else f"({format_bytes(size)})" for size, fits in sizes]
            rows.append((*begin, f"{batch:,}", *cells))
            begin = ("", "", "")
        rows.append(("", "", "", "at once", *(f"{each.most(index):,}" for index in range(len(contexts)))))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = []
    for row in rows:
        left = [cell.ljust(width) for cell, width in zip(row[:3], widths, strict=False)]
        right = [cell.rjust(width) for cell, width in zip(row[3:], widths[3:], strict=True)]
        lines.append("  ".join((*left, *right)).rstrip())
    usable = f"{device.utilisation:g} of {format_bytes(device.memory_bytes)}"
    return [f"{name} on {usable}: KV of a batch by its context; in brackets: it does not fit", *lines]
