"""The machine over `PrefixCache` in its own process."""

from __future__ import annotations

from itertools import count
from unittest.mock import patch

from hypothesis import HealthCheck, settings

from radixkv.core import node
from radixkv.core.api import CacheHolder, PoolShape
from radixkv.core.cache import PrefixCache

from .machine import CacheMachine

__all__ = ["InProcess", "InProcessMachine"]


class InProcess:
    """A clock that never shows the same time twice makes the order of eviction exact."""

    def open(self, shape: PoolShape) -> CacheHolder:
        ticks = count(1)
        return PrefixCache(shape.num_blocks, shape.block_size, clock=lambda: float(next(ticks)), event_capacity=4096)

    def interrupt(self, holder: CacheHolder) -> None:
        """There is nothing to break."""

    def close(self, holder: CacheHolder) -> None:
        """There is nothing to close."""


class InProcessMachine(CacheMachine):
    backend = InProcess()


TestInProcess = InProcessMachine.TestCase
TestInProcess.settings = settings(
    max_examples=700,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


class TestManySiblings(TestInProcess):  # type: ignore[misc, valid-type]  # Hypothesis makes it at run time
    """The same, with siblings kept in their sorted index from the second on."""

    settings = settings(TestInProcess.settings, max_examples=150)

    def setUp(self) -> None:
        patcher = patch.object(node, "FEW_CHILDREN", 1)
        patcher.start()
        self.addCleanup(patcher.stop)
