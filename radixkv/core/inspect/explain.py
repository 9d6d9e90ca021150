"""Causes of a miss: from the walk, the siblings where it parts, and the record of evictions.

    prompt     system prompt │ question A │ ...
    cached     system prompt ├ question B            parted: B is the sibling
                             └ ░░░░░░░░░░ ░░░        evicted: A was here

`explain` reports all causes of one prompt; `count_missed` counts the same causes at every acquire.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from radixkv.core.explanation import EvictedTokens, Explanation, MissCause, NamespaceMatch
from radixkv.core.inspect.below import count_below
from radixkv.core.inspect.counters import Counters
from radixkv.core.nodes.node import Node
from radixkv.core.tokens import TOKEN_BYTES
from radixkv.core.tree.accounts import NamespaceAccount
from radixkv.core.tree.forest import Forest, Walk
from radixkv.core.tree.roots import RootNode

__all__ = ["count_missed", "explain"]


def explain(forest: Forest, namespace: str, tokens: bytes, other_namespaces: Iterable[str]) -> Explanation:
    """Explain a prompt of one namespace, and find the best match among `other_namespaces`. A pure read.

    O(prefix bytes of each namespace + siblings there + evicted edges that agree).
    """
    root = forest.roots.get(namespace) or RootNode(namespace, NamespaceAccount(forest.partitions[0]))
    walk = forest.walk(root, tokens)
    matched_bytes = walk.matched_bytes
    siblings: list[Node] = []
    evicted = None
    cause: MissCause = "cached"
    if matched_bytes < len(tokens):
        siblings = list(_siblings(walk, tokens, forest.block_bytes))
        evicted = _evicted(forest, namespace, tokens, walk)
        cause = "evicted" if evicted else "parted" if siblings else "ended" if root.children else "empty"
    num_host_tokens, num_disk_tokens = count_below(forest, namespace, tokens, matched_bytes // TOKEN_BYTES)
    found = b""
    if siblings:
        nearest = max(siblings, key=lambda node: (node.lock_ref > 0, node.access_number))
        found = bytes(nearest.key[walk.common_bytes : walk.common_bytes + forest.block_bytes])
    return Explanation(
        num_prompt_tokens=len(tokens) // TOKEN_BYTES,
        num_tokens=matched_bytes // TOKEN_BYTES,
        cause=cause,
        wanted=tokens[matched_bytes : matched_bytes + forest.block_bytes],
        found=found,
        num_siblings=len(siblings),
        evicted=evicted,
        elsewhere=_elsewhere(forest, tokens, other_namespaces, matched_bytes),
        num_host_tokens=num_host_tokens,
        num_disk_tokens=num_disk_tokens,
    )


def count_missed(counters: Counters, forest: Forest, namespace: str, tokens: bytes, walk: Walk) -> None:
    """Count the unmatched whole blocks of a prompt: evicted before, parted from a sibling, or new. O(path)."""
    block_bytes = forest.block_bytes
    matched = walk.matched_bytes // block_bytes
    num_missed = (len(tokens) // block_bytes - matched) * forest.block_size
    if len(forest.evicted):
        recall = forest.evicted.recall(namespace, tokens, walk.child or walk.node, walk.matched_bytes)
        if recall is not None and recall.end_bytes // block_bytes > matched:
            num_evicted = (recall.end_bytes // block_bytes - matched) * forest.block_size
            counters.num_missed_evicted_tokens += num_evicted
            counters.num_missed_new_tokens += num_missed - num_evicted
            return
    if _has_siblings(walk, tokens, block_bytes):
        counters.num_missed_parted_tokens += num_missed
    else:
        counters.num_missed_new_tokens += num_missed


def _has_siblings(walk: Walk, tokens: bytes, block_bytes: int) -> bool:
    if walk.child is None:
        return bool(walk.node.children)
    return walk.common_bytes < len(walk.child.key) or any(_siblings(walk, tokens, block_bytes))


def _siblings(walk: Walk, tokens: bytes, block_bytes: int) -> Iterator[Node]:
    """Nodes that share the whole match and then part; of a tail matched to its end, others that share as much."""
    child, common = walk.child, walk.common_bytes
    if child is not None and common >= block_bytes:
        yield child
    elif walk.node.children:
        start = walk.node.end_bytes
        for node in walk.node.children.beginning_with(tokens[start : start + common]):
            if len(node.key) > common:
                yield node


def _evicted(forest: Forest, namespace: str, tokens: bytes, walk: Walk) -> EvictedTokens | None:
    recall = forest.evicted.recall(namespace, tokens, walk.child or walk.node, walk.matched_bytes)
    if recall is None:
        return None
    num_tokens = (recall.end_bytes - walk.matched_bytes) // TOKEN_BYTES
    return EvictedTokens(num_tokens, max(0.0, forest.clock() - recall.time_s), recall.reason)


def _elsewhere(
    forest: Forest, tokens: bytes, other_namespaces: Iterable[str], matched_bytes: int
) -> NamespaceMatch | None:
    """The longest match above `matched_bytes` in one of `other_namespaces`, of equals the first named; or None."""
    best, best_bytes = None, matched_bytes
    for name in other_namespaces:
        root = forest.roots.get(name)
        if root is not None and (found_bytes := forest.walk(root, tokens).matched_bytes) > best_bytes:
            best, best_bytes = name, found_bytes
    return None if best is None else NamespaceMatch(best, best_bytes // TOKEN_BYTES)
