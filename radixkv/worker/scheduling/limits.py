"""Bounds of scheduling, built once and passed down."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SchedulerLimits"]


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Bounds of a round.

    max_running: sequences held at once by admission, including a generation's coming forks. One generation may exceed it, and
        an owner that holds less than an equal part of it may start one more.
    max_batch_tokens: positions per forward, decodes and prefill chunks together; decodes first, and at least one chunk. It
        bounds the time between two tokens of a branch: by default that of a chunk and 64 decodes.
    chunk_tokens: prefill chunks end at multiples of it.
    max_scored_tokens: positions of a forward whose logits score prompts; each has the vocabulary's width.
    max_wait_s: after this wait no request of its owner overtakes a request.
    preemption: ``"recompute"`` or ``"swap"``.
    swap_blocks: host slots for swapped blocks, unless a block store has some; when they are full, a branch is recomputed.
    """

    max_running: int = 64
    max_batch_tokens: int = 320
    chunk_tokens: int = 256
    max_scored_tokens: int = 256
    max_wait_s: float = 10.0
    preemption: str = "recompute"
    swap_blocks: int = 0
