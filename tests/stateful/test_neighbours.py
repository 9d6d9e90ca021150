"""What one namespace says its histories are worth takes nothing from another, whatever the policy."""

from __future__ import annotations

import pytest

from radixkv.core.eviction import POLICIES

from .neighbours import check_neighbour


@pytest.mark.parametrize("eviction", POLICIES)
@pytest.mark.parametrize("seed", range(5))
def test_priorities_of_one_namespace_cost_another_no_block(seed: int, eviction: str) -> None:
    assert check_neighbour(seed, eviction) > 0, "no leaf ever went in the stead of another"
