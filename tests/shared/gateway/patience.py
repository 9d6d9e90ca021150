"""Patience of a gateway's own: a machine that does much else is no service, worker or database that does not answer."""

from __future__ import annotations

import pytest

from radixkv.gateway.backend.pools import CachePools
from radixkv.gateway.pages.cache_view.view import CacheView

__all__ = ["wait_for_all"]

PATIENCE_S = 20.0
"""Not without end: a call that a stopping server has rejected is now and then ended by its deadline alone."""
_WAITS = (
    "api.conversations.replies.pricing.ANSWER_S",
    "backend.clears.CLEAR_S",
    "backend.pools.ASK_S",
    "backend.pools._SLOW_S",
    "http.shared_limits.TIMEOUT_S",
    "storage.shared_streams.TIMEOUT_S",
    "storage.transcript_cache.LOOK_UP_S",
)


def wait_for_all(patch: pytest.MonkeyPatch) -> None:
    """Have gateways wait for what answers late; what is gone they are told at once all the same."""
    for name in _WAITS:
        patch.setattr(f"radixkv.gateway.{name}", PATIENCE_S)
    patch.setattr(CachePools.ask, "__defaults__", (PATIENCE_S, None))
    for method in (CachePools.ask_pool, CacheView.ask):
        patch.setattr(method, "__defaults__", (PATIENCE_S,))
