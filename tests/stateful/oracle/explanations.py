"""What an explanation must say, from what the cache shows and what the oracle remembers: no tree, no record of evictions."""

from __future__ import annotations

from radixkv.core.api import CacheHolder, EvictionReason, Explanation
from radixkv.core.tokens import pack_tokens, unpack_tokens

from .oracle import Oracle, Tokens
from .snapshot import Snapshot

__all__ = ["check_explanation", "check_gone", "count_missed"]


def check_explanation(
    holder: CacheHolder, snapshot: Snapshot, oracle: Oracle, namespace: str, tokens: Tokens, also: tuple[str, ...] = ()
) -> Explanation:
    """Explain a prompt, and assert that all of the answer is true."""
    explanation = holder.explain(pack_tokens(tokens), namespace=namespace, other_namespaces=also)
    told = f"{tokens} in {namespace} is explained by {explanation}"
    size, num_tokens = oracle.block_size, explanation.num_tokens
    cached = snapshot.cached.get(namespace, set())
    assert explanation.num_prompt_tokens == len(tokens), told
    assert num_tokens == snapshot.match(namespace, tokens), told
    assert explanation.wanted == pack_tokens(tokens[num_tokens : num_tokens + size]), told
    goes_on = {
        history[num_tokens]
        for history in cached
        if len(history) == num_tokens + 1 and history[:num_tokens] == tokens[:num_tokens]
    }
    is_whole = num_tokens == len(tokens)
    assert (explanation.cause == "cached") == is_whole, told
    assert explanation.num_siblings >= len(goes_on) or is_whole, f"{told}, and {goes_on} go on there"
    found = tuple(unpack_tokens(explanation.found))
    assert bool(found) == bool(explanation.num_siblings) == (bool(goes_on) and not is_whole), told
    if found:
        assert found[0] in goes_on, told
        assert (*tokens[:num_tokens], *found) in cached, told
    if explanation.evicted is not None:
        end = num_tokens + explanation.evicted.num_tokens
        assert num_tokens < end <= len(tokens), told
        assert oracle.was_cached(namespace, tokens[:end]), f"{told}, and so much of it never was cached"
        assert explanation.evicted.ago_s >= 0, told
    causes = {"evicted": explanation.evicted is not None, "parted": bool(found), "ended": bool(cached), "empty": True}
    assert is_whole or explanation.cause == next(cause for cause, is_so in causes.items() if is_so), told
    _check_elsewhere(explanation, snapshot, tokens, also)
    return explanation


def _check_elsewhere(explanation: Explanation, snapshot: Snapshot, tokens: Tokens, also: tuple[str, ...]) -> None:
    most = max((snapshot.match(name, tokens) for name in also), default=0)
    elsewhere = explanation.elsewhere
    assert (elsewhere is not None) == (most > explanation.num_tokens), f"{most} tokens match in {also}: {explanation}"
    if elsewhere is not None:
        assert elsewhere.namespace in also
        assert elsewhere.num_tokens == snapshot.match(elsewhere.namespace, tokens) == most


def check_gone(holder: CacheHolder, before: Snapshot, after: Snapshot, oracle: Oracle, reason: EvictionReason) -> None:
    """Assert that of every whole block that has just gone it is told that it was cached, and why it went."""
    size = oracle.block_size
    for path in before.paths.values():
        whole = path.tokens[: len(path.tokens) // size * size]
        num_left = after.match(path.node.namespace, whole)
        is_gone = path.num_above < len(whole) and num_left < len(whole)
        if not is_gone or path.tokens in after.cached.get(path.node.namespace, ()):
            continue
        explanation = check_explanation(holder, after, oracle, path.node.namespace, whole)
        evicted = explanation.evicted
        assert evicted is not None, f"{whole} has gone and is explained by {explanation}"
        assert evicted.num_tokens == len(whole) - num_left, f"{whole} has gone and is explained by {explanation}"
        if before.match(path.node.namespace, whole[: num_left + 1]) > num_left:
            assert evicted.reason == reason, f"{whole} has gone by {reason} and is explained by {explanation}"


def count_missed(explanation: Explanation, block_size: int) -> tuple[int, int, int]:
    """What an acquire of that prompt adds to the tokens missed: those new, parted, evicted before."""
    start = explanation.num_tokens // block_size
    missed = (explanation.num_prompt_tokens // block_size - start) * block_size
    num_evicted = 0
    if explanation.evicted is not None:
        end = explanation.num_tokens + explanation.evicted.num_tokens
        num_evicted = (end // block_size - start) * block_size
    if num_evicted:
        return missed - num_evicted, 0, num_evicted
    return (0, missed, 0) if explanation.num_siblings else (missed, 0, 0)
