"""One figure for those of several workers, and the ids that a prompt ends with."""

from __future__ import annotations

from typing import Any

import pytest

from radixkv.core.tokens import pack_tokens
from radixkv.gateway.backend.routed import _last, _together, worker_prefix
from radixkv.generation.stats import Percentiles


@pytest.mark.parametrize(
    ("told", "together"),
    [
        ((3, 4, 0), 7),
        ((0.5, 2.25), 2.75),
        ((Percentiles(1, 5, 9), Percentiles(3, 4, 10)), Percentiles(3, 5, 10)),
        (("lru", "lru"), "lru"),
        (((1, 2), (3, 4, 5), ()), (4, 6, 5)),
        (({"a": 1, "b": 2}, {"b": 3, "c": 4}, {}), {"a": 1, "b": 5, "c": 4}),
    ],
)
def test_figures_are_added_and_of_latencies_the_largest_is_taken(told: tuple[Any, ...], together: Any) -> None:
    assert _together(told) == together
    assert type(_together(told)) is type(together)
    assert _together(told[:1]) == told[0]


def test_a_prompt_is_cut_to_its_last_tokens() -> None:
    tokens = pack_tokens(range(5))
    for limit in range(1, 8):
        assert _last(tokens, limit) == pack_tokens(range(max(0, 5 - limit), 5))
    for none in (0, -1):
        assert _last(tokens, none) == tokens


def test_a_worker_is_named_by_its_prefix_without_its_address() -> None:
    addresses = [f"10.0.0.{number}:50052" for number in range(100)]
    prefixes = {worker_prefix(address) for address in addresses}
    assert len(prefixes) == 100
    assert all(len(prefix) == 13 and "10.0" not in prefix for prefix in prefixes)
