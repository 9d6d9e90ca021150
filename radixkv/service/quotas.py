"""The quotas of a service's pools: those it was started with, those set since, and those that each life of a pool gets."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from radixkv.core import validation
from radixkv.core.api import SetQuotaOp
from radixkv.core.errors import InvalidArgumentError, LimitError
from radixkv.core.namespaces import is_derived, owner_of

if TYPE_CHECKING:
    from radixkv.core.api import NamespaceUsage
    from radixkv.core.cache.prefix_cache import PrefixCache

__all__ = ["Quota", "QuotaBook", "check_quotas"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one namespace in a pool; see `PrefixCache.set_quota`.

    Attributes:
        namespace: owner of the quota.
        blocks: its partition of the pool, in blocks. percent: the same as a part of each pool, rounded down. Neither: it has
            no partition.
        sequences: most of its sequences open at a time; None: as many as fit.
    """

    namespace: str
    blocks: int | None = None
    percent: float | None = None
    sequences: int | None = None

    def __post_init__(self) -> None:
        validation.check_namespace(self.namespace)
        if is_derived(self.namespace):
            raise InvalidArgumentError(
                "namespace", self.namespace, f"{owner_of(self.namespace)!r}, whose quota counts it"
            )
        if self.blocks is not None:
            validation.check_int("blocks", self.blocks, 0, validation.MAX_NUM_BLOCKS)
        if self.percent is not None:
            if self.blocks is not None:
                raise InvalidArgumentError("percent", self.percent, "left out where blocks are given")
            if not 0 <= self.percent <= 100:
                raise InvalidArgumentError("percent", self.percent, "from 0 to 100")
        if self.sequences is not None:
            validation.check_int("sequences", self.sequences, 0, validation.MAX_SEQ_ID)

    @property
    def is_none(self) -> bool:
        """Whether it bounds nothing."""
        return self.blocks is None and self.percent is None and self.sequences is None

    def blocks_of(self, num_blocks: int) -> int | None:
        """Its partition of a pool of that many blocks."""
        return self.blocks if self.percent is None else int(num_blocks * self.percent / 100)


def check_quotas(quotas: Iterable[Quota]) -> None:
    """Check quotas of the same pools: no namespace twice, and no more than the whole pool in all.

    Raises:
        InvalidArgumentError: the repeated namespace, or the sum.
    """
    names: set[str] = set()
    percent = 0.0
    for quota in quotas:
        if quota.namespace in names:
            raise InvalidArgumentError("quotas", quota.namespace, "a list that names each namespace once")
        names.add(quota.namespace)
        percent += quota.percent or 0.0
    if percent > 100:
        raise InvalidArgumentError("quotas", f"{percent:g}% of each pool in all", "at most 100% of it between them")


class QuotaBook:
    """The wanted quotas of each pool, by its name, beyond the lives of the pools themselves.

    A quota that was set for a pool overrides the one that the service was started with, also one set to none, and one that the
    holder brings to a restarted service. A new life of a pool gets the wanted quotas. If they exceed a pool that is smaller
    than before or than expected, each partition is cut in the same proportion. The holder is served, every quota bounds as
    before or more tightly, and a warning is logged. A larger life later gets them whole.

    Args:
        quotas: those that the service was started with, for every pool.
        max_quotas: most namespaces with a quota in one pool.
        max_pools: number of pools whose set quotas are kept; of more, the oldest are dropped.
    """

    def __init__(self, quotas: Iterable[Quota], max_quotas: int, max_pools: int) -> None:
        self._given = {quota.namespace: quota for quota in quotas}
        self._max_quotas = max_quotas
        self._max_pools = max_pools
        self._set: OrderedDict[str, dict[str, Quota]] = OrderedDict()

    def furnish(self, pool_name: str, cache: PrefixCache) -> None:
        """Give a new life of a pool its quotas, and begin its journal with those that were set. O(quotas)."""
        num_blocks = cache.stats().num_blocks
        wanted = self._wanted(pool_name)
        shares = {quota.namespace: quota.blocks_of(num_blocks) for quota in wanted}
        total = sum(blocks or 0 for blocks in shares.values())
        if total > num_blocks:
            _log.warning(
                "pool %r has %d blocks and the quotas of its namespaces are %d: each is cut in proportion, and namespaces "
                "without one find no room; attach a larger pool, or lower a quota and restart the worker",
                pool_name,
                num_blocks,
                total,
            )
        for quota in wanted:
            blocks = shares[quota.namespace]
            if blocks is not None and total > num_blocks:
                blocks = blocks * num_blocks // total
            cache.set_quota(quota.namespace, blocks, quota.sequences)
        cache.journal.is_kept = True
        for quota in self._set.get(pool_name, {}).values():  # those not among a restarted service's own quotas
            cache.journal.add(SetQuotaOp(quota.namespace, quota.blocks, quota.sequences))

    def set(
        self, caches: Mapping[str, PrefixCache], namespace: str, blocks: int | None, sequences: int | None
    ) -> dict[str, NamespaceUsage]:
        """Set a quota in pools, and keep it for their later lives; returns the namespace's usage then, by pool.

        Args:
            caches: the pools by name. All are changed or none.
            namespace, blocks, sequences: as of `PrefixCache.set_quota`.

        Raises:
            InvalidArgumentError: as there. LimitError: too many namespaces would have a quota in one pool.
        """
        op = SetQuotaOp(namespace, blocks, sequences)
        for pool_name in caches:
            self.check_number(pool_name, op)
        if blocks is not None and len(caches) > 1:
            for pool_name, cache in caches.items():
                _check_room(pool_name, cache, namespace, blocks)
        usages = {pool_name: cache.set_quota(namespace, blocks, sequences) for pool_name, cache in caches.items()}
        for pool_name in caches:
            self.keep(pool_name, op, len(caches))
        return usages

    def _wanted(self, pool_name: str) -> list[Quota]:
        quotas = self._given | self._set.get(pool_name, {})
        return [quota for quota in quotas.values() if not quota.is_none]

    def check_number(self, pool_name: str, op: SetQuotaOp) -> None:
        """Raise `LimitError` where too many namespaces of a pool would have a quota. O(quotas)."""
        if op.blocks is None and op.sequences is None:
            return
        names = {quota.namespace for quota in self._wanted(pool_name)} - {op.namespace}
        if len(names) >= self._max_quotas:
            raise LimitError(f"{len(names)} namespaces of pool {pool_name!r} have a quota; the service takes no more")

    def keep(self, pool_name: str, op: SetQuotaOp, num_attached: int = 1) -> None:
        """Keep a quota that was set for later lives of its pool. O(1)."""
        quota = Quota(op.namespace, op.blocks, sequences=op.sequences)
        kept = self._set.setdefault(pool_name, {})
        kept[quota.namespace] = quota
        if quota.is_none and quota.namespace not in self._given:
            del kept[quota.namespace]  # there is nothing to override
        self._set.move_to_end(pool_name)
        if len(self._set) > max(self._max_pools, num_attached):
            self._set.popitem(last=False)


def _check_room(pool_name: str, cache: PrefixCache, namespace: str, num_blocks: int) -> None:
    others = sum(use.block_quota or 0 for use in cache.usage() if use.namespace != namespace)
    left = cache.stats().num_blocks - others
    if num_blocks > left:
        bound = f"at most {left}, which the other quotas leave of pool {pool_name!r}"
        raise InvalidArgumentError("blocks", num_blocks, bound)
