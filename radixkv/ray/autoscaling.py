"""The number of workers, by the time that prompts wait."""

from __future__ import annotations

import math
from typing import Any

__all__ = ["BACKLOG_S", "by_backlog"]

BACKLOG_S = 2.0
"""Seconds of prompts that a worker may have accepted and not computed."""


def by_backlog(context: Any) -> tuple[int, dict[str, Any]]:
    """As many workers as their backlog together takes, at `BACKLOG_S` each; a policy of Ray Serve.

    Args:
        context: Serve's `AutoscalingContext`, with the `backlog_s` of each replica.
    """
    backlogs = (context.aggregated_metrics or {}).get("backlog_s", {})
    if not backlogs:
        return context.target_num_replicas, {}
    wanted = math.ceil(sum(backlogs.values()) / BACKLOG_S)
    least, most = context.capacity_adjusted_min_replicas, context.capacity_adjusted_max_replicas
    return min(max(wanted, least), most), {}
