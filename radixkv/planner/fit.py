"""How many blocks a budget gives, and whether a sequence fits them; said the same way by plans and by workers."""

from __future__ import annotations

from radixkv.core.errors import InvalidArgumentError
from radixkv.planner.errors import PlanError
from radixkv.planner.sizes import format_bytes

__all__ = ["BLOCK_SIZES", "check_block_size", "check_fit", "count_blocks"]

BLOCK_SIZES = (8, 16, 32, 64, 128)
"""Token slots of a block that are offered."""


def check_block_size(block_size: int) -> None:
    """Refuse a block size that is not offered.

    Raises:
        InvalidArgumentError: it is none of `BLOCK_SIZES`.
    """
    if block_size not in BLOCK_SIZES:
        raise InvalidArgumentError("block_size", block_size, f"one of {', '.join(map(str, BLOCK_SIZES))}")


def count_blocks(budget_bytes: int, block_bytes: int, most: int | None = None) -> int:
    """Whole blocks in a budget, no more than `most`.

    Raises:
        PlanError: not even one.
    """
    num_blocks = max(0, budget_bytes) // block_bytes
    if num_blocks < 1:
        raise PlanError(
            f"{format_bytes(max(0, budget_bytes))} are left for KV and one block takes {format_bytes(block_bytes)}: "
            "give more memory or a larger share of it, fewer --max-batch-tokens, or a smaller model"
        )
    return num_blocks if most is None else min(num_blocks, most)


def check_fit(max_model_len: int, block_size: int, num_blocks: int, remedy: str) -> None:
    """Refuse a longest sequence that the blocks cannot hold even alone.

    Args:
        remedy: what else helps, as an infinitive: ``"raise --kv-memory"``.

    Raises:
        PlanError: says how many blocks it needs, how many there are, and to what it could be lowered.
    """
    num_needed = -(-max_model_len // block_size)
    if num_needed > num_blocks:
        raise PlanError(
            f"--max-model-len {max_model_len} needs {num_needed:,} blocks of {block_size} tokens and {num_blocks:,} fit: "
            f"lower it to {num_blocks * block_size} or {remedy}"
        )
