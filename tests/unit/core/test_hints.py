"""What a holder tells of blocks below its pool: `match` has it, for its own namespace alone, within a bound."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from radixkv import CacheEvent, HintOp, InvalidArgumentError, MatchOp, MatchResult, PrefixCache, pack_tokens
from radixkv.core.reports import Tier
from radixkv.core.tree.hashes import chained_hashes, namespace_hash
from radixkv.core.tree.hints import HINTED_TIERS, StoredHints

TOKENS = pack_tokens(range(22))


def hashes(num_blocks: int, namespace: str = "default") -> array[int]:
    return chained_hashes(namespace_hash(namespace), TOKENS[: 16 * num_blocks], 16)


def caching(num_tokens: int, namespace: str = "default") -> PrefixCache:
    """A cache of blocks of four that has the first tokens."""
    cache = PrefixCache(16, 4)
    seq = cache.acquire(TOKENS[: 4 * num_tokens], namespace=namespace)
    cache.insert(seq.seq_id, num_tokens)
    cache.release(seq.seq_id)
    return cache


def told(events: list[CacheEvent]) -> list[tuple[str, str, str, list[int]]]:
    return [(one.kind, one.tier, one.namespace, list(one.block_hashes)) for one in events if one.tier != "device"]


def test_a_match_goes_on_below_the_pool_up_to_the_first_block_that_is_nowhere() -> None:
    cache = caching(10)
    cache.hint("disk", hashes(5))
    cache.hint("host", hashes(3)[2:])
    assert cache.match(TOKENS) == MatchResult(10, 10, 2, 8), "of the block that the match ends in only the rest counts"
    assert cache.match(TOKENS[: 4 * 15]) == MatchResult(10, 10, 2, 0), "whole blocks of the prompt only"
    assert cache.step([MatchOp(TOKENS)]) == [MatchResult(10, 10)], "the holder knows it itself"
    explained = cache.explain(TOKENS)
    assert (explained.num_tokens, explained.num_host_tokens, explained.num_disk_tokens) == (10, 2, 8)
    cache.hint("disk", lost=hashes(4)[3:])
    assert cache.match(TOKENS) == MatchResult(10, 10, 2, 0)
    cache.hint("host", hashes(5)[3:])
    assert cache.match(TOKENS) == MatchResult(10, 10, 10, 0)
    cache.check()


def test_a_hint_is_never_relied_on() -> None:
    cache = PrefixCache(16, 4)
    cache.hint("disk", hashes(5))
    assert cache.acquire(TOKENS).num_cached_tokens == 0


def test_another_namespace_sees_no_hint_and_a_derived_one_its_own() -> None:
    cache = PrefixCache(16, 4)
    cache.hint("disk", hashes(5, "red"), namespace="red")
    cache.hint("disk", hashes(2, "red#adapter=fine"), namespace="red#adapter=fine")
    cache.hint("disk", hashes(5, "blue"), namespace="red")  # by a holder that errs
    assert cache.match(TOKENS, namespace="red").num_disk_tokens == 20
    assert cache.match(TOKENS, namespace="red#adapter=fine").num_disk_tokens == 8
    for other in ("blue", "default", "red#adapter=other"):
        assert cache.match(TOKENS, namespace=other) == MatchResult(0, 0)
    assert [(use.namespace, use.num_disk_blocks) for use in cache.usage()] == [("red", 12)]
    assert cache.usage("red#adapter=fine")[0].num_disk_blocks == 12
    assert cache.usage("blue")[0].num_disk_blocks == 0
    assert cache.stats().num_disk_blocks == 12


def test_a_cleared_namespace_loses_its_hints() -> None:
    cache = caching(10)
    number = cache.events()[-1].sequence_number + 1
    cache.hint("disk", hashes(5))
    cache.hint("host", hashes(1))
    cache.hint("disk", hashes(1, "other"), namespace="other")
    cache.clear()
    assert cache.match(TOKENS) == MatchResult(0, 0)
    assert (cache.stats().num_host_blocks, cache.stats().num_disk_blocks) == (0, 1)
    assert told(cache.events(number))[-2:] == [
        ("removed", "host", "default", list(hashes(1))),
        ("removed", "disk", "default", list(hashes(5))),
    ]


def test_events_have_the_hashes_of_each_tier_and_so_has_a_snapshot() -> None:
    cache = caching(20)
    number = cache.events()[-1].sequence_number + 1
    cache.hint("disk", hashes(5))
    cache.hint("disk", hashes(5)[3:], hashes(4)[2:])  # what is known, or lost and saved at once, changes nothing else
    cache.hint("disk", lost=hashes(1, "other"), namespace="other")
    cache.hint("disk", hashes(1, "other"), namespace="other")
    changes = cache.events(number)
    assert [event.sequence_number for event in changes] == list(range(number, number + len(changes)))
    assert told(changes) == [
        ("stored", "disk", "default", list(hashes(5))),
        ("removed", "disk", "default", list(hashes(4)[2:])),
        ("stored", "disk", "default", list(hashes(4)[3:])),
        ("stored", "disk", "other", list(hashes(1, "other"))),
    ]
    snapshot = cache.events()
    assert [event.kind for event in snapshot] == ["reset", "stored", "stored", "stored", "synced"]
    assert snapshot[1].block_hashes == hashes(5), "the same names as on the device"
    assert {each: set(names) for _, _, each, names in told(snapshot)} == {
        "default": set(hashes(5)) - set(hashes(3)[2:]),
        "other": set(hashes(1, "other")),
    }
    own = cache.events(namespace="other")
    assert told(own) == [("stored", "disk", "other", list(hashes(1, "other")))]


def test_a_hint_that_changes_while_a_snapshot_is_read_ends_right() -> None:
    cache = caching(20)
    cache.hint("disk", hashes(5))
    reader = cache.subscribe_events()
    seen: set[int] = set()
    changes: list[Callable[[], None]] = [
        lambda: cache.hint("disk", lost=hashes(2)),
        lambda: cache.hint("host", hashes(1)),
        lambda: None,
    ]
    for change in changes * 4:
        for kind, tier, _, names in told(reader.take(1)):
            if tier == "disk":
                seen = seen | set(names) if kind == "stored" else seen - set(names)
        change()
    while not reader.is_current:
        reader.take()
    assert seen == set(hashes(5)[2:])


def test_the_owner_with_the_most_hints_loses_its_oldest() -> None:
    hints = StoredHints(10)
    hints.tell("disk", "many", range(8), ())
    changes = hints.tell("disk", "few", range(100, 104), ())
    assert [(one.owner, list(one.saved), list(one.lost)) for one in changes] == [
        ("few", [100, 101, 102, 103], []),
        ("many", [], [0, 1]),
    ]
    hints.tell("disk", "more", range(200, 250), ())
    assert hints.num("disk") == 10
    assert list(hints.hashes("disk", "few")) == [100, 101, 102, 103]
    hints.tell("host", "few", (1,), ())
    assert (hints.num("host"), hints.num("disk")) == (1, 10), "each tier has its own bound"
    told = {(tier, owner): list(hints.hashes(tier, owner)) for tier in HINTED_TIERS for owner in hints.owners()}
    for size in (1, 2, 3, 50):
        parts: dict[tuple[Tier, str], list[int]] = {}
        for part in hints.slices(size):
            assert 0 < len(part.saved) <= size
            assert not part.lost
            parts.setdefault((part.tier, part.owner), []).extend(part.saved)
        assert parts == {key: each for key, each in told.items() if each}
    assert hints.owners() == {owner for _, owner in parts}


@pytest.mark.parametrize("tier", ["device", "remote", "tape", "", 3])
def test_there_are_hints_of_two_tiers(tier: str) -> None:
    with pytest.raises(InvalidArgumentError, match="tier"):
        PrefixCache(16, 4).hint(tier, [1])  # type: ignore[arg-type]  # is the case


@pytest.mark.parametrize("bad", [[-1], [2**64], ["a"], "ab", b"abcdefgh", {1: 2}, range(65_537), None])
def test_hashes_are_bounded(bad: object) -> None:
    cache = PrefixCache(16, 4)
    for argument in ("saved", "lost"):
        with pytest.raises(InvalidArgumentError, match=argument):
            cache.hint("disk", **{argument: bad})  # type: ignore[arg-type]  # is the case
    (error,) = cache.step([HintOp("disk", bad)])  # type: ignore[arg-type]  # is the case
    assert isinstance(error, InvalidArgumentError)
    assert cache.stats().num_disk_blocks == 0
