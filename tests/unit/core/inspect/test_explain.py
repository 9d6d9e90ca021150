"""Explanations: where a prompt parts from what is cached, and why."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import pytest

from radixkv import EvictedTokens, Explanation, InvalidArgumentError, NamespaceMatch, PrefixCache, pack_tokens
from radixkv.core.eviction import LRUPolicy
from radixkv.core.eviction.evicted import MIN_EDGES, EvictedBranches
from radixkv.core.nodes import node
from radixkv.core.nodes.node import Node
from radixkv.core.tree.accounts import NamespaceAccount, Partition
from radixkv.core.tree.roots import RootNode

SYSTEM = [1] * 8
A, B = [*SYSTEM, 2, 2, 2, 2, 3, 3, 3, 3], [*SYSTEM, 2, 2, 9, 9, 4, 4, 4, 4]


class Bench:
    """A cache of blocks of 4 with a clock that stands until it is moved."""

    def __init__(self, num_blocks: int = 32, **settings: Any) -> None:
        self.now_s = 100.0
        self.cache = PrefixCache(num_blocks, 4, clock=lambda: self.now_s, eviction="lru", **settings)

    def store(self, tokens: list[int], namespace: str = "default", *, keep: bool = True) -> None:
        self.now_s += 1
        seq = self.cache.acquire(tokens, namespace=namespace)
        self.cache.insert(seq.seq_id, len(tokens))
        self.cache.release(seq.seq_id, keep)

    def explain(
        self, tokens: list[int], namespace: str = "default", other_namespaces: tuple[str, ...] = ()
    ) -> Explanation:
        """Explain twice: it is a pure read, and says what a match says."""
        before = self.cache.dump(), self.cache.stats()
        explanation = self.cache.explain(tokens, namespace=namespace, other_namespaces=other_namespaces)
        assert self.cache.explain(tokens, namespace=namespace, other_namespaces=other_namespaces) == explanation
        assert (self.cache.dump(), self.cache.stats()) == before
        assert explanation.num_tokens == self.cache.match(tokens, namespace=namespace).num_tokens
        assert explanation.num_prompt_tokens == len(tokens)
        self.cache.check()
        return explanation

    def evicted(self, tokens: list[int], namespace: str = "default") -> EvictedTokens | None:
        explanation = self.explain(tokens, namespace)
        assert (explanation.cause == "evicted") == (explanation.evicted is not None)
        return explanation.evicted

    def evicted_tokens(self, tokens: list[int]) -> int:
        evicted = self.evicted(tokens)
        return 0 if evicted is None else evicted.num_tokens

    def missed(self) -> tuple[int, int, int]:
        stats = self.cache.stats()
        return stats.num_missed_new_tokens, stats.num_missed_parted_tokens, stats.num_missed_evicted_tokens


def explanation(prompt: list[int], num_tokens: int, cause: Any, **more: Any) -> Explanation:
    wanted = pack_tokens(prompt[num_tokens : num_tokens + 4])
    known: dict[str, Any] = {"found": b"", "num_siblings": 0, "evicted": None, "elsewhere": None}
    return Explanation(len(prompt), num_tokens, cause, wanted, **(known | more))


def test_a_prompt_of_which_all_is_cached_misses_nothing() -> None:
    bench = Bench()
    bench.store([*A, 5])
    for prompt in (A, [*A, 5], A[:3], []):
        assert bench.explain(prompt) == explanation(prompt, len(prompt), "cached")


def test_a_namespace_that_holds_nothing_is_empty() -> None:
    bench = Bench()
    assert bench.explain(A) == explanation(A, 0, "empty")
    bench.store(A)
    assert bench.explain(A, "other") == explanation(A, 0, "empty")
    assert bench.explain(B, "other") == explanation(B, 0, "empty")


@pytest.mark.parametrize("length", [8, 10, 16])
def test_a_prompt_that_goes_on_where_the_history_ends_is_told_so(length: int) -> None:
    bench = Bench()
    bench.store(A[:length])
    prompt = [*A[:length], 7, 7, 7, 7, 7]
    assert bench.explain(prompt) == explanation(prompt, length, "ended")


def test_a_prompt_that_parts_inside_an_edge_is_told_the_token_there() -> None:
    bench = Bench()
    bench.store(A)
    found = pack_tokens([2, 2, 3, 3])
    assert bench.explain(B) == explanation(B, 10, "parted", found=found, num_siblings=1)
    other = [9, *SYSTEM]
    assert bench.explain(other) == explanation(other, 0, "parted", found=pack_tokens([1] * 4), num_siblings=1)


def test_siblings_below_a_split_are_counted_and_the_one_used_last_is_shown() -> None:
    bench = Bench()
    for question in (5, 6, 7):
        bench.store([*SYSTEM, *[question] * 4])
    prompt = [*SYSTEM, 8, 8, 8, 8]
    assert bench.explain(prompt) == explanation(prompt, 8, "parted", found=pack_tokens([7] * 4), num_siblings=3)
    opened = bench.cache.acquire([*SYSTEM, *[5] * 4, 1])
    assert bench.explain(prompt).found == pack_tokens([5] * 4), "one in use comes first"
    bench.cache.release(opened.seq_id)


@pytest.mark.parametrize("few_children", [8, 1])
def test_only_siblings_that_share_as_much_are_counted_also_in_the_block_where_they_part(
    few_children: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "FEW_CHILDREN", few_children)
    bench = Bench()
    for ending in ([5, 5, 1, 1], [5, 5, 2, 2], [5, 6, 3, 3], [7, 7, 7, 7]):
        bench.store([*SYSTEM, *ending])
    prompt = [*SYSTEM, 5, 5, 8, 8]
    assert bench.explain(prompt) == explanation(prompt, 10, "parted", found=pack_tokens([2, 2]), num_siblings=2)


def test_beside_a_tail_that_ends_the_longer_sibling_is_shown() -> None:
    bench = Bench()
    bench.store([*SYSTEM, 5, 5, 6, 6])
    bench.store([*SYSTEM, 5, 7])
    prompt = [*SYSTEM, 5, 7, 8, 8]
    assert bench.explain(prompt) == explanation(prompt, 10, "ended")
    prompt = [*SYSTEM, 5, 8, 8, 8]
    assert bench.explain(prompt).num_siblings == 2


def test_what_was_evicted_by_a_call_is_told_with_its_time_and_extent() -> None:
    bench = Bench()
    bench.store([*A, 5, 5])
    bench.now_s = 200.0
    bench.cache.evict(100)
    bench.now_s = 260.0
    assert bench.explain(A) == explanation(A, 0, "evicted", evicted=EvictedTokens(16, 60.0, "evict"))
    assert bench.evicted(B) == EvictedTokens(10, 60.0, "evict"), "as far as it was the same, to the token"
    assert bench.evicted([3, *A]) is None
    assert bench.evicted([*A, 5, 5]) == EvictedTokens(16, 60.0, "evict"), "of a tail nothing is remembered"


def test_what_gave_way_to_others_was_evicted_under_pressure() -> None:
    bench = Bench(num_blocks=4)
    bench.store(A)
    bench.store([7] * 16)
    assert bench.evicted(A) == EvictedTokens(16, 0.0, "pressure")


def test_a_branch_evicted_leaf_by_leaf_is_told_as_one() -> None:
    bench = Bench()
    prompt = [*A, 5, 5, 5, 5]
    for branch in ([*A, 6, 6, 6, 6], prompt, [*SYSTEM, 7, 7, 7, 7]):
        bench.store(branch)
    expected, num_left = None, []
    while bench.cache.dump():
        bench.now_s += 10
        bench.cache.evict(1)
        num_tokens = bench.cache.match(prompt).num_tokens
        if num_tokens < len(prompt) and num_tokens not in num_left:
            num_left.append(num_tokens)
            expected = EvictedTokens(20 - num_tokens, 0.0, "evict")
        elif expected is not None:
            expected = expected._replace(ago_s=expected.ago_s + 10)
        assert bench.evicted(prompt) == expected
    assert num_left == [16, 12, 8, 4, 0], "it went from its end, and each time what went last is where it parts"


def test_an_evicted_branch_beside_a_sibling_is_the_cause_and_the_sibling_is_shown() -> None:
    bench = Bench()
    bench.store(A)
    bench.store([*SYSTEM, 6, 6, 6, 6])
    bench.cache.evict(2)
    found = pack_tokens([6] * 4)
    evicted = EvictedTokens(8, 0.0, "evict")
    assert bench.explain(A) == explanation(A, 8, "evicted", found=found, num_siblings=1, evicted=evicted)


def test_what_was_evicted_is_found_again_after_splits_growth_and_merges() -> None:
    bench = Bench()
    bench.store(A)
    bench.store([*SYSTEM, 6, 6, 6, 6])
    bench.cache.evict(2)
    grown = bench.cache.acquire(SYSTEM)
    bench.cache.evict(2)
    bench.cache.extend(grown.seq_id, 16)
    bench.cache.insert(grown.seq_id, 16, [7] * 8)
    assert len(bench.cache.dump()) == 1, "the edge was lengthened past the place where A hung"
    assert bench.evicted_tokens(A) == 8
    bench.store([*SYSTEM, 8, 8, 8, 8])
    assert len(bench.cache.dump()) == 3, "and split there"
    assert bench.evicted_tokens(A) == 8
    bench.store([1, 1, 1, 1, 4, 4, 4, 4])
    assert bench.evicted_tokens(A) == 8
    bench.cache.release(grown.seq_id)
    bench.cache.evict(100)
    assert bench.evicted_tokens(A) == 16


def test_what_was_evicted_is_found_again_below_an_edge_that_merged_into_its_only_child() -> None:
    bench = Bench()
    bench.store(A)
    above, below = bench.cache.acquire(SYSTEM), bench.cache.acquire([*SYSTEM, 6, 6, 6, 6])
    bench.cache.insert(below.seq_id, 12)
    bench.cache.evict(2)
    assert len(bench.cache.dump()) == 2
    bench.cache.release(above.seq_id)
    assert len(bench.cache.dump()) == 1
    assert bench.evicted_tokens(A) == 8


def test_what_was_evicted_is_found_again_below_a_tail_that_took_another_node_s_place() -> None:
    bench = Bench()
    decoding = bench.cache.acquire(SYSTEM, reserve=8)
    bench.cache.insert(decoding.seq_id, 8)
    bench.cache.extend(decoding.seq_id, 12)
    bench.cache.insert(decoding.seq_id, 9, [5])
    for ending in (6, 7):
        bench.store([*SYSTEM, 5, 5, 5, 5, *[ending] * 4])
    bench.cache.evict(2)
    bench.cache.insert(decoding.seq_id, 12, [5] * 3)
    assert len(bench.cache.dump()) == 1, "the tail filled up and was absorbed"
    for ending in (6, 7):
        assert bench.evicted_tokens([*SYSTEM, 5, 5, 5, 5, *[ending] * 4]) == 4


def test_what_hung_below_a_cut_branch_is_not_told_of_what_grows_there_instead() -> None:
    bench = Bench()
    bench.store(SYSTEM)
    first = bench.cache.acquire([*SYSTEM, 5, 5, 5, 5, 6, 6, 6, 6])
    bench.cache.insert(first.seq_id, 12)
    user = bench.cache.acquire([*SYSTEM, 5, 5])
    bench.cache.insert(first.seq_id, 16)
    bench.cache.release(first.seq_id, keep=False)
    bench.cache.release(user.seq_id, keep=False)
    assert bench.evicted_tokens([*SYSTEM, 5, 5, 5, 5, 6, 6, 6, 6]) == 6
    bench.store([*SYSTEM, 5, 5, 4, 4])
    prompt = [*SYSTEM, 5, 5, 4, 4, 6, 6, 6, 6]
    assert bench.explain(prompt) == explanation(prompt, 12, "ended")


def test_an_edge_evicted_before_a_split_is_not_taken_for_another_history() -> None:
    bench = Bench()
    bench.store([*SYSTEM, 5, 5, 5, 5, 6, 6, 6, 6])
    bench.store([*SYSTEM, 5, 5, 5, 5])
    bench.cache.evict(1)
    bench.store([*SYSTEM, 4, 4, 4, 4])
    assert bench.evicted([*SYSTEM, 4, 4, 4, 4, 6, 6, 6, 6]) is None
    assert bench.evicted([2] * 8 + [5] * 4 + [6] * 4) is None, "the same blocks below another prefix"


def test_a_branch_published_again_is_cached_and_not_gone() -> None:
    bench = Bench()
    bench.store(A)
    bench.cache.evict(100)
    bench.store(A)
    assert bench.explain(A).cause == "cached"
    prompt = [*A, 5, 5, 5, 5]
    assert bench.explain(prompt).cause == "ended"


def test_of_a_branch_published_again_in_part_the_rest_is_told() -> None:
    bench = Bench()
    bench.store([*A, *B])
    bench.cache.evict(100)
    bench.now_s += 30
    bench.store(A)
    assert bench.evicted([*A, *B]) == EvictedTokens(16, 31.0, "evict")


def test_a_second_eviction_is_told_in_place_of_the_first() -> None:
    bench = Bench()
    bench.store([*A, *B])
    bench.cache.evict(100)
    bench.store(A)
    bench.store([*A, 9, 9, 9, 9])
    bench.now_s = 200.0
    bench.cache.clear()
    bench.now_s = 201.0
    assert bench.evicted([*A, 9, 9, 9, 9]) == EvictedTokens(20, 1.0, "clear")


def test_a_release_without_keep_is_told() -> None:
    bench = Bench()
    bench.store(SYSTEM)
    bench.store(A, keep=False)
    assert bench.evicted(A) == EvictedTokens(8, 0.0, "release")
    seq = bench.cache.acquire(SYSTEM)
    bench.cache.extend(seq.seq_id, 20)
    bench.cache.insert(seq.seq_id, 20, [5] * 12)
    prompt = [*SYSTEM, *[5] * 12]
    other = bench.cache.acquire(prompt[:14])
    bench.cache.release(other.seq_id)
    bench.cache.release(seq.seq_id, keep=False)
    found = explanation([*prompt, 6], 14, "evicted", evicted=EvictedTokens(6, 0.0, "release"))
    assert bench.explain([*prompt, 6]) == found, "what another has used stays"


def test_a_cleared_namespace_is_told_also_of_what_was_in_use() -> None:
    bench = Bench()
    bench.store([*A, 5, 5, 5, 5])
    seq = bench.cache.acquire([*A, 7])
    bench.cache.clear()
    bench.cache.insert(seq.seq_id, 17)
    bench.cache.extend(seq.seq_id, 24)
    bench.cache.insert(seq.seq_id, 24, [8] * 7)
    assert bench.evicted([*A, 5, 5, 5, 5]) == EvictedTokens(20, 0.0, "clear")
    assert bench.evicted([*A, 7, 8, 8, 8, 8]) == EvictedTokens(16, 0.0, "clear"), (
        "what came later was never to be matched"
    )
    bench.cache.release(seq.seq_id)
    assert bench.evicted([*A, 7, 8, 8, 8, 8]) == EvictedTokens(16, 0.0, "clear")


def test_what_one_namespace_lost_is_not_told_in_another() -> None:
    bench = Bench()
    bench.store(A, "mine")
    bench.store(SYSTEM, "yours")
    bench.cache.evict(100)
    assert bench.evicted(A, "mine") == EvictedTokens(16, 0.0, "evict")
    assert bench.evicted(A, "yours") == EvictedTokens(8, 0.0, "evict")
    assert bench.explain(A) == explanation(A, 0, "empty")


def test_other_namespaces_are_looked_at_only_if_they_are_named() -> None:
    bench = Bench()
    bench.store(SYSTEM, "adapter")
    bench.store(A, "salt")
    assert bench.explain(A).elsewhere is None
    assert bench.explain(A, other_namespaces=("adapter",)).elsewhere == NamespaceMatch("adapter", 8)
    assert bench.explain(A, other_namespaces=("adapter", "salt", "none")).elsewhere == NamespaceMatch("salt", 16)
    assert bench.explain(A, "salt", ("adapter",)).elsewhere is None, "no more matches there"


def test_bad_arguments_are_refused_by_name() -> None:
    cache = PrefixCache(8)
    cases: list[tuple[Any, str, Any, str]] = [
        (b"abc", "default", (), "tokens"),
        (A, "", (), "namespace"),
        (A, "default", ("",), "namespace"),
        (A, "default", "other", "other_namespaces"),
        (A, "default", 7, "other_namespaces"),
        (A, "default", ("n",) * 65, "other_namespaces"),
    ]
    for tokens, namespace, other_namespaces, argument in cases:
        with pytest.raises(InvalidArgumentError) as caught:
            cache.explain(tokens, namespace=namespace, other_namespaces=other_namespaces)
        assert caught.value.argument == argument


def test_missed_blocks_are_counted_by_cause() -> None:
    bench = Bench()
    bench.store([*A, 5])
    assert bench.missed() == (16, 0, 0)
    bench.store([*A, 5])
    assert bench.missed() == (16, 0, 0), "a full hit"
    bench.store([*A, 5, 6, 6, 6, 7, 7, 7, 7])
    assert bench.missed() == (24, 0, 0)
    bench.store(B)
    assert bench.missed() == (24, 8, 0)
    bench.cache.evict(100)
    bench.store([*A, 8, 8, 8, 8])
    assert bench.missed() == (28, 8, 16)
    bench.cache.acquire(A, share_prefix=False)
    assert bench.missed() == (28, 8, 16), "what shares nothing misses nothing"


def test_the_record_of_what_was_evicted_is_bounded_and_the_latest_is_in_it() -> None:
    bench = Bench(num_blocks=8)
    for number in range(20 * MIN_EDGES):
        bench.store([number, 1, 1, 1])
    assert bench.evicted([20 * MIN_EDGES - 20, 1, 1, 1]) == EvictedTokens(4, 11.0, "pressure")
    assert bench.evicted([0, 1, 1, 1]) is None


def test_the_record_is_small_beside_what_it_remembers() -> None:
    block_bytes = 64
    root = RootNode("default", NamespaceAccount(Partition(8, lambda _num_blocks: LRUPolicy())))
    keys = [number.to_bytes(4, "little") * 64 for number in range(40_000)]
    nodes = [Node(root, key, key[:block_bytes], root.blocks) for key in keys]
    taken_bytes = math.inf
    for _ in range(3):  # other threads of the process may take memory meanwhile
        record = EvictedBranches(16_384, 64)
        tracemalloc.start()
        for evicted in nodes:
            record.note(root.namespace, evicted, "pressure", 0.0)
        taken_bytes = min(taken_bytes, tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        if taken_bytes < 16_384 * 32:
            break
    num_kept = len(record)
    assert num_kept <= 16_384 / 8
    assert num_kept * len(keys[0]) <= 16_384 * 64 / 4
    assert taken_bytes < 16_384 * 32


def test_what_a_quota_cost_is_told_as_such() -> None:
    cache = PrefixCache(16, 2)
    cache.set_quota("tenant", 4)
    for first in range(1, 9):
        for namespace in ("tenant", "other"):
            seq = cache.acquire([first] * 4, namespace=namespace)
            cache.insert(seq.seq_id, 4)
            cache.release(seq.seq_id)
    told = cache.explain([1] * 4, namespace="tenant")
    assert (told.cause, told.evicted and told.evicted.reason) == ("evicted", "quota")
