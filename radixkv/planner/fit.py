"""Number of blocks in a budget, and whether a sequence fits them; shared by plans and workers."""

from __future__ import annotations

from radixkv.core.errors import InvalidArgumentError
from radixkv.planner.errors import PlanError
from radixkv.planner.sizes import format_bytes

__all__ = ["BLOCK_SIZES", "advise_block_size", "check_block_size", "check_fit", "count_blocks"]

BLOCK_SIZES = (8, 16, 32, 64, 128)
"""Supported token slots of a block."""

DEFAULT_BLOCK_SIZE = 16
MAX_WASTE = 0.01
"""Share of a sequence's tokens that half a block may be."""


def check_block_size(block_size: int) -> None:
    """Reject an unsupported block size.

    Raises:
        InvalidArgumentError: it is not in `BLOCK_SIZES`.
    """
    if block_size not in BLOCK_SIZES:
        raise InvalidArgumentError("block_size", block_size, f"one of {', '.join(map(str, BLOCK_SIZES))}")


def advise_block_size(num_tokens: int | None) -> int:
    """A block size for sequences of so many tokens; None: short ones, as of chats.

    By `python -m bench.sizing.block_size` hits depend little on the size, and the waste is half a block per sequence: 4% of the
    slots of chats and 9% of few-shot questions at 16 tokens, 8 and 16% at 32. So it is the largest size that wastes at most 1%
    of the tokens of a sequence, and 16 at least: smaller blocks make block tables, Steps and events longer.
    """
    fitting = [size for size in BLOCK_SIZES if num_tokens is not None and size <= 2 * MAX_WASTE * num_tokens]
    return max([DEFAULT_BLOCK_SIZE, *fitting])


def count_blocks(budget_bytes: int, block_bytes: int, most: int | None = None) -> int:
    """Whole blocks in a budget, at most `most`.

    Raises:
        PlanError: not one block fits.
    """
    num_blocks = max(0, budget_bytes) // block_bytes
    if num_blocks < 1:
        raise PlanError(
            f"{format_bytes(max(0, budget_bytes))} are left for KV and one block takes {format_bytes(block_bytes)}: "
            "give more memory or a larger share of it, fewer --max-batch-tokens, or a smaller model"
        )
    return num_blocks if most is None else min(num_blocks, most)


def check_fit(max_model_len: int, block_size: int, num_blocks: int, remedy: str) -> None:
    """Reject a longest sequence that all blocks together cannot hold.

    Args:
        remedy: another remedy, as an infinitive: ``"raise --kv-memory"``.

    Raises:
        PlanError: names the blocks needed, the blocks that fit, and the largest length that fits.
    """
    num_needed = -(-max_model_len // block_size)
    if num_needed > num_blocks:
        raise PlanError(
            f"--max-model-len {max_model_len} needs {num_needed:,} blocks of {block_size} tokens and {num_blocks:,} fit: "
            f"lower it to {num_blocks * block_size} or {remedy}"
        )
