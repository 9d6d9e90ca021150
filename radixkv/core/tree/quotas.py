"""Setting quotas and reporting the usage of namespaces; see `accounts` for the meaning of a quota."""

from __future__ import annotations

from radixkv.core.api import NamespaceUsage
from radixkv.core.errors import InvalidArgumentError
from radixkv.core.namespaces import is_derived, owner_of
from radixkv.core.tree.accounts import NamespaceAccount, Partition
from radixkv.core.tree.forest import Forest
from radixkv.core.validation import check_int

__all__ = ["set_quota", "usage_of"]


def set_quota(forest: Forest, namespace: str, num_blocks: int | None, max_sequences: int | None) -> None:
    """Set both bounds of a namespace; None: no such bound. O(namespaces + nodes of its own).

    Raises:
        InvalidArgumentError: a derived namespace, a negative number, or more blocks than the other quotas leave. Nothing
            changed.
    """
    if is_derived(namespace):
        raise InvalidArgumentError("namespace", namespace, f"{owner_of(namespace)!r}, whose quota counts it")
    if max_sequences is not None:
        check_int("sequences", max_sequences, 0)
    account, common = forest.accounts.get(namespace), forest.partitions[0]
    if num_blocks is not None:
        own_now = account.partition.num_blocks if account is not None and account.has_quota else 0
        check_int("blocks", num_blocks, 0, common.num_blocks + own_now)
    account = forest.account_of(namespace)
    account.max_sequences = max_sequences
    if num_blocks is None:
        if account.has_quota:
            _close_partition(forest, account)
    elif account.has_quota:
        common.num_blocks += account.partition.num_blocks - num_blocks
        account.partition.num_blocks = num_blocks
    else:
        common.num_blocks -= num_blocks
        partition = Partition(num_blocks, forest.make_policy)
        forest.partitions.append(partition)
        account.has_quota = True
        account.move(partition, forest.leaves_of(account), has_priorities=account.has_priorities)
    forest.forget_if_idle(namespace)


def usage_of(forest: Forest, namespace: str) -> NamespaceUsage:
    """The usage of a namespace's owner; where it holds nothing zeros, but for the block-seconds that it has held. O(1)."""
    owner = owner_of(namespace)
    account = forest.find_account(owner)
    return NamespaceUsage(
        owner,
        account.num_held,
        account.num_in_use,
        account.num_sequences,
        account.partition.num_blocks if account.has_quota else None,
        account.max_sequences,
        account.num_query_tokens,
        account.num_hit_tokens,
        account.settle_held(),
        forest.hints.num("host", owner),
        forest.hints.num("disk", owner),
    )


def _close_partition(forest: Forest, account: NamespaceAccount) -> None:
    own, common = account.partition, forest.partitions[0]
    account.move(common, forest.leaves_of(account), has_priorities=account.has_priorities)
    account.has_quota = False
    forest.partitions.remove(own)
    common.num_blocks += own.num_blocks
