"""Bounds of speculation, built once and passed down."""

from __future__ import annotations

import math
from dataclasses import dataclass

from radixkv.core.errors import InvalidArgumentError

__all__ = ["DEFAULT_BYTES", "DEFAULT_TOKENS", "MAX_TOKENS", "SPECULATIONS", "SpeculationSettings"]

DEFAULT_TOKENS, MAX_TOKENS = 16, 64
DEFAULT_BYTES = 64 << 20
SPECULATIONS = ("auto", "off")


@dataclass(frozen=True, slots=True)
class SpeculationSettings:
    """Bounds.

    num_tokens: most tokens drafted for a branch in a step.
    max_bytes: of all indexes: half for running requests, half for recent replies, of these at most a quarter per namespace.
    shared_tokens: branches that may have so many tokens of common blocks with another one of the step draft nothing, because
        attention then reads these blocks once for both, and the split of its sums depends on the step.
    always: draft whatever is found, whatever it costs.
    """

    num_tokens: int = DEFAULT_TOKENS
    max_bytes: int = DEFAULT_BYTES
    shared_tokens: float = math.inf
    always: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.num_tokens <= MAX_TOKENS:
            raise InvalidArgumentError("draft_tokens", self.num_tokens, f"between 1 and {MAX_TOKENS}")
        if self.max_bytes < 0:
            raise InvalidArgumentError("draft_bytes", self.max_bytes, "at least 0")
