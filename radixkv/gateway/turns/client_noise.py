"""What clients put before a prompt for somebody else, new in each conversation: the model is not told, so that prefixes agree.

Claude Code   x-anthropic-billing-header: cc_version=2.1.197.123; cc_entrypoint=cli; cch=5f0b1;   as the first system block
"""

from __future__ import annotations

import re

__all__ = ["without_noise"]

_NOISE = re.compile(r"\s*x-anthropic-billing-header:[^\n]*\n*")


def without_noise(system: str) -> str:
    """A system text without what `_NOISE` finds at its beginning. O(1), but for the copy where it finds something."""
    found = _NOISE.match(system)
    return system[found.end() :] if found else system
