"""The machine over `PrefixCache` in its own process."""

from __future__ import annotations

from itertools import count
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from radixkv.core.api import CacheHolder, PoolShape
from radixkv.core.cache.prefix_cache import PrefixCache
from radixkv.core.eviction import POLICIES, AdaptivePolicy, PolicyFactory, adaptive
from radixkv.core.nodes import node
from radixkv.core.nodes.node import Node

from .machine.driver import PIN_TTL_S
from .machine.machine import CacheMachine

__all__ = ["InProcess", "InProcessMachine"]


class InProcess:
    """A clock that never shows the same time twice makes the order of eviction exact. In every other pool those who follow
    fall behind time and again.
    """

    def __init__(self, eviction: str | PolicyFactory = "lru") -> None:
        self.eviction = eviction
        self._ticks = count(1)

    def open(self, shape: PoolShape) -> CacheHolder:
        self._ticks = count(1)
        return PrefixCache(
            shape.num_blocks,
            shape.block_size,
            eviction=self.eviction,
            clock=lambda: float(next(self._ticks)),
            event_capacity=6 if shape.num_blocks % 4 else 4096,
            pin_budget=PIN_TTL_S * shape.num_blocks,
        )

    def pass_time(self, holder: CacheHolder) -> bool:  # noqa: ARG002  there is one clock
        self._ticks = count(next(self._ticks) + PIN_TTL_S)
        return True

    def interrupt(self, holder: CacheHolder) -> None:
        """There is nothing to break."""

    def close(self, holder: CacheHolder) -> None:
        """There is nothing to close."""


class InProcessMachine(CacheMachine):
    backend = InProcess()


def run_machine(machine: type[CacheMachine], max_examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )


def examples(quick: int, thorough: int) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("max_examples", [quick, pytest.param(thorough, marks=pytest.mark.thorough)])


@examples(100, 500)
def test_every_call_keeps_the_contracts(max_examples: int) -> None:
    run_machine(InProcessMachine, max_examples)


@examples(20, 150)
@pytest.mark.parametrize("eviction", sorted(set(POLICIES) - {"lru"}))
def test_every_policy_keeps_the_contracts(eviction: str, max_examples: int) -> None:
    run_machine(type("EvictionMachine", (CacheMachine,), {"backend": InProcess(eviction)}), max_examples)


class RestlessPolicy(AdaptivePolicy):
    """Follows another order time and again, so that leaves are often on their way from one queue to the next."""

    __slots__ = ()

    def rest(self, node: Node, rested_before: int, namespace: str, now: int) -> None:
        super().rest(node, rested_before, namespace, now)
        self._contest.followed = ("hit-density", "lru", "lfu")[node.access_number // 3 % 3]


@examples(40, 150)
def test_a_policy_that_follows_one_order_after_the_other_keeps_the_contracts(max_examples: int) -> None:
    machine = type("RestlessMachine", (CacheMachine,), {"backend": InProcess(RestlessPolicy)})
    with patch.object(adaptive, "NUM_REFILED", 1):
        run_machine(machine, max_examples)


@examples(40, 150)
def test_siblings_in_their_sorted_index_from_the_second_on_keep_the_contracts(max_examples: int) -> None:
    with patch.object(node, "FEW_CHILDREN", 1):
        run_machine(InProcessMachine, max_examples)
