"""Setting quotas, and telling what namespaces have of the pool; see `shares` for what a quota means."""

from __future__ import annotations

from radixkv.core.api import NamespaceUsage
from radixkv.core.forest import Forest
from radixkv.core.shares import Account, Share
from radixkv.core.validation import check_int

__all__ = ["set_quota", "usage_of"]


def set_quota(forest: Forest, namespace: str, num_blocks: int | None, max_sequences: int | None) -> None:
    """Set both bounds of a namespace anew; None: no such bound. O(nodes of the namespace).

    Raises:
        InvalidArgumentError: a negative number, or more blocks than the other quotas leave. Nothing has changed.
    """
    if max_sequences is not None:
        check_int("sequences", max_sequences, 0)
    account, common = forest.accounts.get(namespace), forest.shares[0]
    if num_blocks is not None:
        own_now = account.share.num_blocks if account is not None and account.has_quota else 0
        check_int("blocks", num_blocks, 0, common.num_blocks + own_now)
    account = forest.account_of(namespace)
    account.max_sequences = max_sequences
    if num_blocks is None:
        if account.has_quota:
            _close_share(forest, namespace, account)
    elif account.has_quota:
        common.num_blocks += account.share.num_blocks - num_blocks
        account.share.num_blocks = num_blocks
    else:
        common.num_blocks -= num_blocks
        share = Share(num_blocks, forest.make_policy)
        forest.shares.append(share)
        account.has_quota = True
        _move(forest, namespace, account, share)
    forest.forget_if_idle(namespace)


def usage_of(forest: Forest, namespace: str) -> NamespaceUsage:
    """What a namespace has, nothing where it is not known. O(1)."""
    account = forest.accounts.get(namespace) or Account(forest.shares[0])
    return NamespaceUsage(
        namespace,
        account.num_held,
        account.num_in_use,
        account.num_sequences,
        account.share.num_blocks if account.has_quota else None,
        account.max_sequences,
        account.num_query_tokens,
        account.num_hit_tokens,
    )


def _close_share(forest: Forest, namespace: str, account: Account) -> None:
    own, common = account.share, forest.shares[0]
    _move(forest, namespace, account, common)
    account.has_quota = False
    forest.shares.remove(own)
    common.num_blocks += own.num_blocks


def _move(forest: Forest, namespace: str, account: Account, share: Share) -> None:
    """Put all that a namespace holds into another share; its leaves keep their recency."""
    old = account.share
    old.num_held -= account.num_held
    old.num_in_use -= account.num_in_use
    share.num_held += account.num_held
    share.num_in_use += account.num_in_use
    root = forest.roots.get(namespace)
    account.move(share, [] if root is None else forest.leaves(root), has_priorities=account.has_priorities)
