"""Removes per-conversation headers that clients put in front of a prompt, so that prefixes match across conversations.

Claude Code   x-anthropic-billing-header: cc_version=2.1.197.123; cc_entrypoint=cli; cch=5f0b1;   as the first system block
"""

from __future__ import annotations

import re

__all__ = ["without_noise"]

_NOISE = re.compile(r"\s*x-anthropic-billing-header:[^\n]*\n*")


def without_noise(system: str) -> str:
    """Return a system text without a leading header that `_NOISE` matches. O(1), except the copy on a match."""
    found = _NOISE.match(system)
    return system[found.end() :] if found else system
