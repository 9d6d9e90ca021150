"""Places shared among callers: one alone gets half, many get their part, and a newcomer always gets in."""

from __future__ import annotations

import pytest

from radixkv.core.errors import LimitError
from radixkv.net.shares import Place, Shares


def take_all(shares: Shares, *keys: str) -> dict[str, list[Place]]:
    """What each gets where all ask in turn until none gets any more."""
    held: dict[str, list[Place]] = {key: [] for key in keys}
    wanting = list(keys)
    while wanting:
        for key in list(wanting):
            try:
                held[key].append(shares.take(key))
            except LimitError:
                wanting.remove(key)
    return held


@pytest.mark.parametrize("num_greedy", [1, 2, 3, 7, 20])
def test_greedy_callers_get_equal_parts_and_a_newcomer_gets_one_too(num_greedy: int) -> None:
    shares = Shares(256, "calls run")
    held = take_all(shares, *map(str, range(num_greedy)))
    counts = [len(places) for places in held.values()]
    assert max(counts) - min(counts) <= 1
    assert 256 // (num_greedy + 1) <= counts[0] <= 256 // (num_greedy + 1) + 1
    newcomer = take_all(shares, "newcomer")["newcomer"]
    assert len(newcomer) >= (256 - sum(counts)) // 2


def test_a_place_that_is_given_back_is_there_again_once() -> None:
    shares = Shares(4, "generations stream")
    first, second = shares.take("a"), shares.take("a")
    with pytest.raises(LimitError, match="2 generations stream already for this caller, its share of 4") as refused:
        shares.take("a")
    assert refused.value.retry_after_s == 1.0
    first.close()
    first.close()
    third = shares.take("a")
    with pytest.raises(LimitError):
        shares.take("a")
    with second, third:
        pass
    assert len(take_all(shares, "a")["a"]) == 2


def test_what_is_nobodys_may_take_the_last_place() -> None:
    shares = Shares(2, "calls run")
    with shares.take(None), shares.take(None):
        with pytest.raises(LimitError, match="2 calls run already; try again later"):
            shares.take(None)
        with pytest.raises(LimitError):
            shares.take("a")
    shares.take("a")


def test_one_place_is_for_whoever_comes() -> None:
    shares = Shares(1, "calls run")
    with shares.take("a"), pytest.raises(LimitError):
        shares.take("b")
    shares.take("b")
