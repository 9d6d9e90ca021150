"""Bounds of scheduling, built once and passed down."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from radixkv.core.errors import InvalidArgumentError

__all__ = ["ADMISSIONS", "LimitsWish", "SchedulerLimits"]

ADMISSIONS = ("estimate", "worst-case")


@dataclass(frozen=True, slots=True)
class LimitsWish:
    """Bounds of a round, as a user sets them.

    max_running: sequences held at once by admission, including a generation's coming forks. One generation may exceed it, and
        an owner that holds less than an equal part of it may start one more. None: 64, on CUDA 256.
    max_batch_tokens: positions per forward, decodes and prefill chunks together; decodes first, and at least one chunk. It
        bounds the time between two tokens of a branch: by default on a CPU that of a chunk and 64 decodes. None: 320, on CUDA
        8,192.
    chunk_tokens: prefill chunks end at multiples of it. None: 256, on CUDA 2,048, and at most `max_batch_tokens`.
    max_scored_tokens: positions of a forward whose logits score prompts; each has the vocabulary's width.
    max_wait_s: after this wait no request of its owner overtakes a request.
    preemption: ``"recompute"`` or ``"swap"``.
    swap_blocks: host slots for swapped blocks, unless a block store has some; when they are full, a branch is recomputed.
    admission: ``"estimate"``: a branch starts once its history and its expected output have blocks, see `length_estimate`.
        ``"worst-case"``: once its longest output has them, of all of its branches, and nothing is ever preempted.

    Raises:
        InvalidArgumentError: another admission.
    """

    max_running: int | None = None
    max_batch_tokens: int | None = None
    chunk_tokens: int | None = None
    max_scored_tokens: int = 256
    max_wait_s: float = 10.0
    preemption: str = "recompute"
    swap_blocks: int = 0
    admission: str = "estimate"

    def __post_init__(self) -> None:
        if self.admission not in ADMISSIONS:
            raise InvalidArgumentError("admission", self.admission, f"one of {', '.join(ADMISSIONS)}")

    def fill(self, device_type: str) -> SchedulerLimits:
        """These bounds, with the defaults for a device of this type where they are None."""
        usual = _CUDA_LIMITS if device_type == "cuda" else SchedulerLimits()
        filled = replace(usual, **{name: value for name, value in asdict(self).items() if value is not None})
        if self.chunk_tokens is None:
            return replace(filled, chunk_tokens=min(filled.chunk_tokens, filled.max_batch_tokens))
        return filled


@dataclass(frozen=True, slots=True)
class SchedulerLimits(LimitsWish):
    """Bounds of a round, all of them set; by default those of a CPU.

    max_beside: background branches that run with others' decodes.
    """

    max_running: int = 64
    max_batch_tokens: int = 320
    chunk_tokens: int = 256
    max_beside: int = 4


_CUDA_LIMITS = SchedulerLimits(max_running=256, max_batch_tokens=8192, chunk_tokens=2048, max_beside=64)
"""A GPU computes hundreds of positions in the time in which it reads the weights once."""
