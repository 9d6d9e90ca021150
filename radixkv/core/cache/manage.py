"""Calls that change a cache without a sequence, for any client with the right."""

from __future__ import annotations

from collections.abc import Sequence

from radixkv.core import validation
from radixkv.core.api import DEFAULT_NAMESPACE, ClearOp, NamespaceUsage, PinInfo, Retention, SetQuotaOp, Tier
from radixkv.core.cache.state import CacheState
from radixkv.core.errors import InvalidArgumentError, LimitError
from radixkv.core.inspect.below import forget_hashes
from radixkv.core.namespaces import owner_of
from radixkv.core.tokens import TOKEN_BYTES, TokensLike, pack_tokens
from radixkv.core.tree import allocation, quotas
from radixkv.core.tree.hints import HINTED_TIERS
from radixkv.core.tree.retain import retain_path
from radixkv.core.tree.roots import RootNode

__all__ = ["Management"]

MAX_CLEARED = 65_536
"""Namespaces that may be cleared before the first block of a pool is taken."""


class Management(CacheState):
    """Pins, retention, quotas and evictions of a `PrefixCache`."""

    def pin(self, tokens: TokensLike, *, ttl: float | str = "5m", namespace: str = DEFAULT_NAMESPACE) -> PinInfo:
        """Protect the cached prefix of `tokens` from eviction for `ttl`: seconds, ``"5m"`` or ``"1h"``.

        Each use, by an acquire or fork that has all of it stored, renews `ttl`; pinning it again sets a new `ttl`. After its
        end the branch is an ordinary one, as old as its last use. The answer has how much is cached and pinned now; where
        nothing is cached, nothing is pinned. O(path + pins of the namespace).

        Half of the pool's blocks may be pinned. Owners that have pins share them evenly. Idle parts of a share may be pinned
        by others; when its owner wants them, the newest pins of the owner furthest above its share end.

        Raises:
            InvalidArgumentError: unpackable tokens, a ttl out of its bound, a bad namespace.
            PinBudgetError: it exceeds the budget of the namespace's owner, or its share where nothing else is left to pin; the
                error lists the pins of this namespace. Nothing changed.
            OutOfBlocksError: the blocks to protect are promised to running sequences. Nothing changed.
        """
        self._enter()
        packed = pack_tokens(tokens)
        ttl_s = validation.check_ttl(ttl)
        root = self._forest.roots.get(validation.check_namespace(namespace))
        walk = None if root is None else self._forest.walk(root, packed)
        if root is None or walk is None or not walk.matched_bytes:
            return PinInfo(namespace, b"", 0, 0, ttl_s, 0.0)
        cached = packed[: walk.matched_bytes]
        self._pins.check(root, cached, walk, ttl_s)
        allocation.check_capacity(
            self._forest, owner_of(namespace), root.account, self._pins.lock_cost(root, cached, walk)
        )
        pin = self._pins.set(root, cached, walk, ttl_s)
        return pin.info(pin.expires_s - ttl_s)

    def unpin(self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE) -> bool:
        """End the pin of exactly these tokens, as `pin` answered and `pins` lists them; whether there was one. O(path).

        Raises:
            InvalidArgumentError: unpackable tokens, or a bad namespace.
        """
        self._enter()
        packed = pack_tokens(tokens)
        root = self._forest.roots.get(validation.check_namespace(namespace))
        pin = root.pins.get(packed) if root is not None else None
        if pin is not None:
            self._pins.drop(pin)
        return pin is not None

    def retain(self, tokens: TokensLike, *, retention: Sequence[Retention], namespace: str = DEFAULT_NAMESPACE) -> int:
        """Set the retention of ranges of `tokens`, as far as they are cached; returns how many of the tokens are.

        Of overlapping ranges the later counts; tokens outside every range keep their retention. A range of priority 35 has the
        default again. Does not count as a use: recency is unchanged, and only the given durations restart. O(path + ranges).

        Raises:
            InvalidArgumentError: unpackable tokens, a bad namespace, a range or a priority out of its bound.
        """
        self._enter()
        packed = pack_tokens(tokens)
        ranges = validation.check_retention(retention)
        root = self._forest.roots.get(validation.check_namespace(namespace))
        walk = None if root is None else self._forest.walk(root, packed)
        if root is None or walk is None or not walk.matched_bytes:
            return 0
        node = walk.node if walk.child is None else walk.child
        retain_path(self._forest, root, node, ranges, end_bytes=walk.matched_bytes)
        return walk.matched_bytes // TOKEN_BYTES

    def evict(self, num_blocks: int) -> int:
        """Evict unlocked leaves, of a longer one its end, until `num_blocks` blocks are freed; returns how many were.

        O(evicted · log leaves).

        Raises:
            InvalidArgumentError: a negative count.
        """
        self._enter()
        validation.check_int("num_blocks", num_blocks, 0)
        return allocation.evict(self._forest, num_blocks, "evict")

    def evict_branch(self, tokens: TokensLike, *, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Evict every node whose history begins with `tokens`, except for nodes locked by sequences and pins; returns how many
        blocks were freed.

        Whole nodes go, the one that `tokens` end in included. Where not all of `tokens` is cached nothing goes; without any,
        all of the namespace that is not locked. Unlike `clear` it ends no pin, and the paths of open sequences still match.
        O(tokens + nodes below).

        Raises:
            InvalidArgumentError: unpackable tokens, or a bad namespace.
        """
        self._enter()
        packed = pack_tokens(tokens)
        root = self._forest.roots.get(validation.check_namespace(namespace))
        was_cached = root is not None and self._forest.walk(root, packed).matched_bytes == len(packed)
        num_blocks = 0 if root is None else allocation.evict_branch(self._forest, root, packed)
        allocation.note_dropped(self._forest, namespace, packed, was_cached=was_cached)
        return num_blocks

    def clear(self, namespace: str = DEFAULT_NAMESPACE) -> int:
        """Forget a namespace and those derived of it: nothing of it matches any longer; returns how many blocks were freed now.

        Open sequences run on and go on sharing among themselves; the blocks they lock are freed when they end. A later adoption
        of the namespace is dropped too: its histories are older. O(namespaces + nodes + sequences).

        Raises:
            InvalidArgumentError: a bad namespace.
            LimitError: 65,536 others were cleared of a pool of which nothing was taken yet. Nothing changed.
        """
        self._enter()
        roots = self._forest.roots_of(validation.check_namespace(namespace))
        pool, cleared = self._forest.pool, {namespace: None, **{root.namespace: root for root in roots}}
        if not pool.can_claim:
            self._cleared.clear()  # adoptions no longer come
        elif len(self._cleared.keys() | cleared.keys()) > max(MAX_CLEARED, len(self._cleared)):
            raise LimitError(
                f"{MAX_CLEARED:,} namespaces were cleared before anything was cached; at most so many can be"
            )
        else:
            self._cleared |= {name: root or self._cleared.get(name) for name, root in cleared.items()}
        num_free = pool.num_free
        self._forest.journal.add(ClearOp(namespace))
        self._forest.record_hinted(self._forest.hints.clear(namespace))
        forget_hashes()
        for root in roots:
            self._clear_tree(root)
        return pool.num_free - num_free

    def _clear_tree(self, root: RootNode) -> None:
        del self._forest.roots[root.namespace]
        self._pins.drop_all(root)
        self._forest.record_cleared(root)
        self._forest.note_cleared(root)
        root.is_hidden = True
        self._forest.remove_unlocked(root)
        self._forest.forget_if_idle(root.namespace)
        if self._single_flight.is_active:
            for seq in self._sequences.values():
                if seq.root is root:
                    self._single_flight.ended(seq)

    def hint(
        self, tier: Tier, saved: Sequence[int] = (), lost: Sequence[int] = (), *, namespace: str = DEFAULT_NAMESPACE
    ) -> None:
        """Report whole blocks that lie below the pool, by the hashes that events have: `saved` since, or `lost`.

        For `match`, `explain`, `usage`, `stats` and events. A hint is never relied on. A repeat is harmless. Hints are bounded
        (`hints.MAX_HINTS`); beyond, the owner with the most loses its oldest. O(1) per hash.

        Args:
            tier: ``"host"`` or ``"disk"``.
            saved, lost: at most 65,536 each; a hash in both is saved.
            namespace: of the histories, or its owner.

        Raises:
            InvalidArgumentError: another tier, no hashes or too many, a bad namespace.
        """
        self._enter()
        if not isinstance(tier, str) or tier not in HINTED_TIERS:
            raise InvalidArgumentError("tier", tier, " or ".join(HINTED_TIERS))
        owner = owner_of(validation.check_namespace(namespace))
        hashes = validation.check_hashes("saved", saved), validation.check_hashes("lost", lost)
        self._forest.record_hinted(self._forest.hints.tell(tier, owner, *hashes))

    def set_quota(
        self, namespace: str = DEFAULT_NAMESPACE, blocks: int | None = None, sequences: int | None = None
    ) -> NamespaceUsage:
        """Give a namespace a partition of the pool, and bound its open sequences; None: no such bound.

        Derived namespaces count as its own. Its sequences and pins never use more than `blocks`, and no other namespace's
        sequences can use these blocks. Its cached branches may exceed the quota in idle blocks of others, and others may fill
        its idle blocks; they are evicted when the partition's owner needs the room. The namespaces without a quota share the
        rest of the pool. A quota below the present use stops new sequences, and none that runs. O(namespaces + nodes of its
        own).

        Raises:
            InvalidArgumentError: a bad namespace, or one that is derived of another, a negative number, or more blocks than the
                other quotas leave of the pool.
        """
        self._enter()
        validation.check_namespace(namespace)
        quotas.set_quota(self._forest, namespace, blocks, sequences)
        self._forest.journal.add(SetQuotaOp(namespace, blocks, sequences))
        return quotas.usage_of(self._forest, namespace)
